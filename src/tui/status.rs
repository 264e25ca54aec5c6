//! What header, status line, panel and the terminal's title say about the work.

use super::App;
use super::entry::{clock, short_count};
use super::rows::Role;
use crate::core::sanitize::sanitize_line;
use crate::core::{about, percent};
use crate::runtime::protocol::{Activity, ReadingProgress, SaveState};

pub fn duration(seconds: f64) -> String {
    let s = seconds.max(0.0).round() as u64;
    if s >= 3600 {
        format!("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
    } else {
        format!("{}:{:02}", s / 60, s % 60)
    }
}

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

pub(super) fn parked(app: &App) -> bool {
    app.meters.model.parked
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
    sanitize_line(&format!("{mark}{name}{doing}{news}")).into_owned()
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
