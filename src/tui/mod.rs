//! The interface's state and its one transition: [`update`] takes an event and the time and returns effects.
//!
//! Nothing here reads a clock, touches a disk or depends on a terminal. Text turns into [`rows`] here; [`view`]
//! draws them and changes nothing. Untrusted text is sanitized where it is measured and painted. Requests leave as
//! [`Effect::Send`], results arrive as [`Event::Notice`].
//!
//! The input is a custom editor ([`composer`]): the caret must be known before drawing, move by grapheme clusters and
//! treat a folded paste as one unit.

mod acts;
pub mod cells;
pub mod complete;
pub mod composer;
mod drafts;
pub mod entry;
mod event;
pub mod fan_out;
pub mod find;
pub mod greeting;
mod help;
pub mod history;
mod input;
pub mod keys;
pub mod layout;
pub mod lists;
pub mod looked;
pub mod map;
pub mod markdown;
mod math;
pub mod mention;
mod notices;
pub mod open;
pub mod options;
pub mod overlay;
pub mod page;
mod paint;
pub mod palette;
mod perform;
pub mod pick;
pub mod question;
mod quit;
mod render;
pub mod rows;
pub mod status;
mod themes;
pub mod tour;
pub mod transcript;
mod update;
pub mod view;
pub mod wrap;

use std::collections::VecDeque;

use crate::core::transcript::MessageId;
use crate::engine::protocol::ModelInfo;
use crate::runtime::protocol::{Activity, LibraryName, Meters, SaveState, SessionRow};
use complete::Popup;
use drafts::Drafts;
use history::History;
use open::Sessions;
use options::UiConfig;
use overlay::Overlay;
use tour::Tour;

pub use event::{Effect, Event, Redraw};
pub use open::Queued;
pub use question::{Asker, Question, Standing};
pub use update::update;

/// What the next key does for a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    Escape,
    /// Ignores an Esc that follows the one that stopped work.
    Swallow,
    Quit,
    /// Ignores a Ctrl-C that follows the one that stopped work.
    Ignore,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    #[default]
    Running,
    Quitting,
    Ended,
}

#[derive(Debug, Default)]
pub struct App {
    pub config: UiConfig,
    pub size: (u16, u16),
    pub open: Sessions,
    drafts: Drafts,
    pub activity: Activity,
    pub meters: Meters,
    pub save: SaveState,
    left_out: Option<String>,
    pub model: Option<ModelInfo>,
    pub overlay: Option<Overlay>,
    /// A page that arrived while the user typed; Shift-Tab opens it.
    set_aside: Option<Overlay>,
    /// Text was typed since the last line was sent or list row chosen.
    wrote: bool,
    pub questions: VecDeque<Question>,
    pub popup: Option<Popup>,
    pub history: History,
    took_out: bool,
    /// Text below the input, with the time at which it disappears.
    pub hint: Option<(String, Option<u64>)>,
    pub refusal: Option<String>,
    attempt: Option<acts::Attempt>,
    pub panel: Option<bool>,
    pub phase: Phase,
    pub unseen: bool,
    pub tour: Option<Tour>,
    pub toured: bool,
    library: Vec<LibraryName>,
    sessions: Vec<SessionRow>,
    /// Until this time.
    armed: Option<(Armed, u64)>,
    /// The last question, or answer to a question, is not acknowledged yet.
    waiting: bool,
    answered: bool,
    leads: bool,
    sent: u64,
    served: u64,
    lookup: Option<mention::Lookup>,
    requests: u64,
    focused: bool,
    show_after_open: Option<(String, MessageId)>,
    /// A query on all branches of the open session; hits of other sessions are dropped.
    find_here: Option<String>,
    aside_dismissed: bool,
    /// The aside runs in parallel with other work and is stopped separately.
    aside_apart: bool,
    pub redraw: Redraw,
    /// The time of the event that is applied.
    now: u64,
    effects: Vec<Effect>,
}

impl App {
    pub fn new(config: UiConfig, width: u16, height: u16) -> App {
        let mut app = App {
            sent: config.sent_before,
            config,
            size: (width, height),
            activity: Activity::Starting { what: "starting".into() },
            focused: true,
            redraw: Redraw::Now,
            ..App::default()
        };
        for warning in app.config.settings.warnings.clone() {
            acts::note(&mut app, crate::runtime::protocol::Level::Warn, &warning);
        }
        app.relayout();
        app
    }

    pub fn busy(&self) -> bool {
        self.waiting || self.activity != Activity::Idle
    }

    pub(crate) fn can_be_stopped(&self) -> bool {
        self.busy() && !matches!(self.activity, Activity::Starting { .. } | Activity::Stopping)
    }

    /// Whether this session works or waits for a decision.
    pub(crate) fn has_work(&self) -> bool {
        self.busy() || self.questions.iter().any(Question::is_of_runtime)
    }

    pub fn answers_elsewhere(&self) -> bool {
        self.model.as_ref().is_some_and(|m| m.max_sequences > 1)
    }

    /// Whether the user types what to search for.
    fn searches(&self) -> bool {
        self.open.find.as_ref().is_some_and(|find| find.typing)
    }

    fn arm(&mut self, what: Armed, ms: u64) {
        self.armed = Some((what, self.now + ms));
    }

    fn is_armed(&self, what: Armed) -> bool {
        self.armed.is_some_and(|(armed, until)| armed == what && self.now < until)
    }

    /// Time of the next [`Event::Tick`]; `None` if nothing is pending, so that an idle program sleeps.
    pub fn deadline(&self) -> Option<u64> {
        let hint = self.hint.as_ref().and_then(|h| h.1);
        [hint, self.armed.map(|(_, until)| until), self.drafts.due].into_iter().flatten().min()
    }

    /// Whether the session has messages, on any branch.
    pub(crate) fn has_begun(&self) -> bool {
        self.open.transcript.messages().next().is_some() || !self.open.view.tree.timeline.is_empty()
    }

    pub fn is_demo(&self) -> bool {
        self.model.as_ref().is_some_and(|model| model.built_in)
    }

    fn last_answer(&self) -> Option<&crate::core::transcript::Message> {
        self.open.transcript.messages().rfind(|m| m.role == crate::core::transcript::Role::Assistant)
    }

    fn relayout(&mut self) {
        let regions = layout::regions(self);
        let look = entry::Look {
            cells: regions.column_cells,
            glyphs: self.config.glyphs,
            think: self.config.think_show,
            looked: self.config.ui.look,
            utc_offset_min: self.config.utc_offset_min,
            fold_key: self.config.keys.shortest(keys::Action::Thinking),
            select_key: self.config.keys.shortest(keys::Action::PrevMessage),
        };
        self.open.transcript.set_look(look, regions.transcript.height as usize);
        if let Some(other) = self.open.at_side(self.size.0) {
            other.transcript.set_look(look, regions.other.height as usize);
        }
        if let Some(overlay) = &mut self.overlay {
            overlay.set_size(regions.overlay.width as usize, regions.overlay.height as usize, self.config.glyphs);
        }
    }
}
