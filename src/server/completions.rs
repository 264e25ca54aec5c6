//! `POST /v1/completions`: the model continues a text, without a template.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::ask;
use super::chunks::{MOST_CHOICES, Table};
use super::params::params;
use super::request;
use super::stream::answer;
use super::{
    Choice, Collected, Event, Fields, Form, Format, Head, MOST_ALTERNATIVES, Params, Prompt, Refusal, Result, Shared,
    Usage, collect, kind, model_of, most_tokens, object, reason, response_format, submit, token_list,
};
use crate::engine::protocol::Token;
use crate::runtime::render::{MARK, Rendered};
use crate::text::{Before, Places, Tokenizer};

const MOST_PROMPTS: usize = 256;
const DEFAULT_TOKENS: u64 = 16;

/// Reads `prompt`: a text, tokens, or a list of either. Returns each with its text for an echo.
fn prompts(shared: &Shared, fields: &mut Fields) -> Result<Vec<(Prompt, String)>> {
    let one = |value: Value, at: &str| match value {
        Value::String(text) => Ok(prompt(text.clone(), None, text)),
        Value::Array(list) => {
            let (tokens, tokenizer) = (token_list(shared, &list, at)?, &shared.renderer.model().tokenizer);
            let rest = tokens.strip_prefix(tokenizer.bos.as_slice()).unwrap_or(&tokens);
            let text = tokenizer.spell(rest, Before::Edge);
            Ok(prompt(key_of(tokenizer, &tokens), Some(Arc::new(tokens)), text))
        }
        other => Err(Refusal::field(at, format!("{at} must be a text or a list of token ids, it is {}", kind(&other)))),
    };
    let given = match fields.need("prompt")? {
        Value::Array(list) if list.first().is_some_and(|v| !v.is_number()) => list,
        single => return Ok(vec![one(single, "prompt")?]),
    };
    if given.len() > MOST_PROMPTS {
        return Err(fields.wrong("prompt", format!("has {} prompts, at most {MOST_PROMPTS} are allowed", given.len())));
    }
    given.into_iter().enumerate().map(|(i, value)| one(value, &format!("prompt[{i}]"))).collect()
}

/// A prompt with a key for its state. A text may contain special tokens as literals: a client without messages writes
/// the template itself.
fn prompt(key: String, tokens: Option<Arc<Vec<Token>>>, text: String) -> (Prompt, String) {
    let rendered = Arc::new(Rendered { text: key, cuts: Vec::new() });
    (Prompt { rendered, tokens, of_library: false, field: "prompt" }, text)
}

/// The key for the state of given tokens. State is found by its text: tokens that are not the tokenization of any text
/// must not match a text that happens to look like them.
fn key_of(tokenizer: &Tokenizer, tokens: &[Token]) -> String {
    let begins = tokenizer.bos;
    // The tokenizer puts one start token in front of a text, if the model has one.
    let rest =
        tokens.strip_prefix(begins.as_slice()).filter(|rest| begins.is_none() || rest.first() != begins.as_ref());
    let text = tokenizer.spell_shielded(rest.unwrap_or(tokens), Before::Edge);
    if text.contains('\u{FFFD}') {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        return format!("{MARK}{}", blake3::hash(&bytes).to_hex());
    }
    match rest {
        Some(_) => text,
        None => format!("{MARK}{text}"),
    }
}

const OBJECT: &str = "text_completion";

struct Completion {
    tokenizer: Arc<Tokenizer>,
    head: Head,
    /// The prompt is sent before each answer.
    echoes: bool,
    echo: String,
    likely: bool,
    /// Of a stream: where the next token of each text begins.
    places: Vec<Places>,
}

impl Completion {
    /// The answers to a prompt follow.
    fn begin(&mut self, prompt: String) {
        self.echo = if self.echoes { prompt } else { String::new() };
    }

    fn places(&self) -> Places {
        Places::after(Arc::clone(&self.tokenizer), self.echo.chars().count())
    }

    /// Log-probabilities of a choice, after those of the prompt if they were scored.
    fn table(&self, all: &Collected, choice: &Choice) -> Value {
        let mut table = Table::default();
        if let Some((tokens, likely)) = &all.scored {
            table.prompt(&self.tokenizer, tokens, likely);
        }
        table.answer(&self.tokenizer, &mut self.places(), &choice.tokens);
        json!(table)
    }

    fn add_choices(&self, all: &Collected, choices: &mut Vec<Value>) {
        for choice in &all.choices {
            let text = format!("{}{}", self.echo, choice.answer());
            let table = self.likely.then(|| self.table(all, choice));
            let finish = choice.whole.as_ref().map(reason);
            choices.push(json!({ "index": choices.len(), "text": text, "logprobs": table, "finish_reason": finish }));
        }
    }
}

impl Form for Completion {
    fn whole(&mut self, all: Collected) -> Value {
        let mut choices = Vec::new();
        self.add_choices(&all, &mut choices);
        self.head.whole(OBJECT, choices.into(), &all.usage)
    }

    fn event(&mut self, index: usize, event: &Event, all: &mut Collected, out: &mut String) {
        let (mut table, mut finish) = (None, None);
        let text = match event {
            Event::Begun(_) if self.echo.is_empty() => return,
            Event::Begun(_) => &self.echo,
            Event::Text(text, tokens) => {
                table = self.places.get_mut(index).filter(|_| self.likely).map(|places| {
                    let mut table = Table::default();
                    table.answer(&self.tokenizer, places, tokens);
                    json!(table)
                });
                text
            }
            Event::Ended(whole) => {
                finish = Some(reason(whole));
                ""
            }
            Event::Thoughts(_) | Event::Calling { .. } | Event::Arguments(_) | Event::Call(_) => return,
        };
        let choice = json!({ "index": index, "text": text, "logprobs": table, "finish_reason": finish });
        self.head.event(OBJECT, choice, all, out);
    }
}

fn read(shared: &Shared, mut fields: Fields) -> Result<(Vec<(Prompt, String)>, Params, Format, Completion)> {
    let info = model_of(shared, &mut fields)?;
    let given = prompts(shared, &mut fields)?;
    let most = most_tokens(&mut fields, &["max_tokens", "n_predict"], 0)?.unwrap_or(DEFAULT_TOKENS);
    let mut params = Params { raw: true, thinking_budget: 0, ..params(shared, &mut fields, "stop", Some(most))? };
    params.wanted = fields.whole("n", 1..=MOST_CHOICES)?.unwrap_or(1);
    let echoes = fields.on("echo")?;
    let head = Head::read(&mut fields, "cmpl-", info.name)?;
    params.likely = fields.whole("logprobs", 0..=MOST_ALTERNATIVES)?;
    params.score = params.likely.filter(|_| echoes);
    fields.refuse("best_of", |v| v.as_u64() == Some(params.wanted as u64))?;
    fields.refuse("suffix", |v| v == "")?;
    let format = response_format(&mut fields)?;
    fields.ignore(&["user"]);
    fields.done_for_answer()?;
    if params.streamed && given.len() != 1 {
        return Err(Refusal::field("prompt", "prompt: a stream has one prompt"));
    }
    if params.streamed && params.score.is_some() {
        return Err(Refusal::field("logprobs", "logprobs of an echoed prompt are not streamed"));
    }
    let tokenizer = Arc::clone(&shared.renderer.model().tokenizer);
    let likely = params.likely.is_some();
    let form = Completion { tokenizer, head, echoes, echo: String::new(), likely, places: Vec::new() };
    Ok((given, params, format, form))
}

pub(super) async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response> {
    let (mut given, mut params, format, mut form) = request::read(&shared, request, read).await?;
    if format.is_some() {
        // A raw text opens no thought.
        let nothing = Rendered { text: String::new(), cuts: Vec::new() };
        params.constraint = ask::constraint(&shared, format, &params, &nothing).await?;
    }
    if given.len() == 1
        && let Some((prompt, text)) = given.pop()
    {
        form.begin(text);
        form.places = vec![form.places(); params.wanted];
        let streamed = params.streamed;
        return answer(submit(&shared, prompt, params, None, shared.options.serve.queue)?, streamed, form).await;
    }
    let (shared, params) = (&shared, &params);
    let answers = given.into_iter().enumerate().map(|(at, (prompt, text))| async move {
        // The first prompt takes the request's place in the queue.
        let most = if at == 0 { shared.options.serve.queue } else { usize::MAX };
        Ok((at, (text, collect(submit(shared, prompt, params.clone(), None, most)?).await?)))
    });
    let running = stream::iter(answers).buffer_unordered(shared.options.serve.side_by_side);
    let (mut choices, mut all) = (Vec::new(), Usage::default());
    for (text, collected) in running.try_collect::<BTreeMap<_, _>>().await?.into_values() {
        form.begin(text);
        all.add(&collected.usage);
        form.add_choices(&collected, &mut choices);
    }
    Ok(object(&form.head.whole(OBJECT, choices.into(), &all)))
}
