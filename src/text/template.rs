//! The checkpoint's chat template, rendered as Hugging Face renders it.
//!
//! The template is Jinja from `tokenizer_config.json` (or `chat_template.jinja` in the same folder), with Python's string and list
//! methods, `tojson`, `raise_exception` and `strftime_now`. Never hard-codes a chat format. A rendering is a pure function
//! of the messages and options, except for templates that ask for today's date. A template is part of the model folder and may
//! be made to do harm: it runs on a thread of its own (`untrusted`), with limits on its instructions and its output (`limits`).
//! What it puts together before it writes is not limited (SECURITY.md).

mod environment;
mod filters;
mod limits;
mod message;
mod methods;
mod python;
mod source;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde::Deserialize;

use super::tokenizer::NamedToken;
use super::{TextError, untrusted};
use crate::runtime::protocol::ThinkMode;
use environment::{NAME, environment, failure};
use limits::{Bounded, fuel};
pub use message::{ChatMessage, ChatRole, RenderOptions, ThinkingSwitch};

/// Rendering takes milliseconds, or a second for a million tokens.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug)]
pub struct Template {
    environment: Arc<Environment<'static>>,
    pub switch: ThinkingSwitch,
    /// Special tokens by the name that templates use, such as `bos_token`.
    tokens: BTreeMap<String, String>,
    pub source: String,
}

#[derive(Deserialize)]
struct Config {
    chat_template: Option<Source>,
    #[serde(flatten)]
    others: BTreeMap<String, serde_json::Value>,
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

impl Template {
    /// From the contents of `tokenizer_config.json` and, if there is one, `chat_template.jinja`, which wins.
    pub fn from_config(config: &[u8], chat_template: Option<&[u8]>) -> Result<Template, TextError> {
        let config: Config =
            serde_json::from_slice(config).map_err(|e| TextError::malformed("tokenizer_config.json", e))?;
        let source = match (chat_template, config.chat_template) {
            (Some(bytes), _) => {
                String::from_utf8(bytes.to_vec()).map_err(|e| TextError::malformed("chat_template.jinja", e))?
            }
            (None, Some(Source::One(text))) => text,
            (None, Some(Source::Named(list))) => {
                let default = list.iter().position(|t| t.name == "default").unwrap_or(0);
                list.into_iter().nth(default).map(|t| t.template).ok_or(TextError::NoTemplate)?
            }
            (None, None) => return Err(TextError::NoTemplate),
        };
        let mut tokens = BTreeMap::from(["bos_token", "eos_token"].map(|name| (name.to_owned(), String::new())));
        for (name, value) in config.others.into_iter().filter(|(name, _)| name.ends_with("_token")) {
            let token = serde_json::from_value::<NamedToken>(value);
            tokens.extend(token.ok().map(|token| (name, token.text().to_owned())));
        }
        Template::with_tokens(&source, tokens)
    }

    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Template, TextError> {
        let tokens = [("bos_token", bos_token), ("eos_token", eos_token)];
        Template::with_tokens(source, tokens.map(|(name, text)| (name.to_owned(), text.to_owned())).into())
    }

    fn with_tokens(source: &str, tokens: BTreeMap<String, String>) -> Result<Template, TextError> {
        let to_compile = source.to_owned();
        let compiled = untrusted::run(PATIENCE, &|| false, move || environment(&to_compile));
        let template = Template {
            environment: Arc::new(compiled.map_err(|e| TextError::Template(e.to_string()))??),
            switch: ThinkingSwitch::default(),
            tokens,
            source: source.to_owned(),
        };
        Ok(Template { switch: template.finds_switch(), ..template })
    }

    /// Renders with each value and compares, after a question and after an answer.
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
    pub fn check_question(&self) -> Result<(), TextError> {
        const QUESTION: &str = "What is asked?";
        let question = [ChatMessage::new(ChatRole::User, QUESTION)];
        match self.render(&question, &RenderOptions::prompt(ThinkMode::Auto)) {
            Ok(prompt) if !prompt.contains(QUESTION) => Err(TextError::Template(
                "it leaves out what is asked. Take tokenizer_config.json and chat_template.jinja from the model's own folder"
                    .into(),
            )),
            Err(e @ TextError::Exhausted(_)) => Err(e),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// The prompt text of a conversation. A template refuses in its own words, for example that roles must alternate.
    pub fn render(&self, messages: &[ChatMessage], options: &RenderOptions) -> Result<String, TextError> {
        self.render_until(messages, options, &|| false)
    }

    /// As [`Template::render`], for messages in Hugging Face's form (`tool_calls`, `reasoning_content` …), as JSON.
    pub fn render_json(&self, messages: &serde_json::Value, options: &RenderOptions) -> Result<String, TextError> {
        let bytes = messages.to_string().len();
        self.run(Value::from(Serde(messages)), bytes, options, &|| false)
    }

    /// As [`Template::render`], until `stop`.
    pub fn render_until(
        &self,
        messages: &[ChatMessage],
        options: &RenderOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, TextError> {
        let bytes = messages.iter().map(|m| m.content.len()).sum();
        self.run(Value::from(Serde(messages)), bytes, options, stop)
    }

    fn run(
        &self,
        messages: Value,
        bytes: usize,
        options: &RenderOptions,
        stop: &dyn Fn() -> bool,
    ) -> Result<String, TextError> {
        let count = messages.len().unwrap_or(0);
        let context = minijinja::context! {
            messages,
            tools => if options.tools.is_empty() { Value::from(()) } else { Value::from(Serde(&options.tools)) },
            documents => Value::from(()),
            add_generation_prompt => options.add_generation_prompt,
            enable_thinking => match options.thinking {
                ThinkMode::On => Value::from(true),
                ThinkMode::Off => Value::from(false),
                ThinkMode::Auto => Value::UNDEFINED,
            },
            ..Value::from(Serde(&self.tokens))
        };
        let environment = Arc::clone(&self.environment);
        let rendered = untrusted::run(PATIENCE, stop, move || {
            let mut environment = Environment::clone(&environment);
            environment.set_fuel(Some(fuel(count, bytes)));
            let mut out = Bounded::new(bytes);
            environment.get_template(NAME)?.render_captured_to(context, &mut out)?;
            Ok(String::from_utf8_lossy(&out.bytes).into_owned())
        });
        match rendered {
            Ok(rendered) => rendered.map_err(|e: minijinja::Error| failure(&e)),
            Err(untrusted::GaveUp::Stopped) => Err(TextError::Stopped),
            Err(e) => Err(TextError::Exhausted(e.to_string())),
        }
    }
}

#[cfg(test)]
#[path = "template_tests.rs"]
mod tests;
