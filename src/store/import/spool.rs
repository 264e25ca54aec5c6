//! The part of an import that is read and not written yet: in memory while it is small, else in a file of the data
//! directory without a name, so that it disappears however the process ends.

use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::SpooledTempFile;

use crate::store::arrival::Step;
use crate::store::error::{Result, StoreError};

const MEMORY_BYTES: usize = 4 << 20;
const PIECE_BYTES: usize = 1 << 20;
/// (steps, bytes) of one transaction, for which every other writer waits.
const BATCH: (usize, usize) = (1_000, 1 << 20);

/// Steps in their order, each with its length before it, u64 little-endian, as JSON.
pub(super) struct Spool {
    out: BufWriter<SpooledTempFile>,
    folder: PathBuf,
}

impl Spool {
    pub(super) fn within(folder: &Path) -> Spool {
        let file = tempfile::spooled_tempfile_in(MEMORY_BYTES, folder);
        Spool { out: BufWriter::with_capacity(PIECE_BYTES, file), folder: folder.to_owned() }
    }

    pub(super) fn put(&mut self, step: &Step) -> Result<()> {
        let mut write = || -> io::Result<()> {
            let json = serde_json::to_vec(step)?;
            self.out.write_all(&(json.len() as u64).to_le_bytes())?;
            self.out.write_all(&json)
        };
        write().map_err(StoreError::io("write a temporary file in", &self.folder))
    }

    pub(super) fn read(&mut self) -> Result<Spooled<'_>> {
        // Seeking flushes the buffer.
        self.out.seek(SeekFrom::Start(0)).map_err(StoreError::io("write a temporary file in", &self.folder))?;
        Ok(Spooled { from: BufReader::with_capacity(PIECE_BYTES, self.out.get_mut()), folder: &self.folder })
    }
}

pub(super) struct Spooled<'a> {
    from: BufReader<&'a mut SpooledTempFile>,
    folder: &'a Path,
}

impl Spooled<'_> {
    pub(super) fn batch(&mut self) -> Result<Vec<Step>> {
        let (mut steps, mut bytes) = (Vec::new(), 0);
        while steps.len() < BATCH.0 && bytes < BATCH.1 {
            let Some((step, length)) = self.step().map_err(StoreError::io("read a temporary file in", self.folder))?
            else {
                break;
            };
            steps.push(step);
            bytes += length;
        }
        Ok(steps)
    }

    fn step(&mut self) -> io::Result<Option<(Step, usize)>> {
        let mut length = [0; 8];
        match self.from.read_exact(&mut length) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read?,
        }
        let length = usize::try_from(u64::from_le_bytes(length)).map_err(io::Error::other)?;
        let mut json = vec![0; length];
        self.from.read_exact(&mut json)?;
        Ok(Some((serde_json::from_slice(&json)?, length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::{Message, MessageId, MessageMeta, Role, SessionId};

    fn message(n: i64, text: String) -> Step {
        let (id, parent) = (MessageId(n), (n > 1).then_some(MessageId(n - 1)));
        let (thinking, meta) = (String::new(), MessageMeta::default());
        let message = Message { id, parent, role: Role::User, text, thinking, created_ms: 7, meta };
        Step::Say { session: SessionId(0), message: Box::new(message) }
    }

    #[test]
    fn steps_are_read_as_often_as_needed_and_their_file_has_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::within(dir.path());
        let long = "long ".repeat(MEMORY_BYTES / 4);
        let texts = ["", "two\nlines \u{0}\u{1F40C}", long.as_str(), "last"];
        let mut steps = vec![Step::Create { session: SessionId(0), name: "n".into(), settings: "{}".into() }];
        steps.extend((1..).zip(texts).map(|(n, text)| message(n, text.to_owned())));
        steps.push(Step::Mark { session: SessionId(0), name: "here".into(), message: MessageId(2) });
        steps.push(Step::Head { session: SessionId(0), head: MessageId(4) });
        steps.push(Step::Title { session: SessionId(0), title: "t".into() });
        steps.iter().for_each(|step| spool.put(step).unwrap());
        for _ in 0..2 {
            let (mut read, mut all) = (spool.read().unwrap(), Vec::new());
            loop {
                let some = read.batch().unwrap();
                if some.is_empty() {
                    break;
                }
                all.extend(some);
            }
            assert_eq!(all, steps);
        }
        assert!(spool.out.get_ref().is_rolled());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
