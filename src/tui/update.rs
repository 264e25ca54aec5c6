//! The one function that changes the state: events in, effects out.

use super::acts::{self, HINT_MS, end_hint, failed, hint, note};
use super::mention::Lookup;
use super::open::Session;
use super::options::Depth;
use super::quit::{keep_quit_question_true, quit};
use super::transcript::Scroll;
use super::{App, Asker, Effect, Event, Phase, Question, Redraw, Standing};
use super::{complete, drafts, input, mention, notices, overlay, perform, question, themes};
use crate::config::commands;
use crate::core::Exit;
use crate::core::sanitize::{sanitize, sanitize_line};
use crate::runtime::protocol::{Choice, Level};

pub fn update(app: &mut App, event: Event, now: u64) -> Vec<Effect> {
    app.now = now;
    let mut redraw = match &event {
        Event::Highlighted { .. } => Redraw::Stream,
        _ => Redraw::Now,
    };
    match event {
        Event::Frame => {
            question::seen(app);
            frame(app);
            return std::mem::take(&mut app.effects);
        }
        Event::Notice(notice) => redraw = notices::notice(app, notice),
        Event::Key(key) => {
            app.refusal = None;
            acts::note_read(app);
            input::key(app, key);
        }
        Event::Paste(text) => paste(app, &text),
        Event::Files { query, found } => complete::files(app, &query, &found),
        Event::FoundPaths(found) => self::found(app, &found),
        Event::Wheel(rows) => match (&mut app.overlay, app.questions.front_mut()) {
            (_, Some(Question { pick: Some(p), .. })) if p.open => p.step(rows),
            (Some(overlay), _) => overlay.step(rows),
            (None, _) if app.activity.is_loading() => {}
            (None, _) => app.open.transcript.scroll_by(rows),
        },
        Event::Resize { width, height } => app.size = (width, height),
        Event::Focus(focused) => {
            app.focused = focused;
            if !focused || !std::mem::take(&mut app.unseen) {
                redraw = Redraw::No;
            }
        }
        Event::Paths { prefix, found } => complete::paths(app, &prefix, &found),
        Event::Edited(Ok(text)) => app.open.composer.set(text.trim_end_matches('\n')),
        Event::Edited(Err(why)) | Event::Copied(Err(why)) => note(app, Level::Error, &why),
        Event::Kept(Err(why)) => failed(app, &why),
        Event::Kept(Ok(what)) => {
            app.attempt = None;
            note(app, Level::Info, &what);
        }
        Event::Copied(Ok(what)) => copied(app, &what),
        Event::Theme(read) => themes::read(app, read),
        Event::CodeTheme(read) => themes::code(app, read),
        Event::Highlighted { lang, code, lines } => {
            if let Some(other) = app.open.at_side(app.size.0) {
                other.transcript.coloured(lang.clone(), code.clone(), lines.clone());
            }
            app.open.transcript.coloured(lang, code, lines);
        }
        Event::Tick => redraw = tick(app),
        Event::Terminate => quit(app),
        Event::Interrupt => {
            if app.phase == Phase::Quitting {
                app.effects.push(Effect::Exit { exit: Exit::Stopped, farewell: None });
            }
            quit(app);
        }
        Event::Resumed => app.effects.push(Effect::Repaint),
        Event::NotSuspended(why) => hint(app, why, HINT_MS),
    }
    if app.phase == Phase::Running {
        keep_quit_question_true(app);
        perform::pump_queue(app);
        super::tour::offer(app);
        drafts::look(app);
    }
    app.took_out &= !app.open.composer.is_empty();
    complete::drop_outdated(app);
    if app.focused {
        app.open.at_side(app.size.0).into_iter().for_each(Session::seen);
    }
    app.redraw = app.redraw.max(redraw);
    app.relayout();
    std::mem::take(&mut app.effects)
}

/// Continues what waited for the paths.
fn found(app: &mut App, found: &[String]) {
    match app.lookup.take() {
        None => {}
        Some(Lookup::Question(text, edits)) => {
            app.waiting = false;
            let read: Vec<&str> = app.open.view.tree.documents.iter().map(|d| d.name.as_str()).collect();
            let shelved: Vec<&str> = app.library.iter().map(|d| d.name.as_str()).collect();
            let meant = mention::meant(&text, found, &read, &shelved);
            if meant.is_ready() {
                perform::ask_now(app, meant.text, edits);
            } else if edits.is_none() {
                mention::load_for_question(app, meant.text, meant.paths, meant.library);
            } else {
                note(app, Level::Warn, &meant.not_for_an_edit());
                if app.open.composer.recall(&commands::line_of(&text)) {
                    app.open.editing = edits;
                }
            }
        }
        Some(Lookup::Pasted(text, paths)) => {
            if paths.iter().any(|p| !found.contains(p)) {
                input::insert_pasted(app, &text);
                question::give_way(app);
                return;
            }
            let what = match paths.as_slice() {
                [one] => one.clone(),
                many => format!("{} files", many.len()),
            };
            let choice = |key, label: &str| Choice { key, label: label.into() };
            let choices =
                vec![choice('\n', "load"), choice('t', "put the text into the input"), choice('\x1b', "neither")];
            let question = format!("Load {what}?");
            app.questions.push_back(Question::new(Asker::Pasted, question, choices));
            app.lookup = Some(Lookup::Pasted(text, paths));
        }
    }
}

fn frame(app: &mut App) {
    app.relayout();
    app.open.transcript.prepare();
    let code_at_side = app.open.at_side(app.size.0).map(|other| {
        other.transcript.prepare();
        other.transcript.uncoloured()
    });
    if app.config.depth != Depth::None {
        let code = app.open.transcript.uncoloured().into_iter().chain(code_at_side.unwrap_or_default());
        app.effects.extend(code.map(|(lang, code)| Effect::Highlight { lang, code }));
    }
}

fn tick(app: &mut App) -> Redraw {
    drafts::rested(app);
    app.armed.take_if(|(_, until)| *until <= app.now);
    if end_hint(app, app.now) { Redraw::Now } else { Redraw::No }
}

/// Shown in the hint line, and in full if the transcript follows.
fn copied(app: &mut App, what: &str) {
    let short = what.split("; ").next().unwrap_or(what);
    hint(app, short, HINT_MS);
    if app.open.transcript.selected().is_none() && app.open.transcript.scroll() == Scroll::Follow {
        note(app, Level::Info, what);
    }
}

fn paste(app: &mut App, text: &str) {
    let asks = app.questions.front().is_some_and(|q| q.standing == Standing::Asks);
    if asks && !question::give_way(app) {
        return;
    }
    place_paste(app, text);
    question::passed_by(app);
}

fn place_paste(app: &mut App, text: &str) {
    if let Some(open) = &mut app.overlay {
        if open.query().is_some() {
            let line = sanitize_line(text.lines().next().unwrap_or(""));
            return open.edit_query(|query| query.push_str(&line));
        }
        if !overlay::give_way(app) {
            return;
        }
    }
    if app.searches() {
        return super::find::paste(app, &sanitize(text));
    }
    if !mention::look_up_pasted(app, text) {
        input::insert_pasted(app, text);
    }
}
