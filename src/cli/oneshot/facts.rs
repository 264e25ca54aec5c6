//! What is known of the answers of one run, and the object that says it.

use serde_json::{Value, json};

use crate::core::counted;
use crate::core::transcript::{Finish, Message, MessageId, MessageMeta, Passage};
use crate::engine::protocol::ModelInfo;
use crate::runtime::protocol::{Meters, Unsaved};

const LEAST_DECODE_MS: f64 = 50.0;

#[derive(Default)]
pub(super) struct Run {
    pub(super) model: ModelInfo,
    pub(super) load_ms: f64,
    /// From the start of the program to the first token of the answer, or of several answers.
    pub(super) first_token_ms: Option<f64>,
    pub(super) session: Option<String>,
    pub(super) written: bool,
    /// With `--no-save` the session is deleted at the end.
    pub(super) discards: bool,
    pub(super) meters: Meters,
    pub(super) read: u64,
    pub(super) documents_read: u64,
    pub(super) documents_ms: f64,
    /// In the order of their seeds; the first is the session's answer.
    pub(super) answers: Vec<Message>,
    /// Ids in the order in which the runtime announced them.
    pub(super) order: Vec<MessageId>,
    pub(super) unsaved: Option<Unsaved>,
    pub(super) left_out: Option<String>,
}

/// Tokens per second; `None` below [`LEAST_DECODE_MS`], where it would say more about the clock than about the model.
fn decode_rate(meta: &MessageMeta) -> Option<f64> {
    let ms = meta.completion_tokens as f64 * 1000.0 / meta.tokens_per_s;
    (ms >= LEAST_DECODE_MS).then_some(meta.tokens_per_s)
}

pub(in crate::cli) fn reason(finish: Option<Finish>) -> Value {
    finish.filter(|finish| *finish != Finish::Failed).map_or(json!("error"), |finish| json!(finish))
}

/// Passages with the most attention first. A chat message has a number instead of a document.
pub(in crate::cli) fn looked_at(passages: &[Passage]) -> Value {
    let place = |p: &Passage| {
        json!({
            "document": p.document,
            "message": p.number,
            "first_line": p.first_line,
            "last_line": p.last_line,
            "share": (f64::from(p.share) * 1e4).round() / 1e4,
        })
    };
    passages.iter().map(place).collect()
}

fn looked_at_by(answer: &Message) -> Value {
    looked_at(answer.meta.looked.as_ref().map_or(&[][..], |l| &l.passages))
}

fn looked_at_by_sentence(answer: &Message) -> Value {
    let sentences = answer.meta.looked.as_ref().map(|l| l.by_sentence(&answer.text)).unwrap_or_default();
    sentences.iter().map(|(text, seen)| json!({ "text": text, "looked_at": looked_at(seen) })).collect()
}

pub(super) fn cut_off(answer: &Message) -> Option<String> {
    let why = match answer.meta.finish? {
        Finish::Length => "sampling.max_tokens; --max-tokens N sets another limit",
        Finish::Context => "the context is full; --ctx N sets another",
        Finish::Repeats => "it began to repeat itself; sampling.stop_loops",
        Finish::Stop | Finish::Stopped | Finish::Failed => return None,
    };
    let after = counted(answer.meta.completion_tokens, "token");
    Some(format!("The answer was cut off at {after} ({why})"))
}

impl Run {
    pub(super) fn take(&mut self, answer: Message) {
        self.answers.push(answer);
        self.answers.sort_by_key(|m| self.order.iter().position(|id| *id == m.id));
    }

    pub(super) fn place(&mut self, answer: MessageId) -> usize {
        self.order.iter().position(|id| *id == answer).unwrap_or_else(|| {
            self.order.push(answer);
            self.order.len() - 1
        })
    }

    /// The session to continue in; none if nothing of it was written.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref().filter(|_| self.written || self.unsaved.is_none())
    }

    fn several(&self) -> Value {
        let one = |m: &Message| {
            json!({
                "text": m.text,
                "thinking": m.thinking,
                "seed": m.meta.seed,
                "finish_reason": reason(m.meta.finish),
                "completion_tokens": m.meta.completion_tokens,
                "looked_at": looked_at_by(m),
                "quotes": m.meta.quotes,
            })
        };
        self.answers.iter().map(one).collect()
    }

    /// A hint if all answers are the same.
    pub(super) fn all_equal(&self) -> Option<String> {
        let (first, others) = self.answers.split_first().filter(|(_, others)| !others.is_empty())?;
        let equal = others.iter().all(|m| m.text == first.text && m.meta.seed == first.meta.seed);
        let count = self.answers.len();
        equal.then(|| {
            format!("The {count} answers are equal: the model picks the likeliest token. --temp 0.7 varies them")
        })
    }

    fn usage(&self, answer: &Message) -> Value {
        let prefilled = answer.meta.prefilled_tokens + self.documents_read;
        let reused = answer.meta.reused_tokens.saturating_sub(self.documents_read);
        // All answers share one prompt.
        let parallel = self.answers.iter().filter(|m| m.id != answer.id).map(|m| m.meta.completion_tokens).sum::<u64>();
        let mut usage = json!({
            "prompt_tokens": prefilled + reused,
            "reused_tokens": reused,
            "prefilled_tokens": prefilled,
            "completion_tokens": answer.meta.completion_tokens + parallel,
        });
        if self.meters.estimated {
            usage["estimated"] = true.into();
        }
        usage
    }

    /// Times from the start of reading, of the same tokens that [`Run::usage`] counts. The first token is the one that
    /// `first_token_ms` is about: of several answers any may begin first.
    fn timing(&self, answer: &Message) -> Value {
        let prefilled = answer.meta.prefilled_tokens + self.documents_read;
        let prefill_ms = answer.meta.prefill_ms + self.documents_ms;
        let firsts = self.answers.iter().map(|m| m.meta.ttft_ms).filter(|ms| *ms > 0.0);
        let ttft_ms = firsts.reduce(f64::min).unwrap_or(answer.meta.ttft_ms);
        json!({
            "load_ms": self.load_ms,
            "first_token_ms": self.first_token_ms,
            "ttft_ms": ttft_ms + self.documents_ms,
            "prefill_tokens_per_s": if prefill_ms > 0.0 { prefilled as f64 * 1000.0 / prefill_ms } else { 0.0 },
            "decode_tokens_per_s": decode_rate(&answer.meta),
        })
    }

    pub(super) fn object(&self, answer: &Message, several: bool) -> Value {
        let mut object = json!({
            "text": answer.text,
            "thinking": answer.thinking,
            "looked_at": looked_at_by(answer),
            "looked_at_by_sentence": looked_at_by_sentence(answer),
            "quotes": answer.meta.quotes,
            "finish_reason": reason(answer.meta.finish),
            "session": self.session(),
            "not_saved": self.unsaved.as_ref().map(|u| &u.reason),
            "state_not_saved": self.left_out,
            "model": self.model.name,
            "device": self.model.device,
            "seed": answer.meta.seed,
            "usage": self.usage(answer),
            "timing": self.timing(answer),
            "speculation": self.meters.spec,
        });
        // Only if the model runs in another process.
        if let Some(host) = &self.model.host {
            object["host"] = host.as_str().into();
        }
        if several {
            object["answers"] = self.several();
        }
        object
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::Exit;
    use crate::core::transcript::{Role, Sources};

    #[test]
    fn usage_counts_documents_of_this_run_as_read() {
        let meta =
            MessageMeta { prefilled_tokens: 10, reused_tokens: 1200, completion_tokens: 7, ..MessageMeta::default() };
        let meta = MessageMeta { prefill_ms: 20.0, ttft_ms: 30.0, ..meta };
        let answer = Message {
            id: MessageId(1),
            parent: None,
            role: Role::Assistant,
            text: "x".into(),
            thinking: String::new(),
            created_ms: 0,
            meta: MessageMeta { finish: Some(Finish::Stop), seed: Some(3), ..meta },
        };
        let run = Run { documents_read: 1000, documents_ms: 485.0, ..Run::default() };
        let object = run.object(&answer, false);
        assert_eq!(
            object["usage"],
            json!({"prompt_tokens": 1210, "reused_tokens": 200, "prefilled_tokens": 1010, "completion_tokens": 7})
        );
        // Times of the same tokens, not only of those after the documents.
        assert_eq!(
            (&object["timing"]["ttft_ms"], &object["timing"]["prefill_tokens_per_s"]),
            (&json!(515.0), &json!(2000.0))
        );
        let other = MessageMeta { ttft_ms: 25.0, ..answer.meta.clone() };
        let other = Message { id: MessageId(2), meta: other, ..answer.clone() };
        let several = Run { answers: vec![answer.clone(), other], ..Run::default() };
        assert_eq!(several.object(&answer, true)["timing"]["ttft_ms"], 25.0, "the first token of any");
        let unsaved = |written| {
            let unsaved = Some(Unsaved { reason: "no room".into(), exit: Exit::Disk });
            Run { session: Some("notes".into()), written, unsaved, ..Run::default() }.object(&answer, false)
        };
        assert_eq!((&unsaved(true)["session"], &unsaved(false)["session"]), (&json!("notes"), &Value::Null));
        let cut_off = |finish| {
            let meta = MessageMeta { finish, completion_tokens: 7, ..MessageMeta::default() };
            super::cut_off(&Message { meta, ..answer.clone() }).unwrap_or_default()
        };
        assert!(cut_off(Some(Finish::Length)).contains("at 7 tokens (sampling.max_tokens;"));
        assert!(cut_off(Some(Finish::Context)).contains("at 7 tokens (the context is full;"));
        assert!(cut_off(Some(Finish::Repeats)).contains("at 7 tokens (it began to repeat itself;"));
        assert_eq!([cut_off(Some(Finish::Stop)), cut_off(None)], ["", ""]);
        let rate = |completion_tokens, tokens_per_s| {
            decode_rate(&MessageMeta { completion_tokens, tokens_per_s, ..MessageMeta::default() })
        };
        assert_eq!([rate(5, 100.0), rate(5, 101.0), rate(0, 0.0)], [Some(100.0), None, None]);
        let twins = |seed| {
            let twin = |seed| Message { meta: MessageMeta { seed, ..answer.meta.clone() }, ..answer.clone() };
            Run { answers: vec![twin(Some(3)), twin(seed)], ..Run::default() }.all_equal()
        };
        assert!(twins(Some(3)).is_some_and(|why| why.contains("--temp")) && twins(Some(4)).is_none());
        assert_eq!(object["finish_reason"], "stop");
        assert_eq!(object["looked_at"], json!([]));
        let passage = Passage {
            document: Some("war.txt".into()),
            number: 2,
            first_line: 41_210,
            last_line: 41_262,
            share: 0.3142,
            ..Passage::default()
        };
        let second = Passage { number: 4, first_line: 1, last_line: 1, share: 0.1, ..Passage::default() };
        let looked = Sources { passages: vec![passage, second], ..Sources::default() };
        let answer = Message { meta: MessageMeta { looked: Some(looked), ..answer.meta.clone() }, ..answer };
        assert_eq!(
            run.object(&answer, false)["looked_at"],
            json!([
                {"document": "war.txt", "message": 2, "first_line": 41_210, "last_line": 41_262, "share": 0.3142},
                {"document": null, "message": 4, "first_line": 1, "last_line": 1, "share": 0.1},
            ])
        );
    }
}
