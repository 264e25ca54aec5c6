//! Answers that can be named again: each is a message of the store, whose link holds the state behind it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::prompt::Turn;
use super::refusal::Refusal;
use crate::session::{Store, StoreError};
use crate::transcript::MessageId;

/// Answers that are found before they are on disk.
const RECENT: usize = 256;
/// How an id begins.
const PREFIX: &str = "resp_";

/// What is remembered of an answer beside its state.
#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Its row, from which its id is made.
    pub message: MessageId,
    /// The answer before it.
    pub parent: Option<MessageId>,
    /// What was asked; then also what was answered.
    pub turns: Vec<Turn>,
}

/// All that can be named.
#[derive(Debug)]
pub(super) struct Records {
    store: Arc<Store>,
    recent: Mutex<VecDeque<Record>>,
}

impl Records {
    pub(super) fn new(store: Arc<Store>) -> Records {
        Records { store, recent: Mutex::default() }
    }

    /// A record of an answer that begins.
    pub(super) fn begin(&self, parent: Option<MessageId>, turns: Vec<Turn>) -> Record {
        Record { message: self.store.new_message_id(), parent, turns }
    }

    /// It is complete: found from now on.
    pub(super) fn add(&self, record: Record) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back(record);
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// The id of an answer.
    pub(super) fn id(record: &Record) -> String {
        format!("{PREFIX}{:016x}", record.message.0)
    }

    /// The answer of an id and all turns up to and with it.
    pub(super) fn find(&self, id: &str, field: &str) -> Result<(MessageId, Vec<Turn>), Refusal> {
        let unknown = || {
            let mut refusal =
                Refusal::new(404, "not_found", format!("there is no answer {id}; it may have been forgotten"));
            refusal.param = Some(field.to_owned());
            refusal
        };
        let number = id.strip_prefix(PREFIX).filter(|n| n.len() == 16).ok_or_else(unknown)?;
        let named = MessageId(i64::from_str_radix(number, 16).map_err(|_| unknown())?);
        let mut newer = Vec::new();
        let mut next = Some(named);
        while let Some(at) = next {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(found) = recent.iter().find(|r| r.message == at) else { break };
            next = found.parent;
            newer.push(found.turns.clone());
        }
        let mut turns = match next {
            Some(at) => self.stored(at).map_err(|e| e.map_or_else(unknown, Refusal::internal))?,
            None => Vec::new(),
        };
        turns.extend(newer.into_iter().rev().flatten());
        Ok((named, turns))
    }

    /// The turns up to a message of the store; `Err(None)` where there is none.
    fn stored(&self, at: MessageId) -> Result<Vec<Turn>, Option<String>> {
        let path = self.store.path(at).map_err(|e| match e {
            StoreError::NoMessage { .. } => None,
            e => Some(e.to_string()),
        })?;
        let mut turns = Vec::new();
        for message in path {
            // A row that holds state alone, or that is damaged, is no answer that can be named.
            let more: Vec<Turn> = serde_json::from_str(&message.text).map_err(|_| None)?;
            turns.extend(more);
        }
        Ok(turns)
    }
}
