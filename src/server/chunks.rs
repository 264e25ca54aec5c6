//! Shared by chat completions and completions: finish reasons, usage, and the end of a stream.

use serde_json::{Value, json};

use super::collected::BROKE_OFF;
use super::fields::Fields;
use super::notice::{Notice, Usage, Whole};
use super::refusal::{Family, Refusal};
use super::stream::{data, data_done};
use crate::core::transcript::Finish;

pub(super) const MOST_CHOICES: u64 = 16;

/// The finish reason in OpenAI's terms.
pub(super) fn reason(whole: &Whole) -> &'static str {
    match whole.finish {
        Finish::Stop | Finish::Repeats if whole.calls > 0 => "tool_calls",
        Finish::Stop | Finish::Repeats => "stop",
        Finish::Length | Finish::Context => "length",
        Finish::Stopped | Finish::Failed => "error",
    }
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": { "cached_tokens": usage.cached_tokens },
        "completion_tokens_details": { "reasoning_tokens": usage.thought_tokens },
    })
}

pub(super) fn add_usage(object: &mut Value, all: &Usage) {
    object["usage"] = usage(all);
    object["timings"] = timings(all);
}

/// Times in the form of llama.cpp's server.
fn timings(usage: &Usage) -> Value {
    let read = usage.prompt_tokens - usage.cached_tokens;
    let each = |ms: f64, tokens: u64| if tokens > 0 { json!(ms / tokens as f64) } else { Value::Null };
    let per_second = |ms: f64, tokens: u64| if ms > 0.0 { json!(tokens as f64 * 1e3 / ms) } else { Value::Null };
    let mut timings = json!({
        "cache_n": usage.cached_tokens,
        "prompt_n": read,
        "prompt_ms": usage.prompt_ms,
        "prompt_per_token_ms": each(usage.prompt_ms, read),
        "prompt_per_second": per_second(usage.prompt_ms, read),
        "predicted_n": usage.completion_tokens,
        "predicted_ms": usage.predicted_ms,
        "predicted_per_token_ms": each(usage.predicted_ms, usage.completion_tokens),
        "predicted_per_second": per_second(usage.predicted_ms, usage.completion_tokens),
    });
    if usage.drafted_tokens > 0 {
        timings["draft_n"] = usage.drafted_tokens.into();
        timings["draft_n_accepted"] = usage.accepted_tokens.into();
    }
    timings
}

/// The fields of every object of an answer.
pub(super) struct Head {
    pub id: String,
    pub model: String,
    pub fingerprint: Option<String>,
    pub created: u64,
    pub include_usage: bool,
}

impl Head {
    pub(super) fn object(&self, of: &str, choices: Value) -> Value {
        let mut object = json!({ "id": self.id, "object": of, "created": self.created, "model": self.model });
        if let Some(fingerprint) = &self.fingerprint {
            object["system_fingerprint"] = fingerprint.as_str().into();
        }
        object["choices"] = choices;
        object
    }

    /// An event of a stream.
    pub(super) fn event(&self, of: &str, choices: Value) -> Value {
        let mut event = self.object(of, choices);
        if self.include_usage {
            event["usage"] = Value::Null;
        }
        event
    }
}

pub(super) fn include_usage(fields: &mut Fields) -> Result<bool, Refusal> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    let wanted = options.truth("include_usage")?.unwrap_or(false);
    options.ignore(&["include_obfuscation", "continuous_usage_stats"]);
    options.done()?;
    Ok(wanted)
}

/// The end of a stream: a reason for each answer, then the usage of all answers, and an end mark.
pub(super) struct Ending {
    wanted: usize,
    ended: usize,
    include_usage: bool,
    usage: Usage,
}

impl Ending {
    pub(super) fn of(wanted: usize, include_usage: bool) -> Ending {
        Ending { wanted, ended: 0, include_usage, usage: Usage::default() }
    }

    pub(super) fn count(&mut self, notice: &Notice) {
        self.usage.take(notice);
    }

    /// Writes the end of an answer: `last` is its last event with the reason, `empty` an event without answers. True
    /// at the end of the stream.
    pub(super) fn ended(
        &mut self,
        whole: &Whole,
        last: impl FnOnce(&str) -> Value,
        empty: impl FnOnce() -> Value,
        out: &mut String,
    ) -> bool {
        if whole.finish == Finish::Stopped {
            data(out, &Refusal::new(503, "shutting_down", BROKE_OFF).to_json(Family::OpenAi));
            return true;
        }
        let mut last = last(reason(whole));
        self.ended += 1;
        if self.ended < self.wanted {
            data(out, &last);
            return false;
        }
        last["timings"] = timings(&self.usage);
        data(out, &last);
        if self.include_usage {
            let mut event = empty();
            add_usage(&mut event, &self.usage);
            data(out, &event);
        }
        data_done(out);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(finish: Finish) -> Whole {
        let usage = Usage { completion_tokens: 3, thought_tokens: 1, ..Usage::default() };
        Whole { finish, stopped_by: None, usage, calls: 0 }
    }

    #[test]
    fn a_stream_ends_after_its_last_answer_with_what_all_took() {
        let mut ending = Ending::of(2, true);
        let mut out = String::new();
        for (index, over) in [(1, false), (0, true)] {
            let whole = ended(Finish::Length);
            ending.count(&Notice::Ended { index, whole: whole.clone() });
            let event = |reason: &str| json!({ "of": index, "reason": reason });
            assert_eq!(ending.ended(&whole, event, || json!({ "choices": [] }), &mut out), over);
        }
        let events: Vec<&str> = out.split_terminator("\n\n").collect();
        assert_eq!(events[0], "data: {\"of\":1,\"reason\":\"length\"}");
        let second: Value = serde_json::from_str(events[1].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!((&second["of"], &second["reason"]), (&json!(0), &json!("length")));
        assert_eq!(second["timings"]["predicted_n"], 6);
        let last: Value = serde_json::from_str(events[2].strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(last["usage"]["completion_tokens"], 6);
        assert_eq!(events[3..], ["data: [DONE]"]);
    }

    #[test]
    fn an_answer_that_was_given_up_is_an_error_and_the_end() {
        let mut out = String::new();
        assert!(Ending::of(2, false).ended(&ended(Finish::Stopped), |_| json!(0), || json!(0), &mut out));
        assert!(out.contains("shutting_down") && !out.contains("[DONE]"), "{out}");
    }
}
