//! A scripted engine: same commands and events as the real one, no model. Its "recurrent state" is a hash over the
//! segment path, its KV rows are the tokens, and its answers can depend on that hash: a runtime that restores anything
//! wrongly gets another answer, or the fake refuses.

mod figures;
mod state;

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use figures::{likely, look, score, scored_likely};
use sala_chat::engine::protocol::{
    Command, Constrain, Ended, EngineEvent, EngineFault, Job, JobDone, JobStats, Looked, MAIN, MemoryInfo, ModelInfo,
    SequenceId, Steered, Token,
};
use sala_chat::text::{Before, TextModel};
use state::{State, restore};

/// What ends an answer under a constraint soonest.
fn shortest(constrain: &mut dyn Constrain, accepted: usize) -> Option<Token> {
    static TEXT: LazyLock<TextModel> = LazyLock::new(|| super::text_model(None));
    let tokenizer = &TEXT.tokenizer;
    let spell = |token| tokenizer.spell(&[token], Before::Text);
    let stop = tokenizer.stop_ids(&[]);
    super::closing::next(&mut |t| constrain.allows(t), &spell, tokenizer.max_id, &stop, accepted)
}

/// In an answer: no token is allowed here, as under a stuck grammar.
pub const STUCK: Token = Token::MAX;

/// What the fake answers, given (state hash, all tokens in the state): the tokens it "draws".
pub type Script = Box<dyn FnMut(&str, &[Token]) -> Vec<Token> + Send>;

/// How the fake behaves.
pub struct Options {
    /// Answers.
    pub script: Script,
    /// Limit it reports.
    pub context_limit: u64,
    /// Fingerprint it reports.
    pub fingerprint: String,
    /// Given: one permit is taken before each chunk of 64 given tokens and before each generated token.
    pub gate: Option<Receiver<()>>,
    /// Rows of a restore are only read when the next job runs, as a GPU may do.
    pub late: bool,
    /// The first time they never arrive at all.
    pub never: bool,
    /// Sequences it says it has, and those it has memory for.
    pub sequences: u32,
    pub room: u32,
    /// What the model is called.
    pub name: &'static str,
    /// An answer begins with its seed.
    pub seeds: Option<TextModel>,
    /// Its sequences work side by side, each in its own thread; only those of these numbers wait at the gate.
    pub side_by_side: Option<&'static [u32]>,
}

/// The other side of the channels.
pub struct Fake {
    /// To the engine.
    pub commands: Sender<Command>,
    /// From the engine.
    pub events: Receiver<EngineEvent>,
    /// Every job it ran: (given, generated) in the state afterwards.
    pub log: Receiver<(Vec<Token>, Vec<Token>)>,
    /// Its thread.
    pub thread: JoinHandle<()>,
}

/// Waits for a permit; false when the job was cancelled first.
fn permit(gate: Option<&Receiver<()>>, job: &Job) -> bool {
    loop {
        if job.cancel.is_cancelled() {
            return false;
        }
        let Some(gate) = gate else { return true };
        match gate.recv_timeout(Duration::from_millis(2)) {
            Ok(()) => return true,
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => return true,
        }
    }
}

fn run(
    state: &mut State,
    job: &Job,
    o: &mut Options,
    out: &Sender<EngineEvent>,
) -> (EngineEvent, Vec<Token>, Vec<Token>) {
    let from = state.tokens.len();
    state.mix(9, 0);
    let (mut given, mut generated) = (0u64, Vec::new());
    let mut ended = Ended::Read;
    for chunk in job.prompt.chunks(64) {
        if !permit(o.gate.as_ref(), job) {
            ended = Ended::Cancelled;
            break;
        }
        for t in chunk {
            state.absorb(0, *t);
        }
        given += chunk.len() as u64;
        let _ = out.send(EngineEvent::Reading {
            id: job.id,
            done: given,
            total: job.prompt.len() as u64,
            tokens_per_s: 1000.0,
        });
    }
    let (mut last_outside, mut written, mut stuck) = (None, Vec::new(), false);
    let context = state.tokens.clone();
    if let (Some(g), Ended::Read) = (&job.generate, ended) {
        let mut steer = g.steering.as_ref().map(|s| (s.0)());
        let mut constraint = g.constraint.as_ref().map(|c| (c.0)(&context));
        let seed = |text: &TextModel| {
            let seed = format!("seed {} ", g.sampling.seed);
            text.tokenizer.encode_after(&seed, Before::Text).unwrap()
        };
        let seed = o.seeds.as_ref().map(seed).unwrap_or_default();
        let mut answer = seed.into_iter().chain((o.script)(&state.hash.to_hex(), &state.tokens));
        ended = loop {
            if !permit(o.gate.as_ref(), job) {
                break Ended::Cancelled;
            }
            if generated.len() as u64 + u64::from(last_outside.is_some()) >= g.max_tokens {
                break Ended::Length;
            }
            if state.tokens.len() as u64 + 1 >= o.context_limit {
                break Ended::Context;
            }
            // Like the real one: drawing the next token folds the one before it in.
            if let Some(t) = last_outside.take() {
                state.absorb(1, t);
                generated.push(t);
            }
            let next = answer.next();
            let next = match &mut constraint {
                None => next.filter(|t| !g.stop.contains(t)),
                Some(c) => {
                    let drawn = next.filter(|t| c.allows(*t)).or_else(|| shortest(c.as_mut(), written.len()));
                    drawn.filter(|t| !g.stop.contains(t)).inspect(|t| c.accept(*t))
                }
            };
            match next {
                None => break Ended::Stop,
                Some(STUCK) => {
                    stuck = true;
                    break Ended::Stop;
                }
                Some(t) => {
                    let (t, last) = match steer.as_mut().map_or(Steered::Take, |s| s.drawn(t, false)) {
                        Steered::Take => (t, false),
                        Steered::Instead(other) => (other, false),
                        Steered::Last => (t, true),
                    };
                    last_outside = Some(t);
                    written.push(t);
                    // The first token is drawn from the last row that was read.
                    let looks = match g.look.each_token && written.len() > 1 {
                        true => {
                            vec![Looked {
                                tokens: 1,
                                ..look(&context, &written[written.len().saturating_sub(4)..]).answer
                            }]
                        }
                        false => Vec::new(),
                    };
                    let _ = out.send(EngineEvent::Tokens {
                        id: job.id,
                        tokens: vec![t],
                        tokens_per_s: 100.0,
                        looked: looks,
                        likely: g.likely.map(|most| likely(t, most)).into_iter().collect(),
                    });
                    if last {
                        break Ended::Repeats;
                    }
                }
            }
        };
    }
    if stuck {
        *state = State::empty();
        let failed = EngineEvent::Failed { id: job.id, fault: EngineFault::Stuck("nothing may come next".into()) };
        return (failed, job.prompt[..given as usize].to_vec(), generated);
    }
    let stats = JobStats {
        prefilled_tokens: given,
        prefill_ms: given as f64,
        generated_tokens: generated.len() as u64 + u64::from(last_outside.is_some()),
        decode_ms: 1.0,
        ..JobStats::default()
    };
    let done = JobDone {
        ended,
        prompt_in_state: given,
        generated_in_state: generated.len() as u64,
        image: job.export.then(|| state.image(from)),
        stats,
        looked_at: look(&context, &generated),
        likely: job.score.as_ref().map(scored_likely).unwrap_or_default(),
        scored: job
            .score
            .as_ref()
            .map(|s| s.hidden.iter().map(|h| score(&context, &s.tokens, h)).collect())
            .unwrap_or_default(),
        memory: MemoryInfo::default(),
    };
    let done = EngineEvent::Done { id: job.id, done: Box::new(done) };
    (done, job.prompt[..given as usize].to_vec(), generated)
}

/// Starts the thread.
pub fn spawn(mut o: Options) -> Fake {
    let (commands, inbox) = bounded::<Command>(16);
    let (out, events) = unbounded();
    let (log_in, log) = unbounded();
    let thread = std::thread::spawn(move || {
        let _ = out.send(EngineEvent::Ready(ModelInfo {
            name: o.name.into(),
            built_in: o.name == "demo",
            device: "CPU, 1 thread".into(),
            device_kind: "cpu".into(),
            dtype: "f32".into(),
            context_limit: o.context_limit,
            fingerprint: o.fingerprint.clone(),
            max_sequences: o.sequences,
            ..ModelInfo::default()
        }));
        match o.side_by_side.take() {
            Some(gated) => side_by_side(o, gated, &inbox, &out, &log_in),
            None => one_by_one(&mut o, &inbox, &out, &log_in),
        }
    });
    Fake { commands, events, log, thread }
}

type Log = Sender<(Vec<Token>, Vec<Token>)>;

/// The sequence a command needs room for.
fn wants(command: &Command) -> Option<(u64, SequenceId)> {
    match command {
        Command::Restore { id, sequence, .. } | Command::Fork { id, to: sequence, .. } => Some((*id, *sequence)),
        Command::Run(job) => Some((job.id, job.sequence)),
        Command::Release { .. } | Command::MayEvict { .. } | Command::Shutdown | Command::Park | Command::Unpark => {
            None
        }
    }
}

/// Says so where there is no room for one more than those that are there, MAIN among them or not.
fn refused(room: u32, known: &mut dyn Iterator<Item = SequenceId>, id: u64, out: &Sender<EngineEvent>) -> bool {
    let full = known.filter(|s| *s != MAIN).count() as u32 + 1 >= room;
    if full {
        let fault = EngineFault::Device("no memory for another conversation".into());
        let _ = out.send(EngineEvent::Failed { id, fault });
    }
    full
}

fn one_by_one(o: &mut Options, inbox: &Receiver<Command>, out: &Sender<EngineEvent>, log: &Log) {
    let mut states: BTreeMap<SequenceId, State> = BTreeMap::new();
    // Sequences that may be evicted, in the order of last use, and those that were.
    let (mut idle, mut evicted): (Vec<SequenceId>, Vec<SequenceId>) = (Vec::new(), Vec::new());
    for command in inbox {
        match &command {
            Command::Run(job) if evicted.contains(&job.sequence) => {
                let _ = out.send(EngineEvent::Failed { id: job.id, fault: EngineFault::Evicted });
                continue;
            }
            Command::Run(job) => idle.retain(|s| *s != job.sequence),
            Command::Restore { sequence, .. } | Command::Fork { to: sequence, .. } | Command::Release { sequence } => {
                idle.retain(|s| s != sequence);
                evicted.retain(|s| s != sequence);
            }
            Command::MayEvict { sequence } if *sequence != MAIN => idle.push(*sequence),
            Command::MayEvict { .. } | Command::Shutdown | Command::Park | Command::Unpark => {}
        }
        // A sequence there is no room for fails, the others go on.
        if let Some((id, sequence)) = wants(&command).filter(|(_, s)| *s != MAIN && !states.contains_key(s)) {
            if states.keys().filter(|s| **s != MAIN).count() as u32 + 1 >= o.room && !idle.is_empty() {
                let sequence = idle.remove(0);
                states.remove(&sequence);
                evicted.push(sequence);
                let _ = out.send(EngineEvent::Evicted { sequence });
            }
            if refused(o.room, &mut states.keys().copied(), id, out) {
                continue;
            }
            states.insert(sequence, State::empty());
        }
        match command {
            Command::Shutdown => return,
            Command::Fork { id, from, to } => {
                let copy = states.get(&from).cloned().unwrap_or_else(State::empty);
                states.insert(to, copy);
                let _ = out.send(EngineEvent::Restored { id, ms: 1.0 });
            }
            Command::MayEvict { .. } | Command::Park | Command::Unpark => {}
            Command::Release { sequence } => {
                states.remove(&sequence);
            }
            Command::Restore { sequence, .. } | Command::Run(Job { sequence, .. }) => {
                serve(states.entry(sequence).or_insert_with(State::empty), command, o, out, log);
            }
        }
    }
}

/// A restore or a job.
fn serve(state: &mut State, command: Command, o: &mut Options, out: &Sender<EngineEvent>, log: &Log) {
    match command {
        Command::Restore { id, keep, rows, end, history, .. } => {
            let event = match restore(state, keep, &rows, end.as_ref(), &history, o.late) {
                Ok(()) => EngineEvent::Restored { id, ms: 1.0 },
                Err(fault) => {
                    *state = State::empty();
                    EngineEvent::Failed { id, fault }
                }
            };
            let _ = out.send(event);
        }
        Command::Run(job) => {
            assert!(state.live);
            // Rows that never arrive: only a stop ends the wait.
            if o.never && !state.coming.is_empty() {
                while !job.cancel.is_cancelled() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                *state = State::empty();
                let _ = out.send(EngineEvent::Failed { id: job.id, fault: EngineFault::Stopped });
                o.never = false;
                return;
            }
            let mut coming = state.coming.drain(..);
            if let Some(lost) = coming.find_map(|r| r.load("k.0").err()) {
                drop(coming);
                *state = State::empty();
                let _ = out.send(EngineEvent::Failed { id: job.id, fault: EngineFault::RowsLost(lost) });
                return;
            }
            drop(coming);
            let (done, given, generated) = run(state, &job, o, out);
            let _ = log.send((given, generated));
            let _ = out.send(done);
        }
        Command::Fork { .. }
        | Command::Release { .. }
        | Command::MayEvict { .. }
        | Command::Shutdown
        | Command::Park
        | Command::Unpark => {
            unreachable!("of no one sequence")
        }
    }
}

/// Orders to a sequence's thread.
enum Order {
    Do(Box<Command>),
    /// Sends its state there, after all earlier orders.
    Give(Sender<State>),
    /// Replaces its state by the one received.
    Become(u64, Receiver<State>),
}

fn side_by_side(o: Options, gated: &[u32], inbox: &Receiver<Command>, out: &Sender<EngineEvent>, log: &Log) {
    let script = Arc::new(std::sync::Mutex::new(o.script));
    let mut threads: BTreeMap<SequenceId, Sender<Order>> = BTreeMap::new();
    let start = |sequence: SequenceId| {
        let (orders, of) = unbounded::<Order>();
        let (out, log, script) = (out.clone(), log.clone(), Arc::clone(&script));
        let mut mine = Options {
            script: Box::new(move |hash, tokens| (script.lock().unwrap())(hash, tokens)),
            fingerprint: o.fingerprint.clone(),
            gate: o.gate.clone().filter(|_| gated.contains(&sequence.0)),
            seeds: o.seeds.clone(),
            side_by_side: None,
            ..o
        };
        std::thread::spawn(move || {
            let mut state = State::empty();
            for order in of {
                match order {
                    Order::Do(command) => serve(&mut state, *command, &mut mine, &out, &log),
                    Order::Give(to) => drop(to.send(state.clone())),
                    Order::Become(id, from) => {
                        state = from.recv().unwrap();
                        let _ = out.send(EngineEvent::Restored { id, ms: 1.0 });
                    }
                }
            }
        });
        orders
    };
    for command in inbox {
        if let Some((id, _)) = wants(&command).filter(|(_, s)| *s != MAIN && !threads.contains_key(s))
            && refused(o.room, &mut threads.keys().copied(), id, out)
        {
            continue;
        }
        match command {
            Command::Shutdown => return,
            Command::MayEvict { .. } | Command::Park | Command::Unpark => {}
            Command::Release { sequence } => drop(threads.remove(&sequence)),
            Command::Fork { id, from, to } => {
                let (give, become_) = bounded(1);
                let _ = threads.entry(from).or_insert_with(|| start(from)).send(Order::Give(give));
                let _ = threads.entry(to).or_insert_with(|| start(to)).send(Order::Become(id, become_));
            }
            Command::Restore { sequence, .. } | Command::Run(Job { sequence, .. }) => {
                let thread = threads.entry(sequence).or_insert_with(|| start(sequence));
                let _ = thread.send(Order::Do(Box::new(command)));
            }
        }
    }
}
