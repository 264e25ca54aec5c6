//! A stop inside a document of a load: the user decides how to continue, and the part that was read is kept.

use super::super::{Attendance, Done, PrefillStats, Rendered, Verb, grouped};
use super::Load;

impl Verb {
    /// True: the user continues.
    pub(super) async fn load_stopped(&mut self, load: &mut Load, rendered: &Rendered) -> Done<bool> {
        // After the load began again, the state may hold less than was read before.
        load.upto = load.upto.max(self.here.slot.live.text_bytes());
        load.reached = load.reached.max(self.here.slot.live.position());
        let begun: u64 = load.items.first().map_or(0, |i| i.end - i.tokens);
        let done = load.reached.saturating_sub(begun).min(load.total);
        let last = load.at.max(load.added.saturating_sub(1));
        let name = load.items.get(last).map_or("", |i| i.name.as_str());
        let (done, total) = (grouped(done), grouped(load.total));
        let text = format!("Stopped at {done} of {total} tokens, inside {name}. What is read stays read.");
        let choices = [('1', "continue"), ('2', "go back"), ('\x1b', "keep what is read")];
        self.show_tree();
        self.report_meters();
        let key = match self.attendance == Attendance::Absent || self.quitting {
            true => '\x1b',
            false => self.ask_user(text, &choices).await,
        };
        // The following work can be stopped again.
        self.here.slot.begin();
        if key == '1' {
            self.activity(load.shown());
            return Ok(true);
        }
        let kept = self.keep_part(load, rendered).await;
        match (key, kept) {
            ('2', Ok(_)) => self.go(load.begun_at, "Went back to").await?,
            ('2', Err(e)) => {
                self.move_head(load.begun_at)?;
                self.show_session();
                return Err(e);
            }
            (_, kept) => {
                kept?;
                self.report_meters();
            }
        }
        Ok(false)
    }

    /// Ends a load inside a document: the document is cut to the part that was read, and its state is kept.
    async fn keep_part(&mut self, load: &mut Load, rendered: &Rendered) -> Done<PrefillStats> {
        self.here.slot.begin();
        // After the load began again, the state may hold less than was read before. A stop must not start a new reading.
        let short = self.here.slot.live.text_bytes() < load.upto;
        // In that case the document is the last one that was added, wherever the reading is; the documents before it
        // are complete.
        if let Some(message) = load.messages.iter_mut().take(load.added).rfind(|m| m.is_half_read()) {
            let text = self.engine.renderer.read_part(rendered, message, load.upto).unwrap_or_default();
            let name = message.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
            if !text.trim().is_empty() {
                let lines = text.lines().count() as u64;
                if let Some(info) = &mut message.meta.document {
                    info.lines = lines;
                    // A stop after the last words leaves a complete document.
                    info.complete = info.is_whole(&text);
                    info.tokens = self.engine.renderer.model().tokenizer.encode_plain(&text)?.len() as u64;
                }
                message.text = text;
                self.amend(message);
                self.info(format!("Kept what was read: {name} ends at line {}.", grouped(lines)));
                self.show_session();
                // Reads the few words up to its end: after a restart, state is found by a document that ends in it.
                return self.sync_to_the_end(short).await;
            }
            self.move_head(message.parent)?;
            self.info(format!("Nothing of {name} was read; it is left out."));
        }
        self.show_session();
        match short {
            true => self.sync_to_the_end(true).await,
            false => self.sync().await,
        }
    }
}
