//! Progress of a load, and a stop inside a document: the user decides, and the part that was read is kept.

use std::time::Instant;

use super::super::executor::Progress;
use super::super::{Activity, Attendance, Done, PrefillStats, Rendered, Sink, State, Step, Verb, grouped, per_second};
use super::{Item, Load};
use crate::core::counted;
use crate::runtime::protocol::{FileState, ReadingProgress};

impl Load {
    fn begun(&self) -> u64 {
        self.items.first().map_or(0, Item::start)
    }

    fn current(&mut self) -> Option<&mut Item> {
        self.items.get_mut(self.at)
    }

    /// Adds the first `count` documents to the conversation; false if they are in it already.
    pub(super) fn add(&mut self, state: &mut State, count: usize) -> Done<bool> {
        let before = self.added;
        while let Some(message) = self.messages.get(self.added).filter(|_| self.added < count) {
            state.add_one_of_many(message.clone())?;
            self.added += 1;
        }
        Ok(self.added > before)
    }

    fn shown(&self, position: u64, tokens_per_s: f64) -> Activity {
        Activity::Reading(ReadingProgress {
            files: self.items.iter().map(|item| item.file.clone()).collect(),
            done: position.saturating_sub(self.begun()),
            total: self.total,
            tokens_per_s,
            elapsed_ms: self.started.elapsed().as_secs_f64() * 1000.0,
            left_after: self.left_after,
        })
    }
}

impl Sink<Verb> for Load {
    fn begins(&mut self, state: &mut Verb, step: &Step) -> Done<bool> {
        let at = self.items.iter().take_while(|item| item.text_end < step.text_end).count();
        if at != self.at {
            (self.at, self.since) = (at, Instant::now());
        }
        self.add(state, at + 1)
    }

    fn reading(&mut self, state: &mut Verb, Progress { done, position, elapsed, .. }: Progress) -> bool {
        if let Some(item) = self.current() {
            item.file.state = FileState::Reading(position.saturating_sub(item.start()));
        }
        state.working(self.shown(position, per_second(done, elapsed)));
        true
    }

    fn ended(&mut self, state: &mut Verb, step: &Step, stats: &PrefillStats) {
        let Some(id) = step.message else { return };
        let (read, ms) = (stats.read - self.read, stats.prefill_ms - self.ms);
        (self.read, self.ms) = (stats.read, stats.prefill_ms);
        state.document_read(id, Some((read, ms)));
        let seconds = self.since.elapsed().as_secs_f64();
        if let Some(item) = self.current().filter(|item| item.text_end == step.text_end) {
            item.file.state = FileState::Done(seconds);
        }
        let (position, speed) = (state.here.slot.live.position(), state.here.meters.prefill_tokens_per_s);
        state.working(self.shown(position, speed));
    }
}

impl State {
    pub(super) fn say_loaded(&mut self, load: &Load) {
        let kept: u64 = load.items.iter().filter(|i| i.kept).map(|i| i.file.tokens).sum();
        let seconds = load.started.elapsed().as_secs_f64();
        let what = match load.items.as_slice() {
            [one] => one.file.name.clone(),
            many => counted(many.len() as u64, "file"),
        };
        let (total, from_library) = (counted(load.total, "token"), grouped(kept));
        self.info(match kept {
            _ if self.engine.server().is_some() => {
                format!("{what}: about {total}, which the server reads with the next question.")
            }
            0 => format!("Read {what}: {total} in {seconds:.1} s."),
            kept if kept == load.total => format!("{what}: {total} from library, {seconds:.1} s."),
            _ => format!("Read {what}: {total} in {seconds:.1} s, {from_library} of them from library."),
        });
    }
}

impl Verb {
    /// True: the user continues.
    pub(super) async fn load_stopped(&mut self, load: &mut Load, rendered: &Rendered) -> Done<bool> {
        // The state may be lost while the question waits.
        let upto = self.here.slot.live.text_bytes();
        let done = self.here.slot.live.position().saturating_sub(load.begun()).min(load.total);
        let name = load.current().map_or(String::new(), |item| item.file.name.clone());
        let (done, total) = (grouped(done), grouped(load.total));
        let text = format!("Stopped at {done} of {total} tokens, inside {name}. What is read stays read.");
        let choices = [('1', "continue"), ('\x1b', "keep what is read")];
        self.show_tree();
        self.report_meters();
        let asks = self.attendance == Attendance::Present && !self.quitting;
        let goes_on = asks && self.ask_user(text, &choices).await == '1';
        // The following work can be stopped again.
        self.here.slot.begin();
        if goes_on {
            let shown = load.shown(self.here.slot.live.position(), self.here.meters.prefill_tokens_per_s);
            self.activity(shown);
            return Ok(true);
        }
        self.keep_part(rendered, upto).await?;
        self.report_meters();
        Ok(false)
    }

    /// Ends a load inside a document: the document is cut to the part that was read, and its state is kept. `upto`: bytes
    /// of the rendered text that were read.
    async fn keep_part(&mut self, rendered: &Rendered, upto: usize) -> Done<PrefillStats> {
        // After the load began again, documents beyond the reading are in the conversation.
        while let Some(mut message) = self.here.tree.path().into_iter().rfind(|m| m.is_half_read()).cloned() {
            let text = self.engine.renderer.read_part(rendered, &message, upto).unwrap_or_default();
            let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
            if text.trim().is_empty() {
                self.move_head(message.parent)?;
                self.info(format!("The state does not reach {name}; it is left out."));
                continue;
            }
            let lines = text.lines().count() as u64;
            if let Some(info) = &mut message.meta.document {
                info.lines = lines;
                // A stop after the last words leaves a complete document.
                info.complete = info.is_whole(&text);
                info.tokens = self.engine.tokenizer().encode_plain(&text)?.len() as u64;
            }
            message.text = text;
            self.amend(&message);
            let lines = grouped(lines);
            self.info(format!("Kept what was read: {name} ends at line {lines}. /undo takes it back."));
            break;
        }
        self.show_session();
        // Reads the few words up to the end, as a restart finds state by a document that ends in it; no longer reading.
        self.sync_a_few().await
    }
}
