//! Keeps the engine's state at the head of the conversation, as the next question will find it.

use super::plan::SMALL_REST;
use super::{Activity, Done, Form, Path, Plan, PrefillStats, Rendered, RuntimeError, State, Verb, grouped};
use crate::engine::protocol::EngineFault;
use crate::text::TextError;

pub(super) const THIS_CONVERSATION: &str = "This conversation";

impl RuntimeError {
    /// Whether another plan repairs the loss: always for saved state, `once` after a crash or a park of the engine.
    pub(super) fn is_mended_by_reading(&self, once: &mut bool) -> bool {
        let gone = matches!(self, RuntimeError::Engine(EngineFault::Gone(_) | EngineFault::Evicted));
        matches!(self, RuntimeError::RowsLost(_)) || (gone && !std::mem::replace(once, true))
    }
}

impl Verb {
    /// Makes the state at the head live, as the next question will find it; reads the missing part.
    pub(super) async fn sync(&mut self) -> Done<PrefillStats> {
        self.engine_ready().await?;
        let rendered = self.known_size(self.past(), THIS_CONVERSATION)?;
        if self.is_synced(&rendered) {
            self.here.is_unread = false;
            return Ok(PrefillStats { reused: self.here.slot.live.position(), ..PrefillStats::default() });
        }
        let plan = self.fitted(&rendered, State::plan_past, THIS_CONVERSATION).await?;
        self.say_reading_again(&plan);
        self.execute(plan, &rendered, None, &mut ()).await
    }

    /// The same up to the end of the last message. With `only_few`, more than a few tokens are left, with a note.
    pub(super) async fn sync_to_the_end(&mut self, only_few: bool) -> Done<PrefillStats> {
        self.engine_ready().await?;
        let rendered = self.known_size(self.past(), THIS_CONVERSATION)?;
        let plan = self.fitted(&rendered, State::plan, THIS_CONVERSATION).await?;
        let left = rendered.text.len().saturating_sub(plan.base.text_bytes());
        if only_few && left > SMALL_REST && plan.to_read() > 0 {
            self.say_cost(&plan, "Continuing from there reads", " again");
            return Ok(PrefillStats::default());
        }
        self.execute(plan, &rendered, None, &mut ()).await
    }

    /// After an answer: if the template drops thoughts, the answer is read again without them, so that the next
    /// question starts at once. After a stop nothing is read, because that could take long and interfaces wait for the
    /// stop to end; the next question does the work.
    pub(super) async fn sync_quietly(&mut self) -> Done {
        let end = self.here.tree.head().and_then(|head| self.here.ends.get(&head)).copied();
        if self.engine.server().is_some() && end.is_some() && end == self.here.slot.live.head() {
            // A server reads nothing now, and its count covers the answer as generated, with thoughts and trailing
            // space.
            return Ok(());
        }
        let no_room = |e: &RuntimeError| matches!(e, RuntimeError::Text(TextError::TooLong { .. }));
        let rendered = match self.past() {
            // The next question reports it.
            Err(e) if no_room(&e) => return Ok(()),
            rendered => rendered?,
        };
        if self.quitting || self.here.slot.stopped() || self.is_synced(&rendered) {
            return Ok(());
        }
        self.here.slot.begin();
        let plan = match self.planned(&rendered, State::plan).await {
            Err(e) if no_room(&e) => return Ok(()),
            plan => plan?,
        };
        if !self.fits(plan.total()) {
            return Ok(());
        }
        if !self.noted_dropped_thoughts && self.leaves_thoughts_out(&rendered) && plan.to_read() > 0 {
            self.noted_dropped_thoughts = true;
            self.info(
                "This model's template drops earlier thoughts: answers are read again without them, in the background.",
            );
        }
        self.execute(plan, &rendered, None, &mut ()).await?;
        self.report_meters();
        Ok(())
    }

    pub(super) async fn return_to(&mut self, path: Path) -> Done {
        if self.here.slot.is_at(&path) {
            return Ok(());
        }
        self.here.slot.begin();
        self.states_saved().await;
        self.activity(Activity::Restoring { share: None, tokens: path.position() });
        if !self.restore(path).await? {
            self.sync().await?;
        }
        Ok(())
    }
}

impl State {
    pub(super) fn say_reading_again(&self, plan: &Plan) {
        self.say_cost(plan, "Reading", self.here.again());
    }

    fn say_cost(&self, plan: &Plan, reading: &str, again: &str) {
        let (read, total, about) = (plan.to_read(), grouped(plan.total()), self.about(plan.to_read()));
        // Where a server reads, this machine reads nothing.
        if self.engine.server().is_none() && read > 0 {
            self.info(format!("{reading} {} of {total} tokens{again}{about}.", grouped(read)));
        }
    }

    /// Reports the loss, and the cost of the new read that the current work needs.
    pub(super) fn read_lost_again(&mut self, lost: &RuntimeError, plan: &Plan) {
        self.here.resume_pending = false;
        self.warn(lost.to_string());
        self.say_reading_again(plan);
    }

    /// Whether this rendering omits the thoughts of the last answer. Unknown for a server.
    fn leaves_thoughts_out(&self, rendered: &Rendered) -> bool {
        let path = self.here.tree.path();
        let thoughts = self.engine.renderer.safe(path.last().map_or("", |m| m.thinking.trim()));
        self.engine.server().is_none() && !thoughts.is_empty() && !rendered.text.contains(&*thoughts)
    }

    /// The open conversation as the next question will find it.
    pub(super) fn past(&self) -> Done<Rendered> {
        self.rendered(&self.here.tree.path(), Form::Past)
    }
}
