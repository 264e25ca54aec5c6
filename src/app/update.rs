//! The one function that changes the state: events in, effects out.

use super::entry::grouped;
use super::options::Notify;
use super::overlay::{Overlay, Page};
use super::{App, Armed, Asker, Effect, Event, Phase, Question, Redraw, input, notices, perform};
use crate::protocol::desk::{Activity, Choice, Level, Request};
use crate::text::sanitize::sanitize;

/// Changes the state by one event. `now` is in milliseconds of any steady clock.
pub fn update(app: &mut App, event: Event, now: u64) -> Vec<Effect> {
    let mut effects = Vec::new();
    let redraw = match event {
        Event::Frame => {
            frame(app, &mut effects);
            return effects;
        }
        Event::Notice(notice) => notices::notice(app, notice, now, &mut effects),
        Event::Key(key) => {
            input::key(app, key, now, &mut effects);
            Redraw::Now
        }
        Event::Paste(text) => {
            paste(app, &text);
            Redraw::Now
        }
        Event::Wheel(rows) => {
            match (&mut app.overlay, app.questions.front_mut()) {
                (_, Some(Question { pick: Some(p), .. })) if p.open => p.step(rows),
                (Some(overlay), _) => overlay.step(rows),
                (None, _) => app.transcript.scroll_by(rows),
            }
            Redraw::Now
        }
        Event::Click { x, y } => {
            click(app, x, y);
            Redraw::Now
        }
        Event::Resize { width, height } => {
            app.size = (width, height);
            Redraw::Now
        }
        Event::Focus(focused) => {
            app.focused = focused;
            Redraw::No
        }
        Event::Paths { prefix, found } => {
            input::paths(app, &prefix, &found);
            Redraw::Now
        }
        Event::Edited(Ok(text)) => {
            app.composer.set(text.trim_end_matches('\n'));
            Redraw::Now
        }
        Event::Edited(Err(why)) | Event::Copied(Err(why)) => {
            note(app, Level::Error, &why);
            Redraw::Now
        }
        Event::Copied(Ok(what)) => {
            note(app, Level::Info, &what);
            Redraw::Now
        }
        Event::Highlighted { lang, code, lines } => {
            app.transcript.coloured(lang, code, lines);
            Redraw::Stream
        }
        Event::Tick => tick(app, now),
        Event::Terminate => {
            quit(app, &mut effects);
            Redraw::Now
        }
        Event::Interrupt => {
            if app.phase == Phase::Quitting {
                effects.push(Effect::Exit { code: 130, farewell: None });
            }
            quit(app, &mut effects);
            Redraw::Now
        }
        Event::Suspending => {
            stop(app, &mut effects);
            Redraw::No
        }
        Event::Resumed => {
            effects.push(Effect::Repaint);
            Redraw::Now
        }
    };
    if app.phase == Phase::Running {
        perform::pump_queue(app, now, &mut effects);
    }
    app.redraw = app.redraw.max(redraw);
    app.relayout();
    effects
}

/// Lays out what is on screen and asks for the colours of its code.
fn frame(app: &mut App, effects: &mut Vec<Effect>) {
    app.relayout();
    app.transcript.prepare();
    if app.config.colour {
        effects.extend(app.transcript.uncoloured().into_iter().map(|(lang, code)| Effect::Highlight { lang, code }));
    }
}

fn tick(app: &mut App, now: u64) -> Redraw {
    if app.armed.until().is_some_and(|t| t <= now) {
        app.armed = Armed::Nothing;
    }
    if app.hint.as_ref().and_then(|h| h.1).is_some_and(|t| t <= now) {
        app.hint = None;
        return Redraw::Now;
    }
    Redraw::No
}

fn paste(app: &mut App, text: &str) {
    if app.questions.front().is_some() {
        return;
    }
    if let Some(overlay) = &mut app.overlay {
        if let Some(query) = overlay.query() {
            let line = text.lines().next().unwrap_or("");
            let query = format!("{query}{line}");
            overlay.set_query(query);
        }
        return;
    }
    app.popup = None;
    app.transcript.deselect();
    app.history.rest();
    let (chars, lines) = (app.config.paste_fold_chars, app.config.paste_fold_lines);
    app.composer.paste(&sanitize(&text.replace("\r\n", "\n").replace('\r', "\n")), chars, lines);
}

fn click(app: &mut App, x: u16, y: u16) {
    let area = super::layout::regions(app).transcript;
    if app.overlay.is_some() || y < area.y || y >= area.y + area.height || x >= area.x + area.width {
        return;
    }
    if let Some((entry, _)) = app.transcript.window().get(usize::from(y - area.y)).copied()
        && let Some(id) = app.transcript.entries().get(entry).and_then(|e| e.as_message()).map(|m| m.id)
    {
        app.transcript.show(id);
    }
}

/// A line of the program in the transcript.
pub(super) fn note(app: &mut App, level: Level, text: &str) {
    app.transcript.note(level, text, app.requests);
}

/// A word below the input, for a while.
pub(super) fn hint(app: &mut App, text: impl Into<String>, until: u64) {
    app.hint = Some((text.into(), Some(until)));
}

/// Opens a page.
pub(super) fn open_page(app: &mut App, title: &str, text: String) {
    app.popup = None;
    app.overlay = Some(Overlay::Page(Page::new(title, text)));
}

/// Sends a request to the desk.
pub(super) fn send(app: &mut App, request: Request, effects: &mut Vec<Effect>) {
    app.requests += 1;
    // An answer to a question belongs to what asked it.
    if !matches!(request, Request::Choose { .. } | Request::ChooseFiles { .. }) {
        app.tabs.forget_wish();
    }
    effects.push(Effect::Send(request));
}

/// Asks the model to stop, once.
pub(super) fn stop(app: &mut App, effects: &mut Vec<Effect>) {
    if app.busy() && app.activity != Activity::Stopping {
        // A question the desk has not taken up yet leaves nothing to wait for.
        if app.activity != Activity::Idle {
            app.activity = Activity::Stopping;
        }
        app.waiting = false;
        app.queue.held = !app.queue.lines.is_empty();
        // Not counted as a request of its own: notes of the stopped one still belong to it.
        effects.push(Effect::Send(Request::Stop));
    }
}

/// Begins to end.
pub(super) fn quit(app: &mut App, effects: &mut Vec<Effect>) {
    if app.phase == Phase::Running {
        app.phase = Phase::Quitting;
        app.overlay = None;
        app.popup = None;
        app.questions.clear();
        send(app, Request::Quit, effects);
        app.hint = Some(("Saving. Ctrl-C again ends at once: text is safe, state may be read again".into(), None));
    }
}

/// Quits, after asking once when the model is busy.
pub(super) fn quit_or_ask(app: &mut App, effects: &mut Vec<Effect>) {
    if app.busy() && !matches!(app.activity, Activity::Starting { .. }) {
        app.questions.push_front(Question {
            asker: Asker::Quit,
            text: "Still working. Stop and quit? What was written so far is kept.".into(),
            choices: vec![Choice { key: 'y', label: "quit".into() }, Choice { key: 'n', label: "stay".into() }],
            pick: None,
        });
    } else {
        quit(app, effects);
    }
}

/// Called when the desk has become idle: notifications and the context warning.
pub(super) fn became_idle(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    let took = app.busy_since.take().map_or(0, |since| now.saturating_sub(since));
    let wanted = match app.config.notify {
        Notify::Never => false,
        Notify::Unfocused => !app.focused,
        Notify::Always => true,
    };
    if wanted && took >= app.config.notify_after_ms && app.queue.lines.is_empty() {
        effects.push(Effect::Notify("sala-chat: ready".into()));
    }
    let (used, limit) = (app.meters.context_used, app.meters.context_limit);
    if limit > 0 && used * 100 >= limit * 95 {
        if !app.context_warned {
            app.context_warned = true;
            let left = grouped(limit.saturating_sub(used));
            note(app, Level::Warn, &format!("About {left} tokens left. /new, /fork #3 or /compact."));
        }
    } else {
        app.context_warned = false;
    }
}
