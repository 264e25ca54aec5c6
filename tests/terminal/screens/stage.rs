//! A stage for scenes: an interface of a size, driven by keys and notices through `update`, drawn on a test backend.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use sala_chat::core::transcript::{DocumentInfo, Finish, Message, MessageId, MessageMeta, Passage, Role, Sources};
use sala_chat::engine::protocol::{MemoryInfo, ModelInfo, SpecStats};
use sala_chat::runtime::protocol::{
    Activity, ContextMap, LibraryName, Meters, Notice, OpenSession, Place, Request, SaveState, SessionView, Stretch,
    TreeView,
};
use sala_chat::tui::keys::Key;
use sala_chat::tui::options::{Glyphs, UiConfig};
use sala_chat::tui::view::draw;
use sala_chat::tui::{App, Effect, Event, update};

/// 14:01 on some day.
pub const TIME: i64 = 1_763_647_260_000;

pub struct Stage {
    pub app: App,
    pub now: u64,
    pub effects: Vec<Effect>,
    /// Requests that the runtime has received.
    pub received: u64,
}

impl Stage {
    pub fn new(width: u16, height: u16) -> Stage {
        Stage::with(UiConfig::default(), width, height)
    }

    pub fn with(config: UiConfig, width: u16, height: u16) -> Stage {
        let received = config.sent_before;
        Stage { app: App::new(config, width, height), now: 1_000, effects: Vec::new(), received }
    }

    pub fn ascii(width: u16, height: u16) -> Stage {
        Stage::with(UiConfig { glyphs: Glyphs::Ascii, ..UiConfig::default() }, width, height)
    }

    /// A model is ready and nothing is going on.
    pub fn ready(mut self, model: ModelInfo) -> Stage {
        let meters = Meters { context_limit: model.context_limit, model: model.clone(), ..Meters::default() };
        self.notify(Notice::Ready(model));
        self.notify(Notice::Meters(meters));
        self.notify(Notice::Session(SessionView { tree: branch(1, 1), ..SessionView::default() }));
        self.notify(Notice::Activity(Activity::Idle));
        self
    }

    pub fn event(&mut self, event: Event) -> &mut Self {
        let effects = update(&mut self.app, event, self.now);
        self.received += effects.iter().filter(|e| matches!(e, Effect::Send(_))).count() as u64;
        self.effects.extend(effects);
        self
    }

    /// Sends a notice from the runtime; an idle notice also acknowledges all requests received so far.
    pub fn notify(&mut self, notice: Notice) -> &mut Self {
        let served = (notice == Notice::Activity(Activity::Idle)).then_some(self.received);
        self.event(Event::Notice(notice));
        match served {
            Some(received) => self.event(Event::Notice(Notice::Acknowledged(received))),
            None => self,
        }
    }

    /// Presses keys by name: `"ctrl-p"`, `"enter"`; each at what is on the screen.
    pub fn press(&mut self, names: &str) -> &mut Self {
        for name in names.split_whitespace() {
            let key = Key::parse(name).unwrap_or_else(|| panic!("no key {name}"));
            self.event(Event::Frame);
            self.event(Event::Key(key));
        }
        self
    }

    /// Types a text character by character, without a look at the screen.
    pub fn type_text(&mut self, text: &str) -> &mut Self {
        for c in text.chars() {
            let key = match c {
                '\n' => Key::parse("ctrl-j").unwrap(),
                c => Key::plain(sala_chat::tui::keys::Code::Char(c)),
            };
            self.event(Event::Key(key));
        }
        self
    }

    pub fn wait(&mut self, ms: u64) -> &mut Self {
        self.now += ms;
        if self.app.deadline().is_some_and(|d| d <= self.now) {
            self.event(Event::Tick);
        }
        self
    }

    /// Lines that wait until the model is free.
    pub fn queued(&self) -> Vec<&str> {
        self.app.open.queue.lines.iter().map(|l| l.line.as_str()).collect()
    }

    /// Requests sent since the last call, but for lines that the history is to keep and drafts.
    pub fn sent(&mut self) -> Vec<Request> {
        let kept = |r: &Request| matches!(r, Request::Remember(_) | Request::Draft { .. });
        self.all_sent().into_iter().filter(|r| !kept(r)).collect()
    }

    /// The same with those.
    pub fn all_sent(&mut self) -> Vec<Request> {
        self.effects.drain(..).filter_map(|e| if let Effect::Send(r) = e { Some(r) } else { None }).collect()
    }

    pub fn terminal(&mut self) -> Terminal<TestBackend> {
        self.event(Event::Frame);
        let (width, height) = self.app.size;
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|f| draw(&self.app, f)).unwrap();
        terminal
    }

    /// The screen as text, with the caret's place below it.
    pub fn screen(&mut self) -> String {
        let mut terminal = self.terminal();
        let buffer = terminal.backend().buffer().clone();
        let mut out = String::new();
        for y in 0..buffer.area.height {
            let mut line = String::new();
            let mut skip = 0;
            for x in 0..buffer.area.width {
                if skip > 0 {
                    skip -= 1;
                    continue;
                }
                let symbol = buffer[(x, y)].symbol();
                skip = sala_chat::tui::cells::width(symbol).saturating_sub(1);
                line.push_str(symbol);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        let at = terminal.get_cursor_position().unwrap();
        out.push_str(&format!("caret {},{}\n", at.x, at.y));
        out
    }

    /// Which cells carry attributes or colours: one letter per kind, to see what does not show as text.
    pub fn styles(&mut self) -> String {
        let terminal = self.terminal();
        let buffer = terminal.backend().buffer();
        let mut out = String::new();
        for y in 0..buffer.area.height {
            let mut line = String::new();
            for x in 0..buffer.area.width {
                let cell = &buffer[(x, y)];
                let m = cell.modifier;
                use ratatui::style::{Color, Modifier};
                let letter = if m.contains(Modifier::REVERSED) {
                    'R'
                } else if cell.fg != Color::Reset {
                    'c'
                } else if m.contains(Modifier::BOLD) {
                    'b'
                } else if m.contains(Modifier::DIM) {
                    'd'
                } else if m.contains(Modifier::UNDERLINED) {
                    'u'
                } else {
                    ' '
                };
                line.push(letter);
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
}

pub fn demo() -> ModelInfo {
    ModelInfo {
        name: "demo".into(),
        built_in: true,
        device: "CPU, 2 threads".into(),
        device_kind: "cpu".into(),
        dtype: "f32".into(),
        parameters: 8_700_000,
        context_limit: 65_536,
        draft: Some("EAGLE-3".into()),
        memory: MemoryInfo {
            weights: 35 << 20,
            state: 12 << 20,
            work: 9 << 20,
            pool: 0,
            host: 0,
            used: 210 << 20,
            total: 0,
        },
        ..ModelInfo::default()
    }
}

pub fn gpu() -> ModelInfo {
    let gib = 1u64 << 30;
    ModelInfo {
        name: "MiniCPM-SALA".into(),
        device: "NVIDIA H200".into(),
        device_kind: "cuda".into(),
        dtype: "bf16".into(),
        parameters: 9_400_000_000,
        context_limit: 1_048_576,
        draft: Some("EAGLE-3".into()),
        memory: MemoryInfo {
            weights: 18 * gib,
            state: 5 * gib,
            work: 5 * gib,
            pool: 0,
            host: 0,
            used: 28 * gib,
            total: 140 * gib,
        },
        ..ModelInfo::default()
    }
}

pub fn message(id: i64, role: Role, text: &str) -> Message {
    Message {
        id: MessageId(id),
        parent: (id > 1).then(|| MessageId(id - 1)),
        role,
        text: text.into(),
        thinking: String::new(),
        created_ms: TIME,
        meta: MessageMeta::default(),
    }
}

pub fn answer(id: i64, text: &str) -> Message {
    let mut m = message(id, Role::Assistant, text);
    m.meta.finish = Some(Finish::Stop);
    m.meta.tokens_per_s = 94.8;
    m
}

pub fn document(id: i64, name: &str, tokens: u64) -> Message {
    let mut m = message(id, Role::Document, "text of the document");
    m.meta.document = Some(DocumentInfo {
        name: name.into(),
        path: Some(name.into()),
        hash: "ab12".into(),
        tokens,
        lines: tokens / 12,
        complete: true,
        once: false,
        update: None,
    });
    m
}

/// What an answer looked at.
pub fn looked() -> Sources {
    let passage = |document: Option<&str>, number, first_line, last_line, share, first_block: u32| Passage {
        document: document.map(str::to_owned),
        number,
        first_line,
        last_line,
        share,
        forced: 0.0,
        first_block,
        last_block: first_block + 9,
    };
    Sources {
        passages: vec![
            passage(Some("war.txt"), 1, 41_210, 41_262, 0.31, 8_000),
            passage(Some("war.txt"), 1, 38_004, 38_051, 0.22, 7_000),
            passage(Some("war.txt"), 1, 12_880, 12_901, 0.04, 2_000),
        ],
        thoughts: Vec::new(),
        first: 0.8,
        own: 0.1,
        block_tokens: 64,
        blocks: (0..10).map(|i| (8_000 + i, 310)).chain((0..10).map(|i| (7_000 + i, 220))).collect(),
        ..Sources::default()
    }
}

/// A long document with a conversation after it, and the parts that the last answer looked at.
pub fn context_map() -> ContextMap {
    let stretch = |from, to, place, number, name: &str| Stretch { from, to, place, number, name: name.into() };
    ContextMap {
        stretches: vec![
            stretch(0, 40, Place::System, 1, "system text"),
            stretch(40, 581_330, Place::Document, 2, "war.txt"),
            stretch(581_330, 585_442, Place::Document, 3, "notes.md"),
            stretch(585_442, 612_204, Place::Turn, 4, "Who tells Pierre that"),
        ],
        block_tokens: 64,
        looked: looked().blocks,
        passages: looked().passages,
        answer: Some(5),
    }
}

/// A conversation of a document, a question and an answer with thoughts, list, code and table.
pub fn conversation() -> SessionView {
    let mut with_thoughts = answer(
        3,
        "It is **Natasha** who breaks it to him, but not in words: Pierre reads it in her face when they meet at \
         Princess Marya's.\n\n- the illness is told earlier\n- from *Andrei's* own side\n\n```text\nBook XV, ch. 16  \"the \
         door opened, and a thin face ...\"\n```\n\n| passage | who speaks | what is said |\n|---|---|---|\n| [1] | nobody | \
         Pierre understands |\n| [2] | Andrei | \"love is God\" |\n",
    );
    with_thoughts.thinking = "The user asks about two events.\nThe meeting is in the later part.\nLook there.".into();
    with_thoughts.meta.thought_ms = 2_100.0;
    SessionView {
        name: "war-and-peace".into(),
        tree: TreeView { timeline: timeline(), documents: documents(), ..branch(2, 3) },
        messages: vec![
            document(1, "war.txt", 581_330),
            message(2, Role::User, "Who tells Pierre that Prince Andrei is dying, and in which chapter?"),
            with_thoughts,
        ],
        view_only: false,
        ..SessionView::default()
    }
}

pub fn timeline() -> Vec<sala_chat::runtime::protocol::TimelineRow> {
    let row = |id: i64, lane: u16, title: &str, current: bool, head: bool, label: Option<&str>| {
        sala_chat::runtime::protocol::TimelineRow {
            message: MessageId(id),
            number: id as u64,
            line: 0,
            lane,
            title: title.into(),
            kept: id % 2 == 1,
            current,
            head,
            label: label.map(Into::into),
            created_ms: TIME + id * 60_000,
        }
    };
    vec![
        row(1, 0, "war.txt", true, false, None),
        row(2, 0, "Who tells Pierre that Prince Andrei is dying", true, false, Some("before-duel")),
        row(3, 0, "It is Natasha who breaks it to him", true, true, None),
        row(7, 1, "the duel, told by Dolokhov", false, false, None),
    ]
}

pub fn documents() -> Vec<sala_chat::runtime::protocol::DocumentRow> {
    let row = |name: &str, tokens: u64, position: u64, kept: bool| sala_chat::runtime::protocol::DocumentRow {
        name: name.into(),
        number: None,
        tokens,
        position: Some(position),
        lines: tokens / 12,
        complete: true,
        kept,
        bytes: tokens * 9_000,
    };
    vec![row("war.txt", 581_330, 12, true), row("notes.md", 4_112, 581_342, false)]
}

/// Numbers for the status line.
pub fn meters(model: ModelInfo) -> Meters {
    Meters {
        estimated: false,
        context_used: model.context_limit * 58 / 100,
        context_limit: model.context_limit,
        spec: SpecStats {
            rounds: 100,
            drafted: 500,
            accepted: 310,
            mean_accept_length: 3.1,
            eagle_rounds: 90,
            ngram_rounds: 6,
            plain_rounds: 4,
            per_position: vec![(100, 91), (91, 71), (71, 43), (43, 20), (20, 7)],
            time_vs_plain: 0.4,
        },
        tokens_per_s: 96.4,
        speed_estimated: false,
        prefill_tokens_per_s: 8_630.0,
        ttft_ms: 240.0,
        settings: Vec::new(),
        changed: 0,
        checkpoints: 8,
        state_bytes: 384 << 20,
        model,
    }
}

/// No rows, on the branch with this number of so many.
pub fn branch(number: u64, of: u64) -> TreeView {
    TreeView { branch: (number, of), ..TreeView::default() }
}

/// A view of the n-th of three sessions opened in this run: the conversation, a shorter one, an empty one.
pub fn opened(n: u64) -> SessionView {
    let names = ["war-and-peace", "contract", ""];
    let open = |(i, name): (usize, &&str)| OpenSession { serial: i as u64 + 1, name: (*name).into() };
    SessionView {
        serial: n,
        opened: names.iter().enumerate().map(open).collect(),
        ..match n {
            1 => conversation(),
            2 => SessionView {
                name: "contract".into(),
                tree: branch(1, 1),
                messages: vec![message(11, Role::User, "What is the notice period?"), answer(12, "Three months.")],
                ..SessionView::default()
            },
            _ => SessionView { tree: branch(1, 1), ..SessionView::default() },
        }
    }
}

/// A stage with the conversation open.
pub fn open(width: u16, height: u16) -> Stage {
    conversing(Stage::new(width, height))
}

/// The same with a library.
pub fn shelved(width: u16, height: u16) -> Stage {
    let mut stage = open(width, height);
    let names = [("atlas.pdf", 210_000), ("my notes.txt", 4_112), ("war.txt", 581_330), ("plan.md", 900)];
    let names = names.map(|(name, tokens)| LibraryName { name: name.into(), tokens });
    stage.notify(Notice::Library(names.into()));
    stage
}

pub fn conversing(stage: Stage) -> Stage {
    let mut stage = stage.ready(gpu());
    stage.notify(Notice::Session(conversation()));
    stage.notify(Notice::Meters(meters(gpu())));
    stage.notify(Notice::Save(SaveState::Saved(TIME)));
    stage
}

/// An answer is being written.
pub fn busy(s: &mut Stage) {
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 50.0 }));
    s.effects.clear();
}
