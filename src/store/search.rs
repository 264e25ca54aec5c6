//! Full-text search over all sessions: SQLite FTS5 with trigrams, so that languages without spaces work, too.
//!
//! Words shorter than three characters are found by scanning. Indexing follows the commit of a text, never in it.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

use super::database::Store;
use super::error::{Result, StoreError, Watch};
use super::query::{self, PLACES, text_at};
use crate::core::transcript::MessageId;
use crate::runtime::protocol::SearchRow;

const BATCH: i64 = 64;
/// Bytes of text indexed in one transaction (unless one message has more), for which other writers wait.
const BATCH_BYTES: i64 = 1 << 18;
const TEXTS: usize = 64;
/// Words that the index looks up; the remaining words of a long query are searched in the texts.
const INDEXED_WORDS: usize = 64;

impl Store {
    /// Indexes new texts and returns how many. `watch` receives the messages done, of all new ones. After a stop the
    /// index keeps its progress.
    pub fn index_texts(&self, watch: &Watch<'_>) -> Result<u64> {
        let count =
            |db: &Connection| Ok(db.query_row("SELECT count(*) FROM message WHERE indexed = 0", [], |r| r.get(0))?);
        let of: u64 = self.read(count)?;
        let mut all = 0;
        loop {
            watch.go_on()?;
            (watch.progress)(all, of);
            if all >= of {
                return Ok(all);
            }
            let done = self.transaction(|tx| {
                let last = "SELECT max(id) FROM (
                       SELECT id, row_number() OVER up_to AS n, sum(length) OVER up_to AS bytes
                       FROM (SELECT id, octet_length(text) AS length FROM message WHERE indexed = 0 ORDER BY id LIMIT ?1)
                       WINDOW up_to AS (ORDER BY id))
                     WHERE n = 1 OR bytes <= ?2";
                let last: Option<i64> = tx.prepare_cached(last)?.query_row([BATCH, BATCH_BYTES], |r| r.get(0))?;
                let texts = "INSERT INTO message_text(rowid, text)
                               SELECT id, text FROM message WHERE indexed = 0 AND id <= ?1";
                tx.prepare_cached(texts)?.execute([last])?;
                let done = "UPDATE message SET indexed = 1 WHERE indexed = 0 AND id <= ?1";
                Ok(tx.prepare_cached(done)?.execute([last])? as u64)
            })?;
            all += done;
            if done == 0 {
                // Another process has indexed the rest.
                return Ok(all);
            }
        }
    }

    /// Messages that contain every word of `query` (`"in quotes"`: a phrase), best first, ignoring case. New texts are
    /// indexed first ([`Store::index_texts`]). Reads a few texts at a time, so that others can read in between.
    pub fn search(&self, query: &str, limit: usize, watch: &Watch<'_>) -> Result<Vec<SearchRow>> {
        let indexes = match self.index_texts(watch) {
            Err(StoreError::Stopped) => return Err(StoreError::Stopped),
            indexed => indexed.is_ok(),
        };
        let words = words(query);
        let Some(first) = words.first() else { return Ok(Vec::new()) };
        // Texts that cannot be indexed now (a full disk, a damaged database) are scanned.
        let (indexed, scanned) = divided(&words, if indexes { INDEXED_WORDS } else { 0 });
        let sql = match indexed.is_empty() {
            true => "SELECT id, session FROM message WHERE ?1 = '' ORDER BY id DESC",
            false => {
                "SELECT m.id, m.session FROM message_text t CROSS JOIN message m ON m.id = t.rowid
                 WHERE message_text MATCH ?1 ORDER BY t.rank"
            }
        };
        let (shown, found) = self.read(|db| {
            let found: Vec<(i64, i64)> = query::rows(db, sql, [indexed.join(" ")], |r| Ok((r.get(0)?, r.get(1)?)))?;
            Ok((Shown::of(db)?, found))
        })?;
        let mut hits = Vec::new();
        for some in found.chunks(TEXTS) {
            watch.go_on()?;
            self.read(|db| {
                let mut text_of = db.prepare_cached("SELECT text, depth, created_ms FROM message WHERE id = ?1")?;
                for (id, sent_in) in some {
                    if hits.len() >= limit {
                        break;
                    }
                    let Some(name) = shown.by(*id, *sent_in) else { continue };
                    let mut one = text_of.query([id])?;
                    let Some(row) = one.next()? else { continue };
                    let text = text_at(row, 0);
                    let lower = if scanned.is_empty() { String::new() } else { folded(&text) };
                    if !scanned.iter().all(|word| lower.contains(word)) {
                        continue;
                    }
                    hits.push(SearchRow {
                        session: name.to_owned(),
                        message: MessageId(*id),
                        number: row.get(1)?,
                        snippet: snippet(&text, first),
                        created_ms: row.get(2)?,
                    });
                }
                Ok(())
            })?;
            if hits.len() >= limit {
                break;
            }
        }
        Ok(hits)
    }
}

/// Finds the session that shows a message: its own or, if that is in the trash, the oldest other one that reaches it.
struct Shown {
    live: HashMap<i64, String>,
    /// Messages of sessions in the trash that a live session reaches, and that session.
    reached: HashMap<i64, i64>,
}

impl Shown {
    fn of(db: &Connection) -> Result<Shown> {
        let live = query::rows(db, "SELECT id, name FROM session WHERE trashed_ms IS NULL", [], |r| {
            Ok((r.get(0)?, text_at(r, 1)))
        })?;
        // Messages in the trash that are places of live sessions or have their messages below them, and all above those.
        let reached = format!(
            "WITH RECURSIVE {PLACES},
               live(id) AS (SELECT id FROM session WHERE trashed_ms IS NULL),
               up(id, session) AS (
                 SELECT p.message, p.session FROM place p CROSS JOIN message m ON m.id = p.message
                   WHERE p.session IN live AND m.session NOT IN live
                 UNION SELECT m.id, c.session FROM session t CROSS JOIN message m ON m.session = t.id
                   CROSS JOIN message c ON c.parent = m.id WHERE t.trashed_ms IS NOT NULL AND c.session IN live
                 UNION SELECT m.parent, up.session FROM up CROSS JOIN message m ON m.id = up.id
                   WHERE m.session NOT IN live AND m.parent IS NOT NULL)
             SELECT id, min(session) FROM up GROUP BY id"
        );
        let reached = query::rows(db, &reached, [], |r| Ok((r.get(0)?, r.get(1)?)))?;
        Ok(Shown { live, reached })
    }

    fn by(&self, message: i64, sent_in: i64) -> Option<&str> {
        let shown = |session: i64| Some(self.live.get(&session)?.as_str());
        shown(sent_in).or_else(|| shown(*self.reached.get(&message)?))
    }
}

/// Words for the index, quoted, and words to search in the texts that it finds: too short for the index, or too many.
fn divided(words: &[String], most: usize) -> (Vec<String>, Vec<String>) {
    let (mut indexed, mut scanned) = (Vec::new(), Vec::new());
    for word in words {
        match word.chars().count() >= 3 && indexed.len() < most {
            true => indexed.push(format!("\"{}\"", word.replace('"', "\"\""))),
            false => scanned.push(folded(word)),
        }
    }
    (indexed, scanned)
}

fn folded(text: &str) -> String {
    text.chars().flat_map(char::to_lowercase).collect()
}

fn words(query: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, part) in query.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(part.trim().to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    let mut known = HashSet::new();
    words.retain(|w| !w.is_empty() && known.insert(folded(w)));
    words
}

fn snippet(text: &str, word: &str) -> String {
    const AROUND: usize = 36;
    let lower = |c: char| c.to_lowercase().next().unwrap_or(c);
    let wanted: Vec<char> = word.chars().map(lower).collect();
    let begins = |at: usize| {
        let rest = text.get(at..).unwrap_or_default().chars().map(lower);
        rest.take(wanted.len()).eq(wanted.iter().copied())
    };
    let at = text.char_indices().map(|(i, _)| i).find(|i| begins(*i)).unwrap_or(0);
    let (before, rest) = text.split_at_checked(at).unwrap_or(("", text));
    let end = rest.char_indices().nth(wanted.len()).map_or(rest.len(), |(i, _)| i);
    let (hit, after) = rest.split_at_checked(end).unwrap_or((rest, ""));
    let from = before.char_indices().rev().nth(AROUND - 1).map_or(0, |(i, _)| i);
    let to = after.char_indices().nth(AROUND).map_or(after.len(), |(i, _)| i);
    let head = if from > 0 { "…" } else { "" };
    let tail = if to < after.len() { "…" } else { "" };
    let line =
        format!("{head}{}[{hit}]{}{tail}", before.get(from..).unwrap_or_default(), after.get(..to).unwrap_or_default());
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
