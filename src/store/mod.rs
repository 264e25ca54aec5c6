//! The disk: conversations, saved model state, the document library, search, trash.
//!
//! Owns one data directory: `sala.db` (SQLite: everything that must never be lost) and `segments/` (immutable files of
//! model state, a cache). Never renders text, never calls a model, never prints.
//!
//! # Invariants
//!
//! 1. **Text first.** A transaction with text never waits for a state file and never fails because of one: a thread
//!    that holds the database renames such files, and writes, syncs or removes none.
//! 2. **One commit point per promise.** Text is safe once its transaction commits. State is kept once the transaction
//!    that names its checksum commits; its file was synced before (file, then directory).
//! 3. A state file is used only if its bytes hash to the checksum in the database. Any other file is *declared
//!    missing* with a reason, and the nearest earlier state is used.
//! 4. Files that no row names are removed some days later; rows without a file lose their state, not their text.
//! 5. After a failed write or sync, state saving is off until a probe file could be written, synced and removed.
//! 6. The store writes or removes only files of this program: names of its form, in a directory with its mark,
//!    through no link.
//! 7. A message that does not match its checksum is shown as damaged and hides no other (`seal.rs`).
//! 8. State from a bundle serves only the sessions of that bundle (`bundle.rs`).
//! 9. A state file that a row names is never replaced or removed: files enter and leave their places only while this
//!    process may write the database (`save.rs`).
//!
//! # Files
//!
//! A file imports only those named before it.
//!
//! | file | owns |
//! |---|---|
//! | `segment`, `error`, `query` | names for pieces of state; the error type, and the stop of long work; prepared queries |
//! | `disk`, `scratch`, `format` | file effects; private folders; the two files of a segment |
//! | `seal`, `schema`, `recorded` | checksums in the database; its tables; segments in it |
//! | `directory`, `database`, `lock` | names in the directory; the open store; one writer a session |
//! | `summary`, `typed`, `messages`, `sessions` | columns of lists; typed prompts and unsent input; paths of messages; sessions |
//! | `commit`, `search`, `library` | changes of text; full text; documents |
//! | `export`, `pages`, `salvage`, `opening` | conversations as text; pages of a database without SQLite; the readable part of a damaged one; opening a directory |
//! | `state`, `row_source`, `save` | state: restoring, rows in files, saving |
//! | `keep`, `check`, `rescue`, `collect` | uses of state, thinning and disk budget; `doctor --check`; a new database for a damaged one; garbage |
//! | `arrival`, `bundle`, `import` | conversations out and in, with or without their state |
//! | `writer` | the threads that make saves durable |
//!
//! # What the medium must guarantee
//!
//! A synced file keeps its bytes; a rename within one directory is all or nothing and is durable once the directory is
//! synced; SQLite's own demands for WAL with `synchronous=FULL`. Torn and lost writes before a sync are expected.

mod arrival;
mod bundle;
mod check;
mod collect;
mod commit;
mod database;
mod directory;
mod disk;
mod error;
mod export;
mod format;
mod import;
mod keep;
mod library;
mod lock;
mod messages;
mod opening;
mod pages;
mod query;
mod recorded;
mod rescue;
mod row_source;
mod salvage;
mod save;
mod schema;
mod scratch;
mod seal;
mod search;
mod segment;
mod sessions;
mod state;
mod summary;
mod typed;
mod writer;

pub use arrival::{Imported, LeftOut, Skipped};
pub use bundle::Bundled;
pub use check::{Checked, not_looked_at};
pub use collect::Sizes;
pub use commit::{Change, NewDocument, NewSession, Save, TitleBy};
pub use database::{Access, Limits, Store};
pub use directory::check_folder;
pub use disk::{Disk, DiskFile, Look, RealDisk};
pub use error::{Result, StoreError, Watch};
pub use export::{Overwrite, Scope};
pub use keep::{Freed, NOT_WRITTEN, PRUNED};
pub use library::DocumentRecord;
pub use lock::{Owner, SessionLock};
pub use messages::Extent;
pub use rescue::Rescued;
pub use row_source::{Opened, StoredRows};
pub use salvage::Unread;
pub use schema::VERSION as DATA_VERSION;
pub use scratch::Scratch;
pub use segment::{NewSegment, Segment, SegmentId, SegmentKind, Stored, TextBoundary, ending_in, unchanged_prefix};
pub use sessions::{FOLDER, MarkRecord, MessageNode, ONCE, SessionFilter, SessionRecord};
pub use state::{Lost, RestorePlan};
pub use typed::{NO_ROW, draft_places};
pub use writer::{SaveEvent, Unsaved, Writer};

/// Names the session that changed last. No session may have this name.
pub const LAST: &str = "last";
