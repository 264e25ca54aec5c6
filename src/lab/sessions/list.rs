//! The picker's list of a store with many sessions.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

use super::super::report::Samples;
use super::super::scratch::{SAVING, message};
use super::REPEATS;
use crate::cli::{Exit, Failure};
use crate::core::transcript::Role;
use crate::runtime::session_rows;
use crate::store::{Change, Limits, NewSession, RealDisk, Save, SaveEvent, SessionFilter, Store, Writer};

pub(super) fn measure(folder: &Path, sessions: usize) -> Result<Value, Failure> {
    let limits = Limits { min_free_bytes: 0, ..Limits::default() };
    let open = || Store::open(folder, Arc::new(RealDisk), limits.clone());
    fill(Arc::new(open()?), sessions)?;
    let (mut samples, mut found) = (Samples::default(), 0);
    for _ in 0..REPEATS {
        let begun = Instant::now();
        let store = open()?;
        samples.add("open", begun.elapsed().as_secs_f64() * 1e3);
        let begun = Instant::now();
        let rows = session_rows(&store, store.sessions(SessionFilter::Live, sessions)?, None, None);
        samples.add("list", begun.elapsed().as_secs_f64() * 1e3);
        found = rows.len();
    }
    Ok(json!({ "sessions": found, "open_store_ms": samples.median("open"), "ms": samples.median("list") }))
}

/// Saves all sessions in one transaction and waits until it is on disk.
fn fill(store: Arc<Store>, sessions: usize) -> Result<(), Failure> {
    let mut changes = Vec::with_capacity(4 * sessions);
    for n in 0..sessions {
        let id = store.new_session_id();
        let question = message(&store, None, Role::User, format!("What is written in entry {n}?"));
        let answer = message(&store, Some(question.id), Role::Assistant, format!("Entry {n} was written by Anna."));
        let head = Some(answer.id);
        let (name, settings) = (format!("session {n}"), "{}".to_owned());
        changes.push(Change::CreateSession(NewSession { id, name, settings, head: None, forked_from: None }));
        changes.extend([question, answer].map(|m| Change::PutMessage { session: id, message: Box::new(m) }));
        changes.push(Change::MoveHead { session: id, head });
    }
    let (events, outcome) = crossbeam_channel::unbounded();
    let writer = Writer::start(store, events)?;
    writer.save(Save { changes, images: Vec::new() });
    writer.close(Instant::now() + SAVING).map_err(|e| Failure::new(Exit::Disk, e.to_string()))?;
    match outcome.iter().find(|e| !matches!(e, SaveEvent::Named { .. } | SaveEvent::Text { .. })) {
        Some(SaveEvent::Saved { .. }) => Ok(()),
        other => Err(Failure::new(Exit::Disk, format!("the sessions could not be saved: {other:?}"))),
    }
}
