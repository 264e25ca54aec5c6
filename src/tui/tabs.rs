//! The sessions opened in this run: what the interface keeps of those that are not on screen. The draft in the input, held
//! messages, and the transcript with its place, so that coming back looks as it was left; and how what goes on in them stands.
//!
//! Leaving one at work, and what is asked there next, is in `leaving`; what is said of one that is not on screen in `beside`.

mod beside;
mod leaving;

use super::acts::{hint, offer};
use super::composer::{Composer, Folded};
use super::keys::Action;
use super::overlay::Overlay;
use super::transcript::Transcript;
use super::{App, Effect, Question, Queue, drafts};
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Activity, Notice, OpenSession, Request};
pub(super) use beside::beside;
pub(super) use leaving::leave;
use leaving::{Leaving, go_on};

/// From here on there is room for two sessions beside each other.
const SPLIT_FROM: u16 = 160;

/// There is nothing to switch to.
const ALONE: &str = "No other session is open: /new or /resume NAME";

/// What a session without a name is called.
const UNNAMED: &str = "new session";

/// How long a hint about switching stays, in milliseconds.
const HINT_MS: u64 = 4_000;

/// How long it is said that a question was refused, in milliseconds.
const REFUSED_MS: u64 = 8_000;

/// How a session that is not on screen stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mark {
    /// Nothing new.
    #[default]
    Quiet,
    /// Something goes on.
    Working,
    /// An answer is written.
    Writing,
    /// Read so far, in percent.
    Reading(u64),
    /// It waits for a decision.
    Asks,
    /// What went on has ended, and was not seen.
    Done,
    /// It has failed.
    Failed,
}

impl Mark {
    /// The sign behind its name; empty for one where nothing is new.
    pub fn text(self) -> String {
        match self {
            Mark::Quiet => String::new(),
            Mark::Working | Mark::Writing => "~".into(),
            Mark::Reading(percent) => format!("{percent}%"),
            Mark::Asks => "?".into(),
            Mark::Done => "*".into(),
            Mark::Failed => "!".into(),
        }
    }

    /// Whether something goes on.
    pub fn at_work(self) -> bool {
        matches!(self, Mark::Working | Mark::Writing | Mark::Reading(_) | Mark::Asks)
    }
}

/// On which side of another session the one with the input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Left.
    Left,
    /// Right.
    Right,
}

/// A session that is not on screen.
#[derive(Debug)]
struct Away {
    serial: u64,
    composer: Composer,
    /// What the runtime keeps of it.
    kept: String,
    editing: Option<MessageId>,
    queue: Queue,
    /// Files are read because the first queued question mentions them.
    reading: bool,
    /// The runtime keeps its place for what is queued.
    promised: bool,
    /// What was queued has been sent to the runtime, which has not said anything to it.
    asked: bool,
    /// A question that was refused while another text stood in the input.
    refused: Option<String>,
    transcript: Transcript,
    mark: Mark,
    /// Since when something goes on, and whether there is something to see since it was left.
    since: Option<u64>,
    news: bool,
    /// A page or table that came meanwhile.
    held: Option<Notice>,
}

/// A session's name in a sentence.
fn called(name: &str) -> &str {
    if name.is_empty() { UNNAMED } else { name }
}

/// Sessions opened in this run.
#[derive(Debug, Default)]
pub struct Tabs {
    list: Vec<OpenSession>,
    at: u64,
    away: Vec<Away>,
    /// Asked for with a key: the draft in the input belongs to the session that is left.
    wanted: Option<u64>,
    /// The session is about to be left while something goes on.
    leaving: Option<Leaving>,
    /// What came for the session that has just been gone to.
    held: Option<Notice>,
    /// The session that is shown beside the one with the input.
    beside: Option<u64>,
}

impl Tabs {
    /// Names in order of opening, with how each stands; empty for a new one.
    pub fn names(&self) -> impl ExactSizeIterator<Item = (&str, Mark)> {
        self.list.iter().map(|s| (s.name.as_str(), self.mark(s.serial)))
    }

    fn mark(&self, serial: u64) -> Mark {
        self.away.iter().find(|a| a.serial == serial).map_or(Mark::Quiet, |a| a.mark)
    }

    /// Place of the open one, from 0.
    pub fn place(&self) -> usize {
        let at = self.list.iter().position(|s| s.serial == self.at);
        at.unwrap_or(0)
    }

    /// Those that are not on screen and where something is new: `1 41%  2~  3*`.
    pub fn news(&self) -> String {
        let others = self.names().enumerate().filter(|(_, (_, mark))| *mark != Mark::Quiet);
        let told = others.map(|(i, (_, mark))| match mark {
            Mark::Reading(_) => format!("{} {}", i + 1, mark.text()),
            _ => format!("{}{}", i + 1, mark.text()),
        });
        told.collect::<Vec<_>>().join("  ")
    }

    /// The session beside the one with the input, where the screen has room for it.
    fn shown_beside(&self, width: u16) -> Option<&Away> {
        let serial = self.beside.filter(|_| width >= SPLIT_FROM)?;
        self.away.iter().find(|a| a.serial == serial)
    }

    /// On which side the session with the input is; `None` while it is alone. The one that was opened first is left.
    pub fn side(&self, width: u16) -> Option<Side> {
        let other = self.shown_beside(width)?.serial;
        let place = |serial| self.list.iter().position(|s| s.serial == serial);
        Some(if place(self.at) < place(other) { Side::Left } else { Side::Right })
    }

    /// What is shown of the other one: its number, name, mark and text.
    pub fn other(&self, width: u16) -> Option<(usize, &str, Mark, &Transcript)> {
        let away = self.shown_beside(width)?;
        let place = self.list.iter().position(|s| s.serial == away.serial)?;
        Some((place + 1, self.list.get(place)?.name.as_str(), away.mark, &away.transcript))
    }

    /// What ended in the session beside is in sight.
    pub(super) fn see_beside(&mut self, width: u16) {
        let Some(serial) = self.shown_beside(width).map(|away| away.serial) else { return };
        if let Some(away) = self.away.iter_mut().find(|a| a.serial == serial && a.mark == Mark::Done) {
            (away.mark, away.news) = (Mark::Quiet, false);
        }
    }

    /// The text beside, to be laid out.
    pub(super) fn text_beside(&mut self, width: u16) -> Option<&mut Transcript> {
        let serial = self.shown_beside(width)?.serial;
        self.away.iter_mut().find(|a| a.serial == serial).map(|a| &mut a.transcript)
    }

    /// Names of the sessions that were left and are at work.
    pub(super) fn at_work(&self) -> impl Iterator<Item = &str> {
        self.names().filter(|(_, mark)| mark.at_work()).map(|(name, _)| called(name))
    }

    /// Messages that wait in sessions that were left, and those that were refused there.
    pub(super) fn unsent(&self) -> impl Iterator<Item = &String> {
        self.away.iter().flat_map(|away| away.queue.lines.iter().map(|queued| &queued.line).chain(&away.refused))
    }

    /// Serial of the session on screen; 0 before the first one.
    pub(super) fn serial(&self) -> u64 {
        self.at
    }

    /// What stands in the input of sessions that were left, where the runtime keeps something else, with their serials.
    pub(super) fn unkept(&mut self) -> Vec<(u64, String)> {
        let news = |away: &mut Away| Some((away.serial, drafts::unkept(&away.composer, &mut away.kept)?));
        self.away.iter_mut().filter_map(news).collect()
    }

    /// What stands in the input of sessions that were left, each with the session's name.
    pub(super) fn drafts(&self) -> impl Iterator<Item = (&str, String)> {
        let name_of = |serial| called(self.list.iter().find(|s| s.serial == serial).map_or("", |s| s.name.as_str()));
        let texts = self.away.iter().map(move |away| (name_of(away.serial), away.composer.expanded()));
        texts.filter(|(_, text)| !text.trim().is_empty())
    }

    /// Code is coloured otherwise from now on.
    pub(super) fn forget_colours(&mut self) {
        self.away.iter_mut().for_each(|away| away.transcript.forget_colours());
    }

    /// These are the sessions that are open: nothing is kept of one that is not, as when it was deleted.
    fn set_list(&mut self, list: Vec<OpenSession>) {
        self.list = list;
        self.forget_closed();
    }

    fn forget_closed(&mut self) {
        let Tabs { list, away, beside, .. } = self;
        let open = |serial: u64| list.iter().any(|o| o.serial == serial);
        away.retain(|a| open(a.serial));
        beside.take_if(|serial| !open(*serial));
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
            Activity::Starting { .. } => "The model is being loaded; other sessions after that",
            _ if app.answers_beside() => "",
            _ if app.busy() => "Busy: stop first (Esc), then go to another session",
            _ => "A question stands: answer it first, then go to another session",
        };
        if !text.is_empty() {
            return hint(app, text, now + HINT_MS);
        }
    }
    app.popup = None;
    leave(app, Request::Switch(serial), effects);
    app.tabs.wanted = Some(serial);
}

/// `/split`: shows a second session beside this one, or this one alone again.
pub(super) fn split(app: &mut App) -> Result<(), String> {
    if app.tabs.beside.take().is_some() {
        return Ok(());
    }
    if app.size.0 < SPLIT_FROM {
        return Err(format!("Two sessions beside each other need {SPLIT_FROM} columns"));
    }
    // The one that was left last.
    let last = app.tabs.away.last().map(|a| a.serial);
    app.tabs.beside = Some(last.ok_or(ALONE)?);
    Ok(())
}

/// To the session beside this one, which stays beside it.
pub(super) fn go_beside(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    let place = app.tabs.other(app.size.0).map(|(number, ..)| number);
    match place.and_then(|number| u32::try_from(number).ok()) {
        Some(number) => go(app, Some(number), now, effects),
        None => {
            let said = "There is one session on the screen";
            offer(app, said, Action::Split, "shows a second one beside it", now + HINT_MS);
        }
    }
}

/// What came for the session that has just been gone to. Asked once.
pub(super) fn held(app: &mut App) -> Option<Notice> {
    app.tabs.held.take()
}

/// The sessions opened are called otherwise.
pub(super) fn named(app: &mut App, list: Vec<OpenSession>) {
    app.tabs.set_list(list);
}

/// The runtime shows a session: puts what belongs to the old one away and brings back what belongs to this one.
pub(super) fn arrived(app: &mut App, serial: u64, list: Vec<OpenSession>, now: u64, effects: &mut Vec<Effect>) {
    app.tabs.set_list(list);
    let asked = app.tabs.wanted.take() == Some(serial);
    let old = std::mem::replace(&mut app.tabs.at, serial);
    if old == serial {
        return;
    }
    let mut kept = app.drafts.leave(now);
    // Serials begin at 1: before the first session there is nothing to put away.
    if old == 0 {
        return;
    }
    // What the program said about this change is read in the session it leads to.
    let said = app.transcript.take_notes(app.requests);
    // Typed behind a command that leads here, it belongs here; before a key, to the session that is left.
    let cut = app.composer.cut().clone();
    let draft = std::mem::take(&mut app.composer);
    app.took_out = false;
    let (draft, typed) = match asked {
        true => (draft, Composer::default()),
        false => (Composer::default(), draft),
    };
    if let Some(text) = drafts::unkept(&draft, &mut kept) {
        drafts::tell(app, old, text, effects);
    }
    let leaving = app.tabs.leaving.take();
    let at_work = app.has_work();
    let away = Away {
        serial: old,
        composer: draft,
        kept,
        editing: app.editing.take().filter(|_| asked),
        // Messages on their way go on to this session; those held by a stop wait for their own, and so does what was queued when a
        // session at work was left.
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
        asked: false,
        refused: None,
        transcript: app.transcript.put_away(),
        mark: match leaving {
            Some(_) if app.questions.iter().any(Question::is_the_desks) => Mark::Asks,
            Some(_) if app.busy() => Mark::Working,
            _ => Mark::Quiet,
        },
        since: app.busy_since.take(),
        news: false,
        held: None,
    };
    if app.tabs.beside == Some(serial) {
        app.tabs.beside = Some(old);
    }
    if leaving.is_some() {
        // What was asked there goes on there.
        (app.waiting, app.answered) = (false, false);
    }
    // What is about the session that is left. Its questions are put again there.
    app.questions.retain(|q| !q.is_the_desks());
    if matches!(app.overlay, Some(Overlay::Aside { done: None, .. } | Overlay::FanOut(_))) {
        app.overlay = None;
    }
    app.tabs.away.push(away);
    app.tabs.forget_closed();
    let others = &mut app.tabs.away;
    let mut refused = None;
    if let Some(i) = others.iter().position(|a| a.serial == serial) {
        // In the order in which they were left.
        let back = others.remove(i);
        app.composer = back.composer;
        app.drafts.come_back(back.kept);
        app.editing = back.editing;
        app.transcript = back.transcript;
        let mut held = back.queue;
        held.lines.append(&mut app.queue.lines);
        app.queue = held;
        app.reading_for_question = back.reading;
        app.tabs.held = back.held;
        // The runtime says right behind this what goes on: until then nothing more is asked.
        app.waiting |= back.mark.at_work();
        refused = back.refused;
    }
    match app.composer.is_empty() {
        true => app.composer = typed,
        false => app.composer.insert(&typed.expanded()),
    }
    app.composer.set_cut(refused.as_deref().map_or(cut, Folded::plain));
    if refused.is_some() {
        offer(app, "A question was not asked here", Action::Yank, "brings it back", now + REFUSED_MS);
    }
    app.history.rest();
    app.transcript.append_notes(said);
    // What went on there has ended before it was left.
    if !at_work {
        go_on(app, old, effects);
    }
}
