//! Header, status line and hint line.

use super::entry::{clock, grouped, short_count};
use super::keys::Action;
use super::rows::Role;
use super::{App, Phase};
use crate::runtime::protocol::{Activity, ReadingProgress, SaveState};

/// A part of the status line; the highest priority number is dropped first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub priority: u8,
    pub right: bool,
    pub text: String,
    pub role: Role,
}

pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

use crate::core::{about, bytes, percent};

pub fn seconds_left(r: &ReadingProgress) -> Option<f64> {
    (r.tokens_per_s > 0.0).then(|| r.total.saturating_sub(r.done) as f64 / r.tokens_per_s)
}

pub fn acceptance(app: &App) -> Option<String> {
    let spec = &app.meters.spec;
    (spec.drafted > 0)
        .then(|| format!("accept {:.1} ({}%)", spec.mean_accept_length, percent(spec.accepted, spec.drafted)))
}

/// `612k/1M 58%`, with `!` from 80 and `!!` from 95 percent.
pub fn context(app: &App) -> Option<String> {
    let (used, limit) = (app.meters.context_used, app.meters.context_limit);
    if limit == 0 {
        return None;
    }
    let share = percent(used, limit);
    let mark = match share {
        0..80 => "",
        80..95 => " !",
        _ => " !!",
    };
    let about = about(app.meters.estimated);
    Some(format!("{about}{}/{} {share}%{mark}", short_count(used), short_count(limit)))
}

/// A server reports the number of tokens only at the end.
pub(super) fn writing_speed(app: &App, tokens_per_s: f64) -> String {
    let server = app.model.as_ref().is_some_and(|model| model.server.is_some());
    format!("{}{tokens_per_s:.1} t/s", about(server))
}

fn parked(app: &App) -> bool {
    app.meters.model.parked
}

fn activity(app: &App) -> (String, Role) {
    if app.phase != Phase::Running {
        return ("saving".into(), Role::Heading);
    }
    let text = match &app.activity {
        Activity::Idle if app.busy() => "sending".into(),
        Activity::Idle if parked(app) => return ("parked".into(), Role::Dim),
        Activity::Idle => return ("idle".into(), Role::Dim),
        Activity::Starting { what } => what.clone(),
        Activity::Reading(r) => {
            let left = seconds_left(r).map_or(String::new(), |s| format!(" {} left", duration(s)));
            let speed =
                if r.tokens_per_s > 0.0 { format!("{} t/s  ", grouped(r.tokens_per_s as u64)) } else { String::new() };
            format!("reading {speed}{}%{left}", percent(r.done, r.total))
        }
        Activity::Thinking { ms, .. } => format!("thinking {:.0} s", ms / 1e3),
        Activity::Answering { tokens_per_s } => format!("gen {}", writing_speed(app, *tokens_per_s)),
        Activity::Restoring { tokens, share } => {
            let percent = share.map_or(String::new(), |s| format!(" {:.0}%", 100.0 * s));
            format!("restoring {} tokens{percent}", grouped(*tokens))
        }
        Activity::Stopping => "stopping".into(),
        Activity::Busy { what } | Activity::Background { what } => what.clone(),
    };
    (text, Role::Heading)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    Share(u64),
    Running,
}

pub fn progress(app: &App) -> Option<Progress> {
    match &app.activity {
        Activity::Idle | Activity::Stopping => None,
        Activity::Reading(r) if r.total > 0 => Some(Progress::Share(percent(r.done, r.total))),
        Activity::Restoring { share: Some(share), .. } => Some(Progress::Share((100.0 * share) as u64)),
        _ => Some(Progress::Running),
    }
}

pub fn title(app: &App) -> String {
    let named = [app.open.view.title.as_str(), &app.open.view.name].into_iter().find(|name| !name.is_empty());
    let name = named.unwrap_or("sala-chat");
    let mark = if app.unseen { "* " } else { "" };
    let doing = match &app.activity {
        Activity::Reading(r) if r.total > 0 => format!(": reading {}%", percent(r.done, r.total)),
        Activity::Thinking { .. } => ": thinking".into(),
        Activity::Answering { .. } => ": answering".into(),
        Activity::Idle if parked(app) => ": parked".into(),
        _ => String::new(),
    };
    let news = app.open.news();
    let news = if news.is_empty() { news } else { format!("  [{news}]") };
    format!("{mark}{name}{doing}{news}")
}

pub fn saved(app: &App) -> (String, Role) {
    match &app.save {
        SaveState::Empty | SaveState::Saved(_) | SaveState::Saving if app.toured => ("not kept".into(), Role::Dim),
        SaveState::Empty => ("not saved yet".into(), Role::Dim),
        SaveState::Saved(_) | SaveState::Saving if !app.has_begun() => ("not saved yet".into(), Role::Dim),
        SaveState::Saved(ms) => (format!("saved {}", clock(*ms, app.config.utc_offset_min)), Role::Dim),
        SaveState::Saving => ("saving".into(), Role::Dim),
        SaveState::TextOnly(_) => ("text saved, state not".into(), Role::Warn),
        SaveState::NotSaved(_) => ("NOT SAVED".into(), Role::Alert),
        SaveState::Off => ("saving is off".into(), Role::Warn),
    }
}

pub fn parts(app: &App) -> Vec<Part> {
    let left = |priority, text: String, role| Part { priority, right: false, text, role };
    let right = |priority, text: String, role| Part { priority, right: true, text, role };
    let (text, role) = activity(app);
    let idle = app.phase == Phase::Running && app.activity == Activity::Idle && !app.busy();
    let mut parts = vec![left(1, text, role)];
    if let Some(model) = app.model.as_ref().filter(|_| idle) {
        parts.push(left(5, format!("{} on {}", model.name, model.device), Role::Dim));
    }
    let m = &app.meters;
    if let Some(c) = context(app) {
        let role = if m.context_used * 100 >= m.context_limit * 80 { Role::Warn } else { Role::Dim };
        parts.push(right(3, c, role));
    }
    match &app.save {
        SaveState::NotSaved(_) => parts.push(left(2, "NOT SAVED".into(), Role::Alert)),
        SaveState::TextOnly(_) => parts.push(left(2, "state not saved".into(), Role::Warn)),
        SaveState::Empty | SaveState::Saved(_) | SaveState::Saving | SaveState::Off if idle => {
            let (text, role) = saved(app);
            parts.push(right(4, text, role));
        }
        SaveState::Empty | SaveState::Saved(_) | SaveState::Saving | SaveState::Off => {}
    }
    let memory = &m.model.memory;
    if !idle && m.model.device_kind == "cuda" && memory.total > 0 {
        let gib = |n: u64| n as f64 / (1u64 << 30) as f64;
        parts.push(right(5, format!("VRAM {:.1}/{:.0} G", gib(memory.used), gib(memory.total)), Role::Dim));
    } else if !idle && memory.used > 0 {
        parts.push(right(5, format!("RAM {}", bytes(memory.used)), Role::Dim));
    }
    parts
}

pub fn hint_line(app: &App) -> Vec<(String, Role)> {
    if let Some((text, _)) = &app.hint {
        return vec![(text.clone(), Role::Warn)];
    }
    if app.overlay.is_some() || !app.questions.is_empty() {
        return Vec::new();
    }
    let key = |action| app.config.keys.shortest(action).map(|key| key.to_string()).unwrap_or_default();
    let mut pairs: Vec<(String, &str)> = Vec::new();
    if app.open.transcript.selected().is_some() && app.open.composer.is_empty() {
        for (k, what) in
            [("y", "copy"), ("e", "edit"), ("r", "again"), ("f", "fork"), ("Enter", "open"), ("Esc", "back")]
        {
            pairs.push((k.into(), what));
        }
    } else if app.open.editing.is_some() {
        pairs.extend([(key(Action::Send), "send as a new branch"), ("Esc".into(), "leave it")]);
    } else {
        if app.busy() && !matches!(app.activity, Activity::Starting { .. }) {
            pairs.push((key(Action::Escape), if app.activity.is_loading() { "stop loading" } else { "stop" }));
            pairs.push((key(Action::Send), "queue"));
            if app.answers_elsewhere() {
                pairs.push(("/aside".into(), "answers at once"));
            }
        } else {
            if app.activity.is_background() {
                pairs.push((key(Action::Escape), "stop"));
            }
            pairs.push((key(Action::Send), "send"));
            pairs.push((key(Action::Newline), "newline"));
        }
        if app.size.0 >= super::options::PANEL_FROM {
            pairs.push((key(Action::Panel), "panel"));
            pairs.push((key(Action::HistorySearch), "history"));
        }
        pairs.push(("/".into(), "commands"));
        pairs.push((key(Action::Help), "help"));
        pairs.extend(app.set_aside.as_ref().map(|page| (super::keys::TAKE_UP.to_string(), page.name())));
    }
    let mut line = Vec::new();
    for (k, what) in pairs.into_iter().filter(|(k, _)| !k.is_empty()) {
        line.push((k, Role::Key));
        line.push((format!(" {what}   "), Role::Dim));
    }
    line
}
