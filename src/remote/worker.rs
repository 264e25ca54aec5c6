//! The engine thread of a remote engine: one command after another, as the desk expects it of any engine.
//!
//! The state of a sequence is its token list. Jobs are done one after another, whatever sequence they belong to. A stop drops the request; what had come by then is in the state and nothing else, as with the
//! engine of this machine. A server that is away when the program starts is no failure: each question tries again.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use reqwest::Response;
use tokio::runtime::Runtime;

use super::RemoteOptions;
use super::chat::{self, Chunk, Draw, Event, Finished, Listed};
use super::client::{Answering, Client, Fault, cause, unless};
use super::codec::{Codec, Conversation};
use super::sse::Events;
use super::write::Writer;
use crate::base::grouped;
use crate::protocol::engine::{
    Cancel, Command, Ended, EngineEvent, EngineFault, Job, JobStats, LookedAt, MemoryInfo, ModelInfo, SequenceId,
    Steer, Steered, Token, Usage,
};
use crate::text::TextModel;

/// Commands that may wait.
const COMMANDS: usize = 4;
/// Over which the speed is told.
const WINDOW: Duration = Duration::from_secs(2);
/// Time for a dropped connection to be closed.
const CLOSING: Duration = Duration::from_millis(10);
/// A request is sent again without fields that were refused at most so often.
const REFUSALS: usize = 8;
/// Conversations at a time: they are only text.
const SEQUENCES: u32 = 16;
/// Models that are named when one has to be chosen.
const NAMED: usize = 8;

/// The engine thread as the desk holds it.
pub struct Engine {
    /// To it.
    pub commands: Sender<Command>,
    /// From it.
    pub events: Receiver<EngineEvent>,
    /// The thread.
    pub thread: JoinHandle<()>,
}

/// Starts the thread. `text` is [`super::text_model`]'s, which the desk uses too.
///
/// # Errors
/// The system has no thread to give.
pub fn spawn(options: RemoteOptions, text: &TextModel) -> std::io::Result<Engine> {
    let (commands, inbox) = bounded(COMMANDS);
    let (outbox, events) = unbounded();
    let tokenizer = text.tokenizer.clone();
    let thread = std::thread::Builder::new().name("remote engine".into()).spawn(move || {
        let made = Codec::new(tokenizer).and_then(|codec| Worker::new(options, codec, outbox.clone()));
        match made {
            Ok(worker) => worker.serve(&inbox),
            Err(why) => {
                // Nobody listens any more when the program is ending.
                let _ = outbox.send(EngineEvent::Failed { id: 0, fault: EngineFault::Fatal { why, code: 2 } });
            }
        }
    })?;
    Ok(Engine { commands, events, thread })
}

/// Asks a server for its models: their names.
///
/// # Errors
/// One line: it is not there, or no such server.
pub fn probe(options: &RemoteOptions) -> Result<String, String> {
    let client = Client::new(options)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    let models = runtime.block_on(client.models(&Cancel::default()));
    let models = models.map_err(|fault| line_of(fault).unwrap_or_default())?;
    let names: Vec<String> = models.iter().take(NAMED).map(|m| client.cleaned(&m.name)).collect();
    Ok(format!("{} answers; its models: {}.", client.shown, names.join(", ")))
}

struct Worker {
    client: Client,
    runtime: Runtime,
    codec: Codec,
    events: Sender<EngineEvent>,
    wanted: Option<String>,
    /// The model, once it is known.
    model: Option<Listed>,
    /// Tokens of the context where the server does not say it.
    context: Option<u64>,
    states: HashMap<SequenceId, Vec<Token>>,
    /// Fields that this server does not take.
    left_out: BTreeSet<&'static str>,
    /// It was said that a budget for thoughts does not hold there.
    said_budget: bool,
}

/// An answer that is being received.
struct Received<'a> {
    id: u64,
    writer: Writer<'a>,
    steer: Option<Box<dyn Steer>>,
    tokens: Vec<Token>,
    usage: Option<Usage>,
    ended: Option<Ended>,
    first: Option<Instant>,
    /// A budget for thoughts was spent.
    over_budget: bool,
    recent: VecDeque<(Instant, usize)>,
}

impl Worker {
    fn new(options: RemoteOptions, codec: Codec, events: Sender<EngineEvent>) -> Result<Worker, String> {
        let client = Client::new(&options)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| format!("no connections can be made: {e}"))?;
        let RemoteOptions { model: wanted, context, .. } = options;
        let (model, states, left_out, said_budget) = (None, HashMap::new(), BTreeSet::new(), false);
        Ok(Worker { client, runtime, codec, events, wanted, model, context, states, left_out, said_budget })
    }

    fn send(&self, event: EngineEvent) {
        // A desk that is gone closes the other channel too.
        let _ = self.events.send(event);
    }

    fn serve(mut self, commands: &Receiver<Command>) {
        self.send(EngineEvent::Loading { what: format!("asking {}", self.client.shown), done: 0.0 });
        let failed = self.find_model(&Cancel::default()).err().and_then(line_of);
        self.send(EngineEvent::Ready(self.info()));
        let failed = failed.map(|line| format!("{} Each question tries again.", sentence(&line)));
        for note in self.client.exposed_key().into_iter().chain(failed) {
            self.send(EngineEvent::Note(note));
        }
        let mut waiting: VecDeque<Command> = VecDeque::new();
        while let Some(command) = waiting.pop_front().or_else(|| commands.recv().ok()) {
            match command {
                Command::Restore { id, sequence, history, .. } => {
                    self.states.insert(sequence, history.to_vec());
                    self.send(EngineEvent::Restored { id, ms: 0.0 });
                }
                Command::Fork { id, from, to } => {
                    let state = self.states.get(&from).cloned().unwrap_or_default();
                    self.states.insert(to, state);
                    self.send(EngineEvent::Restored { id, ms: 0.0 });
                }
                Command::Release { sequence } => drop(self.states.remove(&sequence)),
                Command::Run(job) => match self.run(&job) {
                    Ok(done) => self.send(done),
                    Err(fault) => {
                        let fault = line_of(fault).map_or(EngineFault::Stopped, EngineFault::Device);
                        self.send(EngineEvent::Failed { id: job.id, fault: fault.clone() });
                        self.states.remove(&job.sequence);
                        waiting.extend(commands.try_iter());
                        waiting = self.without_lost(waiting, job.sequence, &fault);
                    }
                },
                Command::Shutdown => return,
            }
        }
    }

    /// What waits after a failure: jobs on the state that is lost fail too, up to the next one that is put in its place.
    fn without_lost(&self, waiting: VecDeque<Command>, lost: SequenceId, fault: &EngineFault) -> VecDeque<Command> {
        let mut is_lost = true;
        let mut left = VecDeque::new();
        for command in waiting {
            match &command {
                Command::Run(job) if is_lost && job.sequence == lost => {
                    self.send(EngineEvent::Failed { id: job.id, fault: fault.clone() });
                    continue;
                }
                Command::Restore { sequence: new, .. } | Command::Fork { to: new, .. } if *new == lost => {
                    is_lost = false
                }
                Command::Release { sequence } if *sequence == lost => is_lost = false,
                Command::Run(_)
                | Command::Restore { .. }
                | Command::Fork { .. }
                | Command::Release { .. }
                | Command::Shutdown => {}
            }
            left.push_back(command);
        }
        left
    }

    fn info(&self) -> ModelInfo {
        let name = self.model.as_ref().map(|m| m.name.clone()).or_else(|| self.wanted.clone());
        ModelInfo {
            name: self.client.cleaned(&name.unwrap_or_else(|| "unknown".to_owned())),
            device: self.client.shown.clone(),
            device_kind: "remote".to_owned(),
            context_limit: self.limit().unwrap_or(0),
            fingerprint: format!("text:{}", self.codec.tokenizer.hash()),
            max_sequences: SEQUENCES,
            server: Some(self.client.shown.clone()),
            ..ModelInfo::default()
        }
    }

    /// Which model answers: the one that was named, or the only one.
    fn find_model(&mut self, cancel: &Cancel) -> Result<(), Fault> {
        let listed = self.runtime.block_on(self.client.models(cancel));
        let shown = &self.client.shown;
        let model = match (&self.wanted, listed) {
            (Some(wanted), listed) => {
                let same = |m: &Listed| m.name == *wanted;
                let found = listed.ok().and_then(|all| all.into_iter().find(same));
                // A server need not list what it has; a wrong name it refuses.
                found.unwrap_or_else(|| Listed { name: wanted.clone(), context: None })
            }
            (None, Err(Fault::Stopped)) => return Err(Fault::Stopped),
            (None, Err(Fault::Refused { line, .. } | Fault::Failed(line))) => {
                return Err(Fault::Failed(format!("{} engine.model names a model without asking.", sentence(&line))));
            }
            (None, Ok(mut all)) => match (all.pop(), all.len()) {
                (None, _) => return Err(Fault::Failed(format!("{shown} has no model. Name one with engine.model."))),
                (Some(only), 0) => only,
                (Some(last), more) => {
                    let names = all.iter().take(NAMED).chain((more < NAMED).then_some(&last));
                    let names: Vec<String> = names.map(|m| self.client.cleaned(&m.name)).collect();
                    let names = names.join(", ");
                    let line = format!("{shown} has {} models ({names}). Choose one with engine.model.", more + 1);
                    return Err(Fault::Failed(line));
                }
            },
        };
        self.model = Some(model);
        Ok(())
    }

    fn run(&mut self, job: &Job) -> Result<EngineEvent, Fault> {
        let began = Instant::now();
        let mut state = self.states.remove(&job.sequence).unwrap_or_default();
        state.extend_from_slice(&job.prompt);
        let read = job.prompt.len() as u64;
        let Some(generate) = &job.generate else {
            if job.score.is_some() {
                return Err(Fault::Failed("internal error: a server scores no text".to_owned()));
            }
            self.states.insert(job.sequence, state);
            return Ok(done(job, Ended::Read, 0, JobStats { prefilled_tokens: read, ..JobStats::default() }));
        };
        if self.model.is_none() {
            self.find_model(&job.cancel)?;
            self.send(EngineEvent::Ready(self.info()));
        }
        let conversation = self.codec.conversation(&state).map_err(Fault::Failed)?;
        let codec = self.codec.clone();
        let mut received = Received {
            id: job.id,
            writer: Writer::new(&codec, conversation.in_thought),
            steer: generate.steering.as_ref().map(|s| (s.0)()),
            tokens: Vec::new(),
            usage: None,
            ended: None,
            first: None,
            over_budget: false,
            recent: VecDeque::new(),
        };
        let max_tokens = self.room(generate.max_tokens, state.len() as u64);
        let draw = Draw { sampling: generate.sampling, max_tokens };
        let ended = match self.answer(job, draw, &conversation, &mut received) {
            Ok(ended) => ended,
            Err(Fault::Stopped) => Ended::Cancelled,
            Err(fault) => return Err(fault),
        };
        if received.over_budget && !std::mem::replace(&mut self.said_budget, true) {
            let at = &self.client.shown;
            self.send(EngineEvent::Note(format!(
                "{at} cannot be told to end a thought: thinking_budget has no effect there."
            )));
        }
        let usage = received.usage;
        let limit = self.limit();
        let full = usage.zip(limit).is_some_and(|(u, limit)| u.prompt_tokens + u.completion_tokens >= limit);
        let ended = if ended == Ended::Length && full { Ended::Context } else { ended };
        state.extend_from_slice(&received.tokens);
        self.states.insert(job.sequence, state);
        let generated = received.tokens.len() as u64;
        let stats = JobStats {
            prefilled_tokens: read,
            prefill_ms: 0.0,
            generated_tokens: usage.map_or(generated, |u| u.completion_tokens),
            decode_ms: received.first.map_or(0.0, |first| first.elapsed().as_secs_f64() * 1000.0),
            usage,
            ..JobStats::default()
        };
        tracing::debug!(ms = began.elapsed().as_millis() as u64, generated, ?usage, "the server answered");
        Ok(done(job, ended, generated, stats))
    }

    /// Tokens of the context, where that is known.
    fn limit(&self) -> Option<u64> {
        self.model.as_ref().and_then(|m| m.context).or(self.context)
    }

    /// The limit of an answer that is sent; `None` leaves it to the server, which knows how much room is left. Servers refuse a
    /// limit beyond it, and how much it is can only be estimated here.
    fn room(&self, max_tokens: u64, used: u64) -> Option<u64> {
        let Some(limit) = self.limit() else { return Some(max_tokens) };
        let left = limit.saturating_sub(used).max(limit / 4);
        (max_tokens <= left).then_some(max_tokens)
    }

    /// Asks until a request is taken, and receives the answer.
    fn answer(
        &mut self,
        job: &Job,
        draw: Draw,
        conversation: &Conversation,
        received: &mut Received<'_>,
    ) -> Result<Ended, Fault> {
        for _ in 0..REFUSALS {
            let name = self.model.as_ref().map_or("", |m| m.name.as_str());
            let body = chat::body(name, conversation, draw, &self.left_out);
            let events = &self.events;
            let waits = |what: String| drop(events.send(EngineEvent::Waiting { id: job.id, what }));
            let result = self.runtime.block_on(async {
                let ended = match self.client.ask(&body, &job.cancel, &waits).await {
                    Ok(begun) => receive(&self.client, begun, &job.cancel, received, &|e| drop(events.send(e))).await,
                    Err(fault) => Err(fault),
                };
                // The connection of an answer that nobody wants any more is closed by a task of its own.
                tokio::time::sleep(CLOSING).await;
                ended
            });
            match result {
                Err(Fault::Refused { line, said }) => {
                    let fields = chat::refused_fields(&body, &said);
                    if fields.is_empty() {
                        return Err(Fault::Failed(line));
                    }
                    let names = fields.join(", ");
                    self.left_out.extend(fields);
                    let note = format!("{} does not take {names}: left out from now on.", self.client.shown);
                    self.send(EngineEvent::Note(note));
                }
                other => return other,
            }
        }
        Err(Fault::Failed(format!("{} refuses one field after another.", self.client.shown)))
    }
}

/// A line that another sentence follows.
fn sentence(line: &str) -> String {
    if line.ends_with(['.', '?', '!', '…']) { line.to_owned() } else { format!("{line}.") }
}

fn line_of(fault: Fault) -> Option<String> {
    match fault {
        Fault::Stopped => None,
        Fault::Refused { line, .. } | Fault::Failed(line) => Some(line),
    }
}

fn done(job: &Job, ended: Ended, generated: u64, stats: JobStats) -> EngineEvent {
    EngineEvent::Done {
        id: job.id,
        ended,
        prompt_in_state: job.prompt.len() as u64,
        generated_in_state: generated,
        image: None,
        stats,
        looked_at: LookedAt::default(),
        scored: Vec::new(),
        memory: MemoryInfo::default(),
    }
}

/// Reads an answer to its end. The whole of it is in `received` whatever becomes of it.
async fn receive(
    client: &Client,
    answering: Answering,
    cancel: &Cancel,
    received: &mut Received<'_>,
    tell: &dyn Fn(EngineEvent),
) -> Result<Ended, Fault> {
    let Answering { mut response, whole } = answering;
    let (mut events, mut bytes, mut data) = (Events::default(), Vec::new(), Vec::new());
    let mut told_done = false;
    while !told_done {
        let Some(piece) = piece(client, &mut response, cancel, received).await? else { break };
        if whole {
            bytes.extend_from_slice(&piece);
            if bytes.len() > WHOLE {
                return Err(Fault::Failed(format!("{} sends an answer without end.", client.shown)));
            }
            continue;
        }
        let pushed = events.push(&piece, &mut data);
        pushed.map_err(|_| Fault::Failed(format!("{} sends a line without end.", client.shown)))?;
        for event in data.drain(..) {
            told_done |= received.take(client, &event, tell)?;
            if received.ended == Some(Ended::Repeats) {
                return Ok(Ended::Repeats);
            }
        }
    }
    if whole {
        received.take(client, &String::from_utf8_lossy(&bytes), tell)?;
    } else if !told_done {
        // A line that never ended counts only if it says something: what was cut off in the middle does not.
        let _ = events.finish(&mut data);
        for event in data.drain(..) {
            let cut = matches!(chat::event(&event), Event::Strange);
            told_done |= !cut && received.take(client, &event, tell)?;
        }
    }
    match received.ended {
        Some(ended) => Ok(ended),
        None if told_done => Ok(Ended::Stop),
        None => Err(dropped(client, received, "")),
    }
}

/// Longest answer that comes as one object, in bytes.
const WHOLE: usize = 64 << 20;

/// The next bytes; `None` at the end.
async fn piece(
    client: &Client,
    response: &mut Response,
    cancel: &Cancel,
    received: &Received<'_>,
) -> Result<Option<Vec<u8>>, Fault> {
    // Until the first word the server may be reading, whatever it has sent.
    let limit = if received.first.is_some() { client.patience.stall } else { client.patience.first };
    match unless(cancel, limit, response.chunk()).await? {
        Some(Ok(piece)) => Ok(piece.map(|p| p.to_vec())),
        Some(Err(e)) if received.ended.is_some() => {
            tracing::debug!("behind the end of an answer: {}", client.cleaned(&cause(&e)));
            Ok(None)
        }
        Some(Err(e)) => Err(dropped(client, received, &format!(": {}", client.cleaned(&cause(&e))))),
        None => {
            let what = format!("{} has sent nothing for {} s (engine.stall_s).", client.shown, limit.as_secs_f64());
            Err(Fault::Failed(format!("{what} {}", kept(received))))
        }
    }
}

fn dropped(client: &Client, received: &Received<'_>, why: &str) -> Fault {
    Fault::Failed(format!("{} ended the connection in the middle of the answer{why}. {}", client.shown, kept(received)))
}

fn kept(received: &Received<'_>) -> String {
    match received.tokens.len() as u64 {
        0 => "Nothing of the answer had come.".to_owned(),
        n => format!("What had come (about {} tokens) is kept; /regen asks again.", grouped(n)),
    }
}

impl Received<'_> {
    /// Takes what one event says. True when it was the last.
    fn take(&mut self, client: &Client, data: &str, tell: &dyn Fn(EngineEvent)) -> Result<bool, Fault> {
        let chunk = match chat::event(data) {
            Event::Done => return Ok(true),
            Event::Chunk(chunk) => chunk,
            Event::Failed(said) => {
                let words = client.cleaned(&said);
                return Err(Fault::Failed(format!(
                    "{} failed while it answered: {} {}",
                    client.shown,
                    sentence(&words),
                    kept(self)
                )));
            }
            Event::Strange => {
                let what = format!("{} sends something that is no part of a chat.", client.shown);
                return Err(Fault::Failed(format!("{what} {}", kept(self))));
            }
        };
        let Chunk { thinking, text, finished, usage } = chunk;
        self.usage = usage.or(self.usage);
        let tokens = self.writer.push(&thinking, &text).map_err(|e| Fault::Failed(e.to_string()))?;
        self.write(tokens, tell);
        match finished {
            None => {}
            Some(Finished::Stop) => self.ended = self.ended.or(Some(Ended::Stop)),
            Some(Finished::Length) => self.ended = self.ended.or(Some(Ended::Length)),
            Some(Finished::Filtered) => {
                return Err(Fault::Failed(format!(
                    "{} does not let the answer go on (content filter). {}",
                    client.shown,
                    kept(self)
                )));
            }
        }
        Ok(false)
    }

    fn write(&mut self, tokens: Vec<Token>, tell: &dyn Fn(EngineEvent)) {
        if tokens.is_empty() {
            return;
        }
        let now = Instant::now();
        self.first.get_or_insert(now);
        let mut upto = tokens.len();
        if let Some(steer) = &mut self.steer {
            for (at, token) in tokens.iter().enumerate() {
                match steer.drawn(*token, false) {
                    Steered::Take => {}
                    // It is drawn elsewhere.
                    Steered::Instead(_) => self.over_budget = true,
                    Steered::Last => {
                        upto = at + 1;
                        self.ended = Some(Ended::Repeats);
                        break;
                    }
                }
            }
        }
        let mut tokens = tokens;
        tokens.truncate(upto);
        self.tokens.extend_from_slice(&tokens);
        self.recent.push_back((now, tokens.len()));
        while self.recent.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            self.recent.pop_front();
        }
        let since = self.recent.front().map_or(0.0, |(at, _)| now.duration_since(*at).as_secs_f64());
        // The first of the window is where its time begins.
        let counted: usize = self.recent.iter().skip(1).map(|(_, n)| n).sum();
        let tokens_per_s = if since > 0.0 { counted as f64 / since } else { 0.0 };
        tell(EngineEvent::Tokens { id: self.id, tokens, tokens_per_s, looked: Vec::new() });
    }
}
