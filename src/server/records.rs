//! Answers that can be named again: each is a message of the store, whose link holds the state behind it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::collected::Choice;
use super::context::own_data;
use super::refusal::Refusal;
use super::response::{Sent, Status};
use super::said::Usage;
use super::turns::Turn;
use crate::core::transcript::{Finish, MessageId};
use crate::store::{SessionFilter, SessionRecord, Store, StoreError};
use crate::text::ChatRole;

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
    turns: Vec<Turn>,
    sent: Sent,
    /// The object that was sent; null before.
    response: Value,
}

/// What the store has of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Row {
    Whole {
        turns: Vec<Turn>,
        response: Value,
    },
    /// As versions before wrote it.
    Turns(Vec<Turn>),
}

impl Row {
    fn turns(self) -> Vec<Turn> {
        match self {
            Row::Whole { turns, .. } | Row::Turns(turns) => turns,
        }
    }
}

impl Record {
    pub(super) fn new(message: MessageId, parent: Option<MessageId>, asked: Vec<Turn>, sent: Sent) -> Record {
        Record { message, parent, turns: asked, sent, response: Value::Null }
    }

    /// It is answered.
    pub(super) fn complete(&mut self, choice: &Choice, usage: &Usage, finish: Finish) {
        self.response = self.sent.response(Status::of(finish, choice), Some(choice), Some(usage));
        let (thinking, calls) = (choice.thinking(), choice.calls().cloned().collect());
        self.turns.push(Turn { thinking, calls, ..Turn::new(ChatRole::Assistant, choice.answer()) });
    }

    /// The text of its row.
    pub(super) fn row(&self) -> String {
        let row = Row::Whole { turns: self.turns.clone(), response: self.response.clone() };
        // Plain data: it is always JSON.
        serde_json::to_string(&row).unwrap_or_default()
    }
}

/// An answer that was named.
#[derive(Debug)]
pub(super) struct Named {
    pub message: MessageId,
    /// What was asked; what was answered is the last one.
    pub turns: Vec<Turn>,
    /// The object that was sent; null where a version before did not keep it.
    pub response: Value,
    /// Seconds since the epoch.
    pub created: u64,
}

/// All that can be named.
#[derive(Debug)]
pub(super) struct Records {
    store: Arc<Store>,
    recent: Mutex<VecDeque<Record>>,
    /// Must not be named any more, whatever the store says: a row may still be on its way there.
    deleted: Mutex<HashSet<MessageId>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unknown(id: &str, field: &str) -> Refusal {
    let mut refusal = Refusal::new(404, "not_found", format!("there is no answer {id}; it may have been forgotten"));
    refusal.param = Some(field.to_owned());
    refusal
}

fn internal(e: StoreError) -> Refusal {
    Refusal::internal(format!("an answer cannot be looked up: {e}"))
}

impl Records {
    pub(super) fn new(store: Arc<Store>) -> Records {
        Records { store, recent: Mutex::default(), deleted: Mutex::default() }
    }

    /// The number of an answer that begins.
    pub(super) fn fresh(&self) -> MessageId {
        self.store.new_message_id(None)
    }

    /// It is complete: found from now on.
    pub(super) fn add(&self, record: Record) {
        let mut recent = locked(&self.recent);
        recent.push_back(record);
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    /// The id of an answer.
    pub(super) fn id(message: MessageId) -> String {
        format!("{PREFIX}{:016x}", message.0)
    }

    /// The number that an id stands for, if that may be named.
    fn number(&self, id: &str, field: &str) -> Result<MessageId, Refusal> {
        let hex = id.strip_prefix(PREFIX).filter(|n| n.len() == 16);
        let number = hex.and_then(|n| i64::from_str_radix(n, 16).ok()).map(MessageId);
        number.filter(|n| !locked(&self.deleted).contains(n)).ok_or_else(|| unknown(id, field))
    }

    /// The row that holds an answer in the store; `None`: there is none, or not any more.
    fn holder(&self, message: MessageId) -> Result<Option<SessionRecord>, StoreError> {
        let all = self.store.sessions(SessionFilter::Live, usize::MAX)?;
        Ok(all.into_iter().find(|s| s.head == Some(message)))
    }

    /// The answer of an id and all turns up to and with it.
    pub(super) fn find(&self, id: &str, field: &str) -> Result<(MessageId, Vec<Turn>), Refusal> {
        let named = self.number(id, field)?;
        let mut newer = Vec::new();
        let mut next = Some(named);
        while let Some(at) = next {
            let recent = locked(&self.recent);
            let Some(found) = recent.iter().find(|r| r.message == at) else { break };
            next = found.parent;
            newer.push(found.turns.clone());
        }
        let mut turns = match next {
            // What others build on stays when it is deleted; it cannot be named.
            Some(at) if at == named && self.holder(at).map_err(internal)?.is_none() => return Err(unknown(id, field)),
            Some(at) => self.stored(at).map_err(internal)?.ok_or_else(|| unknown(id, field))?,
            None => Vec::new(),
        };
        turns.extend(newer.into_iter().rev().flatten());
        Ok((named, turns))
    }

    /// The turns up to a message of the store; `None` where there is none.
    fn stored(&self, at: MessageId) -> Result<Option<Vec<Turn>>, StoreError> {
        let path = match self.store.path(at) {
            Ok(path) => path,
            Err(StoreError::NoMessage { .. }) => return Ok(None),
            Err(e) => return Err(e),
        };
        // A row that holds state alone, or that is damaged, is no answer that can be named.
        let rows = path.iter().map(|message| serde_json::from_str::<Row>(&message.text).ok().map(Row::turns));
        Ok(rows.collect::<Option<Vec<_>>>().map(|turns| turns.into_iter().flatten().collect()))
    }

    /// The answer of an id as it was sent.
    pub(super) fn get(&self, id: &str) -> Result<Named, Refusal> {
        let message = self.number(id, "response_id")?;
        if let Some(found) = locked(&self.recent).iter().find(|r| r.message == message) {
            let (turns, response) = (found.turns.clone(), found.response.clone());
            return Ok(Named { message, turns, response, created: found.sent.created });
        }
        let none = || unknown(id, "response_id");
        self.holder(message).map_err(internal)?.ok_or_else(none)?;
        let stored = self.store.message(message).map_err(internal)?;
        let created = u64::try_from(stored.created_ms / 1_000).unwrap_or(0);
        match serde_json::from_str(&stored.text).map_err(|_| none())? {
            Row::Whole { turns, response } => Ok(Named { message, turns, response, created }),
            Row::Turns(turns) => Ok(Named { message, turns, response: Value::Null, created }),
        }
    }

    /// An item of an earlier answer, by its own id.
    pub(super) fn item(&self, id: &str, field: &str) -> Result<Value, Refusal> {
        own_data()?;
        let of = |response: &Value| -> Option<Value> {
            response["output"].as_array()?.iter().find(|item| item["id"] == id).cloned()
        };
        if let Some(item) = locked(&self.recent).iter().rev().find_map(|record| of(&record.response)) {
            return Ok(item);
        }
        for holder in self.store.sessions(SessionFilter::Live, usize::MAX).map_err(internal)? {
            let Some(message) = holder.head.and_then(|head| self.store.message(head).ok()) else { continue };
            let found = message.text.contains(id).then(|| serde_json::from_str(&message.text).ok()).flatten();
            if let Some(Row::Whole { response, .. }) = found
                && let Some(item) = of(&response)
            {
                return Ok(item);
            }
        }
        Err(unknown(id, field))
    }

    /// Forgets an answer. What was answered behind it keeps what it builds on.
    pub(super) fn delete(&self, id: &str) -> Result<(), Refusal> {
        let message = self.get(id)?.message;
        // What builds on it and is not on disk yet still finds it among the recent ones.
        locked(&self.deleted).insert(message);
        if let Some(holder) = self.holder(message).map_err(internal)? {
            self.store.delete(holder.id).map_err(internal)?;
        }
        Ok(())
    }

    /// Whether an answer was deleted; its row may have come to disk since.
    pub(super) fn is_deleted(&self, message: MessageId) -> bool {
        locked(&self.deleted).contains(&message)
    }

    /// Forgets an answer that was deleted before it was on disk, now that it is.
    pub(super) fn forget_one(&self, message: MessageId) {
        let gone = self.holder(message).and_then(|h| h.map_or(Ok(()), |holder| self.store.delete(holder.id)));
        if let Err(e) = gone {
            tracing::warn!("a deleted answer is not forgotten: {e}");
        }
    }

    /// The same of all of them.
    pub(super) fn forget(&self) {
        let all: Vec<MessageId> = locked(&self.deleted).iter().copied().collect();
        all.into_iter().for_each(|message| self.forget_one(message));
    }
}
