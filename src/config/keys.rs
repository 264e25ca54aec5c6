//! The table of settings: name, allowed values, built-in value, one line of help.

use toml::{Table, Value};

/// What a setting may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number: built-in, least, most.
    Int(i64, i64, i64),
    /// A number: built-in, least, most.
    Float(f64, f64, f64),
    /// Free text.
    Text(&'static str),
    /// One of these words; the first is built in.
    Word(&'static [&'static str]),
}

/// One setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Key {
    /// `section.name`.
    pub name: &'static str,
    /// What it may be.
    pub kind: Kind,
    /// One line.
    pub help: &'static str,
}

const fn key(name: &'static str, kind: Kind, help: &'static str) -> Key {
    Key { name, kind, help }
}

const MANY: i64 = i64::MAX;
const LEVELS: &[&str] = &["info", "off", "error", "warn", "debug", "trace"];

/// Every setting, in the order of `config.example.toml`.
pub const KEYS: &[Key] = &[
    key("model.source", Kind::Text("auto"), "auto, demo, a model folder, or synthetic:SHAPE for measurements"),
    key("model.repo", Kind::Text("openbmb/MiniCPM-SALA"), "what `sala-chat model download` fetches"),
    key("model.revision", Kind::Text("main"), "pin a commit for repeatability"),
    key("model.device", Kind::Word(&["auto", "cpu", "cuda"]), "auto, cpu, cuda"),
    key("model.gpu", Kind::Int(0, 0, 255), "index of the GPU"),
    key("model.max_context", Kind::Int(0, 0, 1 << 24), "tokens; 0 is as much as fits"),
    key("model.reserve_answer", Kind::Int(4096, 0, 1 << 24), "tokens kept free for the answer"),
    key("speculation.mode", Kind::Word(&["auto", "on", "off"]), "on, off; auto drafts where it pays"),
    key("speculation.depth", Kind::Int(0, 0, 15), "drafted tokens with mode = \"on\"; 0 lets the program choose"),
    key("speculation.draft", Kind::Text("auto"), "draft head: auto, a folder, a hub id, or off"),
    key("sampling.preset", Kind::Text("default"), "a name of /preset list; what is set below it wins"),
    key("sampling.temperature", Kind::Float(0.7, 0.0, 2.0), "0 always takes the likeliest token"),
    key("sampling.top_p", Kind::Float(0.95, 0.0, 1.0), "keep the likeliest tokens up to this mass"),
    key("sampling.top_k", Kind::Int(0, 0, 1 << 20), "keep this many; 0 keeps all"),
    key("sampling.min_p", Kind::Float(0.0, 0.0, 1.0), "drop what is below this share of the likeliest"),
    key("sampling.repeat_penalty", Kind::Float(1.0, 0.1, 10.0), "1 is off"),
    key("sampling.presence_penalty", Kind::Float(0.0, -10.0, 10.0), "0 is off"),
    key("sampling.frequency_penalty", Kind::Float(0.0, -10.0, 10.0), "0 is off"),
    key("sampling.seed", Kind::Int(-1, -1, MANY), "-1: a new one for each answer, shown under it"),
    key("sampling.max_tokens", Kind::Int(8192, 1, 1 << 24), "longest answer"),
    key("thinking.mode", Kind::Word(&["auto", "on", "off"]), "whether the model thinks first; auto is its own habit"),
    key("thinking.show", Kind::Word(&["fold", "open", "hide"]), "open, fold, hide"),
    key(
        "sessions.save_state",
        Kind::Word(&["turn", "exit", "never"]),
        "turn, exit, never; text is always saved at once",
    ),
    key("sessions.resume_last", Kind::Bool(false), "start in the session that was open last"),
    key("sessions.checkpoint_every", Kind::Int(32768, 1024, 1 << 24), "tokens, inside long documents"),
    key("sessions.keep_turns", Kind::Int(16, 1, 1 << 20), "states kept of the last turns"),
    key("sessions.max_state_gib", Kind::Float(40.0, 0.0, 1e6), "the oldest state nothing pins is dropped, text never"),
    key("sessions.min_free_gib", Kind::Float(5.0, 0.0, 1e6), "space left free on the disk"),
    key("sessions.trash_days", Kind::Int(7, 0, 36500), "deleted sessions are kept this long"),
    key("load.confirm_tokens", Kind::Int(50_000, 0, MANY), "from here /load shows its plan first"),
    key("load.confirm_files", Kind::Int(20, 0, MANY), "and from this many files"),
    key("load.max_file_mib", Kind::Int(512, 1, 1 << 20), "larger files are refused"),
    key("load.follow_symlinks", Kind::Bool(false), "inside folders"),
    key("ui.theme", Kind::Word(&["auto", "dark", "light", "plain"]), "auto, dark, light, plain"),
    key("ui.alternate_screen", Kind::Word(&["auto", "on", "off"]), "auto is off inside Zellij"),
    key("ui.mouse", Kind::Bool(false), "wheel scrolls; Shift-drag for the terminal's own selection"),
    key("ui.glyphs", Kind::Word(&["auto", "unicode", "ascii"]), "auto, unicode, ascii"),
    key("ui.panel", Kind::Word(&["auto", "on", "off"]), "auto from 120 columns"),
    key("ui.max_width", Kind::Int(110, 40, 1000), "columns of text"),
    key("ui.paste_fold_chars", Kind::Int(800, 80, 1 << 20), "longer pastes are folded in the input"),
    key("ui.paste_fold_lines", Kind::Int(10, 2, 1 << 20), "so are pastes with more lines"),
    key("clipboard.method", Kind::Word(&["auto", "osc52", "file"]), "auto, osc52, file"),
    key("log.level", Kind::Word(LEVELS), "off, error, warn, info, debug, trace; message text only at trace"),
    key("log.keep_files", Kind::Int(5, 1, 1000), "one file a day"),
];

/// Tables whose keys the user chooses: name, help, example line.
pub const OPEN_TABLES: &[(&str, &str, &str)] = &[
    (
        "load.converters",
        "run without a shell; {in} is the path; standard output is the text. PDF has a built-in reader",
        "docx = \"pandoc --to plain {in}\"\n# pdf  = \"pdftotext -layout {in} -\"",
    ),
    ("keys", "key to action, see /keys", "\"ctrl-o\" = \"panel\""),
];

impl Key {
    /// The built-in value.
    pub fn default(&self) -> Value {
        match self.kind {
            Kind::Bool(b) => Value::Boolean(b),
            Kind::Int(i, ..) => Value::Integer(i),
            Kind::Float(f, ..) => Value::Float(f),
            Kind::Text(t) => Value::String(t.to_owned()),
            Kind::Word(words) => Value::String(words.first().copied().unwrap_or_default().to_owned()),
        }
    }

    /// The value in its own type, or what would be allowed.
    ///
    /// # Errors
    /// A phrase for "must be …".
    pub fn accept(&self, value: &Value) -> Result<Value, String> {
        match (self.kind, value) {
            (Kind::Bool(_), Value::Boolean(_)) | (Kind::Text(_), Value::String(_)) => Ok(value.clone()),
            (Kind::Int(_, least, most), Value::Integer(i)) if (least..=most).contains(i) => Ok(value.clone()),
            (Kind::Float(_, least, most), Value::Float(f)) if (least..=most).contains(f) => Ok(value.clone()),
            (Kind::Float(_, least, most), Value::Integer(i)) if (least..=most).contains(&(*i as f64)) => {
                Ok(Value::Float(*i as f64))
            }
            (Kind::Word(words), Value::String(s)) if words.contains(&s.as_str()) => Ok(value.clone()),
            (Kind::Bool(_), _) => Err("true or false".to_owned()),
            (Kind::Text(_), _) => Err("text in quotes".to_owned()),
            (Kind::Int(_, least, MANY), _) => Err(format!("a whole number from {least}")),
            (Kind::Int(_, least, most), _) => Err(format!("a whole number from {least} to {most}")),
            (Kind::Float(_, least, most), _) => Err(format!("{least} to {most}")),
            (Kind::Word(words), _) => Err(format!("one of {}", words.join(", "))),
        }
    }

    /// Reads a value from a variable or a command: no quotes needed.
    ///
    /// # Errors
    /// A phrase for "must be …".
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        let value = match self.kind {
            Kind::Text(_) | Kind::Word(_) => Value::String(text.to_owned()),
            Kind::Bool(_) => match text {
                "true" | "on" | "yes" | "1" => Value::Boolean(true),
                "false" | "off" | "no" | "0" => Value::Boolean(false),
                other => Value::String(other.to_owned()),
            },
            Kind::Int(..) => {
                text.replace(['_', ','], "").parse().map_or(Value::String(text.to_owned()), Value::Integer)
            }
            Kind::Float(..) => text.parse().map_or(Value::String(text.to_owned()), Value::Float),
        };
        self.accept(&value)
    }
}

/// The setting of this full name.
pub fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.name == name)
}

/// The setting meant by a full name, or by its last part if only one setting ends so (`temperature`).
pub fn find_short(name: &str) -> Option<&'static Key> {
    find(name).or_else(|| {
        let mut matches = KEYS.iter().filter(|k| k.name.rsplit('.').next() == Some(name));
        match (matches.next(), matches.next()) {
            (Some(key), None) => Some(key),
            _ => None,
        }
    })
}

/// All built-in values as a nested table.
pub fn defaults() -> Table {
    let mut table = Table::new();
    for key in KEYS {
        insert(&mut table, key.name, key.default());
    }
    table
}

/// Puts a value under a dotted name.
pub(super) fn insert(table: &mut Table, name: &str, value: Value) {
    match name.split_once('.') {
        None => {
            table.insert(name.to_owned(), value);
        }
        Some((section, rest)) => {
            let inner = table.entry(section).or_insert_with(|| Value::Table(Table::new()));
            if let Value::Table(inner) = inner {
                insert(inner, rest, value);
            }
        }
    }
}

/// The text of `config.example.toml`.
pub fn example() -> String {
    let mut out = String::from(
        "# Settings of sala-chat with their built-in values. Copy what you change to the file that\n\
         # `sala-chat config path` names. A variable (SALA_CHAT_SAMPLING_TEMPERATURE=0) wins over the file, the\n\
         # command line over both. `sala-chat config check` finds mistakes, `config show --origin` says what came from where.\n",
    );
    let mut section = "";
    for key in KEYS {
        let (head, name) = key.name.split_once('.').unwrap_or(("", key.name));
        if head != section {
            if !section.is_empty() {
                out.push_str(&open_tables(section));
            }
            out.push_str(&format!("\n[{head}]\n"));
            section = head;
        }
        out.push_str(&format!("{:<34} # {}\n", format!("{name} = {}", key.default()), key.help));
    }
    out.push_str(&open_tables(section));
    out.push_str(&open_tables(""));
    out
}

/// The open tables that belong to a section; those of no section for `""`.
fn open_tables(section: &str) -> String {
    let mut out = String::new();
    for (name, help, line) in OPEN_TABLES {
        let parent = name.split_once('.').map_or("", |(parent, _)| parent);
        if parent == section {
            out.push_str(&format!("\n[{name}]  # {help}\n# {line}\n"));
        }
    }
    out
}
