//! Server-sent events: bytes to the data of events, whatever pieces they come in. Pure.
//!
//! Lines end with LF, CR or CRLF, comments (`: …`) and unknown fields are passed over, lines of data belong together until
//! an empty line. Text is decoded line by line, so a character cut between two pieces is whole; what is no UTF-8 becomes
//! U+FFFD.

/// Longest line and longest event, in bytes.
const MOST: usize = 8 << 20;

/// An event that is longer than any server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Reads a stream of events.
#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    /// The last byte was CR: an LF behind it is part of the same line end.
    after_cr: bool,
    /// Nothing came yet: a byte order mark may.
    begun: bool,
    /// Data lines of the event that is not complete.
    data: Option<String>,
}

impl Events {
    /// Takes more bytes; data of the events that are complete now are put behind `out`.
    ///
    /// # Errors
    /// A line or an event that is too long.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<String>) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Some(first) = rest.first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                rest = rest.get(1..).unwrap_or(&[]);
                continue;
            }
            let end = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
            if self.line.len() + piece.len() > MOST {
                return Err(TooLong);
            }
            self.line.extend_from_slice(piece);
            let Some(ended_by) = after.first() else { break };
            self.after_cr = *ended_by == b'\r';
            rest = after.get(1..).unwrap_or(&[]);
            self.line_ended(out)?;
        }
        Ok(())
    }

    /// The stream is over. Data without an empty line behind them count: some servers leave out the last one.
    pub fn finish(&mut self, out: &mut Vec<String>) -> Result<(), TooLong> {
        if !self.line.is_empty() {
            self.line_ended(out)?;
        }
        out.extend(self.data.take());
        Ok(())
    }

    fn line_ended(&mut self, out: &mut Vec<String>) -> Result<(), TooLong> {
        let bytes = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&bytes);
        let line = if std::mem::replace(&mut self.begun, true) { &*line } else { line.trim_start_matches('\u{FEFF}') };
        if line.is_empty() {
            out.extend(self.data.take());
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        if field != "data" {
            return Ok(());
        }
        let value = value.strip_prefix(' ').unwrap_or(value);
        match &mut self.data {
            None => self.data = Some(value.to_owned()),
            Some(data) if data.len() + value.len() >= MOST => return Err(TooLong),
            Some(data) => {
                data.push('\n');
                data.push_str(value);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(pieces: &[&[u8]]) -> Vec<String> {
        let (mut events, mut out) = (Events::default(), Vec::new());
        for piece in pieces {
            events.push(piece, &mut out).unwrap();
        }
        events.finish(&mut out).unwrap();
        out
    }

    const STREAM: &[u8] = "\u{FEFF}: hello\r\ndata: {\"a\":1}\r\n\r\nevent: x\rid: 7\rdata:two\rdata: lines\r\r\
        retry: 3\ndata: gr\u{fc}n \u{1F642}\n\n: keep alive\n\ndata\n\ndata: [DONE]"
        .as_bytes();

    #[test]
    fn every_cut_gives_the_same_events() {
        let all = ["{\"a\":1}", "two\nlines", "grün 🙂", "", "[DONE]"];
        assert_eq!(whole(&[STREAM]), all);
        for cut in 0..=STREAM.len() {
            let (a, b) = STREAM.split_at(cut);
            assert_eq!(whole(&[a, b]), all, "cut at {cut}");
        }
        let bytes: Vec<&[u8]> = STREAM.chunks(1).collect();
        assert_eq!(whole(&bytes), all);
    }

    #[test]
    fn what_is_no_text_is_marked_and_harms_nothing_else() {
        assert_eq!(whole(&[b"data: a\xff\xc3b\n\ndata: c\n\n"]), ["a\u{FFFD}\u{FFFD}b", "c"]);
    }

    #[test]
    fn a_line_without_end_is_given_up() {
        let (mut events, mut out) = (Events::default(), Vec::new());
        let piece = vec![b'x'; 1 << 20];
        let kept = (0..100).take_while(|_| events.push(&piece, &mut out).is_ok()).count();
        assert_eq!(kept, MOST >> 20);
    }

    #[test]
    fn an_event_without_end_is_given_up() {
        let (mut events, mut out) = (Events::default(), Vec::new());
        let line = [b"data: ".as_slice(), &vec![b'x'; 1 << 20], b"\n"].concat();
        let kept = (0..100).take_while(|_| events.push(&line, &mut out).is_ok()).count();
        assert!(kept <= MOST >> 20, "{kept}");
    }
}
