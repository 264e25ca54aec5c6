//! Answers with an id: each is a message of the store, and its link holds the state after it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Choice, Refusal, Result, Sent, Status, Turn, Usage, locked, own_data};
use crate::core::transcript::{Finish, MessageId, SessionId};
use crate::store::{Change, Save, SessionFilter, Store, StoreError, Writer};
use crate::text::ChatRole;

/// Answers in memory until they are on disk.
const RECENT: usize = 256;
const PREFIX: &str = "resp_";

#[derive(Clone, Debug)]
pub(super) struct Record {
    /// Its row, from which its id is made.
    pub message: MessageId,
    pub parent: Option<MessageId>,
    /// The request's turns; once complete, also the answer.
    pub turns: Vec<Turn>,
    /// The object of the response; null until it is complete.
    pub response: Value,
    /// Of an answer in memory.
    sent: Option<Sent>,
}

#[derive(Deserialize)]
struct Row {
    turns: Vec<Turn>,
    response: Value,
}

/// Reads a row of the store. A damaged one, or one with state alone, is no answer.
fn read(text: &str) -> Option<Row> {
    serde_json::from_str(text).ok()
}

impl Record {
    pub(super) fn new(message: MessageId, parent: Option<MessageId>, requested: Vec<Turn>, sent: Sent) -> Record {
        Record { message, parent, turns: requested, response: Value::Null, sent: Some(sent) }
    }

    pub(super) fn complete(&mut self, choice: &Choice, usage: &Usage, finish: Finish) {
        let response = |sent: &Sent| sent.response(Status::of(finish, choice), Some(choice), Some(usage));
        self.response = self.sent.as_ref().map(response).unwrap_or_default();
        let (thinking, calls) = (choice.thinking(), choice.calls().cloned().collect());
        self.turns.push(Turn { thinking, calls, ..Turn::new(ChatRole::Assistant, choice.answer()) });
    }

    pub(super) fn row(&self) -> String {
        json!({ "turns": self.turns, "response": self.response }).to_string()
    }
}

pub(super) struct Records {
    store: Arc<Store>,
    /// Gone once the server ends.
    writer: Weak<Writer>,
    recent: Mutex<VecDeque<Record>>,
    /// Deleted answers: their rows may still be in the store, or on their way there.
    deleted: Mutex<HashSet<MessageId>>,
}

fn unknown(id: &str, field: &str) -> Refusal {
    let message = format!("there is no answer {id}; it may have been forgotten");
    Refusal::new(404, "not_found", message).about(field)
}

fn internal(e: StoreError) -> Refusal {
    Refusal::internal(format!("an answer cannot be looked up: {e}"))
}

impl Records {
    pub(super) fn new(store: Arc<Store>, writer: Weak<Writer>) -> Records {
        Records { store, writer, recent: Mutex::default(), deleted: Mutex::default() }
    }

    pub(super) fn add(&self, record: Record) {
        let mut recent = locked(&self.recent);
        recent.push_back(record);
        if recent.len() > RECENT {
            recent.pop_front();
        }
    }

    pub(super) fn id(message: MessageId) -> String {
        format!("{PREFIX}{:016x}", message.0)
    }

    /// The number of an id, unless the answer is deleted.
    fn number(&self, id: &str, field: &str) -> Result<MessageId> {
        let hex = id.strip_prefix(PREFIX).filter(|n| n.len() == 16);
        let number = hex.and_then(|n| i64::from_str_radix(n, 16).ok()).map(MessageId);
        number.filter(|n| !locked(&self.deleted).contains(n)).ok_or_else(|| unknown(id, field))
    }

    /// The session of the store that ends with an answer; a deleted answer stays without one while others build on it.
    fn holder(&self, message: MessageId) -> Result<Option<SessionId>, StoreError> {
        let all = self.store.sessions(SessionFilter::Live, usize::MAX)?;
        Ok(all.iter().find(|s| s.head == Some(message)).map(|s| s.id))
    }

    /// An answer, in memory or in the store, deleted or not.
    fn record(&self, message: MessageId) -> Result<Option<Record>, StoreError> {
        if let Some(found) = locked(&self.recent).iter().find(|r| r.message == message) {
            return Ok(Some(found.clone()));
        }
        let Some(stored) = StoreError::if_known(self.store.message(message))? else { return Ok(None) };
        let record = |Row { turns, response }| Record { message, parent: stored.parent, turns, response, sent: None };
        Ok(read(&stored.text).map(record))
    }

    pub(super) fn get(&self, id: &str, field: &str) -> Result<Record> {
        let message = self.number(id, field)?;
        let record = self.record(message).map_err(internal)?.ok_or_else(|| unknown(id, field))?;
        if record.sent.is_none() && self.holder(message).map_err(internal)?.is_none() {
            return Err(unknown(id, field));
        }
        Ok(record)
    }

    /// The answer of an id and all turns up to and with it.
    pub(super) fn find(&self, id: &str, field: &str) -> Result<(MessageId, Vec<Turn>)> {
        let Record { message, mut parent, turns, .. } = self.get(id, field)?;
        let mut path = vec![turns];
        while let Some(at) = parent {
            let before = self.record(at).map_err(internal)?.ok_or_else(|| unknown(id, field))?;
            parent = before.parent;
            path.push(before.turns);
        }
        Ok((message, path.into_iter().rev().flatten().collect()))
    }

    pub(super) fn item(&self, id: &str, field: &str) -> Result<Value> {
        own_data()?;
        let of = |response: &Value| -> Option<Value> {
            response["output"].as_array()?.iter().find(|item| item["id"] == id).cloned()
        };
        if let Some(item) = locked(&self.recent).iter().rev().find_map(|record| of(&record.response)) {
            return Ok(item);
        }
        let all = self.store.sessions(SessionFilter::Live, usize::MAX).map_err(internal)?;
        let texts = all.iter().filter_map(|holder| Some(self.store.message(holder.head?).ok()?.text));
        let mut items = texts.filter(|text| text.contains(id)).filter_map(|text| of(&read(&text)?.response));
        items.next().ok_or_else(|| unknown(id, field))
    }

    /// Deletes an answer. Later answers keep the turns and state that they build on.
    pub(super) fn delete(&self, id: &str) -> Result<()> {
        let head = self.get(id, "response_id")?.message;
        locked(&self.deleted).insert(head);
        if let Some(holder) = self.holder(head).map_err(internal)? {
            return self.store.delete(holder).map_err(internal);
        }
        // Its row is still on its way to the disk.
        let save = Save { changes: vec![Change::Trash(head)], images: Vec::new() };
        if let Some(writer) = self.writer.upgrade() {
            writer.save(save);
        }
        Ok(())
    }
}
