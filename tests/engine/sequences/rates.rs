//! Chat during a read: how the time is shared. `--nocapture` prints the figures.

use std::time::Instant;

use super::*;

/// Tokens of a job during its time, by its events: (when, how many until then).
struct Watched {
    chat: Vec<(Instant, u64)>,
    read: Vec<(Instant, u64)>,
}

impl Watched {
    fn rate(marks: &[(Instant, u64)], until: Instant) -> f64 {
        let within = || marks.iter().filter(|(at, _)| *at <= until);
        match (within().next(), within().next_back()) {
            (Some(first), Some(last)) => (last.1 - first.1) as f64 / last.0.duration_since(first.0).as_secs_f64(),
            _ => 0.0,
        }
    }
}

impl Harness {
    /// Until job `last` has ended: what jobs 1 (chat) and 2 (read) did meanwhile.
    fn watch(&self, last: u64) -> Watched {
        let mut seen = Watched { chat: Vec::new(), read: Vec::new() };
        let mut tokens_so_far = 0;
        loop {
            match self.engine.events.recv_timeout(PATIENCE).unwrap() {
                EngineEvent::Tokens { id: 1, tokens, .. } => {
                    tokens_so_far += tokens.len() as u64;
                    seen.chat.push((Instant::now(), tokens_so_far));
                }
                EngineEvent::Reading { id: 2, done, .. } => seen.read.push((Instant::now(), done)),
                EngineEvent::Done { id, .. } if id == last => return seen,
                EngineEvent::Failed { fault, .. } => panic!("{fault}"),
                _ => {}
            }
        }
    }

    /// It writes on and on.
    fn chat(&self, tokens: u64, cancel: &Cancel) -> Command {
        let request =
            Request { prompt: self.question("Tell me of the sea."), seed: Some(3), spec: SpecMode::Off, tokens };
        let mut command = self.job(1, SequenceId(1), &request, cancel);
        if let Command::Run(Job { generate: Some(generate), .. }) = &mut command {
            generate.stop.clear();
        }
        command
    }
}

#[test]
fn chat_continues_during_a_read_within_one_chunk() {
    let h = Harness::start();
    let document = h.question(&"The lamp is in the attic, the keys are in the blue box. ".repeat(800));
    let read = Request { prompt: document.clone(), seed: None, spec: SpecMode::Off, tokens: 0 };
    let far = Instant::now() + PATIENCE;
    h.send(h.job(2, SequenceId(2), &read, &Cancel::default()));
    let read_alone = Watched::rate(&h.watch(2).read, far);
    h.send(h.chat(200, &Cancel::default()));
    let chat_alone = Watched::rate(&h.watch(1).chat, far);
    // Both.
    let cancel = Cancel::default();
    h.empty(90, SequenceId(1));
    h.send(h.chat(10_000, &cancel));
    h.empty(91, SequenceId(2));
    h.send(h.job(2, SequenceId(2), &read, &Cancel::default()));
    let both = h.watch(2);
    cancel.cancel();
    let end = both.read.last().unwrap().0;
    let (chat, reading) = (Watched::rate(&both.chat, end), Watched::rate(&both.read, end));
    h.watch(1);
    // A short question while a document is read alone.
    h.empty(92, SequenceId(2));
    h.send(h.job(2, SequenceId(2), &read, &Cancel::default()));
    while !matches!(h.engine.events.recv_timeout(PATIENCE).unwrap(), EngineEvent::Reading { id: 2, .. }) {}
    h.empty(93, SequenceId(1));
    let sent_at = Instant::now();
    h.send(h.chat(1, &Cancel::default()));
    let first = h.watch(1).chat[0].0.duration_since(sent_at);
    let read_again = Watched::rate(&h.watch(2).read, far);
    println!(
        "chat {chat:.1} of {chat_alone:.1} t/s alone; read {reading:.0} of {read_alone:.0} t/s alone; first token {first:.0?}"
    );
    // A chunk is never much more than its time at the rate that was measured, and the answer is in every turn. Others that are at work on
    // this machine may have slowed one of the reads.
    let fastest = read_alone.max(read_again);
    let chunks: Vec<u64> = both.read.windows(2).map(|pair| pair[1].1 - pair[0].1).collect();
    let most = chunks.iter().copied().max().unwrap_or_default();
    assert!(most as f64 <= (fastest * 0.25).max(256.0), "a chunk of {most} tokens at {fastest:.0} t/s");
    let rounds = both.chat.iter().filter(|(at, _)| *at <= end && *at >= both.read[0].0).count();
    assert!(rounds + 2 >= chunks.len(), "{rounds} rounds beside {} chunks", chunks.len());
    assert!(first < Duration::from_secs(5), "{first:?}");
}
