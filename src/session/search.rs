//! Full-text search over all sessions: SQLite FTS5 with trigrams, so that languages without spaces work, too.
//!
//! Words shorter than three characters have no trigram; they are looked for by scanning. Indexing happens after the
//! commit of a text, never in it.

use rusqlite::types::Value;

use super::error::Result;
use super::sessions::PLACES;
use super::store::Store;
use crate::transcript::{MessageId, SessionId};

/// Messages looked at together.
const BATCH: i64 = 64;
/// Text indexed in one transaction (unless one message has more): everybody who wants to write waits for it.
const BATCH_BYTES: i64 = 1 << 18;

/// A place where a search found something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SearchHit {
    /// A session that shows it, not in the trash.
    pub session: SessionId,
    /// That session's name.
    pub name: String,
    /// The message.
    pub message: MessageId,
    /// Its number on its branch, from 1.
    pub number: u64,
    /// Text around the first hit, which stands between `[` and `]`; one line.
    pub snippet: String,
    /// When it was said, ms since the epoch.
    pub created_ms: i64,
}

/// The session that shows message `m`: where it was said, or, with that in the trash, the oldest other one that reaches it.
fn shown_by() -> String {
    format!(
        "coalesce((SELECT id FROM session WHERE id = m.session AND trashed_ms IS NULL), (
           WITH RECURSIVE {PLACES}, down(id, session) AS (
             SELECT m.id, m.session
             UNION SELECT c.id, c.session FROM down CROSS JOIN message c ON c.parent = down.id)
           SELECT min(id) FROM session WHERE trashed_ms IS NULL AND (id IN (SELECT session FROM down)
             OR id IN (SELECT session FROM place WHERE message IN (SELECT id FROM down)))))"
    )
}

impl Store {
    /// Puts texts that are not in the index yet into it. Returns how many.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn index_texts(&self) -> Result<u64> {
        let mut all = 0;
        loop {
            let waiting: Vec<(i64, i64)> = self.read(|db| {
                let mut query =
                    db.prepare_cached("SELECT id, octet_length(text) FROM message WHERE indexed = 0 LIMIT ?1")?;
                let rows = query.query_map([BATCH], |r| Ok((r.get(0)?, r.get(1)?)))?;
                Ok(rows.collect::<Result<_, _>>()?)
            })?;
            if waiting.is_empty() {
                return Ok(all);
            }
            let mut bytes = 0;
            let batch: Vec<i64> = waiting
                .iter()
                .take_while(|(_, length)| {
                    let first = bytes == 0;
                    bytes += length.max(&1);
                    first || bytes <= BATCH_BYTES
                })
                .map(|(id, _)| *id)
                .collect();
            self.transaction(|tx| {
                for id in &batch {
                    // Flag first: it also tells that nobody else has indexed the row meanwhile.
                    if tx
                        .prepare_cached("UPDATE message SET indexed = 1 WHERE id = ?1 AND indexed = 0")?
                        .execute([id])?
                        == 1
                    {
                        tx.prepare_cached(
                            "INSERT INTO message_text(rowid, text) SELECT id, text FROM message WHERE id = ?1",
                        )?
                        .execute([id])?;
                    }
                }
                Ok(())
            })?;
            all += batch.len() as u64;
        }
    }

    /// Messages that contain every word of `query` (`"in quotes"`: the words as they stand), best first. Upper and
    /// lower case are the same.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn search(&self, query: &str, limit: usize) -> Result<Vec<SearchHit>> {
        // What cannot be indexed now (a full disk) is missing from the result, not a reason to have none.
        let _ = self.index_texts();
        let words = words(query);
        if words.is_empty() {
            return Ok(Vec::new());
        }
        let (long, short): (Vec<&String>, Vec<&String>) = words.iter().partition(|w| w.chars().count() >= 3);
        let mut sql = format!(
            "SELECT m.id, m.depth, m.created_ms, m.text, s.id, s.name FROM message m JOIN session s ON s.id = {}",
            shown_by()
        );
        let mut values: Vec<Value> = Vec::new();
        if long.is_empty() {
            sql.push_str(" WHERE 1");
        } else {
            sql.push_str(" JOIN message_text t ON t.rowid = m.id WHERE message_text MATCH ?");
            let quoted: Vec<String> = long.iter().map(|w| format!("\"{}\"", w.replace('"', "\"\""))).collect();
            values.push(Value::Text(quoted.join(" ")));
        }
        for word in short {
            sql.push_str(" AND m.text LIKE ? ESCAPE '\\'");
            let escaped = word.replace('\\', "\\\\").replace('%', "\\%").replace('_', "\\_");
            values.push(Value::Text(format!("%{escaped}%")));
        }
        sql.push_str(if long.is_empty() { " ORDER BY m.id DESC" } else { " ORDER BY t.rank" });
        sql.push_str(" LIMIT ?");
        values.push(Value::Integer(i64::try_from(limit).unwrap_or(i64::MAX)));
        self.read(|db| {
            let mut query = db.prepare_cached(&sql)?;
            let rows = query.query_map(rusqlite::params_from_iter(values), |r| {
                let text = r.get_ref(3)?.as_str()?;
                Ok(SearchHit {
                    message: MessageId(r.get(0)?),
                    number: r.get(1)?,
                    created_ms: r.get(2)?,
                    snippet: snippet(text, words.first().map_or("", |w| w)),
                    session: SessionId(r.get(4)?),
                    name: r.get(5)?,
                })
            })?;
            Ok(rows.collect::<Result<_, _>>()?)
        })
    }
}

/// Splits at white space, keeping what stands between double quotes together.
fn words(query: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in query.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part.trim().to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    words.retain(|w| !w.is_empty());
    words
}

/// About 80 characters around the first place where `word` occurs.
fn snippet(text: &str, word: &str) -> String {
    const AROUND: usize = 36;
    let lower = |c: char| c.to_lowercase().next().unwrap_or(c);
    let wanted: Vec<char> = word.chars().map(lower).collect();
    let matches = |at: usize| {
        let mut rest = text.get(at..).unwrap_or_default().chars().map(lower);
        wanted.iter().all(|w| rest.next() == Some(*w))
    };
    let at = text.char_indices().map(|(i, _)| i).find(|i| matches(*i)).unwrap_or(0);
    let end = text.get(at..).unwrap_or_default().char_indices().nth(wanted.len()).map_or(text.len(), |(i, _)| at + i);
    let (before, hit, after) = (
        text.get(..at).unwrap_or_default(),
        text.get(at..end).unwrap_or_default(),
        text.get(end..).unwrap_or_default(),
    );
    let from = before.char_indices().rev().nth(AROUND - 1).map_or(0, |(i, _)| i);
    let to = after.char_indices().nth(AROUND).map_or(after.len(), |(i, _)| i);
    let head = if from > 0 { "…" } else { "" };
    let tail = if to < after.len() { "…" } else { "" };
    let line =
        format!("{head}{}[{hit}]{}{tail}", before.get(from..).unwrap_or_default(), after.get(..to).unwrap_or_default());
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
