//! Server-sent events: bytes to the data of events, however the bytes are split. Pure. Text is decoded line by line.
//! Outside the standard, the line `error: …` of llama.cpp's server and JSON without `data:` are read too, and other
//! lines, in which servers fail, are messages.

use serde_json::{Value, json};

use super::halves;

const MOST: usize = 8 << 20;
/// Lines without a meaning, also where the end of the stream cuts them.
const IGNORED: [&str; 6] = ["data", "event", "error", "id", "retry", "[DONE]"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

#[derive(Debug, Default)]
pub struct Events {
    line: Vec<u8>,
    /// The last byte was CR: an LF after it belongs to the same line end.
    after_cr: bool,
    data: Option<String>,
    name: String,
    bare: String,
}

impl Events {
    /// Takes more bytes and appends the data of complete events to `out`.
    /// Fails on a line or an event that is too long.
    pub fn push(&mut self, bytes: &[u8], out: &mut Vec<String>) -> Result<(), TooLong> {
        let mut rest = bytes;
        while let Some((first, others)) = rest.split_first() {
            if std::mem::take(&mut self.after_cr) && *first == b'\n' {
                rest = others;
                continue;
            }
            let end = rest.iter().position(|b| matches!(b, b'\n' | b'\r'));
            let (piece, after) = rest.split_at(end.unwrap_or(rest.len()));
            if self.line.len() + piece.len() > MOST {
                return Err(TooLong);
            }
            self.line.extend_from_slice(piece);
            let Some((ended_by, after)) = after.split_first() else { break };
            self.after_cr = *ended_by == b'\r';
            rest = after;
            self.line_ended(out)?;
        }
        Ok(())
    }

    /// Ends the stream. Data count without the final empty line, which some servers leave out.
    pub fn finish(&mut self, out: &mut Vec<String>) -> Result<(), TooLong> {
        if !self.line.is_empty() {
            self.line_ended(out)?;
        }
        self.event_ended(out);
        Ok(())
    }

    fn event_ended(&mut self, out: &mut Vec<String>) {
        let name = std::mem::take(&mut self.name).to_ascii_lowercase();
        let Some(data) = self.data.take() else { return };
        match name.as_str() {
            "error" => out.push(error(&data)),
            name if ["ping", "keep", "heartbeat"].iter().any(|w| name.contains(w) || data.starts_with(w)) => {}
            _ => out.push(data),
        }
    }

    fn line_ended(&mut self, out: &mut Vec<String>) -> Result<(), TooLong> {
        let bytes = std::mem::take(&mut self.line);
        let line = halves::decoded(&bytes);
        // The first line may begin with a byte order mark.
        let line = line.trim_start_matches('\u{FEFF}');
        // `[DONE]` is no JSON.
        let begins = line.starts_with('{') || line.starts_with("[{") || line == "[";
        let ends = line.is_empty() || line.starts_with("data:") || line.starts_with("event:");
        if ends && !self.bare.is_empty() {
            out.push(json!({"message": std::mem::take(&mut self.bare)}).to_string());
        }
        if !self.bare.is_empty() || (self.data.is_none() && begins) {
            if self.bare.len() + line.len() >= MOST {
                return Err(TooLong);
            }
            self.bare.push_str(line);
            self.bare.push('\n');
            if line.trim_end().ends_with(['}', ']']) && serde_json::from_str::<Value>(&self.bare).is_ok() {
                out.push(std::mem::take(&mut self.bare));
            }
            return Ok(());
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            _ if line.is_empty() => self.event_ended(out),
            "data" => return self.add(value, out),
            "event" => value.clone_into(&mut self.name),
            field if field.eq_ignore_ascii_case("error") => {
                self.event_ended(out);
                out.push(error(value));
            }
            field if IGNORED.iter().any(|known| known.starts_with(field)) => {}
            _ => out.push(json!({"message": line}).to_string()),
        }
        Ok(())
    }

    fn add(&mut self, value: &str, out: &mut Vec<String>) -> Result<(), TooLong> {
        // Some servers end an event with a single line end. Joined, such lines are no JSON.
        let begins = value.starts_with('{') || value == "[DONE]";
        if begins && self.data.as_ref().is_some_and(|data| data.trim_end().ends_with('}')) {
            self.event_ended(out);
        }
        let joined = self.data.take().map_or_else(|| value.to_owned(), |data| data + "\n" + value);
        if joined.len() > MOST {
            return Err(TooLong);
        }
        self.data = Some(joined);
        Ok(())
    }
}

/// The error object for an error that a server sends outside the data of an event.
fn error(value: &str) -> String {
    let words = serde_json::from_str::<Value>(value).unwrap_or_else(|_| Value::from(value));
    json!({"error": words}).to_string()
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
    fn errors_outside_of_data_are_events() {
        let error = r#"{"error":{"message":"no"}}"#;
        let forms: [&[u8]; 5] = [
            b"error: {\"message\":\"no\"}\n\n",
            b"event: error\ndata: {\"message\":\"no\"}\n\n",
            b"error:{\"message\":\"no\"}",
            b"{\"error\":{\"message\":\"no\"}}",
            b"{\n  \"error\": {\n    \"message\": \"no\"\n  }\n}\n",
        ];
        for form in forms {
            let bytes = [b"data: a\n\n", form].concat();
            let got = whole(&bytes.chunks(3).collect::<Vec<_>>());
            let last: Value = serde_json::from_str(&got[1]).unwrap();
            assert_eq!((got.len(), got[0].as_str(), last.to_string().as_str()), (2, "a", error));
        }
        for list in ["[{\"error\":{\"message\":\"no\"}}]", "[\n{\n\"error\": {\"message\":\"no\"}\n}\n]\r\n"] {
            let got = whole(&[b"data: a\n\n", list.as_bytes(), b"\n"]);
            assert_eq!(serde_json::from_str::<Value>(&got[1]).unwrap(), json!([{"error": {"message": "no"}}]));
        }
        assert!(whole(&[b"[DONE]\ndata: b\n\n"]) == ["b"], "no beginning of a list");
        assert_eq!(whole(&[b"error: out of memory\n"]), [r#"{"error":"out of memory"}"#]);
    }

    #[test]
    fn named_keep_alive_events_are_dropped() {
        assert_eq!(whole(&[b"event: ping\ndata: {}\n\nevent: message\ndata: b\n\nevent: keep-alive\ndata\n\n"]), ["b"]);
    }

    #[test]
    fn a_single_line_end_parts_objects() {
        let lines = b"data: {\"a\":1}\ndata: {\"b\":2}\r\ndata: [DONE]\n";
        assert_eq!(whole(&[lines]), ["{\"a\":1}", "{\"b\":2}", "[DONE]"]);
        let pretty = b"data: [{\ndata: \"a\": {}\ndata: },\ndata: {}]\n\n";
        assert_eq!(whole(&[pretty]), ["[{\n\"a\": {}\n},\n{}]"]);
    }

    #[test]
    fn bytes_that_are_not_utf8_are_marked() {
        assert_eq!(whole(&[b"data: a\xffb\n\ndata: c\n\n"]), ["a\u{FDD0}00ffb", "c"]);
    }

    #[test]
    fn a_line_of_another_form_is_a_message_of_its_own() {
        for line in ["{\"progress\": 50%}\n", "{\"error\": {\"message\": \"out of mem\n"] {
            for next in ["\n", "data: a\n", "event: x\ndata: a\n"] {
                let got = whole(&[b"data: a\n\n", line.as_bytes(), next.as_bytes(), b"\ndata: b\n\n"]);
                let message = json!({"message": line}).to_string();
                assert_eq!((got[1].as_str(), got.last().unwrap().as_str()), (message.as_str(), "b"), "{line}{next}");
            }
        }
        assert_eq!(whole(&[b"Internal Server Error\n"]), [r#"{"message":"Internal Server Error"}"#]);
        assert_eq!(whole(&[b"Error: no\n\nda"]), [r#"{"error":"no"}"#]);
        assert_eq!(whole(&[b"data: ping\n\n: x\nid: 3\nretry: 9\ndata: a\n\n"]), ["a"]);
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
