//! The requests to the runtime, one row each. The rows make the enum, the behaviour while the model is busy, and the
//! runtime's dispatch.

use super::words::{BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction};
use crate::config::settings::ThinkMode;
use crate::core::transcript::MessageId;
use crate::engine::protocol::SpecMode;

/// Whether a request can be served while the model reads or answers: it looks, or changes what the next answer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileBusy {
    /// Runs at once.
    Runs,
    Waits,
    /// Opens another conversation while this one continues in the background. Queued if the engine has no free slot.
    Leaves,
    /// Runs in a conversation of its own. Queued if the engine has no free slot.
    Apart,
}

/// Makes the enum of the rows, and what may be done while the model is busy.
macro_rules! define {
    ($(
        $(#[$doc:meta])*
        $variant:ident
            $( ( $($place:ident: $place_type:ty),+ ) )?
            $( { $( $(#[$field_doc:meta])* $field:ident: $field_type:ty ),+ $(,)? } )?
            , $busy:expr => $verb:ident $(. $wait:tt)?;
    )+) => {
        /// Interface to runtime. `#N` numbers are message numbers of the open branch, as shown.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Request {
            $( $(#[$doc])* $variant $( ( $($place_type),+ ) )? $( { $( $(#[$field_doc])* $field: $field_type ),+ } )?, )+
        }

        impl Request {
            #[allow(unused_variables)]
            pub fn while_busy(&self) -> WhileBusy {
                use WhileBusy::{Apart, Leaves, Runs, Waits};
                match self {
                    $( Request::$variant $( ( $($place),+ ) )? $( { $($field),+ } )? => $busy, )+
                }
            }
        }
    };
}

/// The table, for the macro `$with`: `Variant(field: Type) [or { field: Type }], while busy => verb[.await];`. The enum is
/// made of it here, and the runtime's dispatch of each request to its verb.
macro_rules! requests {
    ($with:ident) => {
        $with! {
            Ask(text: String), Waits => ask.await;
            /// Ask the model for several answers, each with a seed of its own.
            AskForSeveral {
                text: String,
                /// How many answers.
                count: u64,
            }, Waits => ask_for_several.await;
            Stop, Waits => end_unattended;
            /// Answer to a question of the runtime: the key of the chosen option.
            Choose {
                question: u64,
                key: char,
            }, Waits => choose;
            /// Answer to the plan of a load: indices of the files to load, in order.
            ChooseFiles {
                question: u64,
                files: Vec<usize>,
            }, Waits => choose_files;
            /// Alt-1..9: a session opened in this run, by its serial.
            Switch(serial: u64), Leaves => switch.await;
            /// Opens another conversation while messages are queued in this one, which keeps its slot until [`Request::There`]
            /// ends the queue.
            LeaveQueued(request: Box<Request>), Leaves => leave_queued.await;
            /// What was queued in a conversation that was left, one thing at a time, each once the one before is done.
            There {
                serial: u64,
                /// `None`: the queue is empty.
                request: Option<Box<Request>>,
            }, Runs => queued_there;
            /// A prompt for the input history only.
            Remember(text: String), Runs => remember;
            /// The unsent input of a session, restored at the next start. Empty: none.
            Draft {
                serial: u64,
                text: String,
            }, Runs => draft_changed;
            /// Saves an edited message as a sibling.
            EditDone {
                message: MessageId,
                text: String,
            }, Waits => edit_done.await;
            Quit, Waits => end;

            /// `/load`.
            Load {
                /// Files, folders, globs; `-` is the text in `inline`.
                paths: Vec<String>,
                options: LoadOptions,
            }, Waits => load.await;
            /// `/follow PATH...`; without a path it lists what is followed.
            Follow(paths: Vec<String>), Waits => follow.await;
            /// `/follow off`.
            FollowNothing, Runs => follow_nothing;
            /// `/changes`.
            Changes, Waits => changes.await;
            /// `/since [QUESTION]`.
            Since(question: Option<String>), Waits => since.await;
            /// `/refresh`.
            Refresh, Waits => refresh.await;
            /// `/watch [QUESTION]`; `None` lists.
            Watch(question: Option<String>), Waits => watch.await;
            /// `/watch off [N]`.
            WatchNothing(number: Option<usize>), Runs => watch_nothing;
            /// `/docs`.
            Docs, Runs => docs;
            /// `/unload NAME`.
            Unload(name: String), Waits => unload.await;
            /// `/open NAME[:LINE]`.
            Open(name: String), Runs => open_document;
            /// `/library`.
            Library(action: LibraryAction), if *action == LibraryAction::List { Runs } else { Waits } => library.await;
            /// `/new [NAME]`.
            New(name: Option<String>), Leaves => new_session;
            /// `/resume NAME`; `last` is the most recent.
            Resume(name: String), Leaves => resume.await;
            /// `/sessions`, and `/resume` without a name.
            Sessions, Runs => list_sessions;
            /// `/rename NAME`.
            Rename(name: String), Waits => rename;
            /// `/rename SESSION NAME`.
            RenameOther {
                session: String,
                name: String,
            }, Waits => rename_other;
            /// `/title TEXT`.
            Title(text: String), Runs => title;
            /// `/pin [NAME]`.
            Pin(name: Option<String>), Waits => pin;
            /// `/delete [NAME]`.
            Delete(name: Option<String>), Waits => delete.await;
            /// `/search TEXT`.
            Search(text: String), Runs => search.await;
            /// `/export FILE`.
            Export {
                /// File to write; its extension chooses the format.
                path: String,
                /// By extension if `None`.
                format: Option<ExportFormat>,
                tree: bool,
                /// With model state, resumable elsewhere.
                with_state: bool,
                force: bool,
            }, Runs => export.await;
            /// `/import FILE`.
            Import(path: String), Waits => import.await;
            /// `/save`: says how things stand; everything is saved as it happens.
            Save, Runs => save_report;
            /// `/timeline`.
            Timeline, Runs => timeline;
            /// `/undo [N]`.
            Undo(count: u64), Waits => undo.await;
            /// `/redo [N]`.
            Redo(count: u64), Waits => redo.await;
            /// `/regen [#N] [COUNT] [temp=..] [seed=..]`, `/retry`.
            Regen {
                /// Which answer; the last if `None`.
                at: Option<u64>,
                /// How many siblings.
                count: u64,
                temperature: Option<f32>,
                /// Seed for the first of these.
                seed: Option<u64>,
            }, Waits => regen.await;
            /// `/edit [#N]`: ask for the text of a message in order to edit it.
            EditOpen(at: Option<u64>), Waits => edit_open;
            /// `/continue [TEXT]`.
            Continue(text: Option<String>), Waits => go_on.await;
            /// `/fork [#N] [NAME]`.
            Fork {
                /// Where; the head if `None`.
                at: Option<u64>,
                name: Option<String>,
            }, Waits => fork.await;
            /// `f` in the timeline: the same from a message of any branch.
            ForkFrom(message: MessageId), Waits => fork_from.await;
            /// `/branch`.
            Branch(target: BranchTarget), Waits => branch.await;
            /// `/mark NAME`.
            Mark(name: String), Waits => mark;
            /// `/goto NAME`, or a message from the timeline.
            Goto(target: GotoTarget), Waits => goto.await;
            /// `/aside QUESTION`.
            Aside(question: String), Apart => aside.await;
            StopAside, Waits => end_aside;
            /// `/ask-all [--library GLOB] [--read] QUESTION`.
            AskAll {
                question: String,
                /// Names of the documents that are meant; all if `None`.
                library: Option<String>,
                /// Documents without kept state are read first.
                read: bool,
            }, Waits => ask_all.await;
            /// `/when QUESTION`.
            When(question: String), Waits => when.await;
            /// One question about documents of the library, read in this order. Their state is kept, the question is not.
            AskLibrary {
                documents: Vec<String>,
                question: String,
            }, Waits => ask_library.await;
            /// `/when` along a document of the library.
            WhenLibrary {
                document: String,
                question: String,
            }, Waits => when_library.await;
            /// Enter in the table of answers: a new session that ends with the answer of this row.
            OpenAnswer(row: usize), Waits => open_row.await;
            /// `/compact [--yes] [instruction]`.
            Compact {
                instruction: Option<String>,
                yes: bool,
            }, Waits => compact.await;
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
            }, Runs => look_at_sentence;
            /// `/quotes [#N]`: the quotes of an answer with their sources.
            Quotes(at: Option<u64>), Runs => quotes_page;
            /// `/map`.
            Map, Runs => map;
            /// `/why [#N] [K]`: how the answer's probability changes without each passage.
            Why {
                /// Which answer; the last if `None`.
                at: Option<u64>,
                /// How many passages are hidden, one at a time.
                count: Option<u64>,
            }, Waits => why.await;
            /// `/park`: frees the memory of the model until the next use.
            Park, Waits => park.await;
            /// `/unpark`.
            Unpark, Waits => unpark.await;
            /// `/stats`.
            Stats, Runs => stats;
            /// `/ctx`.
            Context, Runs => context_page;
            /// `/doctor`.
            Doctor, Runs => doctor;
            /// `/set KEY VALUE`; `None` lists.
            Set(change: Option<(String, String)>), Runs => set;
            /// `/preset`.
            Preset(action: PresetAction), Runs => preset;
            /// `/system [TEXT]`; `None` shows it.
            System(text: Option<String>), Waits => system_text.await;
            /// `/system edit`: ask for the system text in order to change it.
            SystemEdit, Waits => system_edit;
            /// `/think on|off|auto`: behaviour of the model.
            Think(mode: ThinkMode), Runs => think;
            /// `/spec`.
            Spec(mode: Option<SpecMode>), Runs => spec;
        }
    };
}
pub(crate) use requests;

requests!(define);
