//! The interface's state, changed in one function: [`update`] takes an event and the time and returns effects.
//!
//! Nothing in here reads a clock, touches a disk, knows a terminal or draws. Text becomes [`rows`] here (pure and
//! testable); `ui` paints rows and never changes anything. Foreign text is cleaned when it comes in. What the user
//! wants from the model goes out as [`Effect::Send`]; what happens comes back as [`Event::Notice`].
//!
//! The input is our own small editor ([`composer`]) instead of a widget: the caret must be known before drawing, move
//! by grapheme clusters and treat a folded paste as one unit, and this layer must not know the drawing library.

mod acts;
pub mod cells;
mod cleaned;
pub mod complete;
pub mod composer;
mod drafts;
pub mod entry;
mod event;
pub mod find;
pub mod greeting;
pub mod history;
mod input;
pub mod keys;
mod late;
pub mod layout;
pub mod list;
pub mod looked;
pub mod map;
pub mod markdown;
mod math;
pub mod mention;
mod notices;
pub mod offers;
pub mod options;
pub mod overlay;
pub mod palette;
mod perform;
pub mod pick;
pub mod question;
mod quit;
mod render;
pub mod rows;
pub mod selection;
pub mod several;
pub mod shelf;
pub mod status;
pub mod tabs;
mod themes;
pub mod tour;
pub mod transcript;
mod update;
mod verbatim;
pub mod view;
pub mod wrap;

use std::collections::VecDeque;

use crate::core::transcript::MessageId;
use crate::engine::protocol::ModelInfo;
use crate::runtime::protocol::{
    Activity, ContextMap, DocumentRow, LibraryName, Meters, SaveState, SessionRow, TimelineRow,
};
use complete::Popup;
use composer::Composer;
use drafts::Drafts;
use find::Find;
use history::History;
use options::UiConfig;
use overlay::Overlay;
use palette::Palette;
use selection::Selection;
use several::Several;
use tabs::Tabs;
use tour::Tour;
use transcript::Transcript;

pub use event::{Effect, Event, Redraw};
pub use question::{Asker, Question, Standing};
pub use update::update;

/// Parts of the open session beside its messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionHead {
    /// Name; empty for a new one.
    pub name: String,
    /// The title it was given, for the window.
    pub title: String,
    /// Branch and number of branches.
    pub branch: (u64, u64),
    /// Opened to view only.
    pub view_only: bool,
    /// For the panel.
    pub timeline: Vec<TimelineRow>,
    /// For the panel and completion.
    pub documents: Vec<DocumentRow>,
    /// For the panel.
    pub map: ContextMap,
}

/// What the next Esc or Ctrl-C means, and until when (ms).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Armed {
    #[default]
    Nothing,
    /// Second Esc: clear or timeline.
    Escape(u64),
    /// Esc stopped work: swallow another one.
    Swallow(u64),
    /// Second Ctrl-C quits.
    Quit(u64),
    /// Ctrl-C stopped work: ignore more of them.
    Ignore(u64),
}

impl Armed {
    fn until(self) -> Option<u64> {
        match self {
            Armed::Nothing => None,
            Armed::Escape(t) | Armed::Swallow(t) | Armed::Quit(t) | Armed::Ignore(t) => Some(t),
        }
    }
}

/// How far the program is from its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// In use.
    #[default]
    Running,
    /// `Quit` was sent, the runtime is saving.
    Quitting,
    /// Over.
    Ended,
}

/// A line that waits until the model is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queued {
    /// As typed.
    pub line: String,
    /// The message that it takes the place of: what was an edit when it was entered is one when it is sent, and nothing else is.
    pub edits: Option<MessageId>,
}

/// Messages that wait until the model is free.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    /// The next one is in front.
    pub lines: VecDeque<Queued>,
    /// Held after a stop: they are sent with the next Enter.
    pub held: bool,
}

/// The whole state of the interface.
#[derive(Debug)]
pub struct App {
    /// Options; `/theme` and `/think` change them.
    pub config: UiConfig,
    /// Columns and rows of the terminal.
    pub size: (u16, u16),
    /// What was said.
    pub transcript: Transcript,
    /// The input.
    pub composer: Composer,
    /// The open session.
    pub session: SessionHead,
    /// Sessions opened in this run.
    pub tabs: Tabs,
    /// What the runtime keeps of the input.
    drafts: Drafts,
    /// What the runtime does.
    pub activity: Activity,
    /// Numbers.
    pub meters: Meters,
    /// Whether all is on disk.
    pub save: SaveState,
    /// Why state was not kept, since some was: it was said.
    left_out: Option<String>,
    /// The model, once it is ready.
    pub model: Option<ModelInfo>,
    /// Waiting messages.
    pub queue: Queue,
    /// Answers that are written side by side, in the transcript's place: they are not in it until one of them goes on.
    pub several: Option<Several>,
    /// A page or list over the transcript.
    pub overlay: Option<Overlay>,
    /// One that came while somebody wrote, or gave way to what was written: it is shown when it is asked for.
    set_aside: Option<Overlay>,
    /// Something was written since a line was entered or something was taken from a list.
    wrote: bool,
    /// Decisions to take, first one shown.
    pub questions: VecDeque<Question>,
    /// Search in the transcript.
    pub find: Option<Find>,
    /// Text selected with the mouse.
    pub selection: Option<Selection>,
    /// Completions.
    pub popup: Option<Popup>,
    /// Earlier prompts.
    pub history: History,
    /// Set while the input holds an existing message.
    pub editing: Option<MessageId>,
    /// The input holds what was first in the queue.
    took_out: bool,
    /// A short word below the input, with the time it vanishes.
    pub hint: Option<(String, Option<u64>)>,
    /// The panel, switched by the user; else its option decides.
    pub panel: Option<bool>,
    /// Running or ending.
    pub phase: Phase,
    /// Work ended while the window had not got the focus.
    pub unseen: bool,
    /// Decode speeds of the last while, oldest first, for the panel.
    pub speeds: VecDeque<f64>,
    /// Where somebody is on the guided tour.
    pub tour: Option<Tour>,
    /// It is a run of the tour, left or not: what is saved goes with it.
    pub toured: bool,
    /// The number key that put an offered question into the input: typing on means the number after all.
    offered: Option<char>,
    /// Documents of the library, for completion and mentions.
    library: Vec<LibraryName>,
    /// Sessions seen last, for completion.
    sessions: Vec<SessionRow>,
    armed: Armed,
    /// A question was sent, or an answer to one of the runtime's, and the runtime has not said yet that it is served or what has to be
    /// decided first.
    waiting: bool,
    /// A question of the runtime was answered, and what comes of that is not over.
    answered: bool,
    /// The runtime is at a queued command that leads elsewhere, and has not got there yet.
    leads: bool,
    /// Requests sent to the runtime, as it counts them, and how many of them it has served.
    sent: u64,
    served: u64,
    /// Paths are being looked up, or asked about.
    lookup: Option<mention::Lookup>,
    /// Files are read because the first queued question mentions them.
    reading_for_question: bool,
    /// Counts requests, so that notes can be told which one they answer.
    requests: u64,
    focused: bool,
    busy_since: Option<u64>,
    /// What was found in another session, which is on its way to the screen: its name, and the message to be shown there.
    show_after_open: Option<(String, MessageId)>,
    /// Words looked for in all branches of the open session: other sessions' hits are left out.
    find_here: Option<String>,
    /// The aside that still runs was closed by the user.
    aside_dismissed: bool,
    /// The aside was asked while something else went on: stopping it stops nothing else.
    aside_apart: bool,
    redraw: Redraw,
}

impl App {
    /// An interface of a size, before the runtime has said anything.
    pub fn new(config: UiConfig, width: u16, height: u16) -> App {
        let mut app = App {
            sent: config.sent_before,
            config,
            size: (width, height),
            transcript: Transcript::default(),
            composer: Composer::default(),
            session: SessionHead::default(),
            tabs: Tabs::default(),
            drafts: Drafts::default(),
            activity: Activity::Starting { what: "starting".into() },
            meters: Meters::default(),
            save: SaveState::Empty,
            left_out: None,
            model: None,
            queue: Queue::default(),
            several: None,
            overlay: None,
            set_aside: None,
            wrote: false,
            questions: VecDeque::new(),
            find: None,
            selection: None,
            popup: None,
            history: History::default(),
            editing: None,
            took_out: false,
            hint: None,
            panel: None,
            phase: Phase::Running,
            unseen: false,
            speeds: VecDeque::new(),
            tour: None,
            toured: false,
            offered: None,
            library: Vec::new(),
            sessions: Vec::new(),
            armed: Armed::Nothing,
            waiting: false,
            answered: false,
            served: 0,
            leads: false,
            lookup: None,
            reading_for_question: false,
            requests: 0,
            focused: true,
            busy_since: None,
            show_after_open: None,
            find_here: None,
            aside_dismissed: false,
            aside_apart: false,
            redraw: Redraw::Now,
        };
        app.relayout();
        app
    }

    /// Whether the model (or the runtime) is at work, so that messages have to wait.
    pub fn busy(&self) -> bool {
        self.waiting || !self.activity.rests()
    }

    /// Whether something goes on, in hand or beside.
    pub(crate) fn goes_on(&self) -> bool {
        self.busy() || self.activity.is_beside()
    }

    /// Whether there is something that Esc ends.
    pub(crate) fn can_be_stopped(&self) -> bool {
        self.goes_on() && !matches!(self.activity, Activity::Starting { .. } | Activity::Stopping)
    }

    /// Whether work goes on here, or stands until the runtime is told how to go on.
    pub(crate) fn has_work(&self) -> bool {
        self.busy() || self.questions.iter().any(Question::is_the_desks)
    }

    /// Whether something can be answered beside what goes on.
    pub fn answers_beside(&self) -> bool {
        self.model.as_ref().is_some_and(|m| m.max_sequences > 1)
    }

    /// Takes the wish for a frame.
    pub fn take_redraw(&mut self) -> Redraw {
        std::mem::take(&mut self.redraw)
    }

    /// When [`Event::Tick`] is wanted, if at all. `None` while nothing is pending: an idle program sleeps.
    pub fn deadline(&self) -> Option<u64> {
        let hint = self.hint.as_ref().and_then(|h| h.1);
        [hint, self.armed.until(), self.drafts.deadline()].into_iter().flatten().min()
    }

    /// Whether something was said in the open session, be it undone.
    pub(crate) fn has_begun(&self) -> bool {
        self.transcript.messages().next().is_some() || !self.session.timeline.is_empty()
    }

    /// Whether the open model is the built-in demo.
    pub fn is_demo(&self) -> bool {
        self.model.as_ref().is_some_and(|model| model.built_in)
    }

    /// The last answer, for `/copy`.
    fn last_answer(&self) -> Option<&crate::core::transcript::Message> {
        self.transcript.messages().rfind(|m| m.role == crate::core::transcript::Role::Assistant)
    }

    /// The colours to draw with: those of the theme that is looked at in the list of themes, else the chosen one's.
    pub fn palette(&self) -> &Palette {
        match &self.overlay {
            Some(Overlay::Themes(list)) => list.selected().and_then(|row| row.palette.as_ref().ok()),
            _ => None,
        }
        .unwrap_or(&self.config.theme)
    }

    fn relayout(&mut self) {
        let regions = layout::regions(self);
        let look = entry::Look {
            cells: regions.column_cells,
            glyphs: self.config.glyphs,
            think: self.config.think_show,
            looked: self.config.look,
            utc_offset_min: self.config.utc_offset_min,
            fold_key: self.config.keys.shortest(keys::Action::Thinking),
            select_key: self.config.keys.shortest(keys::Action::PrevMessage),
        };
        self.transcript.set_look(look, regions.transcript.height as usize);
        if let Some(other) = self.tabs.text_beside(self.size.0) {
            other.set_look(look, regions.other.height as usize);
        }
        if let Some(several) = &mut self.several {
            several.set_size(regions.several.width as usize, regions.several.height as usize);
        }
        if let Some(overlay) = &mut self.overlay {
            overlay.set_size(regions.overlay.width as usize, regions.overlay.height as usize, self.config.glyphs);
        }
    }
}
