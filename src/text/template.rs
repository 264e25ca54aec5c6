//! The checkpoint's chat template, rendered as Hugging Face renders it.
//!
//! The template is Jinja from `tokenizer_config.json` (or `chat_template.jinja` beside it), with Python's string and list
//! methods, `tojson`, `raise_exception` and `strftime_now`. Never hard-codes a chat format. A rendering is a pure function
//! of the messages and options, except for templates that ask for today's date.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Serde, Value, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde::{Deserialize, Serialize};

use super::TextError;
use super::caught::caught;
use crate::protocol::desk::ThinkMode;

const NAME: &str = "chat";

/// Who speaks, in the template's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChatRole {
    /// The system text.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message as the template sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChatMessage {
    /// Who speaks.
    pub role: ChatRole,
    /// The text. For an answer: as generated, with its `<think>` block, so that the template decides what stays of it.
    pub content: String,
}

impl ChatMessage {
    /// A message.
    pub fn new(role: ChatRole, content: impl Into<String>) -> ChatMessage {
        ChatMessage { role, content: content.into() }
    }

    /// An answer put together from the parts that a transcript keeps.
    pub fn answer(thinking: &str, text: &str) -> ChatMessage {
        if thinking.is_empty() {
            ChatMessage::new(ChatRole::Assistant, text)
        } else {
            ChatMessage::new(ChatRole::Assistant, format!("<think>\n{thinking}\n</think>\n\n{text}"))
        }
    }

    /// The two turns that put a document into the context (docs/design.md §7): the document, and the answer that it was read.
    pub fn document(name: &str, text: &str) -> [ChatMessage; 2] {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        [
            ChatMessage::new(ChatRole::User, format!("<document name=\"{name}\">\n{text}{end}</document>")),
            ChatMessage::new(ChatRole::Assistant, format!("I have read {name}. What would you like to know?")),
        ]
    }
}

/// What is rendered around the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RenderOptions {
    /// End with the opening of the model's turn.
    pub add_generation_prompt: bool,
    /// Sets `enable_thinking`; `Auto` leaves it undefined.
    pub thinking: ThinkMode,
    /// Function descriptions, in the OpenAI form; none if empty.
    pub tools: Vec<serde_json::Value>,
}

impl RenderOptions {
    /// A prompt that the model shall answer.
    pub fn prompt(thinking: ThinkMode) -> RenderOptions {
        RenderOptions { add_generation_prompt: true, thinking, tools: Vec::new() }
    }
}

/// See the module.
pub struct Template {
    environment: Environment<'static>,
    bos_token: String,
    eos_token: String,
    source: String,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Template").field("bytes", &self.source.len()).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    chat_template: Option<Source>,
    #[serde(default)]
    bos_token: Option<serde_json::Value>,
    #[serde(default)]
    eos_token: Option<serde_json::Value>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Source {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Template {
    /// From the contents of `tokenizer_config.json` and, if there is one, `chat_template.jinja`, which wins.
    ///
    /// # Errors
    /// No template, contents that do not parse, or a template that does not compile.
    pub fn from_config(config: &[u8], chat_template: Option<&[u8]>) -> Result<Template, TextError> {
        let malformed = |file: &str, reason: String| TextError::Malformed { file: file.to_owned(), reason };
        let config: Config =
            serde_json::from_slice(config).map_err(|e| malformed("tokenizer_config.json", e.to_string()))?;
        let source = match (chat_template, config.chat_template) {
            (Some(bytes), _) => {
                String::from_utf8(bytes.to_vec()).map_err(|e| malformed("chat_template.jinja", e.to_string()))?
            }
            (None, Some(Source::One(text))) => text,
            (None, Some(Source::Named(list))) => {
                let default = list.iter().position(|t| t.name == "default").unwrap_or(0);
                list.into_iter().nth(default).map(|t| t.template).ok_or(TextError::NoTemplate)?
            }
            (None, None) => return Err(TextError::NoTemplate),
        };
        let text = |token: Option<serde_json::Value>| match token {
            Some(serde_json::Value::String(s)) => s,
            Some(v) => v.get("content").and_then(|c| c.as_str()).unwrap_or_default().to_owned(),
            None => String::new(),
        };
        Template::new(&source, &text(config.bos_token), &text(config.eos_token))
    }

    /// From Jinja source.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line where it does not compile.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Template, TextError> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| TextError::Template(explain(&e)))?);
        environment.set_unknown_method_callback(python_method);
        environment.set_formatter(python_format);
        environment.add_filter("tojson", python_json);
        environment.add_filter("string", |v: Value| python_str(&v));
        environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, text))
        });
        environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
        unless_it_panics(|| environment.add_template_owned(NAME, without_generation_tags(source)))?;
        Ok(Template {
            environment,
            bos_token: bos_token.to_owned(),
            eos_token: eos_token.to_owned(),
            source: source.to_owned(),
        })
    }

    /// BLAKE3 of the template's source, hex: part of what a rendered prefix depends on.
    pub fn hash(&self) -> String {
        blake3::hash(self.source.as_bytes()).to_hex().to_string()
    }

    /// The prompt text of a conversation.
    ///
    /// # Errors
    /// What the template refuses, in its own words (for example that roles must alternate).
    pub fn render(&self, messages: &[ChatMessage], options: &RenderOptions) -> Result<String, TextError> {
        self.render_values(Value::from(Serde(messages)), options)
    }

    /// The same for messages in Hugging Face's own form (`tool_calls`, `reasoning_content` …), as JSON.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub fn render_json(&self, messages: &serde_json::Value, options: &RenderOptions) -> Result<String, TextError> {
        self.render_values(Value::from(Serde(messages)), options)
    }

    fn render_values(&self, messages: Value, options: &RenderOptions) -> Result<String, TextError> {
        let thinking = match options.thinking {
            ThinkMode::On => Value::from(true),
            ThinkMode::Off => Value::from(false),
            ThinkMode::Auto => Value::UNDEFINED,
        };
        let tools = if options.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&options.tools)) };
        let context = minijinja::context! {
            messages,
            tools,
            add_generation_prompt => options.add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
            enable_thinking => thinking,
        };
        unless_it_panics(|| self.environment.get_template(NAME)?.render(context))
    }
}

/// Compiling or rendering; the template comes with the weights, and the engine panics on some (`""[::-1]`).
fn unless_it_panics<T>(work: impl FnOnce() -> Result<T, Error>) -> Result<T, TextError> {
    match caught(work) {
        Some(result) => result.map_err(|e| TextError::Template(explain(&e))),
        None => Err(TextError::Template("the template engine fails on it".to_owned())),
    }
}

/// One line about a template error.
fn explain(error: &Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// `{% generation %}` only marks text for training; it renders what is inside.
fn without_generation_tags(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Methods of Python's types.
fn python_method(state: &mut State, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (name, value.as_str()) {
        // Python starts a word after anything that is no letter.
        ("title", Some(text)) if args.is_empty() => {
            let mut inside = false;
            let title = text.chars().flat_map(|c| {
                let cased: String = if inside { c.to_lowercase().collect() } else { c.to_uppercase().collect() };
                inside = c.is_alphabetic();
                cased.chars().collect::<Vec<char>>()
            });
            Ok(Value::from(title.collect::<String>()))
        }
        _ => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}

/// `{{ value }}` as Python prints it.
fn python_format(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    match value.kind() {
        ValueKind::Bool | ValueKind::None | ValueKind::Seq | ValueKind::Map => {
            out.write_str(&python_str(value)).map_err(Error::from)
        }
        _ => minijinja::escape_formatter(out, state, value),
    }
}

/// `str(value)` of Python.
fn python_str(value: &Value) -> String {
    match value.kind() {
        ValueKind::Bool => if value.is_true() { "True" } else { "False" }.to_owned(),
        ValueKind::None => "None".to_owned(),
        ValueKind::Seq | ValueKind::Map => python_repr(value),
        _ => value.to_string(),
    }
}

/// `repr(value)` of Python.
fn python_repr(value: &Value) -> String {
    match value.kind() {
        ValueKind::String => {
            let text = value.to_string();
            let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
            let mut out = String::from(quote);
            for c in text.chars() {
                match c {
                    '\\' => out.push_str("\\\\"),
                    '\n' => out.push_str("\\n"),
                    '\r' => out.push_str("\\r"),
                    '\t' => out.push_str("\\t"),
                    c if c == quote => {
                        out.push('\\');
                        out.push(c);
                    }
                    c => out.push(c),
                }
            }
            out.push(quote);
            out
        }
        ValueKind::Seq => {
            let items: Vec<String> = value.try_iter().map(|i| i.map(|v| python_repr(&v)).collect()).unwrap_or_default();
            format!("[{}]", items.join(", "))
        }
        ValueKind::Map => {
            let items: Vec<String> = value
                .try_iter()
                .map(|keys| {
                    keys.map(|k| {
                        let v = value.get_item(&k).unwrap_or(Value::UNDEFINED);
                        format!("{}: {}", python_repr(&k), python_repr(&v))
                    })
                    .collect()
                })
                .unwrap_or_default();
            format!("{{{}}}", items.join(", "))
        }
        _ => python_str(value),
    }
}

/// `tojson` as Hugging Face defines it: `json.dumps` with `ensure_ascii=False`, nothing escaped for HTML.
fn python_json(Serde(mut json): Serde<serde_json::Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = kwargs.get("indent")?;
    let _: Option<bool> = kwargs.get("ensure_ascii")?;
    let sorted = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators: Option<Vec<String>> = kwargs.get("separators")?;
    kwargs.assert_all_used()?;
    let bad = |e: &dyn std::fmt::Display| Error::new(ErrorKind::BadSerialization, e.to_string());
    if sorted {
        json.sort_all_objects();
    }
    let mut style = PythonJson {
        indent,
        depth: 0,
        item: separators.as_ref().and_then(|s| s.first().cloned()),
        key: separators.as_ref().and_then(|s| s.get(1).cloned()),
        empty: false,
    };
    if style.item.is_none() {
        style.item = Some(if indent.is_some() { "," } else { ", " }.to_owned());
    }
    let mut out = Vec::new();
    json.serialize(&mut serde_json::Serializer::with_formatter(&mut out, style)).map_err(|e| bad(&e))?;
    String::from_utf8(out).map(Value::from_safe_string).map_err(|e| bad(&e))
}

/// Python's spacing: `{"a": [1, 2]}`, or indented lines.
struct PythonJson {
    indent: Option<usize>,
    depth: usize,
    item: Option<String>,
    key: Option<String>,
    /// Nothing was written into the innermost list or object.
    empty: bool,
}

impl PythonJson {
    fn line<W: ?Sized + std::io::Write>(&self, w: &mut W) -> std::io::Result<()> {
        match self.indent {
            Some(n) => write!(w, "\n{:width$}", "", width = n * self.depth),
            None => Ok(()),
        }
    }

    fn begin<W: ?Sized + std::io::Write>(&mut self, w: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth += 1;
        self.empty = true;
        w.write_all(bracket)
    }

    fn next<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.empty = false;
        if !first {
            w.write_all(self.item.as_deref().unwrap_or(", ").as_bytes())?;
        }
        self.line(w)
    }

    fn end<W: ?Sized + std::io::Write>(&mut self, w: &mut W, bracket: &[u8]) -> std::io::Result<()> {
        self.depth = self.depth.saturating_sub(1);
        if !std::mem::take(&mut self.empty) {
            self.line(w)?;
        }
        w.write_all(bracket)
    }
}

impl serde_json::ser::Formatter for PythonJson {
    fn begin_array<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.begin(w, b"[")
    }
    fn end_array<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.end(w, b"]")
    }
    fn begin_array_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.next(w, first)
    }
    fn begin_object<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.begin(w, b"{")
    }
    fn end_object<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        self.end(w, b"}")
    }
    fn begin_object_key<W: ?Sized + std::io::Write>(&mut self, w: &mut W, first: bool) -> std::io::Result<()> {
        self.next(w, first)
    }
    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(self.key.as_deref().unwrap_or(": ").as_bytes())
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
