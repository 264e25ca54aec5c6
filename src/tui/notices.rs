//! What the runtime says, and what that changes. Foreign text is cleaned here, except message texts, which the
//! transcript cleans itself because it keeps the original for copying.

use super::acts::{hold, note, notify, offer, send};
use super::cleaned::{clean, document_row, line, opened, session_row, timeline_row};
use super::entry::grouped;
use super::keys::Action;
use super::list::List;
use super::map::MapView;
use super::mention;
use super::overlay::{Overlay, Page};
use super::pick::FilePick;
use super::several::Several;
use super::shelf::FanOutView;
use super::status::{duration, writing_speed};
use super::{App, Effect, Phase, Question, Redraw, SessionHead, cleaned, drafts, late, perform};
use crate::core::transcript::Role;
use crate::core::{Exit, percent};
use crate::runtime::protocol::{
    Activity, DocumentRow, GotoTarget, Level, LibraryName, Notice, Request, SaveState, SearchRow, SessionRow,
    SessionView, TimelineRow,
};
use crate::text::sanitize::in_markdown;

/// How long a hint stays, in milliseconds.
const HINT_MS: u64 = 4_000;

/// Decode speeds that are remembered.
const SPEEDS: usize = 42;

/// Takes one notice; says how soon it must be seen.
pub(super) fn notice(app: &mut App, notice: Notice, now: u64, effects: &mut Vec<Effect>) -> Redraw {
    if let Some(tour) = &mut app.tour {
        tour.told(&notice);
    }
    match notice {
        Notice::Ready(info) => {
            app.model = Some(info);
            Redraw::Now
        }
        Notice::Session(view) => {
            session(app, view, now, effects);
            match super::tabs::held(app) {
                Some(held) => self::notice(app, held, now, effects),
                None => Redraw::Now,
            }
        }
        Notice::Tree(tree) => {
            app.session.branch = tree.branch;
            app.session.timeline = tree.timeline.into_iter().map(timeline_row).collect();
            app.session.documents = tree.documents.into_iter().map(document_row).collect();
            app.session.map = tree.map;
            Redraw::Stream
        }
        Notice::Added(message) => {
            if message.role == Role::Document {
                app.reading_for_question = false;
            }
            app.transcript.add(message);
            Redraw::Now
        }
        Notice::Several(answers) => {
            app.popup = None;
            hidden(app);
            app.several = Some(Several::new(&answers));
            Redraw::Now
        }
        Notice::Delta { message, thinking, text } => {
            match app.several.as_mut().filter(|several| several.has(message)) {
                Some(several) => several.delta(message, thinking, &text),
                None => app.transcript.delta(message, thinking, &text),
            }
            Redraw::Stream
        }
        Notice::Finished(message) => {
            match app.several.as_mut().filter(|several| several.has(message.id)) {
                Some(several) => several.finish(&message),
                None => app.transcript.finish(message),
            }
            Redraw::Now
        }
        Notice::Acknowledged(count) => {
            // One that was sent a moment ago is not among those that were served before it came.
            app.served = count;
            app.waiting &= count < app.sent;
            app.answered &= count < app.sent;
            app.leads &= app.waiting;
            app.tabs.served(count);
            Redraw::No
        }
        Notice::Activity(activity) => self::activity(app, activity, now, effects),
        Notice::Background { serial, notice } => super::tabs::beside(app, serial, *notice, now, effects),
        Notice::Meters(meters) => {
            app.meters = meters;
            Redraw::Stream
        }
        Notice::Save(state) => {
            app.save = match state {
                SaveState::TextOnly(why) => SaveState::TextOnly(left_out(app, line(&why))),
                SaveState::NotSaved(why) => SaveState::NotSaved(line(&why)),
                SaveState::Saving => SaveState::Saving,
                other @ (SaveState::Empty | SaveState::Saved(_) | SaveState::Off) => {
                    app.left_out = None;
                    other
                }
            };
            Redraw::Now
        }
        Notice::Note(level, text) => {
            if level != Level::Info {
                mention::not_read(app, now);
                perform::not_led(app);
            }
            note(app, level, &text);
            Redraw::Now
        }
        Notice::Damage(text) => {
            note(app, Level::Warn, &text);
            Redraw::Now
        }
        Notice::Page { title, text } => {
            late::arrive(app, Overlay::Page(Page::new(line(&title), clean(&text))));
            Redraw::Now
        }
        Notice::Looked { number, passages, sentence, title, text } => {
            let mut page = Page::new(line(&title), clean(&text));
            (page.looked, page.passages, page.sentence) = (Some(number), passages, sentence);
            late::arrive(app, Overlay::Page(page));
            Redraw::Now
        }
        Notice::Why { number, title, text, rows } => {
            let mut page = Page::new(line(&title), clean(&text));
            (page.looked, page.passages) = (Some(number), rows.len());
            late::arrive(app, Overlay::Page(page));
            Redraw::Now
        }
        Notice::Map(map) => {
            late::arrive(app, Overlay::Map(MapView::new(map)));
            Redraw::Now
        }
        Notice::FanOut(shelf) => {
            app.waiting = false;
            let nothing_open = app.overlay.is_none();
            if let Some(Overlay::FanOut(view)) = late::find(app, |page| matches!(page, Overlay::FanOut(_))) {
                let next = FanOutView::new(shelf, Some(&*view));
                *view = next;
            } else if nothing_open || shelf.over {
                // Closed by the user, who has opened something else meanwhile: it comes back when it is complete.
                late::arrive(app, Overlay::FanOut(FanOutView::new(shelf, None)));
            }
            Redraw::Stream
        }
        Notice::Aside { question, text, done } => {
            let text = format!("**{}**\n\n{}", in_markdown(&line(&question)), clean(&text));
            let glyphs = app.config.glyphs;
            let goes_on = |page: &Overlay| matches!(page, Overlay::Aside { done: None, .. });
            if let Some(Overlay::Aside { page, done: was }) = late::find(app, goes_on) {
                page.set_text(text, glyphs);
                *was = done;
            } else if app.aside_dismissed {
                // Closed by the user: what still arrives is not wanted.
                app.aside_dismissed = done.is_none();
            } else {
                late::arrive(app, Overlay::Aside { page: Page::new("Aside (not kept)", text), done });
            }
            app.waiting = false;
            Redraw::Stream
        }
        Notice::Question { id, text, choices } => {
            (app.waiting, app.answered) = (false, false);
            app.questions.push_back(Question::of_desk(id, clean(&text), choices, None));
            Redraw::Now
        }
        Notice::Plan { id, text, choices, mut plan } => {
            (app.waiting, app.answered) = (false, false);
            for f in &mut plan.files {
                f.name = line(&f.name);
            }
            app.questions.push_back(Question::of_desk(id, clean(&text), choices, Some(FilePick::new(plan))));
            Redraw::Now
        }
        Notice::Input { text, editing } => {
            app.overlay = None;
            app.popup = None;
            if editing.is_some() {
                // Asked for by name: a draft goes to where Ctrl-Y finds it.
                app.composer.clear_to_cut();
            }
            if app.composer.recall(&clean(&text)) {
                app.editing = editing;
                if text.starts_with("/system ") {
                    let said = app.config.keys.does(Action::Send, "sets what stands in the input").unwrap_or_default();
                    offer(app, &said, Action::Editor, "opens it in your editor", now + HINT_MS);
                }
            } else {
                offer(app, "The question is set aside", Action::Yank, "brings it back", now + HINT_MS);
            }
            Redraw::Now
        }
        Notice::Draft(text) => {
            drafts::brought_back(app, &clean(&text), now);
            Redraw::Now
        }
        Notice::Prompts(prompts) => {
            app.history.earlier(prompts);
            Redraw::No
        }
        Notice::Titled(title) => {
            app.session.title = line(&title);
            Redraw::Stream
        }
        Notice::Named { name, opened } => {
            app.session.name = line(&name);
            super::tabs::named(app, cleaned::opened(opened));
            Redraw::Stream
        }
        Notice::Library(names) => {
            app.library = names.into_iter().map(|d| LibraryName { name: line(&d.name), ..d }).collect();
            Redraw::No
        }
        Notice::Sessions(rows) => {
            app.sessions = rows.clone();
            let rows = rows.into_iter().map(session_row).collect();
            let list = List::new(rows, |r: &SessionRow| format!("{} {}", r.name, r.title));
            late::arrive(app, Overlay::Sessions(list));
            Redraw::Now
        }
        Notice::Found { query, rows } => {
            let here = app.find_here.take().filter(|words| *words == query);
            let rows: Vec<SearchRow> = rows
                .into_iter()
                .map(|r| SearchRow { snippet: line(&r.snippet), session: line(&r.session), ..r })
                .filter(|r| here.is_none() || r.session == app.session.name)
                .collect();
            let list = List::new(rows, |r: &SearchRow| r.snippet.clone());
            late::arrive(app, Overlay::Found { query: line(&query), list });
            Redraw::Now
        }
        Notice::Timeline(rows) => {
            let rows: Vec<TimelineRow> = rows.into_iter().map(timeline_row).collect();
            let head = rows.iter().position(|r| r.head).unwrap_or(rows.len());
            let mut list = List::new(rows, |r: &TimelineRow| r.title.clone());
            list.select(head);
            late::arrive(app, Overlay::Timeline(list));
            Redraw::Now
        }
        Notice::Documents { title, rows } => {
            let rows = rows.into_iter().map(document_row).collect();
            let list = List::new(rows, |r: &DocumentRow| r.name.clone());
            late::arrive(app, Overlay::Documents { title: line(&title), list });
            Redraw::Now
        }
        Notice::Display(display) => {
            super::themes::display(app, &display, effects);
            Redraw::Now
        }
        Notice::Bye { farewell, unsaved } => {
            app.phase = Phase::Ended;
            effects.push(Effect::Exit {
                exit: unsaved.map_or(Exit::Ok, |u| u.exit),
                farewell: farewell.map(|f| clean(&f)),
            });
            Redraw::Now
        }
        Notice::Fatal { error, exit } => {
            app.phase = Phase::Ended;
            effects.push(Effect::Exit { exit, farewell: Some(clean(&error)) });
            Redraw::Now
        }
    }
}

/// State is not kept. It may be so with each answer from now on: why is said once, the header goes on saying that it is so.
fn left_out(app: &mut App, why: String) -> String {
    if app.left_out.as_ref() != Some(&why) {
        note(app, Level::Warn, &format!("Text is saved, its state is not: {}.", why.trim_end_matches('.')));
        app.left_out = Some(why.clone());
    }
    why
}

fn session(app: &mut App, view: SessionView, now: u64, effects: &mut Vec<Effect>) {
    let place = app.tabs.place();
    let led_away = perform::led_away(app, &view);
    super::tabs::arrived(app, view.serial, opened(view.opened), now, effects);
    if app.tabs.place() != place {
        late::session_left(app);
    }
    if led_away {
        hold(app);
    }
    app.leads = false;
    app.session = SessionHead {
        name: line(&view.name),
        title: line(&view.title),
        branch: view.branch,
        view_only: view.view_only,
        timeline: view.timeline.into_iter().map(timeline_row).collect(),
        documents: view.documents.into_iter().map(document_row).collect(),
        map: view.map,
    };
    // One of the answers goes on, and is in the transcript.
    app.several = None;
    // Places in another conversation mean nothing in this one.
    app.find = None;
    app.selection = None;
    app.transcript.replace(view.messages, app.requests);
    if let Some((_, id)) = app.show_after_open.take_if(|(name, _)| *name == app.session.name)
        && !app.transcript.show(id)
    {
        // On another branch of that session. What goes on in it and what is queued there was asked on this one.
        match app.waiting && !app.queue.held && !app.queue.lines.is_empty() {
            true => note(app, Level::Warn, "That is on another branch: /timeline leads there once all is done here"),
            false => send(app, Request::Goto(GotoTarget::Message(id)), effects),
        }
    }
}

fn activity(app: &mut App, activity: Activity, now: u64, effects: &mut Vec<Effect>) -> Redraw {
    let (was_busy, was_beside) = (app.busy(), app.activity.is_beside());
    let stopping = app.activity == Activity::Stopping;
    let (mut before, mut speed) = (String::new(), String::new());
    match &activity {
        Activity::Answering { tokens_per_s } | Activity::Thinking { tokens_per_s, .. } if *tokens_per_s > 0.0 => {
            speed = writing_speed(app, *tokens_per_s);
            if app.speeds.len() == SPEEDS {
                app.speeds.pop_front();
            }
            app.speeds.push_back(*tokens_per_s);
        }
        Activity::Reading(r) if r.total > 0 => {
            before = format!("reading {} tokens  {}%", grouped(r.total), percent(r.done, r.total));
        }
        Activity::Restoring { .. } => before = "restoring".into(),
        _ => {}
    }
    app.transcript.set_doing(&before, &speed);
    if let Activity::Thinking { ms, tokens, .. } = activity {
        app.transcript.set_thought(ms, tokens);
    }
    let (rests, beside) = (activity.rests(), activity.is_beside());
    // A stop was asked for: reports from before it arrived must not take the word back.
    if !stopping || rests {
        app.activity = cleaned::activity(activity);
    }
    if app.activity.is_loading() {
        hidden(app);
    }
    if rests {
        app.transcript.close_open();
        if was_busy || was_beside && !beside {
            became_idle(app, now, effects);
        }
        if beside {
            app.busy_since.get_or_insert(now);
        }
        Redraw::Now
    } else {
        app.busy_since.get_or_insert(now);
        Redraw::Stream
    }
}

/// Something else stands in the transcript's place from now on: keys for what is selected in it would do what nobody sees.
fn hidden(app: &mut App) {
    app.transcript.deselect();
    app.find = None;
    app.selection = None;
}

/// The runtime has become idle: somebody who looked away is told.
fn became_idle(app: &mut App, now: u64, effects: &mut Vec<Effect>) {
    let took = app.busy_since.take().map_or(0, |since| now.saturating_sub(since));
    if !app.queue.lines.is_empty() {
        return;
    }
    let name = if app.session.name.is_empty() { "sala-chat" } else { &app.session.name };
    let what = if app.questions.is_empty() { "ready" } else { "waits for a decision" };
    let text = format!("{name}: {what} after {}", duration(took as f64 / 1e3));
    notify(app, took, text, effects);
}
