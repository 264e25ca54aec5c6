//! The checkpoint's chat template, rendered as Hugging Face renders it.
//!
//! The template is Jinja from `tokenizer_config.json` (or `chat_template.jinja` beside it), with Python's string and list
//! methods, `tojson`, `raise_exception` and `strftime_now`. Never hard-codes a chat format. A rendering is a pure function
//! of the messages and options, except for templates that ask for today's date. A template comes with the weights and may
//! be made to do harm: it runs with limits (`limits`), on a thread of its own (`untrusted`); one from a model folder that is not
//! known is tried (`trial`) and run (`apart`) in a process of its own.

mod apart;
mod limits;
mod python;
mod trial;

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::{TextError, untrusted};
use crate::protocol::desk::ThinkMode;
pub use apart::{CHILD as RENDER_CHILD, child as render_child};
pub use trial::{CHILD, child};

const NAME: &str = "chat";
/// How the SHA-256 of the chat template of the released MiniCPM-SALA begins.
const RELEASED: &str = "accdbc3c45c7ee51";

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

    /// How the turn of a document begins, and how it ends.
    pub(super) const DOCUMENT: [&str; 2] = ["<document name=\"", "</document>"];

    /// The two turns that put a document into the context (docs/design.md §7): the document, and the answer that it was read.
    pub fn document(name: &str, text: &str) -> [ChatMessage; 2] {
        let end = if text.ends_with('\n') { "" } else { "\n" };
        let [opens, closes] = ChatMessage::DOCUMENT;
        [
            ChatMessage::new(ChatRole::User, format!("{opens}{name}\">\n{text}{end}{closes}")),
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

/// Whether a template lets thinking be switched: whether the text that the model reads is another one then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThinkingSwitch {
    /// `enable_thinking` set changes it.
    pub on: bool,
    /// `enable_thinking` unset changes it.
    pub off: bool,
}

impl ThinkingSwitch {
    /// What to say where asking for `mode` cannot be done; `None` where it can, or is how it is anyway.
    pub fn refusal(self, mode: ThinkMode) -> Option<&'static str> {
        match mode {
            ThinkMode::Off if self.off => None,
            // A template that can only be told not to think has it on by itself.
            ThinkMode::On if self.on || self.off => None,
            ThinkMode::Off | ThinkMode::On => Some(
                "This model's template has no switch for thinking: it thinks when it likes. A budget ends thoughts: \
                 set thinking.budget, to 1024 say",
            ),
            ThinkMode::Auto => None,
        }
    }
}

/// See the module.
pub struct Template {
    environment: Arc<Environment<'static>>,
    /// Where it is run, if not here.
    apart: Option<apart::Apart>,
    switch: ThinkingSwitch,
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
#[serde(untagged, expecting = "`chat_template` has to be text, or a list of objects with `name` and `template`")]
enum Source {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

/// What a template is made of.
#[derive(Debug, Serialize, Deserialize)]
struct Parts {
    source: String,
    bos_token: String,
    eos_token: String,
}

impl Parts {
    fn read(config: &[u8], chat_template: Option<&[u8]>) -> Result<Parts, TextError> {
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
        Ok(Parts { source, bos_token: text(config.bos_token), eos_token: text(config.eos_token) })
    }

    fn template(&self) -> Result<Template, TextError> {
        Template::compiled(self).map(Template::with_switch)
    }
}

/// What is to be rendered.
#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    messages: Value,
    tools: Value,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    /// Messages, and bytes in them.
    count: usize,
    bytes: usize,
}

/// SHA-256, hex.
fn sha256(source: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(source.as_bytes()).iter().map(|b| format!("{b:02x}")).collect()
}

fn is_released(source: &str) -> bool {
    sha256(source).starts_with(RELEASED)
}

impl Template {
    /// From the contents of `tokenizer_config.json` and, if there is one, `chat_template.jinja`, which wins.
    ///
    /// # Errors
    /// No template, contents that do not parse, or a template that does not compile.
    pub fn from_config(config: &[u8], chat_template: Option<&[u8]>) -> Result<Template, TextError> {
        Parts::read(config, chat_template)?.template()
    }

    /// From Jinja source.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line where it does not compile, or what limit it is beyond.
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Template, TextError> {
        let (source, bos_token, eos_token) = (source.to_owned(), bos_token.to_owned(), eos_token.to_owned());
        Parts { source, bos_token, eos_token }.template()
    }

    /// Without having rendered anything.
    fn compiled(parts: &Parts) -> Result<Template, TextError> {
        limits::check_source(&parts.source)?;
        let text = without_generation_tags(&parts.source);
        let compiled = untrusted::run(limits::PATIENCE, &|| false, move || environment(text));
        let environment = compiled.map_err(|e| TextError::Template(e.to_string()))?;
        Ok(Template {
            environment: Arc::new(environment.map_err(|e| TextError::Template(explain(&e)))?),
            apart: None,
            switch: ThinkingSwitch::default(),
            bos_token: parts.bos_token.clone(),
            eos_token: parts.eos_token.clone(),
            source: parts.source.clone(),
        })
    }

    fn with_switch(self) -> Template {
        Template { switch: self.finds_switch(), ..self }
    }

    /// What `enable_thinking` changes.
    pub fn thinking_switch(&self) -> ThinkingSwitch {
        self.switch
    }

    /// Renders each way and looks for a difference, behind a question and behind an answer.
    fn finds_switch(&self) -> ThinkingSwitch {
        let user = |text: &str| ChatMessage::new(ChatRole::User, text);
        let long = [user("a"), ChatMessage::answer("b", "c"), user("d")];
        let differs = |mode| {
            [&long[..1], &long[..]].into_iter().any(|messages| {
                let with = |thinking| self.render(messages, &RenderOptions::prompt(thinking)).ok();
                with(mode) != with(ThinkMode::Auto)
            })
        };
        ThinkingSwitch { on: differs(ThinkMode::On), off: differs(ThinkMode::Off) }
    }

    /// Refuses a template that writes a prompt without the question in it: the model would answer to something else. One that
    /// refuses the conversation says so itself, once it is used.
    ///
    /// # Errors
    /// [`TextError::Template`].
    pub fn check_question(&self) -> Result<(), TextError> {
        const QUESTION: &str = "What is asked?";
        let question = [ChatMessage::new(ChatRole::User, QUESTION)];
        match self.render(&question, &RenderOptions::prompt(ThinkMode::Auto)) {
            Ok(prompt) if !prompt.contains(QUESTION) => Err(TextError::Template(
                "it leaves out what is asked. Take tokenizer_config.json and chat_template.jinja from the model's own folder"
                    .into(),
            )),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// SHA-256 of the template's source, hex: what published templates are known by.
    pub fn sha256(&self) -> String {
        sha256(&self.source)
    }

    /// What is known about this template from its hash.
    pub fn known_as(&self) -> Option<&'static str> {
        is_released(&self.source).then_some("the released template")
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
        self.render_until(messages, options, &|| false)
    }

    /// The same for messages in Hugging Face's own form (`tool_calls`, `reasoning_content` …), as JSON.
    ///
    /// # Errors
    /// As [`Template::render`].
    pub fn render_json(&self, messages: &serde_json::Value, options: &RenderOptions) -> Result<String, TextError> {
        let count = messages.as_array().map_or(0, Vec::len);
        let bytes = messages.to_string().len();
        self.run(Value::from(Serde(messages)), count, bytes, options, &|| false)
    }

    /// As [`Template::render`]; gives up when `stop` says so.
    ///
    /// # Errors
    /// As there, and [`TextError::Stopped`].
    pub fn render_until(
        &self,
        messages: &[ChatMessage],
        options: &RenderOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, TextError> {
        let bytes = messages.iter().map(|m| m.content.len()).sum();
        self.run(Value::from(Serde(messages)), messages.len(), bytes, options, stop)
    }

    fn run(
        &self,
        messages: Value,
        count: usize,
        bytes: usize,
        options: &RenderOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, TextError> {
        let asked = Asked {
            messages,
            tools: if options.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&options.tools)) },
            add_generation_prompt: options.add_generation_prompt,
            enable_thinking: match options.thinking {
                ThinkMode::On => Some(true),
                ThinkMode::Off => Some(false),
                ThinkMode::Auto => None,
            },
            count,
            bytes,
        };
        match &self.apart {
            Some(apart) => apart.render(&asked, stop),
            None => self.render_here(asked, stop),
        }
    }

    fn render_here(&self, asked: Asked, stop: &dyn Fn() -> bool) -> Result<String, TextError> {
        let Asked { messages, tools, add_generation_prompt, enable_thinking, count, bytes } = asked;
        let context = minijinja::context! {
            messages,
            tools,
            add_generation_prompt,
            bos_token => self.bos_token.as_str(),
            eos_token => self.eos_token.as_str(),
            enable_thinking => enable_thinking.map_or(Value::UNDEFINED, Value::from),
        };
        let environment = Arc::clone(&self.environment);
        let rendered = untrusted::run(limits::PATIENCE, stop, move || {
            let mut environment = Environment::clone(&environment);
            environment.set_fuel(Some(limits::fuel(count)));
            let mut out = limits::Bounded::new(limits::output(bytes));
            environment.get_template(NAME)?.render_captured_to(context, &mut out)?;
            Ok(out.into_text())
        });
        match rendered {
            Ok(Ok(text)) => Ok(text),
            Ok(Err(e)) => Err(TextError::Template(explain(&e))),
            Err(untrusted::GaveUp::Stopped) => Err(TextError::Stopped),
            Err(e) => Err(TextError::Template(e.to_string())),
        }
    }
}

/// The compiled template, with everything that Hugging Face gives one.
fn environment(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_recursion_limit(limits::RECURSION);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(python::format);
    environment.add_filter("tojson", python::json);
    environment.add_filter("string", |v: Value| python::str(&v));
    environment.add_filter("indent", limits::indent);
    environment.add_filter("format", limits::format);
    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// One line about a template error.
fn explain(error: &Error) -> String {
    // What ended the writing of the output is behind the engine's own error.
    let written = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure);
    let own = || error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let what = written.map_or_else(own, ToString::to_string);
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

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
