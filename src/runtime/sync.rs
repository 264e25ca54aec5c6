//! The engine's state follows the conversation: it is made that of the head, as the next question will find it.

use std::sync::Arc;

use super::execute::{Fed, Planner, PromptReading};
use super::path::Path;
use super::plan::{Plan, SMALL_REST};
use super::render::Rendered;
use super::{Done, RuntimeError, State, grouped};
use crate::core::transcript::Message;
use crate::engine::protocol::EngineFault;
use crate::runtime::protocol::{Activity, Level, ThinkMode};
use crate::text::TextError;

/// What is said to be too long.
pub(super) const THIS_CONVERSATION: &str = "This conversation";

impl RuntimeError {
    /// Whether what was lost is had back by reading it: saved state in any case, what went with the process that ran the model `once`.
    pub(super) fn is_mended_by_reading(&self, once: &mut bool) -> bool {
        let gone = matches!(self, RuntimeError::Engine(EngineFault::Gone(_)));
        matches!(self, RuntimeError::RowsLost(_)) || (gone && !std::mem::replace(once, true))
    }
}

impl State {
    /// Makes the state at the head live, as the next question will find it; reads what is missing.
    pub(super) fn sync(&mut self, then: impl FnOnce(&mut State, Fed) -> Done + Send + 'static) -> Done {
        self.try_sync(move |runtime, fed| then(runtime, fed?))
    }

    /// The same; `then` gets what failed once it was begun.
    pub(super) fn try_sync(&mut self, then: impl FnOnce(&mut State, Done<Fed>) -> Done + Send + 'static) -> Done {
        self.with_engine(move |runtime| {
            let rendered = runtime.known_size(runtime.past(), THIS_CONVERSATION)?;
            if runtime.is_synced(&rendered) {
                runtime.here.session.is_unread = false;
                let fed = Fed { reused: runtime.here.slot.live.position(), ..Fed::default() };
                return then(runtime, Ok(fed));
            }
            runtime.read_missing(rendered, State::plan_past, State::say_reading_again, then)
        })
    }

    /// The same with all messages to their ends: none of it is left for the next question to bring.
    pub(super) fn try_sync_to_the_end(
        &mut self,
        then: impl FnOnce(&mut State, Done<Fed>) -> Done + Send + 'static,
    ) -> Done {
        self.with_engine(move |runtime| {
            let rendered = runtime.known_size(runtime.past(), THIS_CONVERSATION)?;
            runtime.read_missing(rendered, State::plan, |_, _| (), then)
        })
    }

    /// The same where a few words are all that has to be read for it; more is left for whatever goes on from there, and that is said.
    pub(super) fn try_sync_with_few(
        &mut self,
        then: impl FnOnce(&mut State, Done<Fed>) -> Done + Send + 'static,
    ) -> Done {
        self.with_engine(move |runtime| {
            let rendered = runtime.known_size(runtime.past(), THIS_CONVERSATION)?;
            runtime.when_planned(rendered, State::plan, move |runtime, rendered, plan| {
                let plan = match runtime.fitting(plan, THIS_CONVERSATION) {
                    Ok(plan) => plan,
                    Err(e) => return then(runtime, Err(e)),
                };
                let left = rendered.text.len().saturating_sub(plan.base.text_bytes());
                if left > SMALL_REST && plan.to_read() > 0 {
                    runtime.say_left(&plan);
                    return then(runtime, Ok(Fed::default()));
                }
                runtime.execute(plan, rendered, None, PromptReading::begun(), move |runtime, _, fed| then(runtime, fed))
            })
        })
    }

    /// Reads what the plan for this conversation says, if it has room; `said` is told of it before.
    fn read_missing(
        &mut self,
        rendered: Arc<Rendered>,
        planner: Planner,
        said: impl FnOnce(&State, &Plan) + Send + 'static,
        then: impl FnOnce(&mut State, Done<Fed>) -> Done + Send + 'static,
    ) -> Done {
        self.when_planned(rendered, planner, move |runtime, rendered, plan| {
            match runtime.fitting(plan, THIS_CONVERSATION) {
                Ok(plan) => {
                    said(runtime, &plan);
                    runtime.execute(plan, rendered, None, PromptReading::begun(), move |runtime, _, fed| {
                        then(runtime, fed)
                    })
                }
                Err(e) => then(runtime, Err(e)),
            }
        })
    }

    pub(super) fn say_reading_again(&self, plan: &Plan) {
        if self.engine.server().is_some() || plan.to_read() == 0 {
            // Nothing is read here.
            return;
        }
        let (read, total) = (grouped(plan.to_read()), grouped(plan.total()));
        let (again, about) = (self.here.session.again(), self.about(plan.to_read()));
        self.note(Level::Info, format!("Reading {read} of {total} tokens{again}{about}."));
    }

    fn say_left(&self, plan: &Plan) {
        if self.engine.server().is_some() {
            return;
        }
        let (read, total) = (grouped(plan.to_read()), grouped(plan.total()));
        let about = self.about(plan.to_read());
        self.note(Level::Info, format!("Whatever goes on from there reads {read} of {total} tokens again{about}."));
    }

    /// Says what was lost, and what reading it again with the work at hand takes.
    pub(super) fn read_lost_again(&mut self, lost: &RuntimeError, plan: &Plan) {
        self.here.resume_pending = false;
        self.note(Level::Warn, lost.to_string());
        self.say_reading_again(plan);
    }

    /// After an answer: where the template drops thoughts, the answer is read again without them, so that the next
    /// question finds it done. After a stop nothing is read: the question's past may be most of it, and interfaces wait
    /// for the end of what was stopped. The next question brings it.
    pub(super) fn sync_quietly(&mut self) -> Done {
        let end = self.here.session.tree.head().and_then(|head| self.here.session.ends.get(&head)).copied();
        if self.engine.server().is_some() && end.is_some() && end == self.here.slot.live.head() {
            // It reads nothing now; and what it has counted is of the answer as it came, with its thoughts and to its last blank.
            return Ok(());
        }
        let no_room = |e: &RuntimeError| matches!(e, RuntimeError::Text(TextError::TooLong { .. }));
        let rendered = match self.past() {
            // The next question says so.
            Err(e) if no_room(&e) => return Ok(()),
            rendered => rendered?,
        };
        if self.quitting || self.here.slot.stopped() || self.is_synced(&rendered) {
            return Ok(());
        }
        self.here.slot.begin();
        self.when_planned(rendered, State::plan, move |runtime, rendered, plan| {
            let plan = match plan {
                Err(e) if no_room(&e) => return Ok(()),
                plan => plan?,
            };
            let limit = runtime.firm_limit();
            if limit > 0 && plan.total() > limit {
                return Ok(());
            }
            if !runtime.said_thoughts_leave && runtime.leaves_thoughts_out(&rendered) && plan.to_read() > 0 {
                runtime.said_thoughts_leave = true;
                let text = "This model's template drops earlier thoughts: answers are read again without them, behind the scenes.";
                runtime.note(Level::Info, text);
            }
            runtime.execute(plan, rendered, None, PromptReading::begun(), |runtime, _, fed| {
                fed?;
                runtime.report_meters();
                Ok(())
            })
        })
    }

    /// Whether the last answer's thoughts are not in this rendering. What a server reads is not known.
    fn leaves_thoughts_out(&self, rendered: &Rendered) -> bool {
        let path = self.here.session.tree.path();
        let thoughts = self.engine.renderer.safe(path.last().map_or("", |m| m.thinking.trim()));
        self.engine.server().is_none() && !thoughts.is_empty() && !rendered.text.contains(&*thoughts)
    }

    /// The open conversation as the next question will find it.
    pub(super) fn past(&self) -> Done<Arc<Rendered>> {
        let path = self.here.session.tree.path();
        self.past_of(&path, self.here.session.settings.think)
    }

    /// Messages as the next question will find them.
    pub(super) fn past_of(&self, path: &[&Message], think: ThinkMode) -> Done<Arc<Rendered>> {
        Ok(Arc::new(self.rendering(path, |renderer, halt, known| renderer.past(path, think, halt, known))?))
    }

    /// Goes back to a path that was live a moment ago.
    pub(super) fn return_to(&mut self, path: Path, then: impl FnOnce(&mut State) -> Done + Send + 'static) -> Done {
        if self.here.slot.is_at(&path) {
            return then(self);
        }
        self.here.slot.begin();
        self.when_saved(self.disk.states(), move |runtime| {
            runtime.activity(Activity::Restoring { share: None, tokens: path.position() });
            runtime.restore(path, move |runtime, usable| match usable? {
                true => then(runtime),
                false => runtime.sync(move |runtime, _| then(runtime)),
            })
        })
    }
}
