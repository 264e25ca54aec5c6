//! The terminal's modes: set on entry, reset on every way out (return, error, panic, signal, suspend). [`Guard`]
//! remembers what is set, so leaving twice does nothing. One query at the start asks for the kitty keyboard protocol,
//! the width of `─` and the background.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossterm::cursor::{MoveTo, Show};
use crossterm::event::{
    DisableBracketedPaste, DisableFocusChange, DisableMouseCapture, EnableBracketedPaste, EnableFocusChange,
    EnableMouseCapture, KeyboardEnhancementFlags, PopKeyboardEnhancementFlags, PushKeyboardEnhancementFlags,
};
use crossterm::queue;
use crossterm::style::ResetColor;
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::out;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes {
    pub alternate_screen: bool,
    pub mouse: bool,
    pub kitty: bool,
}

/// Without mouse events the wheel arrives as a burst of arrow keys, which `input` recognises.
const WHEEL_AS_ARROWS: &[u8] = b"\x1b[?1007s\x1b[?1007h";
const WHEEL_AS_BEFORE: &[u8] = b"\x1b[?1007r";
const BELOW_ALL: u16 = 9_998;
const KEEP_TITLE: &[u8] = b"\x1b[22;2t";
const TITLE_AS_BEFORE: &[u8] = b"\x1b[23;2t";

pub fn set(out: &mut impl Write, modes: Modes) -> io::Result<()> {
    if modes.alternate_screen {
        queue!(out, EnterAlternateScreen)?;
    }
    out.write_all(KEEP_TITLE)?;
    queue!(out, EnableBracketedPaste, EnableFocusChange)?;
    if modes.mouse {
        queue!(out, EnableMouseCapture)?;
    } else {
        out.write_all(WHEEL_AS_ARROWS)?;
    }
    if modes.kitty {
        queue!(out, PushKeyboardEnhancementFlags(KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES))?;
    }
    out.flush()
}

pub fn reset(out: &mut impl Write, modes: Modes) -> io::Result<()> {
    if modes.kitty {
        queue!(out, PopKeyboardEnhancementFlags)?;
    }
    if modes.mouse {
        queue!(out, DisableMouseCapture)?;
    } else {
        out.write_all(WHEEL_AS_BEFORE)?;
    }
    queue!(out, DisableFocusChange, DisableBracketedPaste, ResetColor)?;
    out.write_all(TITLE_AS_BEFORE)?;
    if modes.alternate_screen {
        queue!(out, LeaveAlternateScreen)?;
    } else {
        // Puts the shell's prompt below the last frame; terminals clamp the row.
        queue!(out, MoveTo(0, BELOW_ALL))?;
        out.write_all(b"\r\n")?;
    }
    queue!(out, Show)?;
    out.flush()
}

/// The modes that are set now, shared with the panic hook. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Guard(Arc<Mutex<Option<Modes>>>);

impl Guard {
    pub fn enter(&self, modes: Modes) -> io::Result<()> {
        crossterm::terminal::enable_raw_mode()?;
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(modes);
        set(&mut out::screen(), modes)
    }

    /// Resets everything; does nothing the second time. Errors are not reported: the terminal is gone.
    pub fn leave(&self) {
        let modes = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(modes) = modes {
            let _ = reset(&mut out::screen(), modes);
            let _ = crossterm::terminal::disable_raw_mode();
        }
    }

    pub fn add_kitty(&self) -> io::Result<()> {
        let mut modes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(m) = modes.as_mut().filter(|m| !m.kitty) {
            m.kitty = true;
            let mut out = out::screen();
            queue!(out, PushKeyboardEnhancementFlags(KeyboardEnhancementFlags::DISAMBIGUATE_ESCAPE_CODES))?;
            out.flush()?;
        }
        Ok(())
    }
}

pub struct Leave(pub Guard);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    pub kitty: bool,
    /// `─` took two cells: box drawing would break every row.
    pub wide_lines: bool,
    pub light: Option<bool>,
}

/// Cursor position after `─`, background, kitty flags, and last the device attributes, which every terminal answers.
pub const QUESTIONS: &[u8] = "\r─\x1b[6n\r \r\x1b]11;?\x1b\\\x1b[?u\x1b[c".as_bytes();

/// Reads answers out of what came in; the rest is what the user typed meanwhile.
pub fn read_answers(bytes: &[u8]) -> (Answers, Vec<u8>) {
    let mut answers = Answers::default();
    let mut typed = Vec::new();
    let mut rest = bytes;
    while let Some(start) = rest.iter().position(|b| *b == 0x1b) {
        let (before, sequence) = rest.split_at(start);
        typed.extend(before);
        let is_last = |b: &u8| match sequence.get(1) {
            Some(b'[') => (0x40..=0x7e).contains(b),
            _ => matches!(b, 0x07 | b'\\'),
        };
        let end = match sequence.get(1) {
            Some(b'[' | b']') => sequence.iter().skip(2).position(is_last).map_or(sequence.len(), |n| n + 3),
            _ => 1,
        };
        let (sequence, after) = sequence.split_at(end);
        let body = String::from_utf8_lossy(sequence.get(2..).unwrap_or_default());
        match sequence {
            [_, b'[', b'?', .., b'u'] => answers.kitty = true,
            [_, b'[', b'?', .., b'c'] => {}
            [_, b'[', .., b'R'] => {
                let column = body.trim_end_matches('R').rsplit(';').next().and_then(|c| c.parse::<u16>().ok());
                answers.wide_lines = column.is_some_and(|c| c > 2);
            }
            [_, b']', ..] => answers.light = light(&body).or(answers.light),
            other => typed.extend(other),
        }
        rest = after;
    }
    typed.extend(rest);
    (answers, typed)
}

/// `11;rgb:RRRR/GGGG/BBBB`: whether the colour is light.
fn light(body: &str) -> Option<bool> {
    let (_, colour) = body.split_once("rgb:")?;
    let mut parts = colour.split('/').map(|p| {
        let digits: String = p.chars().take_while(char::is_ascii_hexdigit).take(2).collect();
        u32::from_str_radix(&digits, 16).ok()
    });
    let (r, g, b) = (parts.next()??, parts.next()??, parts.next()??);
    Some(r * 299 + g * 587 + b * 114 > 127_500)
}

/// Asks the terminal, for at most `limit`. Must run before anybody else reads from it.
pub fn ask(limit: Duration) -> (Answers, Vec<u8>) {
    let mut out = out::screen();
    if out.write_all(QUESTIONS).and_then(|()| out.flush()).is_err() {
        return (Answers::default(), Vec::new());
    }
    let stdin = rustix::stdio::stdin();
    let until = Instant::now() + limit;
    let mut bytes = Vec::new();
    let mut buffer = [0u8; 256];
    // The device attributes are the last answer.
    while !(bytes.windows(3).any(|w| w == b"\x1b[?") && bytes.contains(&b'c')) {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let ready = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&timeout)).is_ok_and(|n| n > 0);
        match ready.then(|| rustix::io::read(stdin, &mut buffer)) {
            Some(Ok(n)) if n > 0 => bytes.extend(buffer.iter().take(n)),
            _ => break,
        }
    }
    read_answers(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(p: &vt100::Parser) -> (bool, bool, bool, vt100::MouseProtocolMode) {
        let s = p.screen();
        (s.alternate_screen(), s.bracketed_paste(), s.hide_cursor(), s.mouse_protocol_mode())
    }

    #[test]
    fn modes_that_were_set_are_reset() {
        for bits in 0..8u8 {
            let modes = Modes { alternate_screen: bits & 1 > 0, mouse: bits & 2 > 0, kitty: bits & 4 > 0 };
            let (rows, columns) = (24.try_into().unwrap(), 80.try_into().unwrap());
            let mut p = vt100::Parser::new(rows, columns, 0);
            let before = state(&p);
            let (mut on, mut off) = (Vec::new(), Vec::new());
            set(&mut on, modes).unwrap();
            p.process(&on);
            assert_eq!(p.screen().alternate_screen(), modes.alternate_screen);
            assert!(p.screen().bracketed_paste());
            p.process(b"\x1b[?25l");
            reset(&mut off, modes).unwrap();
            p.process(&off);
            assert_eq!(state(&p), before, "{modes:?}");
            let count = |bytes: &[u8], what: &str| String::from_utf8_lossy(bytes).matches(what).count();
            assert_eq!(count(&on, "\x1b[>1u"), count(&off, "\x1b[<1u"));
            assert_eq!(count(&on, "\x1b[?1004h"), count(&off, "\x1b[?1004l"));
            assert_eq!(count(&on, "\x1b[?1007s\x1b[?1007h"), count(&off, "\x1b[?1007r"));
            assert_eq!(count(&on, "\x1b[?1007h"), usize::from(!modes.mouse), "the wheel scrolls with the mouse off");
            assert_eq!((count(&on, "\x1b[22;2t"), count(&off, "\x1b[23;2t")), (1, 1));
        }
    }

    #[test]
    fn without_the_alternate_screen_the_prompt_is_below_the_last_frame_at_any_size() {
        let modes = Modes::default();
        let mut p = vt100::Parser::new(24.try_into().unwrap(), 80.try_into().unwrap(), 0);
        let (mut on, mut off) = (Vec::new(), Vec::new());
        set(&mut on, modes).unwrap();
        p.process(&on);
        p.screen_mut().set_size(34.try_into().unwrap(), 100.try_into().unwrap());
        let frame: Vec<String> = (1..=34).map(|row| format!("row {row}")).collect();
        p.process(format!("\x1b[H{}\x1b[5;5H", frame.join("\r\n")).as_bytes());
        reset(&mut off, modes).unwrap();
        p.process(&off);
        p.process(b"Saved.");
        let rows: Vec<String> = p.screen().rows(0, 100).collect();
        assert_eq!(rows[31..], ["row 33", "row 34", "Saved."], "{rows:?}");
    }

    #[test]
    fn answers_are_distinguished_from_typed_text() {
        let bytes = b"hi\x1b[1;2R\x1b]11;rgb:ffff/fafa/f0f0\x1b\\\x1b[?0u\x1b[?62;22c\r\x1b[A";
        let (answers, typed) = read_answers(bytes);
        assert_eq!(answers, Answers { kitty: true, wide_lines: false, light: Some(true) });
        assert_eq!(typed, b"hi\r\x1b[A");
        assert_eq!(read_answers(b"\x1b[5;3R").0, Answers { wide_lines: true, ..Answers::default() });
        assert_eq!(read_answers(b"\x1b]11;rgb:1c1c/1c1c/1c1c\x07").0.light, Some(false));
        for cut in 0..bytes.len() {
            let _ = read_answers(&bytes[..cut]);
        }
    }
}
