//! Numbers for the status line and the panel.

use super::{Activity, Done, Notice, RuntimeError, State};
use crate::runtime::protocol::Meters;
use crate::store::Change;

impl State {
    pub fn activity(&mut self, activity: Activity) {
        if self.here.activity != activity {
            self.here.activity = activity.clone();
            self.report(Notice::Activity(activity));
        }
    }

    /// Shows the activity of a job, unless a stop is pending.
    pub fn working(&mut self, activity: Activity) {
        if !self.here.slot.stopped() {
            self.activity(activity);
        }
    }

    pub fn unstopped(&self) -> Done {
        if self.here.slot.stopped() { Err(RuntimeError::Stopped) } else { Ok(()) }
    }

    /// Tokens of the open conversation in the state; the slot of an empty one may hold another's state.
    pub fn position(&self) -> u64 {
        let is_another_live = self.here.is_unread || self.here.tree.is_empty();
        if is_another_live { 0 } else { self.here.slot.live.position() }
    }

    pub fn show_position(&mut self, position: u64) {
        // A server's own count may cover exactly this position.
        let counted = self.here.slot.counted.filter(|(at, _)| *at == position).map(|(_, tokens)| tokens);
        let (shown, estimated) = (counted.unwrap_or(position), self.engine.server().is_some() && counted.is_none());
        if (self.here.meters.context_used, self.here.meters.estimated) != (shown, estimated) {
            (self.here.meters.context_used, self.here.meters.estimated) = (shown, estimated);
            self.show_meters();
        }
    }

    /// Numbers of a session that was just opened: the speeds belong to the other session's answers. Always sent, as
    /// the meters on screen may be those of another session.
    pub fn begin_meters(&mut self, position: u64) {
        let Meters { context_used, estimated, .. } = self.here.meters;
        self.here.meters = Meters { context_used, estimated, changed: self.changed(), ..Meters::default() };
        self.here.warned = 0;
        self.show_position(position);
        self.show_meters();
    }

    pub fn report_meters(&mut self) {
        self.show_position(self.position());
        self.here.meters.changed = self.changed();
        let path = self.here.tree.path();
        self.here.meters.checkpoints = path.iter().filter(|m| self.here.ends.contains_key(&m.id)).count() as u64;
        // If the size cannot be read, the old number stays.
        self.state_bytes = self.disk.store.state_bytes().unwrap_or(self.state_bytes);
        self.show_meters();
    }

    pub fn read_at(&mut self, tokens: u64, ms: f64) {
        if tokens == 0 || ms <= 0.0 {
            return;
        }
        let speed = tokens as f64 * 1000.0 / ms;
        self.here.meters.prefill_tokens_per_s = speed;
        // Small reads measure fixed costs and give no useful rate.
        let before = self.reading_speed;
        if tokens >= ESTIMATED_FROM || before == 0.0 {
            self.reading_speed = speed;
        }
        // For the estimates of the next run. A speed that hardly changed is not worth a write.
        if tokens >= ESTIMATED_FROM && !(0.8..1.25).contains(&(speed / before)) && self.engine.server().is_none() {
            self.disk.change(vec![Change::Measured { name: self.speed_name(), value: speed }]);
        }
    }

    pub fn speed_name(&self) -> String {
        let model = &self.engine.info;
        format!("reading {} {} {}", model.name, model.dtype, model.device)
    }

    /// The numbers of the conversation, with those of model and disk, which all conversations share.
    pub fn show_meters(&self) {
        let (model, settings) = (self.engine.info.clone(), self.here.settings.values());
        let (context_limit, state_bytes) = (model.context_limit, self.state_bytes);
        let meters = self.here.meters.clone();
        self.report(Notice::Meters(Meters { model, settings, context_limit, state_bytes, ..meters }));
    }
}

const ESTIMATED_FROM: u64 = 512;
