//! Whole screens, driven through `update` as the program does it: keys and notices in, a picture out. Every visible
//! change shows up as a changed picture in `tests/snapshots`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod drafts;
mod edits;
mod keys;
mod leaving;
mod lists;
mod many_answers;
mod pages;
mod questions;
mod several;
mod stage;
mod texts;
mod typing;
mod walk;

use sala_chat::engine::protocol::ModelInfo;
use sala_chat::runtime::protocol::{
    Activity, FileProgress, FileState, Notice, ReadingProgress, SaveState, SessionView,
};
use sala_chat::tui::options::{Depth, UiConfig};
use sala_chat::tui::tour::Tour;
use stage::*;

/// Sizes every layout is looked at in.
const SIZES: [(u16, u16); 4] = [(60, 15), (80, 24), (120, 40), (160, 50)];

/// One picture per size.
fn pictures(name: &str, scene: impl Fn(u16, u16) -> Stage) {
    for (width, height) in SIZES {
        picture(&format!("{name}_{width}x{height}"), &mut scene(width, height));
    }
}

fn picture(name: &str, stage: &mut Stage) {
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!(name, stage.screen());
    });
}

#[test]
fn empty_demo_session_shows_how_to_get_the_model() {
    pictures("empty_demo", |w, h| Stage::new(w, h).ready(demo()));
}

#[test]
fn the_panel_names_a_server_without_what_it_computes_in() {
    let server = ModelInfo { name: "mock".into(), device: "http://127.0.0.1:9/v1".into(), ..ModelInfo::default() };
    let screen = Stage::new(160, 50).ready(server).screen();
    assert!(screen.contains("mock, http://127.0.0.1:9/v1"), "{screen}");
}

#[test]
fn the_tour_shows_its_step_above_the_line_it_enters() {
    pictures("tour", |w, h| {
        let mut s = Stage::new(w, h);
        (s.app.tour, s.app.toured) = (Some(Tour::default()), true);
        s.ready(demo())
    });
    pictures("tour_end", |w, h| {
        let (mut s, mut last, mut tour) = (Stage::new(w, h), Tour::default(), Tour::default());
        while let Some(line) = tour.line() {
            last = tour.clone();
            tour.entered(&line);
            tour = tour.restarted();
        }
        (s.app.tour, s.app.toured) = (Some(last), true);
        s.ready(demo())
    });
    // Saves of the tour are temporary, during it and afterwards.
    let mut s = Stage::new(80, 24).ready(demo());
    s.app.toured = true;
    for state in [SaveState::Saving, SaveState::Saved(TIME)] {
        let header = s.notify(Notice::Save(state)).screen().lines().next().unwrap().to_owned();
        assert!(header.ends_with("not kept"), "{header}");
    }
}

fn loading(w: u16, h: u16) -> Stage {
    let mut s = Stage::new(w, h).ready(gpu());
    let file = |name: &str, tokens, state| FileProgress { name: name.into(), tokens, state };
    s.notify(Notice::Activity(Activity::Reading(ReadingProgress {
        files: vec![
            file("01-contract.pdf", 38_112, FileState::FromLibrary),
            file("02-annexes.pdf", 51_904, FileState::Done(6.0)),
            file("03-mail.mbox", 210_377, FileState::Reading(86_255)),
            file("04-notes.md", 4_120, FileState::Waiting),
            file("05-invoices.csv", 208_368, FileState::Waiting),
        ],
        done: 176_271,
        total: 512_881,
        tokens_per_s: 8_630.0,
        elapsed_ms: 16_000.0,
        left_after: 531_000,
    })));
    s.type_text("What does annex C say about the notice period?");
    s
}

#[test]
fn full_disk_is_a_banner_in_words() {
    let full = SaveState::NotSaved(
        "since #9: disk full on /home (0 B free). State saving is off. Free space, then it continues by itself.".into(),
    );
    pictures("disk_full", |w, h| {
        let mut s = open(w, h);
        s.notify(Notice::Save(full.clone()));
        s
    });
}

#[test]
fn the_title_shows_the_state_of_background_sessions() {
    for (width, height) in [(80, 24), (160, 50)] {
        let mut s = several::left_at_work(width, height);
        let background = |notice| Notice::Background { serial: 1, notice: Box::new(notice) };
        let reading = ReadingProgress { done: 41, total: 100, ..ReadingProgress::default() };
        s.notify(background(Notice::Activity(Activity::Reading(reading))));
        picture(&format!("at_work_{width}x{height}"), &mut s);
        s.notify(background(Notice::Finished(answer(21, "Said elsewhere."))));
        s.notify(background(Notice::Activity(Activity::Idle)));
        let title = s.screen().lines().next().unwrap_or("").to_string();
        assert!(title.contains(if width > 100 { "1 war-and-peace *" } else { "[2/3]  1*" }), "{title}");
        // The result of a search in the session that was left is there on return.
        s.notify(background(Notice::Activity(Activity::Busy { what: "searching".into() })));
        s.notify(background(Notice::Found { query: "prince".into(), rows: Vec::new() }));
        s.notify(background(Notice::Activity(Activity::Idle)));
        s.press("alt-1").notify(Notice::Session(opened(1)));
        assert!(s.screen().contains("Found for \"prince\""), "{}", s.screen());
    }
}

#[test]
fn a_window_too_small_shows_the_size_it_needs() {
    picture("too_small_29x14", &mut open(29, 14));
    picture("too_small_40x7", &mut open(40, 7));
    picture("too_small_20x5", &mut open(20, 5));
    // Nothing to draw on is no failure.
    for (width, height) in [(1, 1), (2, 40), (80, 1)] {
        assert!(open(width, height).screen().len() < 1000);
    }
}

#[test]
fn without_colour_nothing_is_coloured() {
    let mut s = conversing(Stage::with(UiConfig { depth: Depth::None, ..UiConfig::default() }, 80, 24));
    s.notify(Notice::Save(SaveState::NotSaved("disk full".into())));
    assert!(!s.styles().contains('c'), "no colour may be left");
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false, snapshot_path => "../snapshots" }, {
        insta::assert_snapshot!("no_colour_styles_80x24", s.styles());
    });
}

#[test]
fn a_session_that_is_undone_to_its_beginning_is_a_saved_one() {
    let mut s = open(80, 24);
    s.notify(Notice::Session(SessionView { messages: Vec::new(), ..conversation() }));
    let screen = s.screen();
    assert!(screen.contains("saved 14:01") && !screen.contains("not saved yet"), "{screen}");
    // A new one is none.
    s.notify(Notice::Session(SessionView::default()));
    assert!(s.screen().contains("not saved yet"), "{}", s.screen());
}
