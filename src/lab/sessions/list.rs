//! The picker's list of a store with many sessions.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::{PATIENCE, REPEATS, message};
use crate::cli::{Exit, Failure};
use crate::core::transcript::Role;
use crate::lab::bench::median;
use crate::runtime::session_rows;
use crate::store::{Change, Limits, NewSession, RealDisk, Save, SaveEvent, SessionFilter, Store, Writer};

#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct List {
    pub(super) sessions: usize,
    pub(super) open_store_ms: f64,
    pub(super) ms: f64,
}

/// Saves all changes in one transaction and waits until it is on disk.
fn saved(store: &Arc<Store>, changes: Vec<Change>) -> Result<(), Failure> {
    let (events, outcome) = crossbeam_channel::unbounded();
    let writer = Writer::start(Arc::clone(store), events)?;
    writer.save(Save { changes, images: Vec::new() });
    writer.close(Instant::now() + PATIENCE).map_err(|e| Failure::new(Exit::Disk, e.to_string()))?;
    match outcome.iter().find(|e| !matches!(e, SaveEvent::Named { .. } | SaveEvent::Text { .. })) {
        Some(SaveEvent::Saved { .. }) => Ok(()),
        other => Err(Failure::new(Exit::Disk, format!("the sessions could not be saved: {other:?}"))),
    }
}

pub(super) fn list(folder: &Path, sessions: usize) -> Result<List, Failure> {
    let limits = Limits { min_free_bytes: 0, ..Limits::default() };
    let open = || Store::open(folder, Arc::new(RealDisk), limits.clone());
    let store = Arc::new(open()?);
    let mut changes = Vec::with_capacity(4 * sessions);
    for n in 0..sessions {
        let session = store.new_session_id();
        let asked = message(&store, None, Role::User, format!("What is written in entry {n}?"));
        let answered = message(&store, Some(asked.id), Role::Assistant, format!("Entry {n} was written by Anna."));
        let head = Some(answered.id);
        let settings = "{}".to_owned();
        changes.push(Change::CreateSession(NewSession {
            id: session,
            name: format!("session {n}"),
            settings,
            head: None,
            forked_from: None,
        }));
        changes.extend([asked, answered].map(|m| Change::PutMessage { session, message: Box::new(m) }));
        changes.push(Change::MoveHead { session, head });
    }
    saved(&store, changes)?;
    drop(store);
    let (mut opening, mut listing, mut found) = (Vec::new(), Vec::new(), 0);
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let store = open()?;
        opening.push(begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        let rows = session_rows(&store, store.sessions(SessionFilter::Live, sessions)?, None, None);
        listing.push(begun.elapsed().as_secs_f64() * 1e3);
        found = rows.len();
    }
    Ok(List { sessions: found, open_store_ms: median(opening), ms: median(listing) })
}
