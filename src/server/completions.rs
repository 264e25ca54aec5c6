//! `POST /v1/completions`: the model continues a text, without a template.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::ask::{Params, Prompt};
use super::body::{self, object};
use super::chunks::{Ending, Head, MOST_CHOICES, add_usage, include_usage, reason};
use super::collected::{Choice, Collected, collect};
use super::context::blocking;
use super::fields::{Fields, kind};
use super::ids::fresh_id;
use super::likely::{MOST_LIKELY, Table};
use super::notice::{Notice, Usage};
use super::plain::token_list;
use super::ready::model_named;
use super::refusal::{Family, Refusal};
use super::reply::{self, submit};
use super::sampling::{format_of, most_tokens, other_formats, params, stops};
use super::stream::{Form, data, stream};
use super::{Shared, now_s};
use crate::engine::protocol::Token;
use crate::runtime::render::{MARK, Rendered};
use crate::text::{Before, Places, Tokenizer};

const MOST_PROMPTS: usize = 256;
/// Default maximum of tokens in an answer, from OpenAI's API.
const TOKENS: u64 = 16;

#[derive(Clone)]
enum Given {
    Text(String),
    Tokens(Vec<Token>),
}

/// Reads `prompt`: a text, tokens, or a list of either.
fn prompts(shared: &Shared, fields: &mut Fields) -> Result<Vec<Given>, Refusal> {
    let one = |value: Value, at: &str| match value {
        Value::String(text) => Ok(Given::Text(text)),
        Value::Array(list) => Ok(Given::Tokens(token_list(shared, &list, at)?)),
        other => Err(Refusal::field(at, format!("{at} must be a text or a list of token ids, it is {}", kind(&other)))),
    };
    let given = match fields.need("prompt")? {
        Value::Array(list) if list.first().is_some_and(|v| !v.is_number()) => list
            .into_iter()
            .enumerate()
            .map(|(i, value)| one(value, &format!("prompt[{i}]")))
            .collect::<Result<Vec<_>, _>>()?,
        single => vec![one(single, "prompt")?],
    };
    if given.len() > MOST_PROMPTS {
        return Err(fields.wrong("prompt", format!("has {} prompts, at most {MOST_PROMPTS} are allowed", given.len())));
    }
    Ok(given)
}

/// [`prompt`] on a thread of its own: decoding many tokens to text takes time.
async fn prompt_of(shared: &Arc<Shared>, given: &Given) -> Result<(Prompt, String), Refusal> {
    let (shared, given) = (Arc::clone(shared), given.clone());
    blocking(move || Ok(prompt(&shared, &given))).await
}

/// The prompt, and its text for an echo. A text may contain special tokens as literals: a client without messages
/// writes the template itself.
fn prompt(shared: &Shared, given: &Given) -> (Prompt, String) {
    let tokenizer = &shared.renderer.model().tokenizer;
    let (key, tokens, text) = match given {
        Given::Text(text) => (text.clone(), None, text.clone()),
        Given::Tokens(tokens) => {
            let rest = tokens.strip_prefix(tokenizer.bos().as_slice()).unwrap_or(tokens);
            (key_of(tokenizer, tokens), Some(Arc::new(tokens.clone())), tokenizer.spell(rest, Before::Edge))
        }
    };
    let rendered = Arc::new(Rendered { text: key, cuts: Vec::new() });
    (Prompt { rendered, tokens, of_library: false, field: "prompt" }, text)
}

/// The key for the state of given tokens. State is found by its text: tokens that are not the tokenization of any text
/// must not match a text that happens to look like them.
fn key_of(tokenizer: &Tokenizer, tokens: &[Token]) -> String {
    let begins = tokenizer.bos();
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

struct Sent {
    shared: Arc<Shared>,
    head: Head,
}

impl Sent {
    fn choice(&self, index: usize, text: &str, table: Option<&Table>, finish: Option<&str>) -> Value {
        let table = table.map(Table::to_json);
        let choice = json!({ "index": index, "text": text, "logprobs": table, "finish_reason": finish });
        self.head.event(OBJECT, json!([choice]))
    }
}

struct Chunks {
    sent: Sent,
    /// Sent before the answer.
    echo: String,
    ending: Ending,
    likely: bool,
    /// Where the next token of each text begins.
    places: Vec<Places>,
}

impl Form for Chunks {
    fn notice(&mut self, notice: &Notice, out: &mut String) -> bool {
        self.ending.count(notice);
        match notice {
            Notice::Begun { index, .. } => {
                if !self.echo.is_empty() {
                    data(out, &self.sent.choice(*index, &self.echo, None, None));
                }
            }
            Notice::Text { index, answer, tokens, .. } => {
                let mut table = Table::default();
                if let Some(places) = self.places.get_mut(*index) {
                    table.answer(&self.sent.shared.renderer.model().tokenizer, places, tokens);
                }
                data(out, &self.sent.choice(*index, answer, Some(&table).filter(|_| self.likely), None));
            }
            Notice::Ended { index, whole } => {
                let sent = &self.sent;
                let last = |reason: &str| sent.choice(*index, "", None, Some(reason));
                return self.ending.ended(whole, last, || sent.head.object(OBJECT, json!([])), out);
            }
            Notice::Calling { .. } | Notice::Arguments { .. } | Notice::Call { .. } => {}
            Notice::Scored { .. } | Notice::Reading { .. } | Notice::Failed(_) => {}
        }
        false
    }

    fn failed(&mut self, refusal: &Refusal, out: &mut String) {
        data(out, &refusal.to_json(Family::OpenAi));
    }
}

/// Log-probabilities of a choice, after those of the prompt if they were scored. `echo`: the text before the answer.
fn table(shared: &Shared, all: &Collected, echo: &str, choice: &Choice) -> Table {
    let tokenizer = &shared.renderer.model().tokenizer;
    let mut table = Table::default();
    if let Some((tokens, likely)) = &all.scored {
        table.prompt(tokenizer, tokens, likely);
    }
    let mut places = Places::after(Arc::clone(tokenizer), echo.chars().count());
    table.answer(tokenizer, &mut places, &choice.tokens);
    table
}

async fn answer_one(
    shared: Arc<Shared>,
    given: Given,
    params: Params,
    wanted: usize,
) -> Result<(String, Collected), Refusal> {
    let (prompt, text) = prompt_of(&shared, &given).await?;
    let collected = collect(submit(&shared, prompt, params, wanted, None, usize::MAX)?, wanted).await?;
    Ok((text, collected))
}

/// The answers to all prompts, in order, with as many running as there are slots. The first prompt takes the request's
/// place in the queue.
async fn answer_all(
    shared: &Arc<Shared>,
    given: Vec<Given>,
    params: &Params,
    wanted: usize,
) -> Result<Vec<(String, Collected)>, Refusal> {
    let mut waiting = given.into_iter().enumerate();
    let (mut going, mut done) = (JoinSet::new(), BTreeMap::new());
    if let Some((at, given)) = waiting.next() {
        let (prompt, text) = prompt_of(shared, &given).await?;
        let listener = submit(shared, prompt, params.clone(), wanted, None, shared.queue)?;
        going.spawn(async move { (at, collect(listener, wanted).await.map(|collected| (text, collected))) });
    }
    loop {
        while going.len() < shared.side_by_side
            && let Some((at, given)) = waiting.next()
        {
            let (shared, params) = (Arc::clone(shared), params.clone());
            going.spawn(async move { (at, answer_one(shared, given, params, wanted).await) });
        }
        match going.join_next().await {
            None => return Ok(done.into_values().collect()),
            Some(Ok((at, answered))) => drop(done.insert(at, answered?)),
            Some(Err(_)) => return Err(Refusal::internal("internal error while one of the prompts was answered")),
        }
    }
}

pub(super) async fn completions(State(shared): State<Arc<Shared>>, request: Request) -> Result<Response, Refusal> {
    let shared = &shared;
    let of = Arc::clone(shared);
    let (mut fields, given) = body::read(request, move |fields| prompts(&of, fields)).await?;
    let info = model_named(shared, fields.text("model")?)?;
    let stop = stops(&mut fields, "stop")?;
    let most =
        most_tokens(&mut fields, "max_tokens", 0)?.or(most_tokens(&mut fields, "n_predict", 0)?).unwrap_or(TOKENS);
    let mut params = Params { raw: true, thinking_budget: 0, ..params(shared, &mut fields, stop, Some(most))? };
    let wanted = fields.whole("n", 1..=MOST_CHOICES)?.unwrap_or(1);
    let wanted = usize::try_from(wanted).unwrap_or(1);
    let echo = fields.truth("echo")?.unwrap_or(false);
    let streamed = fields.truth("stream")?.unwrap_or(false);
    let include_usage = include_usage(&mut fields)?;
    params.likely = fields.whole("logprobs", 0..=MOST_LIKELY)?.and_then(|n| u8::try_from(n).ok());
    params.score = params.likely.filter(|_| echo);
    fields.refuse("best_of", |v| v.as_u64() == Some(wanted as u64))?;
    fields.refuse("suffix", |v| v == "")?;
    let grammar = match fields.object("response_format")? {
        Some(format) => format_of(format, "json_schema")?,
        None => None,
    };
    let grammar = grammar.map(|g| (g, "response_format")).or(other_formats(&mut fields)?);
    fields.ignore(&["user"]);
    fields.done_for_answer()?;
    if grammar.is_some() {
        // A raw text opens no thought.
        let nothing = Rendered { text: String::new(), cuts: Vec::new() };
        params.constraint = reply::constraint(shared, grammar, &params, &nothing).await?;
    }
    let head = Head { id: fresh_id("cmpl-"), model: info.name, fingerprint: None, created: now_s(), include_usage };
    let sent = Sent { shared: Arc::clone(shared), head };
    if streamed {
        let [one] = given.as_slice() else {
            return Err(Refusal::field("prompt", "prompt: a stream has one prompt"));
        };
        let (prompt, text) = prompt_of(shared, one).await?;
        let echo = if echo { text } else { String::new() };
        if params.score.is_some() {
            return Err(Refusal::field("logprobs", "logprobs of an echoed prompt are not streamed"));
        }
        let likely = params.likely.is_some();
        let listener = submit(shared, prompt, params, wanted, None, shared.queue)?;
        let tokenizer = Arc::clone(&shared.renderer.model().tokenizer);
        let places = vec![Places::after(tokenizer, echo.chars().count()); wanted];
        let ending = Ending::of(wanted, include_usage);
        return stream(listener, Chunks { sent, echo, ending, likely, places }).await;
    }
    let mut choices = Vec::new();
    let mut all = Usage::default();
    for (text, collected) in answer_all(shared, given, &params, wanted).await? {
        let echo = if echo { text } else { String::new() };
        all.add(&collected.usage);
        for choice in &collected.choices {
            let finish = choice.whole.as_ref().map(reason);
            let text = format!("{echo}{}", choice.answer());
            let table = params.likely.map(|_| table(shared, &collected, &echo, choice).to_json());
            choices.push(json!({ "index": choices.len(), "text": text, "logprobs": table, "finish_reason": finish }));
        }
    }
    let mut whole = sent.head.object(OBJECT, choices.into());
    add_usage(&mut whole, &all);
    Ok(object(&whole))
}
