//! The numbers and words for the status line and the panel.

use super::State;
use crate::runtime::protocol::{Activity, Meters, Notice};

impl State {
    pub(super) fn activity(&mut self, activity: Activity) {
        if self.here.activity != activity {
            self.here.activity = activity.clone();
            self.tell(Notice::Activity(activity));
        }
    }

    /// Activity of a running job; a requested stop stays on screen.
    pub(super) fn working(&mut self, activity: Activity) {
        if !self.here.slot.stopped() {
            self.activity(activity);
        }
    }

    /// Tokens of the open conversation in the state. An empty one may still hold the live state of the conversation
    /// before.
    pub(super) fn position(&self) -> u64 {
        if self.is_another_live() { 0 } else { self.here.slot.live.position() }
    }

    fn is_another_live(&self) -> bool {
        self.here.session.is_unread || self.here.session.tree.is_empty()
    }

    /// The same as it is shown.
    pub(super) fn shown_position(&self) -> u64 {
        if self.is_another_live() { 0 } else { self.here.slot.shown_position() }
    }

    /// Whether the tokens in the context are only estimated.
    pub(super) fn is_estimated(&self) -> bool {
        let counted = self.here.slot.counted.is_some_and(|(at, _)| at == self.here.slot.live.position());
        self.engine.server().is_some() && !counted
    }

    /// Tokens in the state now.
    pub(super) fn show_position(&mut self, position: u64) {
        let counted = self.here.slot.counted.filter(|(at, _)| *at == position).map(|(_, tokens)| tokens);
        let (shown, estimated) = (counted.unwrap_or(position), self.engine.server().is_some() && counted.is_none());
        if (self.here.meters.context_used, self.here.meters.estimated) != (shown, estimated) {
            (self.here.meters.context_used, self.here.meters.estimated) = (shown, estimated);
            self.tell(Notice::Meters(self.here.meters.clone()));
        }
    }

    /// Tokens of a session that was just opened. Always shown: the meters on screen may be another session's.
    pub(super) fn begin_position(&mut self, position: u64) {
        self.show_position(position);
        self.tell(Notice::Meters(self.here.meters.clone()));
    }

    /// A setting changed.
    pub(super) fn show_sampling(&mut self) {
        self.here.meters.settings = self.here.session.settings.values();
        self.tell(Notice::Meters(self.here.meters.clone()));
    }

    /// Sends the numbers.
    pub(super) fn report_meters(&mut self) {
        self.here.meters.context_used = self.shown_position();
        self.here.meters.estimated = self.is_estimated();
        self.here.meters.settings = self.here.session.settings.values();
        let path = self.here.session.tree.path();
        self.here.meters.checkpoints =
            path.iter().filter(|m| self.here.session.ends.contains_key(&m.id)).count() as u64;
        // A number for a meter: the old one will do where the new one cannot be had.
        self.here.meters.state_bytes = self.disk.store.state_bytes().unwrap_or(self.here.meters.state_bytes);
        self.tell(Notice::Meters(self.here.meters.clone()));
    }

    /// So many tokens were read in so many milliseconds.
    pub(super) fn read_at(&mut self, tokens: u64, ms: f64) {
        if tokens == 0 || ms <= 0.0 {
            return;
        }
        let speed = tokens as f64 * 1000.0 / ms;
        self.here.meters.prefill_tokens_per_s = speed;
        // A few tokens say little about many.
        if tokens >= ESTIMATED_FROM || self.reading_speed == 0.0 {
            self.reading_speed = speed;
        }
    }

    /// Another session: what is shown of the last one's answers is not about it.
    pub(super) fn forget_speeds(&mut self) {
        self.here.meters = Meters {
            context_used: self.here.meters.context_used,
            estimated: self.here.meters.estimated,
            context_limit: self.here.meters.context_limit,
            state_bytes: self.here.meters.state_bytes,
            model: std::mem::take(&mut self.here.meters.model),
            ..Meters::default()
        };
    }
}

/// Tokens from which on a reading speed is good for an estimate.
const ESTIMATED_FROM: u64 = 512;
