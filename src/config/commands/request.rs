//! The requests to the runtime, one row each: from it come the enum, what each may do while the model is busy, and the trait of
//! whoever carries them out.

use super::words::{BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction};
use crate::config::settings::ThinkMode;
use crate::core::transcript::MessageId;
use crate::engine::protocol::SpecMode;

/// Whether a request can be served while the model reads or answers: it looks, or changes what the next answer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileBusy {
    /// Runs at once.
    Runs,
    /// Is queued.
    Waits,
    /// Goes to another conversation: what goes on goes on behind it. Is queued where the engine has no room for another one.
    Leaves,
    /// Is done in a conversation of its own beside what goes on. Is queued where there is no room for that.
    Apart,
}

/// `Variant(field: Type) [or { field: Type }], while busy => verb;`
macro_rules! requests {
    ($(
        $(#[$doc:meta])*
        $variant:ident
            $( ( $($place:ident: $place_type:ty),+ ) )?
            $( { $( $(#[$field_doc:meta])* $field:ident: $field_type:ty ),+ $(,)? } )?
            , $busy:expr => $verb:ident;
    )+) => {
        /// Interface to runtime. `#N` numbers are message numbers of the open branch, as shown.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Request {
            $( $(#[$doc])* $variant $( ( $($place_type),+ ) )? $( { $( $(#[$field_doc])* $field: $field_type ),+ } )?, )+
        }

        /// Carries requests out: one verb for each.
        pub trait Execute {
            /// What carrying one out gives.
            type Done;
            $(
                $(#[$doc])*
                fn $verb(&mut self $( $(, $place: $place_type)+ )? $( $(, $field: $field_type)+ )?) -> Self::Done;
            )+
        }

        impl Request {
            /// Whether it can be served while the model reads or answers.
            #[allow(unused_variables)]
            pub fn while_busy(&self) -> WhileBusy {
                use WhileBusy::{Apart, Leaves, Runs, Waits};
                match self {
                    $( Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? => $busy, )+
                }
            }

            /// Has it carried out.
            pub fn execute<E: Execute>(self, on: &mut E) -> E::Done {
                match self {
                    $(
                        Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? =>
                            on.$verb($( $($place),+ )? $( $($field),+ )?),
                    )+
                }
            }
        }
    };
}

requests! {
    /// Ask the model. Queued by the interface while busy.
    Ask(text: String), Waits => ask;
    /// Ask the model for several answers, each with a seed of its own.
    AskForSeveral {
        /// The question.
        text: String,
        /// How many answers.
        count: u64,
    }, Waits => ask_for_several;
    /// Stop reading or answering at the next token.
    Stop, Waits => stop;
    /// Answer to a question of the runtime: the key of the chosen option.
    Choose {
        /// Of the question.
        question: u64,
        /// Key of the option.
        key: char,
    }, Waits => choose;
    /// Answer to the plan of a load: indices of the files to load, in order.
    ChooseFiles {
        /// Of the plan.
        question: u64,
        /// Indices into the plan's files, in loading order.
        files: Vec<usize>,
    }, Waits => choose_files;
    /// Alt-1..9: a session opened in this run, by its serial.
    Switch(serial: u64), Leaves => switch;
    /// A request that leads to another conversation, from one in which messages are queued: that one keeps its place until
    /// [`Request::There`] says that nothing more comes.
    LeaveQueued(request: Box<Request>), Leaves => leave_queued;
    /// What was queued in a conversation that was left, one thing at a time, each once the one before is done.
    There {
        /// Of the conversation.
        serial: u64,
        /// `None`: nothing more comes.
        request: Option<Box<Request>>,
    }, Runs => there;
    /// A prompt that is not asked: it is kept for the input's history.
    Remember(text: String), Runs => remember;
    /// What stands in the input of a session: it is there again at the next start. Empty: nothing stands there any more.
    Draft {
        /// Of the session.
        serial: u64,
        /// As typed.
        text: String,
    }, Runs => keep_draft;
    /// The edited text comes back; makes a sibling.
    EditDone {
        /// Which message.
        message: MessageId,
        /// Its new text.
        text: String,
    }, Waits => edit_done;
    /// Stop, save what is left, end.
    Quit, Waits => quit;

    /// `/load`.
    Load {
        /// Files, folders, globs; `-` is the text in `inline`.
        paths: Vec<String>,
        /// Options.
        options: LoadOptions,
    }, Waits => load;
    /// `/docs`.
    Docs, Runs => docs;
    /// `/unload NAME`.
    Unload(name: String), Waits => unload;
    /// `/open NAME[:LINE]`.
    Open(name: String), Runs => open;
    /// `/library`.
    Library(action: LibraryAction), if *action == LibraryAction::List { Runs } else { Waits } => library;
    /// `/new [NAME]`.
    New(name: Option<String>), Leaves => new_session;
    /// `/resume NAME`; `last` is the most recent.
    Resume(name: String), Leaves => resume;
    /// `/sessions`, and `/resume` without a name.
    Sessions, Runs => sessions;
    /// `/rename NAME`.
    Rename(name: String), Waits => rename;
    /// `/title TEXT`.
    Title(text: String), Runs => title;
    /// `/delete [NAME]`.
    Delete(name: Option<String>), Waits => delete;
    /// `/search TEXT`.
    Search(text: String), Runs => search;
    /// `/export FILE`.
    Export {
        /// File to write; its extension chooses the format.
        path: String,
        /// By extension if `None`.
        format: Option<ExportFormat>,
        /// All branches.
        tree: bool,
        /// With model state, resumable elsewhere.
        with_state: bool,
        /// Overwrite.
        force: bool,
    }, Runs => export;
    /// `/import FILE`.
    Import(path: String), Waits => import;
    /// `/save`: says how things stand; everything is saved as it happens.
    Save, Runs => save;
    /// `/timeline`.
    Timeline, Runs => timeline;
    /// `/undo [N]`.
    Undo(count: u64), Waits => undo;
    /// `/redo [N]`.
    Redo(count: u64), Waits => redo;
    /// `/regen [#N] [COUNT] [temp=..] [seed=..]`, `/retry`.
    Regen {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// How many siblings.
        count: u64,
        /// Temperature for these.
        temperature: Option<f32>,
        /// Seed for the first of these.
        seed: Option<u64>,
    }, Waits => regen;
    /// `/edit [#N]`: ask for the text of a message in order to edit it.
    EditOpen(at: Option<u64>), Waits => edit_open;
    /// `/continue [TEXT]`.
    Continue(text: Option<String>), Waits => go_on;
    /// `/fork [#N] [NAME]`.
    Fork {
        /// Where; the head if `None`.
        at: Option<u64>,
        /// Name of the new session.
        name: Option<String>,
    }, Waits => fork;
    /// `f` in the timeline: the same from a message of any branch.
    ForkFrom(message: MessageId), Waits => fork_from;
    /// `/branch`.
    Branch(target: BranchTarget), Waits => branch;
    /// `/mark NAME`.
    Mark(name: String), Waits => mark;
    /// `/goto NAME`, or a message from the timeline.
    Goto(target: GotoTarget), Waits => goto;
    /// `/aside QUESTION`.
    Aside(question: String), Apart => aside;
    /// Stop the aside that is written.
    StopAside, Waits => stop_aside;
    /// `/ask-all [--library GLOB] [--read] QUESTION`.
    AskAll {
        /// The question.
        question: String,
        /// Names of the documents that are meant; all if `None`.
        library: Option<String>,
        /// Documents without kept state are read first.
        read: bool,
    }, Waits => ask_all;
    /// `/when QUESTION`.
    When(question: String), Waits => when;
    /// Enter in the table of answers: a new session that ends with the answer of this row.
    OpenAsked(row: usize), Waits => open_asked;
    /// `/compact [instruction]`.
    Compact(instruction: Option<String>), Waits => compact;
    /// `/look [#N] [K]`: what an answer looked at; with `K` the passage of that number.
    Look {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// Which passage, from 1; all if `None`.
        passage: Option<u64>,
    }, Runs => look;
    /// `/look [#N] sK`: what one sentence of an answer looked at.
    LookSentence {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// Which of its sentences, from 1.
        sentence: u64,
    }, Runs => look_sentence;
    /// `/map`.
    Map, Runs => map;
    /// `/why [#N] [K]`: what an answer becomes less likely without.
    Why {
        /// Which answer; the last if `None`.
        at: Option<u64>,
        /// How many passages are hidden, one at a time.
        count: Option<u64>,
    }, Waits => why;
    /// `/stats`.
    Stats, Runs => stats;
    /// `/ctx`.
    Context, Runs => context;
    /// `/doctor`.
    Doctor, Runs => doctor;
    /// `/set KEY VALUE`; `None` lists.
    Set(change: Option<(String, String)>), Runs => set;
    /// `/preset`.
    Preset(action: PresetAction), Runs => preset;
    /// `/system [TEXT]`; `None` shows it.
    System(text: Option<String>), Waits => system;
    /// `/system edit`: ask for the system text in order to change it.
    SystemEdit, Waits => system_edit;
    /// `/think on|off|auto`: behaviour of the model.
    Think(mode: ThinkMode), Runs => think;
    /// `/spec`.
    Spec(mode: Option<SpecMode>), Runs => spec;
}
