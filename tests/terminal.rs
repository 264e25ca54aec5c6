//! The full screen in a real terminal of its own, with a scripted desk: what is set is reset, keys arrive, and a
//! terminal that disappears ends the program. The test starts itself as the child.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};
use sala_chat::app::options::UiConfig;
use sala_chat::protocol::desk::{Activity, Notice, Request, SessionView};
use sala_chat::protocol::engine::ModelInfo;
use sala_chat::shell::run::{DeskHandle, run};
use sala_chat::transcript::{Finish, Message, MessageId, MessageMeta, Role};

const PATIENCE: Duration = Duration::from_secs(60);

fn message(id: i64, role: Role, text: &str) -> Message {
    let finish = (role == Role::Assistant && !text.is_empty()).then_some(Finish::Stop);
    let meta = MessageMeta {
        finish,
        ..MessageMeta::default()
    };
    Message {
        id: MessageId(id),
        parent: None,
        role,
        text: text.into(),
        thinking: String::new(),
        created_ms: 0,
        meta,
    }
}

/// Answers every question with its own words.
fn scripted_desk() -> DeskHandle {
    let (requests, inbox) = crossbeam_channel::unbounded();
    let (out, notices) = crossbeam_channel::unbounded();
    std::thread::spawn(move || {
        let tell = |n: Notice| drop(out.send(n));
        tell(Notice::Ready(ModelInfo {
            name: "demo".into(),
            context_limit: 1_000,
            ..ModelInfo::default()
        }));
        tell(Notice::Session(SessionView {
            branch: (1, 1),
            ..SessionView::default()
        }));
        tell(Notice::Activity(Activity::Idle));
        let mut id = 1;
        for request in inbox {
            match request {
                Request::Ask(text) => {
                    tell(Notice::Added(message(id, Role::User, &text)));
                    tell(Notice::Added(message(id + 1, Role::Assistant, "")));
                    tell(Notice::Activity(Activity::Answering { tokens_per_s: 10.0 }));
                    let answer = format!("You said **{text}**.");
                    tell(Notice::Delta {
                        message: MessageId(id + 1),
                        thinking: false,
                        text: answer.clone(),
                    });
                    tell(Notice::Finished(message(id + 1, Role::Assistant, &answer)));
                    tell(Notice::Activity(Activity::Idle));
                    id += 2;
                }
                Request::Quit => {
                    return tell(Notice::Bye {
                        farewell: Some("Resume with: sala-chat -c".into()),
                    });
                }
                _ => {}
            }
        }
    });
    DeskHandle { requests, notices }
}

#[test]
#[ignore = "a child of the other tests"]
fn child() {
    let code = run(
        UiConfig {
            mouse: true,
            ..UiConfig::default()
        },
        scripted_desk(),
    )
    .unwrap();
    std::process::exit(code);
}

struct Session {
    master: Option<Box<dyn MasterPty + Send>>,
    child: Box<dyn Child + Send + Sync>,
    output: mpsc::Receiver<Vec<u8>>,
    writer: Option<Box<dyn Write + Send>>,
    bytes: Vec<u8>,
    screen: vt100::Parser,
}

impl Session {
    fn start() -> Session {
        let pty = native_pty_system()
            .openpty(PtySize {
                rows: 24,
                cols: 80,
                ..PtySize::default()
            })
            .unwrap();
        let mut command = CommandBuilder::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "child", "--nocapture"]);
        let child = pty.slave.spawn_command(command).unwrap();
        drop(pty.slave);
        let mut reader = pty.master.try_clone_reader().unwrap();
        let (to, output) = mpsc::channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                if to.send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        let writer = Some(pty.master.take_writer().unwrap());
        let (rows, columns) = (24.try_into().unwrap(), 80.try_into().unwrap());
        Session {
            master: Some(pty.master),
            child,
            output,
            writer,
            bytes: Vec::new(),
            screen: vt100::Parser::new(rows, columns, 0),
        }
    }

    fn take(&mut self, bytes: Vec<u8>) {
        self.screen.process(&bytes);
        self.bytes.extend(bytes);
    }

    /// Waits until the screen shows `text`.
    fn see(&mut self, text: &str) {
        let end = Instant::now() + PATIENCE;
        while !self.screen.screen().contents().contains(text) {
            match self
                .output
                .recv_timeout(end.saturating_duration_since(Instant::now()))
            {
                Ok(bytes) => self.take(bytes),
                Err(_) => panic!("never saw {text:?}:\n{}", self.screen.screen().contents()),
            }
        }
    }

    fn send(&mut self, keys: &str) {
        let writer = self.writer.as_mut().unwrap();
        writer.write_all(keys.as_bytes()).unwrap();
        writer.flush().unwrap();
    }

    fn wait(&mut self) -> u32 {
        let end = Instant::now() + PATIENCE;
        loop {
            if let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(20)) {
                self.take(bytes);
            }
            if let Some(status) = self.child.try_wait().unwrap() {
                while let Ok(bytes) = self.output.recv_timeout(Duration::from_millis(200)) {
                    self.take(bytes);
                }
                return status.exit_code();
            }
            assert!(Instant::now() < end, "does not end");
        }
    }
}

#[test]
fn a_chat_leaves_the_terminal_as_it_was() {
    let mut s = Session::start();
    s.see("Type a question");
    assert!(s.screen.screen().alternate_screen() && s.screen.screen().bracketed_paste());
    s.send("hello 日本\r");
    s.see("You said hello 日本.");
    s.send("\x1b[200~pasted\ntext\x1b[201~");
    s.see("pasted");
    s.send("\x03");
    s.see("Cleared");
    s.send("/quit\r");
    assert_eq!(s.wait(), 0);
    let screen = s.screen.screen();
    assert!(!screen.alternate_screen() && !screen.bracketed_paste() && !screen.hide_cursor());
    assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
    assert!(screen.contents().contains("Resume with: sala-chat -c"));
    let text = String::from_utf8_lossy(&s.bytes);
    assert_eq!(
        text.matches("\x1b[?2026h").count(),
        text.matches("\x1b[?2026l").count(),
        "synchronized updates are closed"
    );
}

#[test]
fn ctrl_c_twice_quits() {
    let mut s = Session::start();
    s.see("Type a question");
    s.send("\x03");
    s.see("Press Ctrl-C again to quit");
    s.send("\x03");
    assert_eq!(s.wait(), 0);
}

#[test]
fn sigterm_ends_with_its_code_and_restores() {
    let mut s = Session::start();
    s.see("Type a question");
    let pid = i32::try_from(s.child.process_id().unwrap()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    assert_eq!(s.wait(), 143);
    assert!(!s.screen.screen().alternate_screen());
}

#[test]
fn a_vanished_terminal_ends_the_program() {
    let mut s = Session::start();
    s.see("Type a question");
    s.writer = None;
    s.master = None;
    let start = Instant::now();
    // The reader thread holds a copy of the master until the child is gone.
    let pid = i32::try_from(s.child.process_id().unwrap()).unwrap();
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::HUP,
    )
    .unwrap();
    assert_eq!(s.wait(), 129);
    assert!(start.elapsed() < Duration::from_secs(5));
}
