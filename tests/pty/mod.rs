//! The real program in a pseudo terminal, seen through a VT100 parser.
#![allow(dead_code)] // each test file uses its own part

use std::io::{Read, Write};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, ExitStatus, MasterPty, PtySize, native_pty_system};

/// The compiled program.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_sala-chat");
/// Longest wait for anything: machines of two cores that build something else meanwhile are slow.
pub const PATIENCE: Duration = Duration::from_secs(180);

fn cells(rows: u16, columns: u16) -> (NonZero<u16>, NonZero<u16>) {
    (NonZero::new(rows).unwrap(), NonZero::new(columns).unwrap())
}

struct Screen {
    parser: vt100::Parser,
    raw: Vec<u8>,
    closed: bool,
}

/// The lock even after a failed assertion held it: the reader must go on, so that the failure shows the last screen.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The program with `args`; its data and configuration live under `home`, where it begins.
pub fn program(home: &Path, args: &[&str]) -> CommandBuilder {
    let mut command = CommandBuilder::new(PROGRAM);
    command.args(args);
    command.env_clear();
    for (name, value) in environment(home) {
        command.env(name, value);
    }
    command.cwd(home);
    command
}

/// A program running in a terminal of a fixed size.
pub struct Terminal {
    screen: Arc<(Mutex<Screen>, Condvar)>,
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
    child: Box<dyn Child + Send + Sync>,
    /// Dropping it hangs the terminal up.
    master: Option<Box<dyn MasterPty + Send>>,
}

impl Terminal {
    /// Starts the program with `args`; its data and configuration live under `home`.
    pub fn start(home: &Path, columns: u16, rows: u16, args: &[&str]) -> Terminal {
        Terminal::spawn(program(home, args), columns, rows)
    }

    /// Starts any command.
    pub fn spawn(command: CommandBuilder, columns: u16, rows: u16) -> Terminal {
        Terminal::spawn_in(command, columns, rows, true)
    }

    /// Starts any command in a terminal that does not answer queries.
    pub fn spawn_mute(command: CommandBuilder) -> Terminal {
        Terminal::spawn_in(command, 80, 24, false)
    }

    fn spawn_in(command: CommandBuilder, columns: u16, rows: u16, speaks: bool) -> Terminal {
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        let pair = native_pty_system().openpty(size).unwrap();
        let child = pair.slave.spawn_command(command).unwrap();
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().unwrap();
        let writer = Arc::new(Mutex::new(pair.master.take_writer().unwrap()));
        let (high, wide) = cells(rows, columns);
        let parser = vt100::Parser::new(high, wide, 0);
        let screen = Arc::new((Mutex::new(Screen { parser, raw: Vec::new(), closed: false }), Condvar::new()));
        let (shared, answers) = (screen.clone(), writer.clone());
        std::thread::spawn(move || {
            let mut buffer = [0u8; 4096];
            loop {
                let n = reader.read(&mut buffer).unwrap_or(0);
                let (lock, changed) = &*shared;
                let mut screen = held(lock);
                if n == 0 {
                    screen.closed = true;
                    changed.notify_all();
                    return;
                }
                screen.parser.process(&buffer[..n]);
                screen.raw.extend_from_slice(&buffer[..n]);
                drop(screen);
                // A terminal's answers to queries for the cursor position and its type.
                for (question, answer) in [(&b"\x1b[6n"[..], &b"\x1b[1;2R"[..]), (b"\x1b[c", b"\x1b[?62c")] {
                    if speaks && buffer[..n].windows(question.len()).any(|w| w == question) {
                        let _ = held(&answers).write_all(answer);
                    }
                }
                changed.notify_all();
            }
        });
        Terminal { screen, writer, child, master: Some(pair.master) }
    }

    /// The screen as text, a line per row.
    pub fn text(&self) -> String {
        held(&self.screen.0).parser.screen().contents()
    }

    /// Every byte the program wrote so far.
    pub fn raw(&self) -> Vec<u8> {
        held(&self.screen.0).raw.clone()
    }

    /// Waits until the screen satisfies `seen`; fails with the screen after [`PATIENCE`].
    pub fn wait(&self, what: &str, seen: impl Fn(&str) -> bool) -> String {
        let end = Instant::now() + PATIENCE;
        let (lock, changed) = &*self.screen;
        let mut screen = held(lock);
        loop {
            let text = screen.parser.screen().contents();
            if seen(&text) {
                return text;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !screen.closed, "waited for {what}; the screen was:\n{text}");
            screen = changed.wait_timeout(screen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until the program wrote these bytes.
    pub fn wait_for_bytes(&self, needle: &[u8]) {
        let end = Instant::now() + PATIENCE;
        let (lock, changed) = &*self.screen;
        let mut screen = held(lock);
        while !screen.raw.windows(needle.len()).any(|w| w == needle) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero() && !screen.closed, "waited for {needle:?}");
            screen = changed.wait_timeout(screen, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits for a piece of text.
    pub fn wait_for(&self, needle: &str) -> String {
        self.wait(needle, |text| text.contains(needle))
    }

    /// Sends bytes as if typed.
    pub fn send(&self, bytes: &[u8]) {
        let mut writer = held(&self.writer);
        writer.write_all(bytes).unwrap();
        writer.flush().unwrap();
    }

    /// Types a line and presses Enter once it is on the screen, so that nothing is taken for a paste.
    pub fn line(&self, text: &str) {
        self.send(text.as_bytes());
        let tail: String = text.chars().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect();
        self.wait_for(&tail);
        std::thread::sleep(Duration::from_millis(60));
        self.send(b"\r");
    }

    /// Changes the terminal's size.
    pub fn resize(&self, columns: u16, rows: u16) {
        let size = PtySize { rows, cols: columns, pixel_width: 0, pixel_height: 0 };
        let (high, wide) = cells(rows, columns);
        held(&self.screen.0).parser.screen_mut().set_size(high, wide);
        self.master.as_ref().unwrap().resize(size).unwrap();
    }

    /// Closes the terminal under the program.
    pub fn hang_up(&mut self) {
        self.master = None;
        *held(&self.writer) = Box::new(std::io::sink());
    }

    /// What the terminal is set to.
    pub fn look<T>(&self, look: impl FnOnce(&vt100::Screen) -> T) -> T {
        look(held(&self.screen.0).parser.screen())
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.process_id().unwrap()
    }

    /// Waits for the end of the program, and for the rest of what it wrote.
    pub fn exit(&mut self) -> ExitStatus {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let (lock, changed) = &*self.screen;
                let mut screen = held(lock);
                while !screen.closed && Instant::now() < end {
                    let left = end.saturating_duration_since(Instant::now());
                    screen = changed.wait_timeout(screen, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                return status;
            }
            assert!(Instant::now() < end, "the program did not end; the screen was:\n{}", self.text());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Nothing of the machine's own configuration reaches the program.
pub fn environment(home: &Path) -> Vec<(&'static str, PathBuf)> {
    vec![
        ("HOME", home.into()),
        ("XDG_RUNTIME_DIR", home.join("run")),
        ("SALA_CHAT_DATA_DIR", home.join("data")),
        ("TERM", "xterm-256color".into()),
        ("LANG", "C.UTF-8".into()),
        ("PATH", "/usr/bin:/bin".into()),
        ("HF_HUB_OFFLINE", "1".into()),
        // On the CPU on every machine.
        ("CUDA_VISIBLE_DEVICES", "-1".into()),
    ]
}

/// A text of about `tokens` tokens of the built-in model, with one fact in its middle.
pub fn document(tokens: usize, fact: &str) -> String {
    let names = ["Arlen", "Bria", "Corin", "Dela", "Edda", "Farun", "Gisla", "Harl"];
    let things = ["lamp", "kettle", "ledger", "anchor", "mirror", "basket", "hammer", "violin"];
    let places = ["harbour", "attic", "orchard", "station", "library", "quarry", "kitchen", "tower"];
    let mut text = String::new();
    let lines = tokens / 16;
    for i in 0..lines {
        if i == lines / 2 {
            text.push_str(fact);
            text.push('\n');
        }
        let (n, t, p) = (names[i * 7 % 8], things[(i * 5 + i / 8) % 8], places[(i * 3 + i / 64) % 8]);
        text.push_str(&format!("{n} left the {t} in the {p} on day {i}.\n"));
    }
    text
}
