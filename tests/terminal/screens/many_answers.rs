//! Several answers: to one question, and of all documents of the library.

use sala_chat::core::transcript::{Finish, MessageId, Passage};
use sala_chat::runtime::protocol::{Activity, Choice, FanOut, FanOutRow, Notice, Request, SessionView};
use sala_chat::tui::Event;

use super::stage::*;

/// So many answers are being written.
fn several(s: &mut Stage, count: i64) {
    s.notify(Notice::Several((1..=count).map(|n| (MessageId(10 + n), Some(40 + n as u64))).collect()));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 212.4 }));
    s.sent();
}

fn delta(s: &mut Stage, id: i64, thinking: bool, text: &str) {
    s.notify(Notice::Delta { message: MessageId(id), thinking, text: text.into() });
}

/// All are written, and the user chooses one.
fn choice_of(s: &mut Stage, count: i64) {
    for n in 1..=count {
        s.notify(Notice::Finished(answer(10 + n, &format!("Answer {n} says so."))));
    }
    let keys = ('1'..='9').take(count as usize);
    let mut choices: Vec<Choice> = keys.map(|key| Choice { key, label: String::new() }).collect();
    choices.push(Choice { key: '\x1b', label: "keep the last; /branch shows the others".into() });
    s.notify(Notice::Activity(Activity::Idle));
    s.notify(Notice::Question { id: 7, text: "Which answer continues the conversation?".into(), choices, plan: None });
    s.sent();
}

#[test]
fn several_answers_are_written_below_each_other_and_one_is_chosen() {
    for (w, h) in [(80, 24), (160, 50)] {
        let mut s = open(w, h);
        several(&mut s, 3);
        delta(&mut s, 11, false, "It is **Natasha** who breaks it to him.");
        delta(&mut s, 12, true, "Let me see");
        let screen = s.screen();
        let head = |n: u64| screen.lines().find(|l| l.contains(&format!("sala  answer {n}"))).unwrap();
        assert!(head(1).contains("answering") && head(1).contains("seed 41"), "{screen}");
        assert!(head(2).contains("thinking") && head(3).contains("seed 43"), "{screen}");
        assert!(screen.contains("It is Natasha who") && !head(3).contains("t/s"), "{screen}");
        choice_of(&mut s, 3);
        let screen = s.screen();
        assert!(screen.contains("Which answer continues the conversation?"), "{screen}");
        assert!(screen.contains("Esc keep the last") && screen.contains("Answer 3 says so."), "{screen}");
        s.press("2");
        assert_eq!(s.sent(), [Request::Choose { question: 7, key: '2' }]);
        let mut view = conversation();
        view.messages.push(answer(12, "Answer 2 says so."));
        s.notify(Notice::Session(SessionView { tree: branch(2, 3), ..view }));
        let screen = s.screen();
        assert!(screen.contains("Answer 2 says so.") && !screen.contains("sala  answer"), "{screen}");
        assert!(!screen.contains("Answer 1 says so."), "{screen}");
    }
    // Esc stops what is being written; what there is can still be chosen from.
    let mut s = open(80, 24);
    several(&mut s, 2);
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    assert!(s.screen().contains("sala  answer 2"), "{}", s.screen());
}

#[test]
fn every_answer_and_every_choice_is_reached_in_a_small_window() {
    for (width, height) in [(60, 15), (30, 8)] {
        let mut s = open(width, height);
        several(&mut s, 9);
        s.type_text("and then?").press("enter");
        choice_of(&mut s, 9);
        s.event(Event::Frame);
        let screen = s.screen();
        let keys: String = screen.split("conversation?").nth(1).unwrap_or_default().to_owned();
        assert!(height < 15 || (1..=9).all(|n| keys.contains(&n.to_string())), "{screen}");
        // They can be looked at while one is to be chosen.
        for n in (1..=9).rev() {
            let wanted = format!("Answer {n} says so.");
            let seen = (0..9).any(|_| s.screen().contains(&wanted) || s.press("pgup").screen().contains(&wanted));
            assert!(height < 15 || seen, "{n}: {}", s.screen());
        }
        assert_eq!(s.sent(), []);
        s.press("9");
        assert_eq!(s.sent(), [Request::Choose { question: 7, key: '9' }]);
    }
}

#[test]
fn the_choice_of_an_answer_is_between_answers_and_queue() {
    for (width, height) in super::SIZES.into_iter().chain([(80, 15)]) {
        for n in [2, 3, 5, 9] {
            let mut s = open(width, height);
            several(&mut s, n);
            choice_of(&mut s, n);
            let check = |screen: &str, waiting: usize| {
                let lines: Vec<&str> = screen.lines().collect();
                let first = lines.iter().position(|l| l.contains("Which answer continues the conversation?")).unwrap();
                let last = usize::from(height) - 5 - waiting;
                let esc = lines[first + 1..=last].iter().any(|l| l.contains(" Esc"));
                assert!(first == last || esc && !lines[last].trim().is_empty(), "{n}: {screen}");
                // The question covers no text.
                assert!(lines[..first].iter().any(|l| l.contains(&format!("Answer {n} says so."))), "{n}: {screen}");
            };
            let screen = s.screen();
            check(&screen, 0);
            assert_eq!(s.screen(), screen, "it is drawn as it was laid out from the first frame on");
            s.type_text("and then?");
            s.press("enter");
            let screen = s.screen();
            assert!(screen.contains("queued: \"and then?\""), "{screen}");
            check(&screen, 1);
        }
    }
}

#[test]
fn typing_continues_below_several_answers() {
    let mut s = open(80, 24);
    several(&mut s, 2);
    s.type_text("abc q j");
    let screen = s.screen();
    assert!(screen.contains("> abc q j\n") && screen.contains("sala  answer 2"), "{screen}");
    assert!(screen.ends_with("caret 9,21\n"), "{screen}");
    // It waits for its turn, in sight.
    s.press("enter");
    let screen = s.screen();
    assert!(screen.contains("queued: \"abc q j\"") && screen.contains("sala  answer 2"), "{screen}");
    // A page lies over them and takes nothing away.
    s.type_text("/keys").press("enter");
    delta(&mut s, 12, false, "So it is.");
    assert!(!s.screen().contains("So it is."));
    assert!(s.press("esc").screen().contains("So it is."));
    choice_of(&mut s, 2);
    s.event(Event::Frame).type_text(" 1 2");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], " 1 2"), "a number behind a letter is no choice");
    s.press("backspace backspace backspace backspace 2");
    assert_eq!(s.sent(), [Request::Choose { question: 7, key: '2' }]);
}

#[test]
fn several_answers_return_with_their_session() {
    let mut s = super::several::left_at_work(80, 24);
    let back = |s: &mut Stage| {
        s.press("alt-1").notify(Notice::Session(opened(1)));
        several(s, 2);
        delta(s, 11, false, "So far.");
    };
    back(&mut s);
    s.press("alt-2").notify(Notice::Session(opened(2))).notify(Notice::Activity(Activity::Idle));
    super::several::background(&mut s, 1, Notice::Finished(answer(12, "Done meanwhile.")));
    assert!(!s.screen().contains("So far."), "{}", s.screen());
    back(&mut s);
    s.notify(Notice::Finished(answer(12, "Done meanwhile.")));
    let screen = s.screen();
    assert!(["So far.", "Done meanwhile."].iter().all(|text| screen.matches(text).count() == 1), "{screen}");
    assert_eq!(screen.matches("sala  answer").count(), 2, "{screen}");
}

#[test]
fn a_line_sent_during_the_choice_of_an_answer_waits() {
    let mut s = open(80, 24);
    s.notify(Notice::Several(vec![(MessageId(11), None), (MessageId(12), None)]));
    let choices = [('1', ""), ('2', ""), ('\x1b', "keep the last")];
    let choices = choices.map(|(key, label)| Choice { key, label: label.into() }).to_vec();
    s.notify(Notice::Activity(Activity::Idle)).notify(Notice::Question {
        id: 7,
        text: "Which goes on?".into(),
        choices,
        plan: None,
    });
    s.sent();
    s.event(Event::Frame).type_text("typed while choosing").press("enter");
    assert_eq!(s.sent(), []);
    s.press("1").notify(Notice::Session(SessionView { tree: branch(1, 2), ..conversation() }));
    assert_eq!(s.sent(), [Request::Choose { question: 7, key: '1' }]);
    s.notify(Notice::Activity(Activity::Idle));
    assert_eq!(s.sent(), [Request::Ask("typed while choosing".into())]);
    // A command is one here too.
    s.notify(Notice::Several(vec![(MessageId(21), None), (MessageId(22), None)]))
        .notify(Notice::Activity(Activity::Idle));
    let choices = vec![Choice { key: '1', label: String::new() }];
    s.notify(Notice::Question { id: 8, text: "Which goes on?".into(), choices, plan: None });
    s.event(Event::Frame).type_text("/new").press("enter");
    assert_eq!(s.sent(), [Request::New(None)]);
}

#[test]
fn a_question_to_the_library_is_a_table() {
    let passage = Passage {
        document: Some("war-and-peace.txt".into()),
        number: 1,
        first_line: 41_210,
        last_line: 41_262,
        ..Passage::default()
    };
    let row = |document: &str, text: &str| FanOutRow {
        document: document.into(),
        text: text.into(),
        finish: Some(Finish::Stop),
        log_probability: Some(-0.0726),
        ..FanOutRow::default()
    };
    let war = "Natasha Rostova, in the house of Princess Marya; she says nothing, and he understands it from her face and \
               from her silence, which is the way in which such things are said in this book.";
    let rows = vec![
        FanOutRow { passages: vec![passage], ..row("war-and-peace.txt", war) },
        row("minutes.md", "The minutes do not say."),
        FanOutRow { document: "contract.pdf".into(), text: "In annex".into(), ..FanOutRow::default() },
        FanOutRow {
            document: "old.txt".into(),
            failed: Some("no kept state of this model; --read reads it".into()),
            ..FanOutRow::default()
        },
    ];
    let mut fan_out = FanOut { question: "Who tells Pierre that Andrei is dying?".into(), rows, over: false };
    for (w, h) in [(80, 24), (160, 50)] {
        let mut s = open(w, h);
        s.notify(Notice::Activity(Activity::Busy { what: "2 of 3 documents answered".into() }));
        fan_out.over = false;
        s.notify(Notice::FanOut(fan_out.clone()));
        let screen = s.screen();
        let first = screen.lines().find(|l| l.contains("war-and-peace.txt")).unwrap();
        assert!(
            first.contains("Natasha") && first.contains("41,210-41,262") && first.trim_end().ends_with("93%"),
            "{screen}"
        );
        // The chosen answer is there as a whole.
        assert!(screen.contains("(no kept state of this mo") && screen.contains("in this book."), "{screen}");
        // Not before all have answered.
        s.sent();
        s.press("enter");
        assert_eq!(s.sent(), []);
        fan_out.over = true;
        s.press("down");
        s.notify(Notice::FanOut(fan_out.clone()));
        s.notify(Notice::Activity(Activity::Idle));
        s.press("enter");
        assert_eq!(s.sent(), [Request::OpenAnswer(1)]);
    }
}
