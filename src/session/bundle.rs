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
//! On import segment ids are computed anew from the tokens, and every byte of state is checked against the roots before
//! it is named; what does not check costs state, never text.

use std::collections::HashMap;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

use super::commit::{Change, apply};
use super::disk::Disk;
use super::error::{Result, StoreError};
use super::export::{Overwrite, Scope, SessionJson, refuse_existing};
use super::format::{self, FileKind};
use super::import::Imported;
use super::save::Written;
use super::segment::{NewSegment, Segment, SegmentId, SegmentKind, TextBoundary, tokens_from_bytes, tokens_to_bytes};
use super::store::Store;
use crate::transcript::{MessageId, SessionId};

const MAGIC: &[u8] = b"sala-chat bundle 1\n";
const HASH_BYTES: u64 = 32;
const HEAD_BYTES: u64 = MAGIC.len() as u64 + 8 + HASH_BYTES;
const MAX_MANIFEST_BYTES: u64 = 1 << 30;
const COPY_BYTES: u64 = 8 << 20;

#[derive(Serialize, Deserialize)]
struct Manifest {
    session: SessionJson,
    /// Root first.
    segments: Vec<SegmentJson>,
    /// Message and the index of the segment that ends at it.
    links: Vec<(MessageId, usize)>,
}

#[derive(Serialize, Deserialize)]
struct SegmentJson {
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

/// What [`Store::export_bundle`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bundled {
    /// Size of the file.
    pub bytes: u64,
    /// Tokens whose state is in it.
    pub state_tokens: u64,
    /// Tokens of the conversation that will have to be read again.
    pub replay_tokens: u64,
}

pub(super) fn is_bundle(disk: &dyn Disk, path: &Path) -> bool {
    disk.read_at(path, 0, MAGIC.len() as u64).is_ok_and(|b| b == MAGIC)
}

impl Store {
    /// Writes the open branch of a session with its state under `fingerprint` to one file.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::NoSession`], I/O errors, [`StoreError::StateLost`] when a file turns out
    /// damaged while it is copied.
    pub fn export_bundle(
        &self,
        id: SessionId,
        fingerprint: &str,
        path: &Path,
        overwrite: Overwrite,
    ) -> Result<Bundled> {
        refuse_existing(path, overwrite)?;
        let session = self.session_json(id, Scope::Branch)?;
        let tip = match session.head {
            Some(head) => self.tip_segment(head, fingerprint)?,
            None => None,
        };
        let plan = match tip {
            Some((_, tip)) => self.plan_restore(&tip)?,
            None => return Err(StoreError::NoState { name: session.name }),
        };
        let place: HashMap<SegmentId, usize> = plan.path.iter().enumerate().map(|(i, s)| (s.id, i)).collect();
        let mut links = Vec::new();
        for m in &session.messages {
            if let Some((at, segment)) = self.tip_segment(m.id, fingerprint)?
                && at == m.id
                && let Some(i) = place.get(&segment)
            {
                links.push((m.id, *i));
            }
        }
        let mut files = Vec::new();
        let mut segments = Vec::new();
        for (i, s) in plan.path.iter().enumerate() {
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
        self.write_whole(path, |out| {
            out.write(MAGIC)?;
            out.write(&(manifest.len() as u64).to_le_bytes())?;
            out.write(blake3::hash(&manifest).as_bytes())?;
            out.write(&manifest)?;
            for (file, length) in &files {
                let mut at = 0;
                while at < *length {
                    let part = COPY_BYTES.min(length - at);
                    out.write(&self.disk.read_at(file, at, part)?)?;
                    at += part;
                }
                bytes += length;
            }
            Ok(())
        })?;
        Ok(Bundled { bytes, state_tokens, replay_tokens })
    }

    /// The manifest entry of a file, after checking every byte of it.
    fn file_json(
        &self,
        segment: &Segment,
        kind: FileKind,
        files: &mut Vec<(std::path::PathBuf, u64)>,
    ) -> Result<FileJson> {
        let (stored, root) = match kind {
            FileKind::Rows => {
                self.read_rows(&segment.id)?;
                (&segment.rows, self.file_root(&segment.id, kind)?)
            }
            FileKind::End => {
                self.read_end(&segment.id)?;
                (&segment.end, self.file_root(&segment.id, kind)?)
            }
        };
        files.push((self.layout.file(&segment.id, kind), stored.bytes()));
        Ok(FileJson { bytes: stored.bytes(), root: blake3::Hash::from_bytes(root).to_hex().to_string() })
    }

    pub(super) fn import_bundle(&self, path: &Path) -> Result<Imported> {
        let bad = |why: &str| StoreError::Import { path: path.to_owned(), why: why.to_owned() };
        let read = |at, len| self.disk.read_at(path, at, len).map_err(StoreError::io("read", path));
        let head = read(MAGIC.len() as u64, 8 + HASH_BYTES)?;
        let (length, hash) = head.split_first_chunk::<8>().ok_or_else(|| bad("it ends too early"))?;
        let length = u64::from_le_bytes(*length);
        if length > MAX_MANIFEST_BYTES {
            return Err(bad("damaged: its manifest is no manifest"));
        }
        let manifest = read(HEAD_BYTES, length)?;
        if blake3::hash(&manifest).as_bytes().as_slice() != hash {
            return Err(bad("damaged: its manifest does not match its checksum"));
        }
        let Manifest { session, segments, links } =
            serde_json::from_slice(&manifest).map_err(|e| bad(&format!("its manifest is unreadable ({e})")))?;

        let mut changes = Vec::new();
        let messages = session.messages.len() as u64;
        let (id, new_ids) = self.import_changes(session, &mut changes);
        let mut recorded: Vec<(NewSegment, SegmentId)> = Vec::new();
        for s in &segments {
            let segment =
                new_segment(s, recorded.last().map(|(_, id)| *id)).ok_or_else(|| bad("a segment is unreadable"))?;
            let id = segment.id();
            changes.push(Change::AddSegment(Box::new(segment.clone())));
            recorded.push((segment, id));
        }
        for (message, i) in links {
            if let (Some(message), Some((_, segment))) = (new_ids.get(&message), recorded.get(i)) {
                changes.push(Change::Link { message: *message, segment: *segment });
            }
        }
        self.transaction(|tx| apply(tx, &changes))?;

        let mut imported = Imported { messages, ..Imported::default() };
        let _writing = self.announce_writing();
        let mut written = Vec::new();
        let state = self.copy_state(path, HEAD_BYTES + length, &segments, &recorded, &mut written);
        match state.and_then(|tokens| self.name_files(&written).map(|()| tokens)) {
            Ok(tokens) => imported.state_tokens = tokens,
            Err(e) => {
                self.forget_files(&written);
                imported.text_only = Some(format!("Text only: {e}"));
            }
        }
        // After the state, so that the list shows it.
        self.transaction(|tx| super::commit::touch_session(tx, id))?;
        imported.sessions.push((id, self.session(id)?.name));
        Ok(imported)
    }

    /// Copies the files out of a bundle and checks them. Returns the tokens whose state is there now.
    fn copy_state(
        &self,
        bundle: &Path,
        mut at: u64,
        segments: &[SegmentJson],
        recorded: &[(NewSegment, SegmentId)],
        written: &mut Vec<Written>,
    ) -> Result<u64> {
        let need = segments.iter().flat_map(|s| [&s.rows, &s.end]).flatten().map(|f| f.bytes).sum();
        self.require_room(need)?;
        let mut tokens = 0;
        for (s, (segment, id)) in segments.iter().zip(recorded) {
            for (kind, file) in [(FileKind::Rows, &s.rows), (FileKind::End, &s.end)] {
                let Some(file) = file else { continue };
                let lost = |why: String| StoreError::StateLost { id: *id, why };
                let root = blake3::Hash::from_hex(&file.root).map_err(|_| lost("its checksum is unreadable".into()))?;
                let from = at;
                at += file.bytes;
                if self.file_root(id, kind).is_ok() {
                    continue;
                }
                self.place_file(id, kind, |out| {
                    let mut done = 0;
                    while done < file.bytes {
                        let part = COPY_BYTES.min(file.bytes - done);
                        out.write(&self.disk.read_at(bundle, from + done, part)?)?;
                        done += part;
                    }
                    Ok(())
                })?;
                written.push(Written { id: *id, kind, root: *root.as_bytes(), bytes: file.bytes });
                let path = self.layout.file(id, kind);
                let stop = segment.start + (segment.given.len() + segment.generated.len()) as u64;
                let fits = match kind {
                    FileKind::Rows => format::read_rows(&*self.disk, &path, id, root.as_bytes())
                        .map(|r| (r.start, r.start + r.rows) == (segment.start, stop)),
                    FileKind::End => {
                        format::read_end(&*self.disk, &path, id, root.as_bytes()).map(|e| e.position == stop)
                    }
                };
                if !fits.map_err(|fault| lost(fault.why))? {
                    return Err(lost("its files are of another length than its tokens".into()));
                }
            }
            if s.end.is_some() {
                tokens = segment.start + (segment.given.len() + segment.generated.len()) as u64;
            }
        }
        let dir = &self.layout.segments;
        self.disk.sync_dir(dir).map_err(StoreError::io("sync", dir))?;
        Ok(tokens)
    }
}

fn segment_json(s: &Segment, rows: Option<FileJson>, end: Option<FileJson>) -> SegmentJson {
    let tokens = |t: &[u32]| BASE64.encode(tokens_to_bytes(t));
    SegmentJson {
        fingerprint: s.content.fingerprint.clone(),
        start: s.content.start,
        kind: s.content.kind.code(),
        given: tokens(&s.content.given),
        generated: tokens(&s.content.generated),
        text_bytes: s.content.boundary.bytes,
        text_hash: blake3::Hash::from_bytes(s.content.boundary.hash).to_hex().to_string(),
        rows,
        end,
    }
}

fn new_segment(s: &SegmentJson, parent: Option<SegmentId>) -> Option<NewSegment> {
    let tokens = |text: &str| BASE64.decode(text).ok().and_then(|b| tokens_from_bytes(&b));
    Some(NewSegment {
        fingerprint: s.fingerprint.clone(),
        parent,
        start: s.start,
        given: tokens(&s.given)?,
        generated: tokens(&s.generated)?,
        boundary: TextBoundary { bytes: s.text_bytes, hash: *blake3::Hash::from_hex(&s.text_hash).ok()?.as_bytes() },
        kind: SegmentKind::from_code(s.kind)?,
    })
}
