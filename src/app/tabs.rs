//! The sessions opened in this run: what the interface keeps of those that are not on screen. The draft in the input,
//! held messages, and the transcript with its place, so that coming back looks as it was left.

use super::acts::{hint, send};
use super::composer::Composer;
use super::transcript::Transcript;
use super::{App, Effect, Queue};
use crate::protocol::desk::{Activity, OpenSession, Request};
use crate::transcript::MessageId;

/// How long a hint about switching stays, in milliseconds.
const HINT_MS: u64 = 4_000;

/// A session that is not on screen.
#[derive(Debug)]
struct Away {
    serial: u64,
    composer: Composer,
    editing: Option<MessageId>,
    queue: Queue,
    transcript: Transcript,
}

/// Sessions opened in this run.
#[derive(Debug, Default)]
pub struct Tabs {
    list: Vec<OpenSession>,
    at: u64,
    away: Vec<Away>,
    /// Asked for with a key: the draft in the input belongs to the session that is left.
    wanted: Option<u64>,
}

impl Tabs {
    /// Names in order of opening; empty for a new one.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.list.iter().map(|s| s.name.as_str())
    }

    /// Place of the open one, from 0.
    pub fn place(&self) -> usize {
        let at = self.list.iter().position(|s| s.serial == self.at);
        at.unwrap_or(0)
    }

    /// Another request goes before a switch that was not done.
    pub(super) fn forget_wish(&mut self) {
        self.wanted = None;
    }
}

/// Alt-1..9: to the session of that number; without a number to the next one.
pub(super) fn go(app: &mut App, number: Option<u32>, now: u64, effects: &mut Vec<Effect>) {
    let count = app.tabs.list.len();
    let place = match number {
        Some(n) => usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(1),
        None => (app.tabs.place() + 1) % count.max(1),
    };
    let Some(serial) = app.tabs.list.get(place).map(|s| s.serial) else {
        let text = match count {
            0 | 1 => "No other session was opened yet: /new or /resume NAME".to_string(),
            n => format!("There is no session {}: {n} are open", place + 1),
        };
        return hint(app, text, now + HINT_MS);
    };
    if serial == app.tabs.at {
        return;
    }
    if app.busy() {
        let text = match app.activity {
            Activity::Starting { .. } => "The model is being loaded; other sessions after that",
            _ => "Busy: stop first (Esc), then go to another session",
        };
        return hint(app, text, now + HINT_MS);
    }
    app.popup = None;
    send(app, Request::Switch(serial), effects);
    app.tabs.wanted = Some(serial);
}

/// The desk shows a session: puts what belongs to the old one away and brings back what belongs to this one.
pub(super) fn arrived(app: &mut App, serial: u64, list: Vec<OpenSession>) {
    app.tabs.list = list;
    let asked = app.tabs.wanted.take() == Some(serial);
    let old = std::mem::replace(&mut app.tabs.at, serial);
    // Serials begin at 1: before the first session there is nothing to put away.
    if old == serial || old == 0 {
        return;
    }
    // What the program said about this change is read in the session it leads to.
    let said = app.transcript.take_notes(app.requests);
    // Typed behind a command that leads here, it belongs here; before a key, to the session that is left.
    let cut = app.composer.cut().to_string();
    let draft = std::mem::take(&mut app.composer);
    let (draft, typed) = match asked {
        true => (draft, Composer::default()),
        false => (Composer::default(), draft),
    };
    let away = Away {
        serial: old,
        composer: draft,
        editing: app.editing.take().filter(|_| asked),
        // Messages on their way go on to this session; those held by a stop wait for their own.
        queue: match app.queue.held {
            true => std::mem::take(&mut app.queue),
            false => Queue::default(),
        },
        transcript: app.transcript.put_away(),
    };
    let Tabs { list, away: others, .. } = &mut app.tabs;
    others.push(away);
    others.retain(|a| list.iter().any(|o| o.serial == a.serial));
    if let Some(i) = others.iter().position(|a| a.serial == serial) {
        let back = others.swap_remove(i);
        app.composer = back.composer;
        app.editing = back.editing;
        app.transcript = back.transcript;
        let mut held = back.queue;
        held.lines.append(&mut app.queue.lines);
        app.queue = held;
    }
    match app.composer.is_empty() {
        true => app.composer = typed,
        false => app.composer.insert(&typed.expanded()),
    }
    app.composer.set_cut(cut);
    app.history.rest();
    app.transcript.append_notes(said);
}
