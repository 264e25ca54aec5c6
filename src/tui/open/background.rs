//! Notices about sessions off screen.

use super::super::acts::notify;
use super::super::{App, Redraw};
use super::{Mark, called};
use crate::core::percent;
use crate::core::transcript::{Finish, Role};
use crate::runtime::protocol::{Activity, Level, Notice};

pub(in super::super) fn background(app: &mut App, serial: u64, notice: Notice) -> Redraw {
    if let Notice::Session(view) = &notice {
        app.open.set_list(view.opened.clone());
    }
    let requests = app.requests;
    let Some(away) = app.open.off_screen(serial) else { return Redraw::Now };
    let before = away.mark;
    match notice {
        Notice::Session(view) => away.transcript.replace(view.messages, requests),
        Notice::Note(level, text) => {
            away.transcript.note(level, &text, requests);
            away.news = true;
            away.queue.held |= level != Level::Info && std::mem::take(&mut away.reading);
            if level == Level::Error {
                away.mark = Mark::Failed;
            }
        }
        Notice::Activity(activity) => {
            // The file that the first queued question is about was not read.
            away.queue.held |= activity == Activity::Idle && std::mem::take(&mut away.reading);
            away.mark = match activity {
                Activity::Idle if away.mark == Mark::Failed => Mark::Failed,
                Activity::Idle if away.news => Mark::Done,
                Activity::Idle => Mark::Quiet,
                Activity::Reading(r) if r.total > 0 => Mark::Reading(percent(r.done, r.total)),
                _ => Mark::Working,
            };
            if away.mark.at_work() {
                away.since.get_or_insert(app.now);
            } else {
                away.transcript.close_open();
            }
        }
        Notice::Question { .. } => away.mark = Mark::Asks,
        Notice::Input { text, editing } => {
            match &mut away.refused {
                // Separate from the cut buffer, which another session may overwrite.
                _ if away.composer.is_empty() => {
                    away.composer.recall(&text);
                    away.editing = editing;
                }
                Some(refused) => *refused = format!("{refused}\n\n{text}"),
                None => away.refused = Some(text),
            }
        }
        page @ (Notice::Page { .. }
        | Notice::Looked { .. }
        | Notice::Why { .. }
        | Notice::Map(_)
        | Notice::FanOut(_)
        | Notice::Aside { done: Some(_), .. }) => away.held = Some(page),
        page @ (Notice::Found { .. } | Notice::Timeline(_) | Notice::Sessions(_)) => {
            (away.held, away.news) = (Some(page), true);
        }
        Notice::Added(_) | Notice::Delta { .. } | Notice::Finished(_) => {
            if let Notice::Finished(message) = &notice {
                away.news = true;
                if message.role == Role::Assistant && message.meta.finish == Some(Finish::Failed) {
                    away.mark = Mark::Failed;
                }
            }
            away.take_message(notice);
        }
        _ => return Redraw::No,
    }
    let mark = away.mark;
    let what = match mark {
        Mark::Asks if before != Mark::Asks => "waits for a decision",
        Mark::Failed if before.at_work() => "failed",
        Mark::Done if before.at_work() => "ready",
        _ => "",
    };
    if !what.is_empty() {
        let took = away.since.take().map_or(0, |since| app.now.saturating_sub(since));
        let name = called(&away.name).to_owned();
        notify(app, &name, what, took);
    }
    if mark == before { Redraw::Stream } else { Redraw::Now }
}
