//! The disk: conversations, saved model state, the document library, search, trash.
//!
//! Owns one data directory: `sala.db` (SQLite: everything that must never be lost) and `segments/` (immutable files of
//! model state: a cache of work done). Never renders text, never talks to a model, never prints.
//!
//! # Invariants
//!
//! 1. **Text first.** A transaction holding text never waits for, and never fails because of, a state file: whoever holds
//!    the database renames such files, and writes, syncs or removes none.
//! 2. **One commit point per promise.** Text is safe when its transaction is; state is kept when the transaction that
//!    names its checksum is, and its file was synced (file, then directory) before that.
//! 3. A state file is believed only after its bytes hash to what the database says. Anything else is *declared
//!    missing* with a reason, and the nearest earlier state is used.
//! 4. Files no row names are removed some days later; rows whose file is missing lose their state, not their text.
//! 5. After a failed write or sync, state saving is off until a probe file could be written, synced and removed.
//! 6. Only our own files are written or removed: names of our form, in a directory that carries our mark, through no link.
//! 7. A message whose bytes have turned is shown as damaged; it hides no other (`seal.rs`).
//! 8. State that came from a file answers only for the sessions that came with it (`bundle.rs`).
//! 9. A state file that a row names is never replaced or removed: files come to their places, and leave them, only while the
//!    database is this process's to write (`save.rs`).
//!
//! # Files
//!
//! From the bottom to the top: a file imports only what is named before it.
//!
//! | file | owns |
//! |---|---|
//! | `segment`, `error`, `watch` | words: pieces of state by name; one error type; who waits for what takes long |
//! | `disk`, `scratch`, `format`, `vet` | files: every file effect; what must not outlive the process; the two files of a segment; state from elsewhere |
//! | `seal`, `schema`, `recorded`, `reach` | rows: checksums inside the database; its tables; segments as it has them; which messages a session shows |
//! | `directory`, `parts`, `database`, `opening`, `lock` | the store: what lies where; unfinished exports; an open data directory; what an earlier run left; who writes a session |
//! | `summary`, `history`, `drafts`, `commit`, `unlinked` | changes: what lists show of a session; typed prompts; what stands in inputs; what a save consists of: the only code that changes text; state recorded and not yet linked |
//! | `messages`, `sessions`, `search`, `library` | what is asked: messages as paths from a root; sessions; full text over all of them; documents that were read |
//! | `uses`, `state`, `find`, `row_source`, `save` | state: used when, in, found by its text, its rows on their way out, on its way to disk |
//! | `keep`, `wipe`, `misplaced`, `check`, `exchange`, `rescue`, `collect` | what goes: thinning and the disk budget; nothing left of what was deleted for good; state that was read at another place than its message's; `doctor --check`; a new database in the place of a damaged one; what can be read of a database that cannot be opened; what nothing needs any more |
//! | `export`, `arrival`, `bundle`, `import` | conversations out and in, with or without their state |
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
mod drafts;
mod error;
mod exchange;
mod export;
mod find;
mod format;
mod history;
mod import;
mod keep;
mod library;
mod lock;
mod messages;
mod misplaced;
mod opening;
mod parts;
mod reach;
mod recorded;
mod rescue;
mod row_source;
mod save;
mod schema;
mod scratch;
mod seal;
mod search;
mod segment;
mod sessions;
mod state;
mod summary;
mod unlinked;
mod uses;
mod vet;
mod watch;
mod wipe;
mod writer;

pub use arrival::{Imported, LeftOut, Skipped};
pub use bundle::Bundled;
pub use check::{Checked, not_looked_at};
pub use collect::Sizes;
pub use commit::{Change, NewDocument, NewSession, Save, TitleBy};
pub use database::{Access, Limits, Store};
pub use directory::check_folder;
pub use disk::{Disk, DiskFile, Look, RealDisk};
pub use drafts::{NO_ROW, draft_places};
pub use error::{Result, StoreError};
pub use export::{Overwrite, Scope};
pub use keep::{Freed, NOT_WRITTEN, PRUNED};
pub use library::DocumentRecord;
pub use lock::{Owner, SessionLock};
pub use messages::Extent;
pub use rescue::{Rescue, Rescued, Unread};
pub use row_source::{Opened, StoredRows};
pub use scratch::Scratch;
pub use search::SearchHit;
pub use segment::{NewSegment, Segment, SegmentId, SegmentKind, Stored, TextBoundary, unchanged_prefix};
pub use sessions::{MarkRecord, MessageNode, SessionFilter, SessionRecord};
pub use state::{Lost, RestorePlan};
pub use watch::Watch;
pub use writer::{SaveEvent, Unsaved, Writer};

/// What means the session changed last where a session is named. None is given it as its name.
pub const LAST: &str = "last";
