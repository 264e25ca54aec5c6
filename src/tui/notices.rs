//! Applies notices of the runtime.

use super::acts::{HINT_MS, answers_nothing, hold, note, notify, offer, refuse_line, send};
use super::entry::grouped;
use super::keys::Action;
use super::lists::{self, Item, Kind, ListView, sessions};
use super::map;
use super::mention;
use super::overlay::{self, Overlay, arrive};
use super::page::{About, Page};
use super::pick::FilePick;
use super::status::writing_speed;
use super::{App, Asker, Effect, Phase, Question, Redraw, drafts, perform};
use crate::core::sanitize::{in_markdown, sanitize_line};
use crate::core::{Exit, percent};
use crate::runtime::protocol::{Activity, GotoTarget, Level, Notice, Request, SaveState, SessionView};

pub(super) fn notice(app: &mut App, notice: Notice) -> Redraw {
    let mut redraw = match &notice {
        Notice::Delta { .. } | Notice::FanOut(_) | Notice::Aside { .. } => Redraw::Stream,
        notice if answers_nothing(notice) => Redraw::Stream,
        _ => Redraw::Now,
    };
    match &notice {
        Notice::Note(Level::Warn | Level::Error, text) => {
            if let Some(attempt) = &mut app.attempt {
                let before = attempt.warning.take().map_or(String::new(), |before| format!("{before} "));
                attempt.warning = Some(format!("{before}{text}"));
            }
        }
        Notice::Activity(Activity::Busy { .. }) => {}
        notice if !answers_nothing(notice) => app.attempt = None,
        _ => {}
    }
    if let Some(tour) = &mut app.tour {
        tour.notified(&notice);
    }
    match notice {
        Notice::Ready(info) => app.model = Some(info),
        Notice::Session(view) => {
            session(app, view);
            if let Some(held) = app.open.held.take() {
                self::notice(app, held);
            }
        }
        Notice::Tree(tree) => app.open.view.tree = tree,
        Notice::Several(answers) => app.open.transcript.add_answers(answers),
        Notice::Added(_) | Notice::Delta { .. } | Notice::Finished(_) => app.open.take_message(notice),
        Notice::Acknowledged(count) => {
            app.served = count;
            app.waiting &= count < app.sent;
            app.answered &= count < app.sent;
            app.leads &= app.waiting;
            app.open.served(count);
            sessions::acknowledged(app, count);
        }
        Notice::Activity(activity) => redraw = self::activity(app, activity),
        Notice::Background { serial, notice } => redraw = super::open::background(app, serial, *notice),
        Notice::Meters(meters) => app.meters = meters,
        Notice::Save(state) => {
            match &state {
                SaveState::TextOnly(why) => left_out(app, why),
                SaveState::Empty | SaveState::Saved(_) | SaveState::Off => app.left_out = None,
                SaveState::NotSaved(_) | SaveState::Saving => {}
            }
            app.save = state;
        }
        Notice::Note(level, text) => {
            if level != Level::Info {
                mention::not_read(app);
                perform::not_led(app);
            }
            note(app, level, &text);
            sessions::noted(app, level, &text);
        }
        Notice::Damage(text) => note(app, Level::Warn, &text),
        Notice::Page { title, text } => arrive(app, Overlay::Page(Page::new(title, text, About::Text))),
        Notice::Looked { number, passages, sentence, title, text } => {
            let about = About::Answer { number, passages, sentence };
            arrive(app, Overlay::Page(Page::new(title, text, about)));
        }
        Notice::Why { number, title, text, rows } => {
            let about = About::Answer { number, passages: rows.len(), sentence: (0, 0) };
            arrive(app, Overlay::Page(Page::new(title, text, about)));
        }
        Notice::Map(context) => {
            let rows = map::rows(&context);
            let first = rows.iter().position(|row| matches!(row.opens, Some(Request::Look { .. }))).unwrap_or(0);
            let mut view = ListView::new(Kind::Map, "Context", rows.into_iter().map(Item::Place));
            view.select(first);
            arrive(app, Overlay::List(view));
        }
        Notice::FanOut(fan_out) => {
            app.waiting = false;
            let nothing_open = app.overlay.is_none();
            let is_it = |page: &Overlay| matches!(page, Overlay::List(view) if view.kind == Kind::Answers);
            if let Some(Overlay::List(view)) = overlay::find(app, is_it) {
                *view = lists::answers(fan_out, Some(&*view));
            } else if nothing_open || fan_out.over {
                // A table that the user closed opens again when it is complete.
                arrive(app, Overlay::List(lists::answers(fan_out, None)));
            }
        }
        Notice::Aside { question, text, done } => {
            let text = format!("**{}**\n\n{}", in_markdown(&sanitize_line(&question)), text);
            let about = About::Aside { done: done.is_some() };
            let is_it = |page: &Overlay| matches!(page, Overlay::Page(page) if page.is_written());
            if let Some(Overlay::Page(page)) = overlay::find(app, is_it) {
                page.set_text(text);
                page.about = about;
            } else if app.aside_dismissed {
                app.aside_dismissed = done.is_none();
            } else {
                arrive(app, Overlay::Page(Page::new("Aside (not kept)", text, about)));
            }
            app.waiting = false;
        }
        Notice::Question { id, text, choices, plan } => {
            (app.waiting, app.answered) = (false, false);
            let question = Question::new(Asker::Runtime(id), text, choices);
            app.questions.push_back(Question { pick: plan.map(FilePick::new), ..question });
        }
        Notice::Input { text, editing } => {
            app.overlay = None;
            app.popup = None;
            if editing.is_some() {
                // Ctrl-Y brings the draft back.
                app.open.composer.clear_to_cut();
            }
            if app.open.composer.recall(&text) {
                app.open.editing = editing;
                if text.starts_with("/system ") {
                    let sets = app.config.keys.does(Action::Send, "sets the text in the input").unwrap_or_default();
                    offer(app, &sets, Action::Editor, "opens it in your editor", HINT_MS);
                }
            } else {
                offer(app, "The question is set aside", Action::Yank, "brings it back", HINT_MS);
            }
        }
        Notice::Draft(text) => drafts::brought_back(app, &text),
        Notice::Prompts(prompts) => app.history.earlier(prompts),
        Notice::Titled(title) => app.open.view.title = title,
        Notice::Named { name, opened } => {
            app.open.view.name = name;
            app.open.set_list(opened);
        }
        Notice::Library(names) => app.library = names,
        Notice::Sessions(rows) => {
            if let Some(view) = sessions::arrived(app, rows) {
                arrive(app, Overlay::List(view));
            }
        }
        Notice::Found { query, rows } => {
            let here = app.find_here.take().filter(|words| *words == query);
            let name = app.open.view.name.clone();
            let rows = rows.into_iter().filter(|r| here.is_none() || r.session == name).map(Item::Hit);
            let view = ListView::new(Kind::Found, format!("Found for \"{query}\""), rows);
            arrive(app, Overlay::List(view));
        }
        Notice::Timeline(rows) => {
            let head = rows.iter().position(|r| r.head).unwrap_or(rows.len());
            let mut view = ListView::new(Kind::Timeline, "Timeline", rows.into_iter().map(Item::Turn));
            view.select(head);
            arrive(app, Overlay::List(view));
        }
        Notice::Documents { title, rows } => {
            let rows = rows.into_iter().map(Item::Document);
            arrive(app, Overlay::List(ListView::new(Kind::Documents, title, rows)));
        }
        Notice::Display(display) => super::themes::display(app, &display),
        Notice::Bye { farewell, unsaved } => {
            app.phase = Phase::Ended;
            app.effects.push(Effect::Exit { exit: unsaved.map_or(Exit::Ok, |u| u.exit), farewell });
        }
        Notice::Fatal { error, exit } => {
            app.phase = Phase::Ended;
            app.effects.push(Effect::Exit { exit, farewell: Some(error) });
        }
    }
    if app.attempt.is_some() && app.served >= app.sent && app.activity == Activity::Idle {
        refused(app);
        redraw = Redraw::Now;
    }
    redraw
}

/// The runtime has only warned about the last command: the input shows the reason and receives the command again.
fn refused(app: &mut App) {
    let Some(super::acts::Attempt { line, warning: Some(why) }) = app.attempt.take() else { return };
    app.open.transcript.take_notes(app.requests);
    refuse_line(app, &line, &why);
}

/// Reports the reason once; the header keeps showing the state.
fn left_out(app: &mut App, why: &str) {
    if app.left_out.as_deref() != Some(why) {
        note(app, Level::Warn, &format!("Text is saved, its state is not: {}.", why.trim_end_matches('.')));
        app.left_out = Some(why.to_owned());
    }
}

fn session(app: &mut App, mut view: SessionView) {
    let led_away = perform::led_away(app, &view);
    super::open::arrived(app, view.serial, std::mem::take(&mut view.opened));
    if led_away {
        hold(app);
    }
    app.leads = false;
    let messages = std::mem::take(&mut view.messages);
    let open = &mut *app.open;
    open.view = view;
    open.find = None;
    open.transcript.replace(messages, app.requests);
    if let Some((_, id)) = app.show_after_open.take_if(|(name, _)| *name == app.open.view.name)
        && !app.open.transcript.show(id)
    {
        match app.waiting && !app.open.queue.held && !app.open.queue.lines.is_empty() {
            true => {
                note(app, Level::Warn, "That is on another branch; /timeline opens it when the current work is done")
            }
            false => send(app, Request::Goto(GotoTarget::Message(id))),
        }
    }
}

fn activity(app: &mut App, activity: Activity) -> Redraw {
    let was_busy = app.busy();
    let stopping = app.activity == Activity::Stopping;
    let (mut before, mut speed) = (String::new(), String::new());
    match &activity {
        Activity::Answering { tokens_per_s } | Activity::Thinking { tokens_per_s, .. } if *tokens_per_s > 0.0 => {
            speed = writing_speed(app, *tokens_per_s);
        }
        Activity::Reading(r) if r.total > 0 => {
            before = format!("reading {} tokens  {}%", grouped(r.total), percent(r.done, r.total));
        }
        Activity::Restoring { .. } => before = "restoring".into(),
        _ => {}
    }
    app.open.transcript.set_doing(&before, &speed);
    if let Activity::Thinking { ms, tokens, .. } = activity {
        app.open.transcript.set_thought(ms, tokens);
    }
    let idle = activity == Activity::Idle;
    // Notices sent before the stop must not undo it.
    if !stopping || idle {
        app.activity = activity;
    }
    if app.activity.is_loading() {
        app.open.forget_places();
    }
    if idle {
        app.open.transcript.close_open();
        if was_busy {
            became_idle(app);
        }
        Redraw::Now
    } else {
        app.open.since.get_or_insert(app.now);
        Redraw::Stream
    }
}

fn became_idle(app: &mut App) {
    let took = app.open.since.take().map_or(0, |since| app.now.saturating_sub(since));
    if !app.open.queue.lines.is_empty() {
        return;
    }
    let name = if app.open.view.name.is_empty() { "sala-chat".into() } else { app.open.view.name.clone() };
    let what = if app.questions.is_empty() { "ready" } else { "waits for a decision" };
    notify(app, &name, what, took);
}
