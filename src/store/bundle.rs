//! A session with its model state in one file, to be resumed on another machine with the same model.
//!
//! | bytes | content |
//! |---|---|
//! | 19 | `sala-chat bundle 1\n` |
//! | 8 | length of the manifest, u64 little-endian |
//! | 32 | BLAKE3 of the manifest |
//! | manifest | JSON: the session as in a JSON export, its segments (tokens, text boundary, sizes and roots of files) |
//! | rest | the segment files, back to back in the manifest's order, rows before end |
//!
//! A bundle's contents are trusted only for the bundle's own sessions. An import names its segments after their tokens
//! and the file they are from ([`SegmentId::imported`]), so prefill of the same tokens here never finds them. It
//! checks every byte of state against the roots, and that every value is a number, and writes the files anew under the new
//! names. The engine, which knows the model, checks names, types and shapes when it takes the state. A failed check costs
//! state, never text. State that no session reaches is removed by the next [`Store::collect`].

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use rusqlite::params;
use serde::{Deserialize, Serialize};

use super::arrival::{Arrived, Imported, arrive};
use super::commit::{apply, link, record_segment};
use super::database::Store;
use super::disk::Disk;
use super::error::{Result, StoreError, Watch, one_line};
use super::export::{Overwrite, Scope, SessionJson, refuse_existing};
use super::format::{self, FileKind};
use super::query::{self, UP};
use super::save::Written;
use super::segment::{NewSegment, Segment, SegmentId, SegmentKind, TextBoundary, tokens_from_bytes, tokens_to_bytes};
use crate::core::transcript::{MessageId, SessionId};
use crate::engine::protocol::{Dtype, ImageTensor};

const MAGIC: &[u8] = b"sala-chat bundle 1\n";
const HASH_BYTES: u64 = 32;
const HEAD_BYTES: u64 = MAGIC.len() as u64 + 8 + HASH_BYTES;
const MAX_MANIFEST_BYTES: u64 = 1 << 30;
const COPY_BYTES: u64 = 8 << 20;
const UNREADABLE: &str = "a segment is unreadable";

#[derive(Serialize, Deserialize)]
struct Manifest {
    session: SessionJson,
    segments: Vec<SegmentJson>,
    /// (message, index of the segment that ends at it).
    links: Vec<(MessageId, usize)>,
}

#[derive(Serialize, Deserialize)]
struct SegmentJson {
    /// The name on the exporting machine, which its files contain. `None`: the name computed from its tokens.
    #[serde(default)]
    id: Option<String>,
    fingerprint: String,
    start: u64,
    kind: i64,
    given: String,
    generated: String,
    text_bytes: u64,
    text_hash: String,
    rows: Option<FileJson>,
    end: Option<FileJson>,
}

#[derive(Serialize, Deserialize)]
struct FileJson {
    bytes: u64,
    root: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundled {
    pub bytes: u64,
    pub state_tokens: u64,
    pub replay_tokens: u64,
}

pub(super) fn is_bundle(disk: &dyn Disk, path: &Path) -> bool {
    disk.read_at(path, 0, MAGIC.len() as u64).is_ok_and(|b| b == MAGIC)
}

impl Store {
    /// Writes the open branch of a session with its state under `fingerprint` to one file.
    pub fn export_bundle(
        &self,
        id: SessionId,
        fingerprint: &str,
        path: &Path,
        overwrite: Overwrite,
        watch: &Watch<'_>,
    ) -> Result<Bundled> {
        refuse_existing(path, overwrite)?;
        let session = self.session_json(id, Scope::Branch)?;
        let on_path = format!(
            "{UP} SELECT l.message, l.segment FROM up CROSS JOIN message_segment l ON l.message = up.id AND l.fingerprint = ?2
             ORDER BY up.depth"
        );
        let ends: Vec<(MessageId, SegmentId)> = self.read(|db| {
            query::rows(db, &on_path, params![session.head.map(|m| m.0), fingerprint], |r| {
                Ok((MessageId(r.get(0)?), SegmentId(r.get(1)?)))
            })
        })?;
        let plan = ends.last().map(|(_, tip)| self.plan_restore(tip)).transpose()?;
        // Dropped state leaves its links, so a linked segment may have no state.
        let Some(plan) = plan.filter(|plan| plan.kept_tokens() > 0) else {
            return Err(StoreError::NoState { name: session.name });
        };
        let place: HashMap<SegmentId, usize> = plan.path.iter().enumerate().map(|(i, s)| (s.id, i)).collect();
        let links = ends.iter().filter_map(|(message, segment)| Some((*message, *place.get(segment)?))).collect();
        let mut files = Vec::new();
        let mut segments = Vec::new();
        for (i, s) in plan.path.iter().enumerate() {
            watch.go_on()?;
            let (mut rows, mut end) = (None, None);
            if i < plan.usable {
                rows = Some(self.file_json(s, FileKind::Rows, &mut files)?);
            }
            if i + 1 == plan.usable {
                end = Some(self.file_json(s, FileKind::End, &mut files)?);
            }
            segments.push(segment_json(s, rows, end));
        }
        let (state_tokens, replay_tokens) = (plan.kept_tokens(), plan.replay_tokens());
        let manifest = Manifest { session, segments, links };
        let manifest = serde_json::to_vec(&manifest)
            .map_err(|e| StoreError::Broken { what: "the session".into(), why: e.to_string() })?;
        let mut bytes = HEAD_BYTES + manifest.len() as u64;
        let all = bytes + files.iter().map(|(_, length)| length).sum::<u64>();
        let written = self.write_whole(path, |out| {
            out.write(MAGIC)?;
            out.write(&(manifest.len() as u64).to_le_bytes())?;
            out.write(blake3::hash(&manifest).as_bytes())?;
            out.write(&manifest)?;
            for (file, length) in &files {
                let mut at = 0;
                while at < *length {
                    watch.go_on_io()?;
                    (watch.progress)(bytes + at, all);
                    let part = COPY_BYTES.min(length - at);
                    out.write(&self.disk.read_at(file, at, part)?)?;
                    at += part;
                }
                bytes += length;
            }
            Ok(())
        });
        written.map_err(|e| watch.or_stopped(e))?;
        Ok(Bundled { bytes, state_tokens, replay_tokens })
    }

    fn file_json(
        &self,
        segment: &Segment,
        kind: FileKind,
        files: &mut Vec<(std::path::PathBuf, u64)>,
    ) -> Result<FileJson> {
        // Reading it checks all of it.
        let stored = match kind {
            FileKind::Rows => self.read_rows(&segment.id).map(|_| &segment.rows)?,
            FileKind::End => self.read_end(&segment.id).map(|_| &segment.end)?,
        };
        let root = self.file_root(&segment.id, kind)?;
        files.push((self.layout.file(&segment.id, kind), stored.bytes()));
        Ok(FileJson { bytes: stored.bytes(), root: blake3::Hash::from_bytes(root).to_hex().to_string() })
    }

    pub(super) fn import_bundle(&self, path: &Path, watch: &Watch<'_>) -> Result<Imported> {
        let bad = |why: &str| StoreError::Import { path: path.to_owned(), why: one_line(&why) };
        let read = |at, len| self.disk.read_at(path, at, len).map_err(StoreError::io("read", path));
        let total = self.disk.look(path).map_err(StoreError::io("read", path))?.bytes;
        let head = read(MAGIC.len() as u64, 8 + HASH_BYTES).map_err(|_| bad("damaged: it ends too early"))?;
        let (length, hash) = head.split_first_chunk::<8>().ok_or_else(|| bad("damaged: it ends too early"))?;
        let length = u64::from_le_bytes(*length);
        if length > MAX_MANIFEST_BYTES || HEAD_BYTES + length > total {
            return Err(bad("damaged: its manifest is no manifest"));
        }
        let manifest = read(HEAD_BYTES, length)?;
        let origin = *blake3::hash(&manifest).as_bytes();
        if origin.as_slice() != hash {
            return Err(bad("damaged: its manifest does not match its checksum"));
        }
        let Manifest { session, segments, links } =
            serde_json::from_slice(&manifest).map_err(|e| bad(&format!("its manifest is unreadable ({e})")))?;
        drop(manifest);

        let messages = session.messages.len() as u64;
        let Arrived { id, changes, new_ids, at_last_message } = arrive(session, self).map_err(|why| bad(&why))?;
        let links: Vec<(MessageId, usize)> =
            links.into_iter().filter_map(|(m, i)| Some((*new_ids.get(&m)?, i))).collect();

        let without_place = u64::from(at_last_message);
        let mut imported = Imported { messages, without_place, ..Imported::default() };
        let _writing = self.announce_writing();
        let mut written = Vec::new();
        // State first, without a name; then the text in one transaction; then the names, which may fail.
        let state = self.take_state(path, HEAD_BYTES + length..total, &origin, &segments, &mut written, watch);
        let (recorded, tokens) = state.or_else(|e| {
            self.forget_files(&std::mem::take(&mut written));
            if matches!(e, StoreError::Stopped) {
                return Err(e);
            }
            imported.text_only = Some(format!("Text only: {e}"));
            Ok((Vec::new(), 0))
        })?;
        imported.state_tokens = tokens;
        let done = self.transaction(|tx| {
            apply(tx, &changes)?;
            for (segment, name) in &recorded {
                record_segment(tx, name, segment, Some(&origin))?;
            }
            for (message, i) in &links {
                if let Some((_, segment)) = recorded.get(*i) {
                    link(tx, *message, segment)?;
                }
            }
            super::summary::touch_session(tx, id)
        });
        done.inspect_err(|_| self.forget_files(&written))?;
        if let Err(e) = self.name_files(&written) {
            self.forget_files(&written);
            imported.state_tokens = 0;
            imported.text_only = Some(format!("Text only: {e}"));
        }
        imported.sessions.push((id, self.session(id)?.name));
        Ok(imported)
    }

    /// Reads the state from the part `within` of a bundle, checks it and writes its files under their new names.
    /// Returns the segments with those names, and the number of tokens with state.
    fn take_state(
        &self,
        bundle: &Path,
        within: std::ops::Range<u64>,
        origin: &[u8; 32],
        segments: &[SegmentJson],
        written: &mut Vec<Written>,
        watch: &Watch<'_>,
    ) -> Result<(Vec<(NewSegment, SegmentId)>, u64)> {
        let mut recorded: Vec<(NewSegment, SegmentId)> = Vec::with_capacity(segments.len());
        // The name that the exporting machine computes for the tokens so far.
        let mut own = None;
        let sizes = segments.iter().flat_map(|s| [&s.rows, &s.end]).flatten().map(|f| f.bytes);
        // The sizes are untrusted, so their sum may overflow.
        let need = sizes.take(2 * segments.len()).try_fold(0u64, |sum, bytes| sum.checked_add(bytes));
        let there = within.end.saturating_sub(within.start);
        let need = need.filter(|n| *n <= there).ok_or_else(|| StoreError::Import {
            path: bundle.to_owned(),
            why: "it ends before the state does: part of it is missing".to_owned(),
        })?;
        self.require_room(need)?;
        let (mut at, mut tokens) = (within.start, 0);
        for s in segments {
            watch.go_on()?;
            (watch.progress)(at, within.end);
            let bad = |why: &str| StoreError::Import { path: bundle.to_owned(), why: why.to_owned() };
            let segment = new_segment(s, recorded.last()).map_err(bad)?;
            let computed = SegmentId::compute(&segment.fingerprint, own.as_ref(), &segment.prompt, &segment.completion);
            own = Some(computed);
            let name = match segment.parent {
                None => SegmentId::imported(&computed, origin),
                Some(_) => segment.id(),
            };
            let in_file = s.id.as_ref().map_or(Some(computed), |hex| SegmentId::from_hex(hex));
            let in_file = in_file.ok_or_else(|| bad(UNREADABLE))?;
            let lost = |why: String| StoreError::StateLost { id: name, why };
            for (kind, file) in [(FileKind::Rows, &s.rows), (FileKind::End, &s.end)] {
                let Some(file) = file else { continue };
                let root = blake3::Hash::from_hex(&file.root).map_err(|_| lost("its checksum is unreadable".into()))?;
                let here = at..at + file.bytes;
                at += file.bytes;
                // A second import finds the files in place.
                if self.file_root(&name, kind).is_ok() {
                    continue;
                }
                let opened = format::open(&self.disk, bundle, Some(here), kind, &in_file, root.as_bytes());
                let opened = opened.map_err(|fault| lost(fault.why))?;
                let stop = segment.start + segment.tokens();
                let fits = match kind {
                    FileKind::Rows => (opened.start, opened.start + opened.rows) == (segment.start, stop),
                    FileKind::End => opened.start == stop,
                };
                if !fits {
                    return Err(lost("its files are of another length than its tokens".into()));
                }
                let tensors = opened.read().map_err(|fault| lost(fault.why))?;
                check_numbers(&tensors).map_err(lost)?;
                let tensors: Vec<&ImageTensor> = tensors.iter().collect();
                written.push(self.write_file(&name, kind, opened.start, opened.rows, &tensors)?);
            }
            if s.end.is_some() {
                tokens = segment.start + segment.tokens();
            }
            recorded.push((segment, name));
        }
        Ok((recorded, tokens))
    }
}

/// The error is a phrase.
fn check_numbers(tensors: &[ImageTensor]) -> Result<(), String> {
    for t in tensors {
        let wild = match t.dtype {
            Dtype::F32 => t.data.as_chunks::<4>().0.iter().position(|b| !f32::from_le_bytes(*b).is_finite()),
            Dtype::Bf16 => t.data.as_chunks::<2>().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80),
            Dtype::U32 | Dtype::U8 => None,
        };
        if let Some(at) = wild {
            return Err(format!("value {at} of {} is no number", t.name));
        }
    }
    Ok(())
}

fn segment_json(s: &Segment, rows: Option<FileJson>, end: Option<FileJson>) -> SegmentJson {
    let tokens = |t: &[u32]| BASE64.encode(tokens_to_bytes(t));
    SegmentJson {
        id: Some(s.id.hex()),
        fingerprint: s.content.fingerprint.clone(),
        start: s.content.start,
        kind: s.content.kind.code(),
        given: tokens(&s.content.prompt),
        generated: tokens(&s.content.completion),
        text_bytes: s.content.boundary.bytes,
        text_hash: blake3::Hash::from_bytes(s.content.boundary.hash).to_hex().to_string(),
        rows,
        end,
    }
}

/// The segment that follows another one. Errors are phrases.
fn new_segment(s: &SegmentJson, before: Option<&(NewSegment, SegmentId)>) -> Result<NewSegment, &'static str> {
    let tokens = |text: &str| BASE64.decode(text).ok().and_then(|b| tokens_from_bytes(&b)).ok_or(UNREADABLE);
    let hash = blake3::Hash::from_hex(&s.text_hash).map_err(|_| UNREADABLE)?;
    let expected = before.map_or(0, |(b, _)| b.start + b.tokens());
    if s.start != expected || before.is_some_and(|(b, _)| b.fingerprint != s.fingerprint) {
        return Err("its segments do not follow each other");
    }
    Ok(NewSegment {
        fingerprint: s.fingerprint.clone(),
        parent: before.map(|(_, id)| *id),
        start: s.start,
        prompt: tokens(&s.given)?,
        completion: tokens(&s.generated)?,
        // The database holds no larger number.
        boundary: TextBoundary {
            bytes: i64::try_from(s.text_bytes).map_err(|_| UNREADABLE)? as u64,
            hash: *hash.as_bytes(),
        },
        kind: SegmentKind::from_code(s.kind).ok_or(UNREADABLE)?,
    })
}
