//! Data directories by the settings: of the conversations, of the requests to serve, of a session that is not kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::{Context, Failure, dirs, out};
use crate::core::sanitize::Clean;
use crate::core::{Exit, places};
use crate::store::{Access, Disk, LAST, Limits, RealDisk, Scratch, SessionFilter, Store, StoreError};
use crate::text::near::meant;

const GIB: f64 = (1u64 << 30) as f64;

impl From<StoreError> for Failure {
    fn from(e: StoreError) -> Failure {
        let exit = e.exit();
        let failure = Failure::new(exit, e.to_string());
        if exit == Exit::InUse { failure.hint("Close it there first") } else { failure }
    }
}

pub(in crate::cli) fn limits(context: &Context) -> Limits {
    let s = &context.config().sessions;
    Limits {
        keep_turns: s.keep_turns,
        max_state_bytes: (s.max_state_gib * GIB) as u64,
        min_free_bytes: (s.min_free_gib * GIB) as u64,
        trash_days: u32::try_from(s.trash_days).unwrap_or(u32::MAX),
        ..Limits::default()
    }
}

fn opened(
    context: &Context,
    open: fn(&Path, Arc<dyn Disk>, Limits) -> Result<Store, StoreError>,
) -> Result<Arc<Store>, Failure> {
    Ok(Arc::new(open(&context.dirs.data, Arc::new(RealDisk), limits(context))?))
}

pub fn store(context: &Context) -> Result<Arc<Store>, Failure> {
    opened(context, Store::open)
}

/// For a command that writes, and reports on standard error what opening found.
pub fn store_to_change(context: &Context) -> Result<Arc<Store>, Failure> {
    let store = opened(context, Store::open)?;
    if let Access::ReadOnly { why } = &store.access {
        return Err(StoreError::ReadOnly { why: why.clone() }.into());
    }
    say_notes(context, &store);
    Ok(store)
}

/// For a command that only looks: works on a full disk.
pub fn store_to_read(context: &Context) -> Result<Arc<Store>, Failure> {
    opened(context, Store::open_to_read).inspect(|store| say_notes(context, store))
}

/// Names of the library's documents, for mentions. Empty if it cannot be read; opening the store reports that.
pub(in crate::cli) fn library_names(context: &Context) -> Vec<String> {
    let names = opened(context, Store::open_to_read).ok().and_then(|store| store.document_names().ok());
    names.unwrap_or_default().into_iter().map(|(name, _)| name).collect()
}

/// The store of the server's requests: separate from the conversations, with its own limits.
pub fn store_of_requests(context: &Context) -> Result<Arc<Store>, Failure> {
    let (folder, limits) = requests(context);
    Ok(Arc::new(Store::open(&folder, Arc::new(RealDisk), limits)?)).inspect(|store| say_notes(context, store))
}

/// The same for a server, as a cache: a damaged store is moved aside, and if that fails nothing is kept.
pub fn store_of_requests_or_new(context: &Context) -> Result<(Arc<Store>, Option<Scratch>), Failure> {
    let data = &context.dirs.data;
    dirs::make_private(data).map_err(|source| StoreError::NoFolder { path: data.clone(), source })?;
    let (folder, limits) = requests(context);
    match crate::server::open_cache(&folder, &limits) {
        Ok((store, moved)) => {
            if let Some(moved) = moved {
                out::err_line(&Clean::line(&moved));
            }
            say_notes(context, &store);
            Ok((store, None))
        }
        Err(e @ (StoreError::NotOurs { .. } | StoreError::NoFolder { .. })) => Err(e.into()),
        Err(e) => {
            out::err_line(&Clean::line(&format!("State of requests is not kept in this run: {e}")));
            scratch(context).map(|(store, dir)| (store, Some(dir)))
        }
    }
}

pub(in crate::cli) fn folder_of_requests(context: &Context) -> Option<PathBuf> {
    Some(requests(context).0).filter(|folder| folder.is_dir())
}

fn requests(context: &Context) -> (PathBuf, Limits) {
    let max_state_bytes = (context.config().serve.max_state_gib * GIB) as u64;
    (context.dirs.data.join(places::REQUESTS), Limits { max_state_bytes, trash_days: 0, ..limits(context) })
}

fn say_notes(context: &Context, store: &Store) {
    store.notes.iter().cloned().chain(store.damage()).for_each(|note| context.warn(&note));
}

/// A temporary store, deleted with the returned folder; in memory where the system allows it.
pub fn scratch(context: &Context) -> Result<(Arc<Store>, Scratch), Failure> {
    let dir = Scratch::new();
    let dir = dir.map_err(|e| Failure::new(Exit::Disk, format!("no room for a session without saving: {e}")))?;
    let limits = Limits { min_free_bytes: 0, ..limits(context) };
    let data = dir.path().join("data");
    let store = Store::open(&data, Arc::new(RealDisk), limits)?;
    Ok((Arc::new(store), dir))
}

pub(in crate::cli) const LISTED: usize = 100_000;

/// The failure for a session that does not exist, with the nearest name.
pub(in crate::cli) fn no_session(store: &Store, name: &str) -> Failure {
    let records = store.sessions(SessionFilter::Live, LISTED).unwrap_or_default();
    let near = meant(name, records.iter().map(|r| r.name.as_str()));
    let message = format!("no session called \"{name}\".{near}");
    Failure::new(Exit::Failure, message.trim_end_matches('.')).hint("sala-chat ls lists them")
}

/// Refuses to resume a session that does not exist. Resuming restores one from the trash.
pub(in crate::cli) fn check_name(store: &Store, name: &str) -> Result<(), Failure> {
    let missing = name != LAST && matches!(store.session_named(name), Err(StoreError::NoSession { .. }));
    if missing && matches!(store.trashed_session(name), Ok(None)) {
        return Err(no_session(store, name));
    }
    Ok(())
}
