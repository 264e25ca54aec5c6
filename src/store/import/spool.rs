//! What an import has read and not written yet. Small ones lie in memory, others in a file of the data directory that has no
//! name: however the process ends, it is gone.

use std::io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use tempfile::SpooledTempFile;

use crate::store::arrival::Step;
use crate::store::error::{Result, StoreError};

/// Beyond so many bytes it goes into a file.
const MEMORY_BYTES: usize = 4 << 20;
/// Written and read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Steps in the order in which they came: each with its length before it, u64 little-endian, as JSON.
pub(super) struct Spool {
    out: BufWriter<SpooledTempFile>,
    folder: PathBuf,
}

impl Spool {
    /// An empty one. Its file, if it needs one, is made in `folder`.
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

    /// All of them once more, as often as that is asked for.
    pub(super) fn again(&mut self) -> Result<Spooled<'_>> {
        // What is still to be written is, before it goes back.
        self.out.seek(SeekFrom::Start(0)).map_err(StoreError::io("write a temporary file in", &self.folder))?;
        Ok(Spooled { from: BufReader::with_capacity(PIECE_BYTES, self.out.get_mut()), folder: &self.folder })
    }
}

/// A spool that is being read.
pub(super) struct Spooled<'a> {
    from: BufReader<&'a mut SpooledTempFile>,
    folder: &'a Path,
}

impl Spooled<'_> {
    /// The next step. There is one more for each that was put.
    pub(super) fn step(&mut self) -> Result<Step> {
        let mut read = || -> io::Result<Step> {
            let mut length = [0; 8];
            self.from.read_exact(&mut length)?;
            let length = usize::try_from(u64::from_le_bytes(length)).map_err(io::Error::other)?;
            let mut json = vec![0; length];
            self.from.read_exact(&mut json)?;
            Ok(serde_json::from_slice(&json)?)
        };
        read().map_err(StoreError::io("read a temporary file in", self.folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::transcript::{Message, MessageId, MessageMeta, Role, SessionId};

    fn said(n: i64, text: String) -> Step {
        let (id, parent) = (MessageId(n), (n > 1).then_some(MessageId(n - 1)));
        let (thinking, meta) = (String::new(), MessageMeta::default());
        let message = Message { id, parent, role: Role::User, text, thinking, created_ms: 7, meta };
        Step::Say { session: SessionId(0), message: Box::new(message) }
    }

    #[test]
    fn what_is_put_comes_back_as_often_as_it_is_read_and_lies_under_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut spool = Spool::within(dir.path());
        let long = "long ".repeat(MEMORY_BYTES / 4);
        let texts = ["", "two\nlines \u{0}\u{1F40C}", long.as_str(), "last"];
        let mut steps = vec![Step::Create { session: SessionId(0), name: "n".into(), settings: "{}".into() }];
        steps.extend((1..).zip(texts).map(|(n, text)| said(n, text.to_owned())));
        steps.push(Step::Mark { session: SessionId(0), name: "here".into(), message: MessageId(2) });
        steps.push(Step::Head { session: SessionId(0), head: MessageId(4) });
        steps.push(Step::Title { session: SessionId(0), title: "t".into() });
        steps.iter().for_each(|step| spool.put(step).unwrap());
        for _ in 0..2 {
            let mut read = spool.again().unwrap();
            assert!(steps.iter().all(|step| read.step().unwrap() == *step));
            assert!(read.step().is_err(), "there are no more");
        }
        assert!(spool.out.get_ref().is_rolled());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
