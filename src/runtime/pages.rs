//! Pages of text: `/stats`, `/ctx`, `/set`, `/save`, `/doctor`.

use super::tree::{shortened, title_of};
use super::{Activity, Done, Level, Notice, RuntimeError, SaveState, State, grouped};
use crate::core::sanitize::in_markdown;
use crate::core::transcript::Role;
use crate::core::{about, bytes, percent};
use crate::engine::protocol::ModelInfo;
use crate::runtime::protocol::ThinkMode;

impl State {
    pub fn page(&self, title: &str, text: String) -> Done {
        self.show(Notice::Page { title: title.into(), text })
    }

    pub fn stats(&mut self) -> Done {
        let (m, model) = (&self.here.meters, &self.engine.info);
        let s = &m.spec;
        let [name, device, dtype] = [&model.name, &model.device, &model.dtype].map(|text| in_markdown(text));
        let none = || "none yet".to_owned();
        let answered = (m.tokens_per_s > 0.0).then(|| {
            let (about, speed, first) = (about(m.speed_estimated), m.tokens_per_s, m.ttft_ms / 1000.0);
            format!("{about}{speed:.1} tokens/s, first token after {first:.2} s")
        });
        let limit = match model.context_limit {
            0 => "an unknown number of".to_owned(),
            limit => grouped(limit),
        };
        let context = format!("{}{} of {limit} tokens", about(m.estimated), grouped(m.context_used));
        let (context, answered) = (("context", context), ("last answer", answered.unwrap_or_else(none)));
        if self.engine.server().is_some() {
            let last = self.here.tree.path().into_iter().rfind(|m| m.role == Role::Assistant);
            let counts = last.map(|m| &m.meta).filter(|_| !m.estimated).map(|meta| {
                let (prompt, kept) = (meta.prefilled_tokens + meta.reused_tokens, grouped(meta.reused_tokens));
                let (prompt, written) = (grouped(prompt), grouped(meta.completion_tokens));
                format!("{prompt} tokens read, {kept} of them cached there, {written} written")
            });
            let counts = ("counted there", counts.unwrap_or_else(|| "nothing yet".to_owned()));
            let rows = table(&[("model", name), ("server", device), context, answered, counts]);
            let note = "A server does not report drafts, memory or attention, and keeps no state for this program: it reads a \
                        resumed conversation again. `~` marks an estimate.";
            return self.page("Numbers", format!("{rows}\n{note}\n"));
        }
        let read = (m.prefill_tokens_per_s > 0.0).then(|| format!("{:.0} tokens/s", m.prefill_tokens_per_s));
        let accepted = (s.drafted > 0).then(|| {
            format!("{} of {} drafted ({}%)", grouped(s.accepted), grouped(s.drafted), percent(s.accepted, s.drafted))
        });
        let mut rows = vec![
            ("model", format!("{name} on {device}, {dtype}{}", if model.parked { ", parked" } else { "" })),
            context,
            answered,
            ("reading", read.unwrap_or_else(none)),
            ("speculation", format!("{}, draft head: {}", self.here.settings.get("spec"), draft_of(model))),
            ("accepted", accepted.unwrap_or_else(none)),
        ];
        if s.eagle_rounds + s.ngram_rounds + s.plain_rounds > 0 {
            let (eagle, ngram, plain) = (grouped(s.eagle_rounds), grouped(s.ngram_rounds), grouped(s.plain_rounds));
            rows.push(("per round", format!("{:.2} tokens", s.mean_accept_length)));
            rows.push(("rounds", format!("{eagle} EAGLE-3, {ngram} n-gram, {plain} plain")));
        }
        if s.time_vs_plain > 0.0 {
            rows.push(("saves", format!("{:.0}% of the time of plain steps", (1.0 - s.time_vs_plain) * 100.0)));
        }
        let depths: Vec<String> = (1..=s.per_position.len()).map(|depth| format!("draft {depth}")).collect();
        for (depth, (tried, accepted)) in depths.iter().zip(&s.per_position) {
            rows.push((depth, format!("{}% of {} accepted", percent(*accepted, *tried), grouped(*tried))));
        }
        let memory = model.memory;
        let host = match memory.host {
            0 => String::new(),
            host => {
                format!(", keys and values {} here and {} in the machine's memory", bytes(memory.pool), bytes(host))
            }
        };
        let (kept, most) = (self.disk.store.state_bytes()?, self.disk.store.limits.max_state_bytes);
        let marked = if kept > most { self.disk.store.state_bytes_of_marks()? } else { 0 };
        let beyond = match marked > most {
            true => format!(": marks keep {}, more than the {} of sessions.max_state_gib", bytes(marked), bytes(most)),
            false => String::new(),
        };
        let (weights, state, work) = (bytes(memory.weights), bytes(memory.state), bytes(memory.work));
        rows.push(("memory", format!("{} of {} in use", bytes(memory.used), bytes(memory.total))));
        rows.push(("of this", format!("weights {weights}, state {state}, work {work}{host}")));
        rows.push(("kept state", format!("{} on disk{beyond}", bytes(kept))));
        if let Some(id) = self.here.id {
            let disk = self.disk.store.sizes(Some(id))?.sessions.remove(&id).unwrap_or_default();
            let [state, own, text, written] = [disk.state, disk.own, disk.text, disk.written].map(bytes);
            let text = format!("state {state} ({own} not shared), text {text}; {written} of state written so far");
            rows.push(("this session", text));
        }
        self.page("Numbers", table(&rows))
    }

    pub fn context_page(&mut self) -> Done {
        // As in the header: a text being read counts as far as it is read.
        let (used, limit) = (self.here.meters.context_used, self.engine.info.context_limit);
        let mut text = format!(
            "{}{} of {} tokens used, {} left.\n\n| # | who | tokens | |\n|---|---|---|---|\n",
            about(self.here.meters.estimated),
            grouped(used),
            grouped(limit),
            grouped(limit.saturating_sub(used))
        );
        let path = self.here.tree.path();
        // A load adds a document at the end and then reads it.
        let being_read = path.last().map(|m| m.id).filter(|_| matches!(self.here.activity, Activity::Reading(_)));
        for (i, message) in path.into_iter().enumerate() {
            let tokens = match &message.meta.document {
                Some(d) => d.tokens,
                None => self.count(&message.text)?,
            };
            let title = in_markdown(&shortened(&title_of(message), 36));
            let state = match &message.meta.document {
                Some(d) if !d.complete && being_read == Some(message.id) => ", being read",
                Some(d) if !d.complete => ", read in part",
                _ => "",
            };
            let speaker = message.role.speaker();
            text.push_str(&format!("| {} | {speaker} | {} | {title}{state} |\n", i + 1, grouped(tokens)));
        }
        text.push_str("\nThoughts and the template's own tokens are not listed.\n");
        if self.engine.server().is_some() {
            text.push_str("The items are estimates: the server counts its own tokens.\n");
        }
        self.page("Context", text)
    }

    pub fn set(&mut self, change: Option<(String, String)>) -> Done {
        let Some((key, value)) = change else {
            return self.page("Settings", self.here.settings.table());
        };
        let mut settings = self.here.settings.clone();
        let note = settings.set(&key, &value).map_err(RuntimeError::Refused)?;
        self.may_think(settings.think).map_err(RuntimeError::Refused)?;
        self.here.settings = settings;
        self.settings_changed(note)
    }

    pub fn settings_changed(&mut self, note: String) -> Done {
        self.save_settings()?;
        self.show_meters();
        self.say(note)
    }

    /// Refuses a change of the thinking mode that the model's template does not support.
    pub fn may_think(&self, mode: ThinkMode) -> Result<(), String> {
        let switch = self.engine.renderer.model().template.switch;
        let why = switch.refusal(mode).filter(|_| mode != self.here.settings.think);
        why.map_or(Ok(()), |why| Err(why.into()))
    }

    pub fn save_report(&mut self) -> Done {
        let (level, text) = match &self.disk.shown {
            SaveState::Empty => (Level::Info, "Nothing to save yet. Everything is saved as it happens.".to_owned()),
            SaveState::Saved(_) => {
                (Level::Info, format!("Everything is saved in {}.", self.disk.store.root().display()))
            }
            SaveState::Saving => (Level::Info, "Being saved now.".to_owned()),
            SaveState::TextOnly(why) => (Level::Warn, format!("Text is saved, state is not kept: {why}")),
            SaveState::NotSaved(why) => (Level::Error, format!("NOT SAVED: {why}")),
            SaveState::Off => (Level::Info, "Nothing is saved: started with --no-save.".to_owned()),
        };
        self.note(level, text);
        Ok(())
    }

    pub fn doctor(&mut self) -> Done {
        let network = match self.engine.server() {
            Some(server) => {
                let server = in_markdown(server);
                format!("What you ask and load goes to {server}. No telemetry, no update check, no other network use")
            }
            None => "No telemetry, no update check, no network use outside a download you ask for".to_owned(),
        };
        let m = &self.engine.info;
        let what = match m.server {
            Some(_) => m.name.clone(),
            None => format!("{}, {} parameters, {}", m.name, grouped(m.parameters), m.dtype),
        };
        let device = match &m.host {
            Some(host) => format!("{}, in {host}", m.device),
            None => m.device.clone(),
        };
        let rows = [
            ("program", format!("sala-chat {}", env!("CARGO_PKG_VERSION"))),
            ("model", in_markdown(&what)),
            ("device", in_markdown(&device)),
            ("context", m.holds()),
            ("draft head", draft_of(m)),
            ("data", in_markdown(&self.disk.store.root().display().to_string())),
            ("kept state", bytes(self.disk.store.state_bytes()?)),
            ("texts", bytes(self.disk.store.database_bytes())),
        ];
        let (rows, notes) = (table(&rows), listed(&m.notes));
        self.page("Doctor", format!("{rows}\n{notes}\n{network}. More checks: `sala-chat doctor` in a shell.\n"))
    }
}

fn table(rows: &[(&str, String)]) -> String {
    let rows = rows.iter().map(|(name, value)| format!("| {name} | {value} |\n"));
    ["| | |\n|---|---|\n".to_owned()].into_iter().chain(rows).collect()
}

fn draft_of(m: &ModelInfo) -> String {
    in_markdown(m.draft.as_deref().unwrap_or("none"))
}

fn listed(notes: &[String]) -> String {
    notes.iter().map(|note| format!("- {}\n", in_markdown(note))).collect()
}

#[cfg(test)]
mod tests {
    use pulldown_cmark::{Event, Parser};

    use super::listed;

    #[test]
    fn notes_of_others_are_shown_as_they_are_written() {
        let notes = ["*a* `b` <c> | __d__ [e](f) & ~g~", "# 1. first", "- second"].map(str::to_owned);
        let (mut shown, mut item) = (Vec::new(), String::new());
        for event in Parser::new(&listed(&notes)) {
            match event {
                Event::Text(text) => item.push_str(&text),
                Event::End(pulldown_cmark::TagEnd::Item) => shown.push(std::mem::take(&mut item)),
                _ => {}
            }
        }
        assert_eq!(shown, notes);
    }
}
