//! Keys from the terminal, on a thread of their own, as plain events. The thread sleeps in the terminal's read; to lend
//! the terminal to an editor, a SIGWINCH wakes it (read as a resize), and it parks until it is released.

use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use crossterm::event::{self, Event as TermEvent, KeyEventKind, KeyModifiers, MouseEventKind};

use crate::tui::Event;
use crate::tui::keys::{Code, Key, controlled};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gate {
    #[default]
    Open,
    Closing,
    Parked,
}

pub struct Input(Arc<(Mutex<Gate>, Condvar)>);

impl Input {
    /// Makes the thread let go of the terminal; returns when it has (or after half a second, if it cannot be woken).
    pub fn park(&self) {
        let (gate, changed) = &*self.0;
        let mut state = gate.lock().unwrap_or_else(PoisonError::into_inner);
        *state = Gate::Closing;
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::WINCH);
        while *state != Gate::Parked {
            let (next, waited) =
                changed.wait_timeout(state, Duration::from_millis(500)).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if waited.timed_out() {
                break;
            }
        }
    }

    pub fn unpark(&self) {
        let (gate, changed) = &*self.0;
        *gate.lock().unwrap_or_else(PoisonError::into_inner) = Gate::Open;
        changed.notify_all();
    }
}

/// Arrow keys closer together than this are a mouse wheel: no keyboard repeats that fast.
const BURST: Duration = Duration::from_millis(12);
/// Two can be two hasty keys on a slow line.
const BURST_KEYS: usize = 3;
/// Further arrow keys within this time belong to the same wheel movement.
const TURNING: Duration = Duration::from_millis(200);

/// Keys that the terminal already sent arrive within this time.
const AT_ONCE: Duration = Duration::from_millis(1);
/// From so many characters in one burst on it is a paste: faster than typing.
const PASTED: usize = 32;
/// The parts of a paste arrive within this time of each other, on a slow line too.
const PASTING: Duration = Duration::from_millis(150);
/// Text within this time after a paste belongs to it.
const PASTED_ON: Duration = Duration::from_millis(500);

/// Recognises bursts of keys: the wheel as arrow keys, and a paste from a terminal without bracketed paste.
#[derive(Debug, Default)]
struct Bursts {
    ahead: Option<TermEvent>,
    turned: Option<Instant>,
    pasted: Option<Instant>,
}

fn pressed(event: &TermEvent) -> Option<(Code, KeyModifiers)> {
    event.as_key_press_event().map(|key| (key.code, key.modifiers))
}

fn vertical(event: &TermEvent) -> Option<isize> {
    match pressed(event)? {
        (Code::Up, KeyModifiers::NONE) => Some(-1),
        (Code::Down, KeyModifiers::NONE) => Some(1),
        _ => None,
    }
}

/// The character that a key writes; Enter is a carriage return.
fn text(event: &TermEvent) -> Option<char> {
    match pressed(event)? {
        (Code::Enter, KeyModifiers::NONE) => Some('\r'),
        (Code::Tab, KeyModifiers::NONE) => Some('\t'),
        (Code::Char('j'), KeyModifiers::CONTROL) => Some('\n'),
        (Code::Char(c), KeyModifiers::NONE | KeyModifiers::SHIFT) => Some(c),
        _ => None,
    }
}

/// A key that leaves the screen, for the editor or the shell. Between pasted text it is a control character.
fn leaves(event: &TermEvent) -> bool {
    matches!(pressed(event), Some((Code::Char('g' | 'z'), KeyModifiers::CONTROL)))
}

/// The text of a burst with Enter between other text, which is a paste. A single Enter at the end sends.
fn pasted(burst: &[char]) -> Option<String> {
    let text: String = burst.iter().collect();
    text.trim().contains('\r').then_some(text)
}

impl Bursts {
    fn read(&mut self, mouse: bool) -> io::Result<Vec<Event>> {
        let first = match self.ahead.take() {
            Some(event) => event,
            None => event::read()?,
        };
        if text(&first).is_some() {
            return self.text(first);
        }
        self.pasted = None;
        let Some(direction) = vertical(&first).filter(|_| !mouse) else {
            return Ok(translate(first).into_iter().collect());
        };
        let mut keys = 1;
        while event::poll(BURST)? {
            let next = event::read()?;
            if vertical(&next) != Some(direction) {
                self.ahead = Some(next);
                break;
            }
            keys += 1;
        }
        Ok(self.arrows(direction, keys, Instant::now()))
    }

    /// A key of text and those that follow it at once. One key alone is not delayed.
    fn text(&mut self, first: TermEvent) -> io::Result<Vec<Event>> {
        let mut burst: Vec<char> = text(&first).into_iter().collect();
        let mut events: Vec<Event> = translate(first).into_iter().collect();
        let continues = self.pasted.is_some_and(|at| at.elapsed() < PASTED_ON);
        let (mut wait, mut held) = (AT_ONCE, None);
        while event::poll(wait)? {
            let next = event::read()?;
            let Some(c) = text(&next) else {
                if wait == PASTING && held.is_none() && leaves(&next) {
                    held = Some(next);
                    continue;
                }
                self.ahead = Some(next);
                break;
            };
            held = None;
            burst.push(c);
            events.extend(translate(next));
            wait = if continues || burst.len() >= PASTED { PASTING } else { BURST };
        }
        let text = if continues && burst.len() > 1 { Some(burst.iter().collect()) } else { pasted(&burst) };
        let long = burst.len() >= PASTED && burst.last() != Some(&'\r');
        self.pasted = (text.is_some() || long).then(Instant::now);
        let events = text.map_or(events, |text| vec![Event::Paste(text)]);
        Ok(events.into_iter().chain(held.and_then(translate)).collect())
    }

    fn arrows(&mut self, direction: isize, keys: usize, now: Instant) -> Vec<Event> {
        let turning = self.turned.is_some_and(|at| now.duration_since(at) < TURNING);
        if turning || keys >= BURST_KEYS {
            self.turned = Some(now);
            return vec![Event::Wheel(direction * isize::try_from(keys).unwrap_or(1))];
        }
        let code = if direction < 0 { Code::Up } else { Code::Down };
        vec![Event::Key(Key::plain(code)); keys]
    }
}

/// Starts the thread. Without mouse events, bursts of arrow keys are the wheel.
pub fn start_input(to: Sender<Event>, mouse: bool) -> io::Result<Input> {
    let shared = Arc::new((Mutex::new(Gate::Open), Condvar::new()));
    let own = Arc::clone(&shared);
    std::thread::Builder::new().name("input".into()).spawn(move || {
        let mut bursts = Bursts::default();
        loop {
            let read = bursts.read(mouse);
            let (gate, changed) = &*own;
            let mut state = gate.lock().unwrap_or_else(PoisonError::into_inner);
            if *state != Gate::Open {
                *state = Gate::Parked;
                changed.notify_all();
                while *state != Gate::Open {
                    state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
            drop(state);
            match read {
                Ok(event) => {
                    if event.into_iter().any(|event| to.send(event).is_err()) {
                        return;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // The terminal is gone; the signal thread ends the loop.
                Err(_) => return,
            }
        }
    })?;
    Ok(Input(shared))
}

pub fn translate(event: TermEvent) -> Option<Event> {
    match event {
        TermEvent::Key(k) if k.kind != KeyEventKind::Release => key(k.code, k.modifiers).map(Event::Key),
        TermEvent::Key(_) => None,
        TermEvent::Paste(text) => Some(Event::Paste(text)),
        TermEvent::Resize(width, height) => Some(Event::Resize { width, height }),
        TermEvent::FocusGained => Some(Event::Focus(true)),
        TermEvent::FocusLost => Some(Event::Focus(false)),
        TermEvent::Mouse(m) => match m.kind {
            MouseEventKind::ScrollUp => Some(Event::Wheel(-3)),
            MouseEventKind::ScrollDown => Some(Event::Wheel(3)),
            _ => None,
        },
    }
}

fn key(code: Code, modifiers: KeyModifiers) -> Option<Key> {
    let [ctrl, alt, shift] =
        [KeyModifiers::CONTROL, KeyModifiers::ALT, KeyModifiers::SHIFT].map(|held| modifiers.contains(held));
    let code = match code {
        Code::Char(c) if ctrl => Code::Char(controlled(c)),
        Code::Char(c) if alt => Code::Char(c.to_ascii_lowercase()),
        Code::CapsLock | Code::ScrollLock | Code::NumLock | Code::PrintScreen | Code::Pause | Code::Menu => {
            return None;
        }
        Code::KeypadBegin | Code::Media(_) | Code::Modifier(_) | Code::Null => return None,
        code => code,
    };
    Some(Key { code, ctrl, alt, shift: shift && !matches!(code, Code::Char(_) | Code::BackTab) })
}

/// Text and Enter that were typed during the terminal queries. No parser runs yet, so longer sequences are dropped.
pub fn typed_ahead(bytes: &[u8]) -> Vec<Event> {
    let text = String::from_utf8_lossy(bytes);
    let plain = text.split('\x1b').next().unwrap_or("").replace('\n', "\r");
    let burst: Vec<char> = plain.chars().collect();
    if let Some(text) = pasted(&burst).filter(|text| !text.contains(['\x03', '\x7f'])) {
        return vec![Event::Paste(text)];
    }
    let keys = burst.into_iter().filter_map(|c| match c {
        '\r' => Some(Key::plain(Code::Enter)),
        '\x03' => Some(Key::ctrl('c')),
        '\x7f' => Some(Key::plain(Code::Backspace)),
        c => (!c.is_control()).then(|| Key::plain(Code::Char(c))),
    });
    keys.map(Event::Key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_keep_their_modifiers() {
        assert_eq!(key(Code::Char('C'), KeyModifiers::CONTROL), Some(Key::ctrl('c')));
        assert_eq!(key(Code::Char('C'), KeyModifiers::SHIFT), Some(Key::plain(Code::Char('C'))));
        let shift_enter = key(Code::Enter, KeyModifiers::SHIFT);
        assert_eq!(shift_enter, Key::parse("shift-enter"));
        assert_eq!(key(Code::CapsLock, KeyModifiers::NONE), None);
    }

    #[test]
    fn signs_with_control_are_known_by_their_bytes() {
        for (digit, sign) in [('4', '\\'), ('5', ']'), ('6', '^'), ('7', '_')] {
            assert_eq!(key(Code::Char(digit), KeyModifiers::CONTROL), Some(Key::ctrl(sign)));
            assert_eq!(key(Code::Char(sign), KeyModifiers::CONTROL), Some(Key::ctrl(sign)));
            assert_eq!(key(Code::Char(digit), KeyModifiers::NONE), Some(Key::plain(Code::Char(digit))));
        }
        assert_eq!(key(Code::Char('7'), KeyModifiers::CONTROL), Key::parse("ctrl-_"));
        assert_eq!(key(Code::Char('7'), KeyModifiers::ALT), Some(Key::alt('7')));
    }

    #[test]
    fn a_burst_of_arrows_is_the_wheel_and_single_ones_are_keys() {
        let now = Instant::now();
        let mut bursts = Bursts::default();
        let key = |code| Event::Key(Key::plain(code));
        assert_eq!(bursts.arrows(-1, 1, now), [key(Code::Up)]);
        assert_eq!(bursts.arrows(1, 2, now), [key(Code::Down), key(Code::Down)]);
        assert_eq!(bursts.arrows(-1, 3, now), [Event::Wheel(-3)]);
        assert_eq!(bursts.arrows(-1, 1, now + Duration::from_millis(150)), [Event::Wheel(-1)], "it turns on slowly");
        assert_eq!(bursts.arrows(-1, 1, now + Duration::from_millis(600)), [key(Code::Up)]);
    }

    #[test]
    fn enter_between_text_of_one_burst_is_a_line_end() {
        let burst = |text: &str| pasted(&text.chars().collect::<Vec<_>>());
        for paste in ["one\rtwo", "one\r\ntwo\r\n", "one\r\r two", "\rone\rtwo\r", "/help\r/quit\r"] {
            assert_eq!(burst(paste).as_deref(), Some(paste));
        }
        for typed in ["\r", "question\r", "one\ntwo", "one\ntwo\r", "\rword", "a\tb"] {
            assert_eq!(burst(typed), None, "{typed:?}");
        }
        assert_eq!(typed_ahead(b"one\rtwo"), [Event::Paste("one\rtwo".into())]);
    }

    #[test]
    fn text_typed_during_the_start_is_not_lost() {
        let events = typed_ahead("hé\r\x1b[A".as_bytes());
        assert_eq!(events.len(), 3);
        assert_eq!(events.last(), Some(&Event::Key(Key::plain(Code::Enter))));
    }
}
