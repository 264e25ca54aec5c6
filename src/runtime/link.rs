//! The engine as all conversations share it: channels, state, slots in use, and the model's text side. A slot is one of
//! its sequences, with the segments that its state has absorbed.

use std::collections::BTreeSet;
use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender, never};

use super::{Path, Renderer};
use crate::core::Exit;
use crate::engine::protocol::{
    Cancel, Command, EngineEvent, EngineFault, Generate, MAIN, ModelInfo, Scoring, SequenceId, Token,
};
use crate::store::StoredRows;
use crate::text::tokenizer::Tokenizer;
use crate::text::{Begin, Delta, StreamDecoder, thoughts};

/// Most tokens between two checkpoints inside a document where the CPU reads: an end of the process loses less than a
/// minute of reading. It is no time, as the bits of a state depend on where its pieces end.
const PIECE_ON_CPU: usize = 2_048;

#[derive(Debug)]
pub struct EngineChannels {
    pub commands: Sender<Command>,
    /// The first event is `Ready` or a fatal `Failed`.
    pub events: Receiver<EngineEvent>,
}

#[derive(Clone, Debug)]
pub(crate) enum EngineState {
    Starting,
    Ready,
    /// Permanent failure: reason with remedy, and the exit code of a run that needs the engine.
    Down {
        why: String,
        exit: Exit,
    },
}

#[derive(Debug)]
pub(crate) struct Engine {
    commands: Option<Sender<Command>>,
    pub(crate) events: Receiver<EngineEvent>,
    pub(crate) state: EngineState,
    next_id: u64,
    taken: BTreeSet<SequenceId>,
    pub(crate) renderer: Renderer,
    pub(super) stop_ids: Vec<Token>,
    /// Tokens between two checkpoints inside a long document.
    pub(super) piece: usize,
    /// The model that was loaded last; empty before.
    pub(crate) info: ModelInfo,
    /// The error once its thread has ended without an event.
    pub(crate) gone: &'static str,
}

impl Engine {
    pub(crate) fn new(channels: EngineChannels, renderer: Renderer, stop_ids: Vec<Token>, piece: usize) -> Engine {
        Engine {
            gone: "The engine has stopped. Text is safe; sala-chat -c continues.",
            commands: Some(channels.commands),
            events: channels.events,
            state: EngineState::Starting,
            next_id: 1,
            taken: BTreeSet::from([MAIN]),
            renderer,
            stop_ids,
            piece,
            info: ModelInfo::default(),
        }
    }

    pub(crate) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    pub(crate) fn send(&mut self, command: Command) -> Result<(), EngineFault> {
        if self.commands.as_ref().is_some_and(|c| c.send(command).is_ok()) {
            return Ok(());
        }
        self.down(self.gone.to_owned(), Exit::Failure);
        Err(self.fault())
    }

    fn fault(&self) -> EngineFault {
        EngineFault::Fatal { why: self.gone.to_owned(), exit: Exit::Failure }
    }

    pub(crate) fn ended(&self) -> EngineEvent {
        EngineEvent::Failed { id: 0, fault: self.fault() }
    }

    /// After any failure the slot's state is unknown; after a fatal one the engine is down.
    pub(super) fn failed(&mut self, slot: &mut Slot, fault: &EngineFault) {
        slot.lose();
        if let EngineFault::Fatal { why, exit } = fault {
            self.down(why.clone(), *exit);
        }
    }

    pub(crate) fn down(&mut self, why: String, exit: Exit) {
        self.commands = None;
        self.events = never();
        self.state = EngineState::Down { why, exit };
    }

    pub(crate) fn shutdown(&mut self) {
        if let Some(c) = self.commands.take() {
            // The channel is bounded; an engine that hangs must not block the end of the program.
            let _ = c.send_timeout(Command::Shutdown, std::time::Duration::from_secs(2));
        }
    }

    pub(crate) fn loaded(&mut self, info: &ModelInfo) {
        if info.device_kind == "cpu" {
            self.piece = self.piece.min(PIECE_ON_CPU);
        }
        self.info = info.clone();
        self.state = EngineState::Ready;
    }

    pub(crate) fn model(&self) -> Option<&ModelInfo> {
        matches!(self.state, EngineState::Ready).then_some(&self.info)
    }

    pub(super) fn is_live(&self) -> bool {
        self.model().is_some_and(|m| !m.parked)
    }

    pub(crate) fn is_parked(&self) -> bool {
        self.model().is_some_and(|m| m.parked)
    }

    /// The remote server, if any: its state is text, and its counts are estimates.
    pub(super) fn server(&self) -> Option<&str> {
        self.model().and_then(|m| m.server.as_deref())
    }

    /// Splits a server's text into thoughts and answer if the template opened the thoughts in the prompt.
    pub(super) fn unopened_thought<'t>(&self, text: &'t str) -> Option<(&'t str, &'t str)> {
        self.server().and_then(|_| thoughts::unopened(text))
    }

    pub(super) fn decoded(&self, begin: Begin, tokens: &[Token]) -> Delta {
        let mut decoder = StreamDecoder::new(Arc::clone(self.tokenizer()), begin);
        let mut all = decoder.push_all(tokens);
        let rest = decoder.finish();
        all.thinking.push_str(&rest.thinking);
        all.answer.push_str(&rest.answer);
        match self.unopened_thought(&all.answer) {
            Some((thinking, answer)) if all.thinking.is_empty() => {
                Delta { thinking: thinking.to_owned(), answer: answer.to_owned() }
            }
            _ => all,
        }
    }

    pub(super) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.renderer.model().tokenizer
    }

    pub(super) fn slots(&self) -> u32 {
        self.model().map_or(0, |m| m.max_sequences)
    }

    pub(super) fn free_slots(&self) -> usize {
        (self.slots() as usize).saturating_sub(self.taken.len())
    }

    /// Why no slot is free, if so.
    pub(super) fn no_free_slot(&self) -> Option<&'static str> {
        match (self.slots(), self.free_slots()) {
            (0, _) => Some("The model is being loaded"),
            (1, _) => Some("This engine holds one conversation at a time"),
            (_, 0) => Some("All conversations of this engine are busy"),
            _ => None,
        }
    }

    pub(super) fn take_slot(&mut self) -> Option<SequenceId> {
        let free = (0..self.slots()).map(SequenceId).find(|s| !self.taken.contains(s))?;
        self.taken.insert(free);
        Some(free)
    }

    /// An engine that is down holds no slots.
    pub(super) fn release(&mut self, sequence: SequenceId) {
        self.taken.remove(&sequence);
        let _ = self.send(Command::Release { sequence });
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Last {
    Generate(Generate),
    /// A text to score; the state does not change.
    Score(Scoring),
}

#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) sequence: SequenceId,
    pub(crate) live: Path,
    /// After a failure: the slot counts as empty and is restored before use.
    doubtful: bool,
    /// Rows of the live state that may still be in flight to the device.
    pub(super) in_flight: Vec<Arc<StoredRows>>,
    pub(crate) cancel: Cancel,
    /// A server's token count of the live path up to a position: (position, tokens).
    pub(super) counted: Option<(u64, u64)>,
}

impl Slot {
    pub(crate) fn of(sequence: SequenceId) -> Slot {
        Slot { sequence, ..Slot::default() }
    }

    /// The state is unknown: it counts as empty until it is restored.
    pub(crate) fn lose(&mut self) {
        self.live = Path::default();
        self.doubtful = true;
        self.in_flight.clear();
    }

    /// A later stop applies to the work that begins now.
    pub(crate) fn begin(&mut self) {
        self.cancel = Cancel::default();
    }

    pub(crate) fn stopped(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// The read share of the rows in flight; `None` if none is pending.
    pub(super) fn share_in_flight(&self) -> Option<f64> {
        let sum = |of: fn(&StoredRows) -> usize| -> usize { self.in_flight.iter().map(|rows| of(rows)).sum() };
        let (read, all) = (sum(StoredRows::read_bytes), sum(StoredRows::bytes));
        (read < all).then(|| read as f64 / all as f64)
    }

    pub(crate) fn made(&mut self, path: Path) {
        self.live = path;
        self.doubtful = false;
    }

    /// Whether the engine's state is exactly this path.
    pub(crate) fn is_at(&self, path: &Path) -> bool {
        let common = self.live.common(path);
        !self.doubtful && common == self.live.segments().len() && common == path.segments().len()
    }
}
