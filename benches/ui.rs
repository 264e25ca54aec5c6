//! Time of a frame with a long conversation on screen. Method: the program's own `update` and `draw` on a test
//! backend of 160x50; the conversation has about a million tokens (4 MB of markdown in 2,000 messages). Read it as
//! time per frame; the goal is below 8 ms, and a key must be on screen within 16 ms. `open` lays out one screen of a
//! conversation of 5,000 messages that was just resumed. Terminal output itself is not part of it.
#![allow(clippy::unwrap_used)]

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use sala_chat::core::transcript::{Finish, Message, MessageId, MessageMeta, Role};
use sala_chat::runtime::protocol::{Activity, Notice, SessionView};
use sala_chat::tui::keys::{Code, Key};
use sala_chat::tui::options::UiConfig;
use sala_chat::tui::view::draw;
use sala_chat::tui::{App, Event, update};

const PARAGRAPH: &str = "It is *Natasha* who breaks it to him, but not in words: **Pierre** reads it in her face when they \
meet at Princess Marya's. The illness itself is narrated earlier, from Andrei's own side.\n\n- one thing\n- and another\n\n\
```rust\nfn main() { println!(\"hello\"); }\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n";

fn message(id: i64, role: Role, text: String) -> Message {
    let finish = (role == Role::Assistant).then_some(Finish::Stop);
    let meta = MessageMeta { finish, ..MessageMeta::default() };
    Message { id: MessageId(id), parent: None, role, text, thinking: String::new(), created_ms: 0, meta }
}

fn conversation(messages: i64, paragraphs: usize) -> App {
    let mut app = App::new(UiConfig::default(), 160, 50);
    let messages = (0..messages)
        .map(|i| {
            if i % 2 == 0 {
                message(i, Role::User, format!("Question {i}?"))
            } else {
                message(i, Role::Assistant, PARAGRAPH.repeat(paragraphs))
            }
        })
        .collect();
    update(&mut app, Event::Notice(Notice::Session(SessionView { messages, ..SessionView::default() })), 0);
    update(&mut app, Event::Notice(Notice::Activity(Activity::Idle)), 0);
    app
}

fn frame(app: &mut App, terminal: &mut Terminal<TestBackend>) {
    update(app, Event::Frame, 0);
    terminal.draw(|f| draw(app, f)).unwrap();
}

fn frames(c: &mut Criterion) {
    let mut terminal = Terminal::new(TestBackend::new(160, 50)).unwrap();
    let mut app = conversation(2_000, 12);
    frame(&mut app, &mut terminal);
    c.bench_function("frame, nothing new", |b| b.iter(|| frame(&mut app, &mut terminal)));
    c.bench_function("frame after a key", |b| {
        b.iter(|| {
            update(&mut app, Event::Key(Key::plain(Code::Char('x'))), 0);
            update(&mut app, Event::Key(Key::plain(Code::Backspace)), 0);
            frame(&mut app, &mut terminal);
        })
    });
    c.bench_function("frame after a page up", |b| {
        b.iter(|| {
            update(&mut app, Event::Key(Key::plain(Code::PageUp)), 0);
            frame(&mut app, &mut terminal);
        })
    });
    update(&mut app, Event::Key(Key { ctrl: true, ..Key::plain(Code::End) }), 0);
    update(&mut app, Event::Notice(Notice::Added(message(9_999, Role::Assistant, String::new()))), 0);
    let answer = PARAGRAPH.repeat(40);
    let mut words = answer.split_inclusive(' ').cycle();
    // A frame at 30 per second sees about seven tokens of an answer at 200 tokens per second.
    c.bench_function("frame while an answer arrives", |b| {
        b.iter(|| {
            for _ in 0..7 {
                let text = words.next().unwrap_or("").to_string();
                update(&mut app, Event::Notice(Notice::Delta { message: MessageId(9_999), thinking: false, text }), 0);
            }
            frame(&mut app, &mut terminal);
        })
    });
    c.bench_function("open 5,000 messages", |b| {
        b.iter_batched(|| conversation(5_000, 2), |mut app| frame(&mut app, &mut terminal), BatchSize::LargeInput)
    });
}

criterion_group! { name = benches; config = Criterion::default().sample_size(20); targets = frames }
criterion_main!(benches);
