//! Sessions opened in this run: drafts, held messages and transcripts of those off screen, and their state.
//!
//! `leaving` handles leaving a session during work; `background` handles notices about sessions off screen.

mod background;
mod leaving;

use super::acts::{HINT_MS, hint, note, offer};
use super::composer::Composer;
use super::keys::Action;
use super::overlay::Overlay;
use super::transcript::Transcript;
use super::{App, Effect, Question, Queue, drafts};
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Activity, Level, Notice, OpenSession, Request};
pub(super) use background::background;
pub(super) use leaving::leave;
use leaving::{Leaving, go_on};

const SPLIT_FROM: u16 = 160;
const ALONE: &str = "No other session is open: /new or /resume NAME";
const UNNAMED: &str = "new session";
const REFUSED_MS: u64 = 8_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    #[default]
    Quiet,
    Working,
    Reading(u64),
    Asks,
    Done,
    Failed,
}

impl Mark {
    pub fn text(self) -> String {
        match self {
            Mark::Quiet => String::new(),
            Mark::Working => "~".into(),
            Mark::Reading(percent) => format!("{percent}%"),
            Mark::Asks => "?".into(),
            Mark::Done => "*".into(),
            Mark::Failed => "!".into(),
        }
    }

    pub fn at_work(self) -> bool {
        matches!(self, Mark::Working | Mark::Reading(_) | Mark::Asks)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

#[derive(Debug, Default)]
struct Away {
    serial: u64,
    composer: Composer,
    kept: String,
    editing: Option<MessageId>,
    queue: Queue,
    reading: bool,
    /// The runtime keeps its slot for queued lines.
    promised: bool,
    sent: bool,
    refused: Option<String>,
    transcript: Transcript,
    mark: Mark,
    since: Option<u64>,
    news: bool,
    held: Option<Notice>,
}

pub(super) fn called(name: &str) -> &str {
    if name.is_empty() { UNNAMED } else { name }
}

#[derive(Debug, Default)]
pub struct Tabs {
    list: Vec<OpenSession>,
    at: u64,
    away: Vec<Away>,
    /// Selected by a key, so the draft stays with the old session.
    pub(super) wanted: Option<u64>,
    leaving: Option<Leaving>,
    /// A page that arrived for the session on screen while it was off screen.
    pub(super) held: Option<Notice>,
    second: Option<u64>,
}

impl Tabs {
    pub fn names(&self) -> impl ExactSizeIterator<Item = (&str, Mark)> {
        self.list.iter().map(|s| (s.name.as_str(), self.mark(s.serial)))
    }

    fn mark(&self, serial: u64) -> Mark {
        self.away.iter().find(|a| a.serial == serial).map_or(Mark::Quiet, |a| a.mark)
    }

    pub fn place(&self) -> usize {
        let at = self.list.iter().position(|s| s.serial == self.at);
        at.unwrap_or(0)
    }

    pub fn news(&self) -> String {
        let others = self.names().enumerate().filter(|(_, (_, mark))| *mark != Mark::Quiet);
        let marks = others.map(|(i, (_, mark))| match mark {
            Mark::Reading(_) => format!("{} {}", i + 1, mark.text()),
            _ => format!("{}{}", i + 1, mark.text()),
        });
        marks.collect::<Vec<_>>().join("  ")
    }

    fn shown_at_side(&self, width: u16) -> Option<&Away> {
        let serial = self.second.filter(|_| width >= SPLIT_FROM)?;
        self.away.iter().find(|a| a.serial == serial)
    }

    /// `None` without a second session. The one opened first is on the left.
    pub fn side(&self, width: u16) -> Option<Side> {
        let other = self.shown_at_side(width)?.serial;
        let place = |serial| self.list.iter().position(|s| s.serial == serial);
        Some(if place(self.at) < place(other) { Side::Left } else { Side::Right })
    }

    /// Number and name of an open session.
    fn opened(&self, serial: u64) -> Option<(usize, &str)> {
        (1..).zip(&self.list).find(|(_, s)| s.serial == serial).map(|(number, s)| (number, called(&s.name)))
    }

    pub fn other(&self, width: u16) -> Option<(usize, &str, Mark, &Transcript)> {
        let away = self.shown_at_side(width)?;
        let (number, name) = self.opened(away.serial)?;
        Some((number, name, away.mark, &away.transcript))
    }

    fn side_mut(&mut self, width: u16) -> Option<&mut Away> {
        let serial = self.shown_at_side(width)?.serial;
        self.away.iter_mut().find(|a| a.serial == serial)
    }

    pub(super) fn look_at_side(&mut self, width: u16) {
        if let Some(away) = self.side_mut(width).filter(|away| away.mark == Mark::Done) {
            (away.mark, away.news) = (Mark::Quiet, false);
        }
    }

    pub(super) fn side_text(&mut self, width: u16) -> Option<&mut Transcript> {
        self.side_mut(width).map(|away| &mut away.transcript)
    }

    pub(super) fn at_work(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|(_, mark)| mark.at_work()).map(|(name, _)| called(name))
    }

    pub(super) fn unsent(&self) -> impl Iterator<Item = &String> {
        self.away.iter().flat_map(|away| away.queue.lines.iter().map(|queued| &queued.line).chain(&away.refused))
    }

    pub(super) fn serial(&self) -> u64 {
        self.at
    }

    pub(super) fn unkept(&mut self) -> Vec<(u64, String)> {
        let news = |away: &mut Away| Some((away.serial, drafts::unkept(&away.composer, &mut away.kept)?));
        self.away.iter_mut().filter_map(news).collect()
    }

    pub(super) fn drafts(&self) -> impl Iterator<Item = (&str, String)> {
        let name = |serial| self.opened(serial).map_or(UNNAMED, |(_, name)| name);
        let texts = self.away.iter().map(move |away| (name(away.serial), away.composer.expanded()));
        texts.filter(|(_, text)| !text.trim().is_empty())
    }

    pub(super) fn forget_colours(&mut self) {
        self.away.iter_mut().for_each(|away| away.transcript.forget_colours());
    }

    pub(super) fn set_list(&mut self, list: Vec<OpenSession>) {
        self.list = list;
        self.forget_closed();
    }

    fn forget_closed(&mut self) {
        let Tabs { list, away, second, .. } = self;
        let open = |serial: u64| list.iter().any(|o| o.serial == serial);
        away.retain(|a| open(a.serial));
        second.take_if(|serial| !open(*serial));
    }
}

pub(super) fn go(app: &mut App, number: Option<u32>, now: u64, effects: &mut Vec<Effect>) {
    let count = app.tabs.list.len();
    let place = match number {
        Some(n) => usize::try_from(n).unwrap_or(usize::MAX).saturating_sub(1),
        None => (app.tabs.place() + 1) % count.max(1),
    };
    let Some(serial) = app.tabs.list.get(place).map(|s| s.serial) else {
        let text = match count {
            0 | 1 => ALONE.to_string(),
            n => format!("There is no session {}: {n} are open", place + 1),
        };
        return hint(app, text, now + HINT_MS);
    };
    if serial == app.tabs.at {
        return;
    }
    if app.has_work() {
        let text = match app.activity {
            Activity::Starting { .. } => "The model is still loading; switch sessions when it is ready",
            _ if app.answers_elsewhere() => "",
            _ if app.busy() => "Busy: stop first (Esc), then go to another session",
            _ => "Answer the question first, then go to another session",
        };
        if !text.is_empty() {
            return hint(app, text, now + HINT_MS);
        }
    }
    app.popup = None;
    leave(app, Request::Switch(serial), effects);
    app.tabs.wanted = Some(serial);
}

pub(super) fn split(app: &mut App) -> Result<(), String> {
    if app.tabs.second.take().is_some() {
        return Ok(());
    }
    if app.size.0 < SPLIT_FROM {
        return Err(format!("Two sessions side by side need {SPLIT_FROM} columns"));
    }
    let last = app.tabs.away.last().map(|a| a.serial);
    app.tabs.second = Some(last.ok_or(ALONE)?);
    Ok(())
}

pub(super) fn switch_side(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    let place = app.tabs.other(app.size.0).map(|(number, ..)| number);
    match place.and_then(|number| u32::try_from(number).ok()) {
        Some(number) => go(app, Some(number), now, effects),
        None => {
            let text = "There is one session on the screen";
            offer(app, text, Action::Split, "shows a second one beside it", now + HINT_MS);
        }
    }
}

pub(super) fn arrived(app: &mut App, serial: u64, list: Vec<OpenSession>, now: u64, effects: &mut Vec<Effect>) {
    app.tabs.set_list(list);
    let by_key = app.tabs.wanted.take() == Some(serial);
    let old = std::mem::replace(&mut app.tabs.at, serial);
    if old == serial {
        return;
    }
    let mut kept = std::mem::take(&mut app.drafts.kept);
    app.drafts.due = Some(now + drafts::REST_MS);
    if old == 0 {
        return;
    }
    let notes = app.transcript.take_notes(app.requests);
    // Text typed after a command moves to the new session; text typed before a key stays.
    let clipboard = app.composer.clipboard.clone();
    let draft = std::mem::take(&mut app.composer);
    app.took_out = false;
    let (draft, typed) = if by_key { (draft, Composer::default()) } else { (Composer::default(), draft) };
    if let Some(text) = drafts::unkept(&draft, &mut kept) {
        drafts::send(app, old, text, effects);
    }
    let leaving = app.tabs.leaving.take();
    let at_work = app.has_work();
    let away = Away {
        serial: old,
        composer: draft,
        kept,
        editing: app.editing.take().filter(|_| by_key),
        // Queued lines move along, except those held by a stop and those queued before leaving work.
        queue: match (app.queue.held, leaving) {
            (true, _) => std::mem::take(&mut app.queue),
            (false, Some(Leaving { stay, promised, .. })) => {
                let stay = app.queue.lines.drain(..stay.min(app.queue.lines.len())).collect();
                Queue { lines: stay, held: !promised }
            }
            (false, None) => Queue::default(),
        },
        reading: std::mem::take(&mut app.reading_for_question),
        promised: leaving.is_some_and(|l| l.promised),
        transcript: app.transcript.put_away(),
        mark: match leaving {
            Some(_) if app.questions.iter().any(Question::is_of_runtime) => Mark::Asks,
            Some(_) if app.busy() => Mark::Working,
            _ => Mark::Quiet,
        },
        since: app.busy_since.take(),
        ..Away::default()
    };
    let left = away.queue.lines.len() * usize::from(away.queue.held);
    if app.tabs.second == Some(serial) {
        app.tabs.second = Some(old);
    }
    if leaving.is_some() {
        (app.waiting, app.answered) = (false, false);
    }
    let question = app.questions.iter().find(|q| q.is_of_runtime()).map(|q| q.text.clone());
    app.questions.retain(|q| !q.is_of_runtime());
    if app.overlay.as_ref().is_some_and(Overlay::belongs_to_session) {
        app.overlay = None;
    }
    app.tabs.away.push(away);
    app.tabs.forget_closed();
    let others = &mut app.tabs.away;
    let mut refused = None;
    if let Some(i) = others.iter().position(|a| a.serial == serial) {
        let back = others.remove(i);
        app.composer = back.composer;
        app.drafts.kept = back.kept;
        app.editing = back.editing;
        app.transcript = back.transcript;
        let mut held = back.queue;
        held.lines.append(&mut app.queue.lines);
        app.queue = held;
        app.reading_for_question = back.reading;
        app.tabs.held = back.held;
        // Nothing is sent until the runtime reports the session's activity.
        app.waiting |= back.mark.at_work();
        refused = back.refused;
    }
    match app.composer.is_empty() {
        true => app.composer = typed,
        false => app.composer.insert(typed.text()),
    }
    app.composer.clipboard = clipboard;
    if let Some(refused) = refused {
        app.composer.clipboard.cut = refused;
        offer(app, "A question was not asked here", Action::Yank, "brings it back", now + REFUSED_MS);
    }
    app.history.rest();
    app.transcript.append_notes(notes);
    let place = app.tabs.opened(old).map(|(number, name)| (number, name.to_owned()));
    if let Some((number, name)) = place.as_ref().filter(|_| left > 0) {
        let lines = crate::core::counted(left as u64, "held message");
        note(app, Level::Info, &format!("{lines} left in \"{name}\"; Alt-{number} goes back."));
    }
    if let Some(question) = question {
        let text = match place {
            Some((number, name)) => format!("\"{name}\" still asks: {question} Alt-{number} goes back."),
            None => format!("Closed without an answer: {question}"),
        };
        note(app, Level::Info, &text);
    }
    if !at_work {
        go_on(app, old, effects);
    }
}
