//! The requests to the runtime, one row each: the enum, the behaviour while the model is busy, the runtime's dispatch.

use super::words::{BranchTarget, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction};
use crate::core::transcript::MessageId;

/// Whether a request can be served while the model reads or answers: it looks, or changes what the next answer uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhileBusy {
    Runs,
    Waits,
    /// Opens another conversation while this one continues in the background. Queued if the engine has no free slot.
    Leaves,
    /// Runs in a conversation of its own. Queued if the engine has no free slot.
    Apart,
}

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
/// made of it here, and the runtime's dispatch of each request to its verb. Most are slash commands. `at: None` is the last
/// answer, or the head; passages, sentences and siblings count from 1; a question, name or value that is `None` lists.
macro_rules! requests {
    ($with:ident) => {
        $with! {
            Ask(text: String), Waits => ask.await;
            AskForSeveral { text: String, count: u64 }, Waits => ask_for_several.await;
            Stop, Waits => end;
            /// Answer to a question of the runtime: the key of the chosen option.
            Choose { question: u64, key: char }, Runs => choose;
            /// Answer to the plan of a load: indices of the files to load, in order.
            ChooseFiles { question: u64, files: Vec<usize> }, Runs => choose_files;
            /// Alt-1..9: a session opened in this run, by its serial.
            Switch(serial: u64), Leaves => switch.await;
            Remember(text: String), Runs => remember;
            /// The unsent input of a session, restored at the next start. Empty: none.
            Draft { serial: u64, text: String }, Runs => draft_changed;
            /// Saves an edited message as a sibling.
            EditDone { message: MessageId, text: String }, Waits => edit_done.await;
            Quit, Waits => end;

            Load { paths: Vec<String>, options: LoadOptions }, Waits => load.await;
            Follow(paths: Vec<String>), Waits => follow.await;
            FollowNothing, Runs => follow_nothing;
            Changes, Waits => changes.await;
            Since(question: Option<String>), Waits => since.await;
            Refresh, Waits => refresh.await;
            Watch(question: Option<String>), Waits => watch.await;
            WatchNothing(number: Option<usize>), Runs => watch_nothing;
            Docs, Runs => docs;
            Unload(name: String), Waits => unload.await;
            Open(name: String), Runs => open_document;
            Library(action: LibraryAction), if *action == LibraryAction::List { Runs } else { Waits } => library.await;
            New(name: Option<String>), Leaves => new_session;
            Resume(name: String), Leaves => resume.await;
            Sessions, Runs => list_sessions;
            Rename(name: String), Waits => rename;
            RenameOther { session: String, name: String }, Waits => rename_other;
            Title(text: String), Runs => title;
            Pin(name: Option<String>), Waits => pin;
            Delete(name: Option<String>), Waits => delete.await;
            Search(text: String), Waits => search.await;
            Export { path: String, format: Option<ExportFormat>, tree: bool, with_state: bool, force: bool }, Waits => export.await;
            Import(path: String), Waits => import.await;
            Save, Runs => save_report;
            Timeline, Runs => timeline;
            Undo(count: u64), Waits => undo.await;
            Redo(count: u64), Waits => redo.await;
            Regen { at: Option<u64>, count: u64, temperature: Option<f32>, seed: Option<u64> }, Waits => regen.await;
            /// `/edit [#N]`: ask for the text of a message in order to edit it.
            EditOpen(at: Option<u64>), Waits => edit_open;
            Continue(text: Option<String>), Waits => go_on.await;
            Fork { at: Option<u64>, name: Option<String> }, Waits => fork.await;
            /// `f` in the timeline: the same from a message of any branch.
            ForkFrom(message: MessageId), Waits => fork_from.await;
            Branch(target: BranchTarget), Waits => branch.await;
            Mark(name: String), Waits => mark;
            Goto(target: GotoTarget), Waits => goto.await;
            Aside(question: String), Apart => aside.await;
            StopAside, Runs => end_aside;
            AskAll { question: String, library: Option<String>, read: bool }, Waits => ask_all.await;
            When(question: String), Waits => when.await;
            /// One question about documents of the library, read in this order. Their state is kept, the question is not.
            AskLibrary { documents: Vec<String>, question: String }, Waits => ask_library.await;
            WhenLibrary { document: String, question: String }, Waits => when_library.await;
            /// Enter in the table of answers: a new session that ends with the answer of this row.
            OpenAnswer(row: usize), Waits => open_row.await;
            Compact { instruction: Option<String>, yes: bool }, Waits => compact.await;
            Look { at: Option<u64>, passage: Option<u64> }, Runs => look;
            LookSentence { at: Option<u64>, sentence: u64 }, Runs => look_at_sentence;
            Quotes(at: Option<u64>), Runs => quotes_page;
            Map, Runs => map;
            Why { at: Option<u64>, count: Option<u64> }, Waits => why.await;
            Park, Waits => park.await;
            Unpark, Waits => unpark.await;
            Stats, Runs => stats;
            Context, Runs => context_page;
            Doctor, Runs => doctor;
            Set(change: Option<(String, String)>), Runs => set;
            Preset(action: PresetAction), Runs => preset;
            System(text: Option<String>), Waits => system_text.await;
            /// `/system edit`: ask for the system text in order to change it.
            SystemEdit, Waits => system_edit;
        }
    };
}
pub(crate) use requests;

requests!(define);
