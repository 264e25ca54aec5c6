//! Driving the engine: one job or restore at a time, while requests and saves go on. Knows tokens, not text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::link::JobEnd;
use super::path::Path;
use super::run::Event;
use super::{DeskError, Done, State};
use crate::protocol::desk::Activity;
use crate::protocol::engine::{CheckpointImage, Command, EngineEvent, EngineFault, Generate, Job, RowSource, Token};
use crate::session::StoredRows;

/// How often a running job gets a chance to save and to refresh its times.
const TICK: Duration = Duration::from_millis(500);

/// Looks at a job while it runs.
pub(super) trait Watch {
    /// Prefill went on.
    fn reading(&mut self, _desk: &mut State, _done: u64, _total: u64, _tokens_per_s: f64) {}
    /// A round of decoding.
    fn tokens(&mut self, _desk: &mut State, _tokens: &[Token], _tokens_per_s: f64) {}
    /// Now and then.
    fn tick(&mut self, _desk: &mut State) {}
}

impl State {
    /// Runs one segment on top of the live state. The caller records it in the live path.
    pub(super) fn run_job(
        &mut self,
        given: Vec<Token>,
        generate: Option<Generate>,
        export: bool,
        watch: &mut dyn Watch,
    ) -> Done<JobEnd> {
        let id = self.link.id();
        let cancel = self.cancel.clone();
        self.command(Command::Run(Job { id, given, generate, export, cancel }))?;
        let mut generated = Vec::new();
        let mut tick = Instant::now() + TICK;
        loop {
            let event = self.next(Some(tick));
            if Instant::now() >= tick {
                watch.tick(self);
                tick = Instant::now() + TICK;
            }
            match event {
                Event::Request(r) => self.on_busy_request(r),
                Event::Save(e) => self.on_save(e),
                Event::Tick if generated.is_empty() => {
                    self.show_rows_coming(self.live.position());
                }
                Event::Tick => {}
                Event::Engine(EngineEvent::Reading { id: of, done, total, tokens_per_s }) if of == id => {
                    self.meters.prefill_tokens_per_s = tokens_per_s;
                    watch.reading(self, done, total, tokens_per_s);
                }
                Event::Engine(EngineEvent::Tokens { id: of, tokens, tokens_per_s }) if of == id => {
                    self.meters.tokens_per_s = tokens_per_s;
                    watch.tokens(self, &tokens, tokens_per_s);
                    generated.extend_from_slice(&tokens);
                }
                Event::Engine(EngineEvent::Done {
                    id: of,
                    ended,
                    given_in_state,
                    generated_in_state,
                    image,
                    stats,
                    memory,
                }) if of == id => {
                    self.meters.model.memory = memory;
                    self.meters.spec.add(&stats.spec);
                    if stats.prefilled_tokens > 0 && stats.prefill_ms > 0.0 {
                        self.meters.prefill_tokens_per_s = stats.prefilled_tokens as f64 * 1000.0 / stats.prefill_ms;
                    }
                    let generated_in_state = (generated_in_state as usize).min(generated.len());
                    return Ok(JobEnd {
                        ended,
                        given_in_state: given_in_state as usize,
                        generated,
                        generated_in_state,
                        image,
                        stats,
                    });
                }
                Event::Engine(e) => self.on_engine_failure(id, e)?,
            }
        }
    }

    /// Makes the live state equal `target`: `rows` follow the first `keep` tokens. Returns how long the engine took.
    pub(super) fn run_restore(
        &mut self,
        target: &Path,
        keep: u64,
        rows: Vec<Arc<dyn RowSource>>,
        end: Option<CheckpointImage>,
    ) -> Done<f64> {
        let id = self.link.id();
        self.command(Command::Restore { id, keep, rows, end, history: target.tokens() })?;
        loop {
            match self.next(Some(Instant::now() + TICK)) {
                Event::Request(r) => self.on_busy_request(r),
                Event::Save(e) => self.on_save(e),
                Event::Tick => self.show_rows_coming(target.position()),
                Event::Engine(EngineEvent::Restored { id: of, ms }) if of == id => {
                    self.live = target.clone();
                    return Ok(ms);
                }
                Event::Engine(e) => self.on_engine_failure(id, e)?,
            }
        }
    }

    /// Progress of the rows on their way, while somebody waits for them.
    fn show_rows_coming(&mut self, tokens: u64) {
        let sum = |of: fn(&StoredRows) -> usize| -> usize { self.coming.iter().map(|rows| of(rows)).sum() };
        let (read, all) = (sum(StoredRows::read_bytes), sum(StoredRows::bytes));
        if read < all {
            let share = Some(read as f64 / all as f64);
            self.working(Activity::Restoring { tokens, share });
        }
    }

    fn command(&mut self, command: Command) -> Done {
        if self.link.send(command) {
            return Ok(());
        }
        let why = "The engine is gone. Text is safe; start sala-chat again and /resume last.".to_owned();
        let fault = EngineFault::Fatal { why, code: 1 };
        self.engine_failed(&fault);
        Err(fault.into())
    }

    /// Whatever failed, the engine's state is empty; after some failures there is no engine.
    pub(super) fn engine_failed(&mut self, fault: &EngineFault) {
        self.live = Path::default();
        self.coming.clear();
        if let EngineFault::Fatal { why, code } = fault {
            self.link.down(why.clone(), *code);
        }
    }

    /// Ends the wait for `id` if `event` says that it failed; other events are late ones of work given up.
    fn on_engine_failure(&mut self, id: u64, event: EngineEvent) -> Done {
        match event {
            EngineEvent::Failed { id: of, fault } if of == id || matches!(fault, EngineFault::Fatal { .. }) => {
                self.engine_failed(&fault);
                Err(match fault {
                    EngineFault::Stopped => DeskError::Stopped,
                    fault => fault.into(),
                })
            }
            EngineEvent::Failed { .. }
            | EngineEvent::Loading { .. }
            | EngineEvent::Ready(_)
            | EngineEvent::Restored { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::Tokens { .. }
            | EngineEvent::Done { .. } => Ok(()),
        }
    }
}
