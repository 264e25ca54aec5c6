//! Questions to a server: the choice of the model, the request, and the result of a job.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::time::Instant;

use crossbeam_channel::Sender;

use super::RemoteOptions;
use super::chat::{self, Draw, Listed, Refused, is_too_long};
use super::client::{Client, Fault, line_of, sentence};
use super::codec::{Codec, Conversation, Writer};
use super::receive::Received;
use crate::core::grouped;
use crate::engine::protocol::{Cancel, Ended, EngineEvent, Job, JobDone, JobStats, ModelInfo, Token};
use crate::text::{Begin, StreamDecoder, thoughts};

/// Number of conversations: they are only text.
const SEQUENCES: u32 = 16;
/// Most retries of a request without its refused fields.
const REFUSALS: usize = 8;
pub(super) const NAMED: usize = 8;

pub(super) struct Asking {
    pub(super) client: Client,
    codec: Codec,
    events: Sender<EngineEvent>,
    wanted: Option<String>,
    model: RefCell<Option<Listed>>,
    context: Option<u64>,
    left_out: RefCell<BTreeSet<String>>,
    /// The program asks one question at once.
    pub(super) one_question: bool,
    noted_budget: Cell<bool>,
}

impl Asking {
    pub(super) fn new(options: RemoteOptions, codec: Codec, events: Sender<EngineEvent>) -> Result<Asking, String> {
        let client = Client::new(&options)?;
        let RemoteOptions { model: wanted, context, one_question, .. } = options;
        let (model, left_out, noted_budget) = (RefCell::default(), RefCell::default(), Cell::new(false));
        Ok(Asking { client, codec, events, wanted, model, context, left_out, one_question, noted_budget })
    }

    pub(super) fn send(&self, event: EngineEvent) {
        // A runtime that is gone closes the other channel too.
        let _ = self.events.send(event);
    }

    pub(super) fn info(&self) -> ModelInfo {
        let name = self.model.borrow().as_ref().map(|m| m.name.clone()).or_else(|| self.wanted.clone());
        ModelInfo {
            name: self.client.cleaned(&name.unwrap_or_else(|| "unknown".to_owned())),
            device: self.client.shown.clone(),
            device_kind: "remote".to_owned(),
            context_limit: self.limit().unwrap_or(0),
            fingerprint: format!("text:{}", self.codec.tokenizer.hash),
            max_sequences: SEQUENCES,
            server: Some(self.client.shown.clone()),
            ..ModelInfo::default()
        }
    }

    pub(super) async fn find_model(&self, cancel: &Cancel) -> Result<(), Fault> {
        let listed = self.client.models(cancel).await;
        let shown = &self.client.shown;
        let model = match (&self.wanted, listed) {
            (Some(wanted), listed) => {
                let same = |m: &Listed| m.name == *wanted;
                let found = listed.ok().and_then(|all| all.into_iter().find(same));
                // A server need not list its models; it refuses a wrong name.
                found.unwrap_or_else(|| Listed { name: wanted.clone(), context: None })
            }
            (None, Err(fault)) => {
                let Some(line) = line_of(fault) else { return Err(Fault::Stopped) };
                return Err(Fault::Failed(format!("{} engine.model names a model without asking.", sentence(&line))));
            }
            (None, Ok(all)) => match all.as_slice() {
                [] => return Err(Fault::Failed(format!("{shown} has no model. Name one with engine.model."))),
                [only] => only.clone(),
                many => {
                    let names: Vec<String> = many.iter().take(NAMED).map(|m| self.client.cleaned(&m.name)).collect();
                    let (count, names) = (many.len(), names.join(", "));
                    let line = format!("{shown} has {count} models ({names}). Choose one with engine.model.");
                    return Err(Fault::Failed(line));
                }
            },
        };
        *self.model.borrow_mut() = Some(model);
        Ok(())
    }

    /// Runs a job on top of `state` and appends its tokens to it.
    /// Fails with the reason why there is no answer; the state is lost.
    pub(super) async fn run(&self, job: &Job, state: &mut Vec<Token>) -> Result<EngineEvent, Fault> {
        let began = Instant::now();
        state.extend_from_slice(&job.prompt);
        let read = job.prompt.len() as u64;
        let Some(generate) = &job.generate else {
            if job.score.is_some() {
                return Err(Fault::Failed("internal error: a server scores no text".to_owned()));
            }
            return Ok(done(job, Ended::Read, 0, JobStats { prefilled_tokens: read, ..JobStats::default() }));
        };
        if self.model.borrow().is_none() {
            self.find_model(&job.cancel).await?;
            self.send(EngineEvent::Ready(self.info()));
        }
        let conversation = self.codec.conversation(state).map_err(Fault::Failed)?;
        let (report, in_thought) = (|event: EngineEvent| self.send(event), conversation.in_thought);
        let writer = Writer::new(&self.codec, in_thought);
        let mut received = Received::new(job.id, &self.client, writer, generate.steering.as_ref(), &report);
        let max_tokens = self.room(generate.max_tokens, state.len() as u64);
        let draw = Draw { sampling: generate.sampling, max_tokens };
        let ended = match self.answer(job, draw, &conversation, &mut received).await {
            Ok(ended) => ended,
            Err(Fault::Stopped) => Ended::Cancelled,
            Err(fault) => return Err(fault),
        };
        let at = &self.client.shown;
        if received.over_budget && !self.noted_budget.replace(true) {
            let note = format!("{at} cannot limit thoughts: thinking_budget has no effect there.");
            self.send(EngineEvent::Note(note));
        }
        let tools: Vec<String> = received.tools.iter().take(NAMED).map(|name| self.client.cleaned(name)).collect();
        let names = if tools.is_empty() { String::new() } else { format!(" ({})", tools.join(", ")) };
        let called = received.called.then(|| format!("{at} calls a tool{names}, and there are none here."));
        let begin = if in_thought { Begin::Thought } else { Begin::Answer };
        let mut decoder = StreamDecoder::new(self.codec.tokenizer.clone(), begin);
        let (all, last) = (decoder.push_all(&received.tokens), decoder.finish());
        let (thinking, text) = (all.thinking + &last.thinking, all.answer + &last.answer);
        let (unopened, answer) = thoughts::unopened(&text).unwrap_or(("", &text));
        if !answer.trim().is_empty() {
            called.into_iter().for_each(|note| self.send(EngineEvent::Note(note)));
        } else if ended == Ended::Stop {
            let after = if thinking.is_empty() && unopened.is_empty() { "" } else { " after the thoughts," };
            let silent = format!("{at} ended its answer{after} without a word.");
            // A continued answer may have been complete.
            if let Some(line) = called.or((!conversation.open).then_some(silent)) {
                return Err(Fault::Failed(format!("{line} Ask again for another answer.")));
            }
        }
        let usage = received.usage;
        let full = usage.zip(self.limit()).is_some_and(|(u, limit)| u.prompt_tokens + u.completion_tokens >= limit);
        let ended = if ended == Ended::Length && full { Ended::Context } else { ended };
        state.extend_from_slice(&received.tokens);
        let generated = received.tokens.len() as u64;
        let stats = JobStats {
            prefilled_tokens: read,
            prefill_ms: 0.0,
            generated_tokens: usage.map_or(received.pieces, |u| u.completion_tokens),
            decode_ms: received.decode_ms(),
            usage,
            ..JobStats::default()
        };
        tracing::debug!(ms = began.elapsed().as_millis() as u64, generated, ?usage, "the server answered");
        Ok(done(job, ended, generated, stats))
    }

    fn limit(&self) -> Option<u64> {
        self.model.borrow().as_ref().and_then(|m| m.context).or(self.context)
    }

    /// The answer limit to send; `None` leaves it to the server, which knows the remaining room. Servers refuse a
    /// larger limit, and the client can only estimate the room.
    fn room(&self, max_tokens: u64, used: u64) -> Option<u64> {
        let Some(limit) = self.limit() else { return Some(max_tokens) };
        let left = limit.saturating_sub(used).max(limit / 4);
        (max_tokens <= left).then_some(max_tokens)
    }

    async fn answer(
        &self,
        job: &Job,
        mut draw: Draw,
        conversation: &Conversation,
        received: &mut Received<'_>,
    ) -> Result<Ended, Fault> {
        let at = &self.client.shown;
        let waits = |what: String| self.send(EngineEvent::Waiting { id: job.id, what });
        for _ in 0..REFUSALS {
            let name = self.model.borrow().as_ref().map(|m| m.name.clone()).unwrap_or_default();
            let body = chat::body(&name, conversation, draw, &self.left_out.borrow());
            let (line, message) = match self.client.ask(&body, &job.cancel, &waits).await {
                Ok(begun) => return received.receive(begun, &job.cancel).await,
                Err(Fault::Refused { line, message }) => (line, message),
                Err(fault) => return Err(fault),
            };
            let note = match chat::refused(&body, &message) {
                Refused::All if is_too_long(&message) => return Err(Fault::TooLong(line)),
                Refused::All => return Err(Fault::Failed(line)),
                Refused::GoingOn => {
                    return Err(Fault::Failed(format!("{at} cannot continue an answer. Ask again for another one.")));
                }
                Refused::Length(tokens) => {
                    draw.max_tokens = None;
                    let tokens = grouped(tokens);
                    format!("{at} has no room for {tokens} more tokens: this answer is as long as it allows.")
                }
                Refused::Fields(fields) => {
                    let names = fields.join(", ");
                    self.left_out.borrow_mut().extend(fields.into_iter().map(str::to_owned));
                    format!("{at} does not accept {names}: left out from now on.")
                }
            };
            self.send(EngineEvent::Note(note));
        }
        Err(Fault::Failed(format!("{at} refuses one field after another.")))
    }
}

fn done(job: &Job, ended: Ended, generated: u64, stats: JobStats) -> EngineEvent {
    let prompt_in_state = job.prompt.len() as u64;
    let done = JobDone { ended, prompt_in_state, generated_in_state: generated, stats, ..JobDone::default() };
    EngineEvent::Done { id: job.id, done: Box::new(done) }
}
