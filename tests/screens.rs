//! Whole screens, driven through `update` as the program does it: keys and notices in, a picture out. Every visible
//! change shows up as a changed picture in `tests/snapshots`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "screens/stage.rs"]
mod stage;

use sala_chat::protocol::desk::{Activity, FileProgress, FileState, Notice, ReadingProgress};
use sala_chat::transcript::{MessageId, Role};
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
    insta::with_settings!({ omit_expression => true, prepend_module_to_snapshot => false, snapshot_path => "snapshots" }, {
        insta::assert_snapshot!(name, stage.screen());
    });
}

#[test]
fn empty_demo_session_says_how_to_get_the_model() {
    pictures("empty_demo", |w, h| Stage::new(w, h).ready(demo()));
}

#[test]
fn conversation_with_thoughts_code_and_table() {
    pictures("conversation", open);
    picture("conversation_ascii_80x24", &mut conversing(Stage::ascii(80, 24)));
}

#[test]
fn answer_arriving_with_a_queued_question() {
    pictures("answering", |w, h| {
        let mut s = open(w, h);
        s.type_text("Where is it told?").press("enter");
        s.tell(Notice::Added(message(4, Role::User, "Where is it told?")));
        s.tell(Notice::Added(message(5, Role::Assistant, "")));
        s.tell(Notice::Activity(Activity::Answering { tokens_per_s: 96.4 }));
        s.tell(Notice::Delta { message: MessageId(5), thinking: false, text: "In the **last** part. Two passages refer back to it: the ev".into() });
        s.type_text("and compare this with the film").press("enter");
        s.type_text("half a question");
        s
    });
}

fn loading(w: u16, h: u16) -> Stage {
    let mut s = Stage::new(w, h).ready(gpu());
    let file = |name: &str, tokens, state| FileProgress { name: name.into(), tokens, state };
    s.tell(Notice::Activity(Activity::Reading(ReadingProgress {
        files: vec![
            file("01-contract.pdf", 38_112, FileState::FromLibrary(0.1)),
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
fn documents_being_read() {
    pictures("loading", loading);
}
