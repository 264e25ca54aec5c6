//! A load that was stopped inside a document: what the user wants then, and keeping the part that was read.

use super::super::execute::Fed;
use super::super::{Attendance, Done, RuntimeError, State, grouped};
use super::Load;
use crate::core::transcript::MessageId;
use crate::runtime::protocol::{Choice, Level};

impl State {
    pub(super) fn load_stopped(&mut self, mut load: Box<Load>) -> Done {
        // What was read is read, whatever becomes of the state while it is asked, and where the reading began anew.
        load.upto = load.upto.max(self.here.slot.live.text_bytes());
        load.reached = load.reached.max(self.here.slot.live.position());
        let begun: u64 = load.items.first().map_or(0, |i| i.end - i.tokens);
        let done = load.reached.saturating_sub(begun);
        let last = load.at.max(load.added.saturating_sub(1));
        let name = load.items.get(last).map_or("", |i| i.name.as_str());
        let text = format!(
            "Stopped at {} of {} tokens, inside {name}. What is read stays read.",
            grouped(done.min(load.progress.total)),
            grouped(load.progress.total)
        );
        let choices = vec![
            Choice { key: '1', label: "continue".into() },
            Choice { key: '2', label: "go back".into() },
            Choice { key: '\x1b', label: "keep what is read".into() },
        ];
        self.show_tree();
        self.report_meters();
        if self.attendance == Attendance::Absent || self.quitting {
            return self.keep_part(load, metered);
        }
        self.ask_user(text, choices, move |runtime, key| {
            // What comes now can be stopped again.
            runtime.here.slot.begin();
            match key {
                '1' => {
                    let shown = load.progress.shown();
                    runtime.activity(shown);
                    runtime.load_again(load, |_, _| ())
                }
                '2' => {
                    let begun_at = load.begun_at;
                    let kept = runtime.keep_part(load, move |runtime, kept| match kept {
                        Ok(_) => runtime.go(begun_at, "Went back to"),
                        Err(e) => runtime.go_back_unkept(begun_at, e),
                    });
                    // What failed before it was begun.
                    kept.or_else(|e| runtime.go_back_unkept(begun_at, e))
                }
                _ => runtime.keep_part(load, metered),
            }
        })
    }

    /// Ends a load inside a document: what was read of it becomes the document, and its state is kept.
    fn keep_part(
        &mut self,
        mut load: Box<Load>,
        then: impl FnOnce(&mut State, Done<Fed>) -> Done + Send + 'static,
    ) -> Done {
        self.here.slot.begin();
        // Where the reading began anew, what was read is more than the state has: nothing of it is read against a stop.
        let short = self.here.slot.live.text_bytes() < load.upto;
        // The document is then the last one that was added, wherever the reading is: those before it are whole.
        if let Some(message) = load.messages.iter_mut().take(load.added).rfind(|m| m.is_half_read()) {
            let text = self.engine.renderer.read_part(&load.rendered, message, load.upto).unwrap_or_default();
            let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
            if !text.trim().is_empty() {
                let lines = text.lines().count() as u64;
                if let Some(info) = &mut message.meta.document {
                    info.lines = lines;
                    // Stopped behind its last words, it is whole.
                    info.complete = info.is_whole(&text);
                    info.tokens = self.engine.renderer.model().tokenizer.encode_plain(&text)?.len() as u64;
                }
                message.text = text;
                self.amend(message);
                self.note(Level::Info, format!("Kept what was read: {name} ends at line {}.", grouped(lines)));
                self.show_session();
                // To its end, few words as that is: after a restart state is found by a document that ends in it.
                return match short {
                    true => self.try_sync_with_few(then),
                    false => self.try_sync_to_the_end(then),
                };
            }
            self.move_head(message.parent)?;
            self.note(Level::Info, format!("Nothing of {name} was read; it is left out."));
        }
        self.show_session();
        match short {
            true => self.try_sync_with_few(then),
            false => self.try_sync(then),
        }
    }

    /// Goes back to where a load began though what was read of it could not be kept; says why not.
    fn go_back_unkept(&mut self, head: Option<MessageId>, why: RuntimeError) -> Done {
        self.move_head(head)?;
        self.show_session();
        Err(why)
    }
}

fn metered(runtime: &mut State, fed: Done<Fed>) -> Done {
    fed?;
    runtime.report_meters();
    Ok(())
}
