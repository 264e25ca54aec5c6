//! Side-by-side answers: to one question, and of all documents of the library.

use sala_chat::core::transcript::{Finish, Message, MessageId, Passage};
use sala_chat::runtime::protocol::{Activity, Choice, FanOut, FanOutRow, Notice, Request, SessionView};
use sala_chat::tui::Event;

use super::stage::*;

#[test]
fn answers_side_by_side() {
    for (w, h) in [(80, 24), (160, 50)] {
        let mut s = open(w, h);
        s.notify(Notice::Several(vec![
            (MessageId(11), Some(41)),
            (MessageId(12), Some(42)),
            (MessageId(13), Some(43)),
        ]));
        s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 212.4 }));
        let text =
            "It is **Natasha** who breaks it to him, but not in words: Pierre sees it in her face before she speaks.";
        s.notify(Notice::Delta { message: MessageId(11), thinking: false, text: text.into() });
        s.notify(Notice::Delta { message: MessageId(12), thinking: true, text: "Let me see".into() });
        let screen = s.screen();
        assert!(screen.contains("1  seed 41  writing") && screen.contains("2  seed 42  thinking"), "{screen}");
        assert!(screen.contains("3  seed 43  waiting") && screen.contains("Natasha who breaks"), "{screen}");
        let long = "Natasha does, at Princess Marya's, without saying it.\n\n".repeat(9);
        for (id, text) in [(11, text), (12, long.as_str()), (13, "Nobody: he guesses.")] {
            s.notify(Notice::Finished(Message { text: text.into(), ..answer(id, text) }));
        }
        let choice = |key, label: &str| Choice { key, label: label.into() };
        s.notify(Notice::Question {
            id: 1,
            text: "Which answer continues the conversation?".into(),
            choices: vec![
                choice('1', ""),
                choice('2', ""),
                choice('3', ""),
                choice('\x1b', "keep the last; /branch shows the others"),
            ],
            plan: None,
        });
        let screen = s.screen();
        assert!(
            screen.contains("Which answer continues the conversation?") && screen.contains("Esc keep the last"),
            "{screen}"
        );
        assert!(screen.contains("Princess Marya") && screen.contains("2  seed 42"), "{screen}");
        s.sent();
        s.press("2");
        assert_eq!(s.sent(), [Request::Choose { question: 1, key: '2' }]);
        s.notify(Notice::Session(SessionView { tree: branch(2, 3), ..SessionView::default() }));
        assert!(s.app.open.several.is_none());
    }
    // Esc stops what is being written; what there is stays to be chosen from.
    let mut s = open(80, 24);
    s.notify(Notice::Several(vec![(MessageId(11), None), (MessageId(12), None)]));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 212.4 }));
    s.sent();
    let screen = s.screen();
    assert!(!screen.contains("seed"), "nothing is drawn: {screen}");
    s.press("esc");
    assert_eq!(s.sent(), [Request::Stop]);
    assert!(s.app.open.several.is_some());
}

#[test]
fn every_answer_and_every_choice_is_reached_in_a_small_window() {
    let mut s = open(60, 15);
    s.notify(Notice::Several((1..=9).map(|n| (MessageId(10 + n), Some(40 + n as u64))).collect()));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 212.4 }));
    let screen = s.screen();
    assert!(screen.contains("1  seed 41") && !screen.contains("9  seed 49"), "{screen}");
    assert!(screen.contains("PgUp/PgDn other answers"), "{screen}");
    for _ in 0..9 {
        s.press("pgdn");
    }
    let screen = s.screen();
    assert!(screen.contains("9  seed 49  waiting") && !screen.contains("1  seed 41"), "{screen}");
    for n in 1..=9 {
        s.notify(Notice::Finished(answer(10 + n, &format!("Answer {n} says so."))));
    }
    let choice = |key, label: String| Choice { key, label };
    let mut choices: Vec<Choice> = ('1'..='9').map(|key| choice(key, String::new())).collect();
    choices.push(choice('\x1b', "keep the last; /branch shows the others".into()));
    s.notify(Notice::Activity(Activity::Idle));
    s.notify(Notice::Question { id: 7, text: "Which answer continues the conversation?".into(), choices, plan: None });
    s.sent();
    let screen = s.screen();
    let keys = screen.split("Which answer continues the conversation?").nth(1).unwrap().split("Esc").next().unwrap();
    assert!(keys.split_whitespace().eq((1..=9).map(|key| key.to_string())), "{screen}");
    assert!(screen.contains("Esc keep"), "{screen}");
    // They can be looked at while one is to be chosen.
    s.press("pgdn");
    for n in (1..=9).rev() {
        let screen = s.screen();
        assert!(screen.contains(&format!("Answer {n} says so.")), "{n}: {screen}");
        s.press("pgup");
    }
    assert_eq!(s.sent(), []);
    s.press("9");
    assert_eq!(s.sent(), [Request::Choose { question: 7, key: '9' }]);
}

#[test]
fn the_choice_of_an_answer_is_between_answers_and_queue() {
    for (width, height) in super::SIZES.into_iter().chain([(80, 15)]) {
        for n in [2, 3, 5, 9] {
            let mut s = open(width, height);
            choice_of(&mut s, n);
            // Neither blank rows below it nor answers under it.
            let check = |screen: &str, waiting: usize| {
                let lines: Vec<&str> = screen.lines().collect();
                let first = lines.iter().position(|l| l.contains("Which answer continues the conversation?")).unwrap();
                let last = usize::from(height) - 5 - waiting;
                let esc = lines[first + 1..=last].iter().any(|l| l.contains(" Esc"));
                assert!(first == last || esc && !lines[last].trim().is_empty(), "{n}: {screen}");
                assert!(lines[first - 2].contains("scroll"), "{n}: {screen}");
            };
            let screen = s.screen();
            check(&screen, 0);
            assert_eq!(s.screen(), screen, "it is drawn as it was laid out from the first frame on");
            assert!((width, height, n) != (80, 24, 5) || seen(&screen, n), "{screen}");
            s.type_text("and then?");
            s.press("enter");
            let screen = s.screen();
            assert!(screen.contains("queued: \"and then?\""), "{screen}");
            check(&screen, 1);
        }
    }
}

/// `n` answers and the question of which one to continue.
fn choice_of(s: &mut Stage, n: i64) {
    s.notify(Notice::Several((1..=n).map(|n| (MessageId(10 + n), None)).collect()));
    for n in 1..=n {
        s.notify(Notice::Finished(answer(10 + n, &format!("Answer {n} says so."))));
    }
    let keys = ('1'..='9').take(n as usize);
    let mut choices: Vec<Choice> = keys.map(|key| Choice { key, label: String::new() }).collect();
    choices.push(Choice { key: '\x1b', label: "keep the last; /branch shows the others".into() });
    s.notify(Notice::Activity(Activity::Idle));
    s.notify(Notice::Question { id: 7, text: "Which answer continues the conversation?".into(), choices, plan: None });
}

/// Whether all answers are in sight.
fn seen(screen: &str, n: i64) -> bool {
    (1..=n).all(|n| screen.contains(&format!("Answer {n} says so.")))
}

#[test]
fn typing_continues_below_side_by_side_answers() {
    let mut s = open(80, 24);
    s.notify(Notice::Several(vec![(MessageId(11), None), (MessageId(12), None)]));
    s.notify(Notice::Activity(Activity::Answering { tokens_per_s: 212.4 }));
    s.sent();
    s.type_text("abc q j");
    let screen = s.screen();
    assert!(screen.contains("> abc q j\n") && screen.contains("Answers side by side"), "{screen}");
    assert!(screen.ends_with("caret 9,21\n"), "{screen}");
    // It waits for its turn, in sight.
    s.press("enter");
    let screen = s.screen();
    assert!(screen.contains("queued: \"abc q j\"") && screen.contains("Answers side by side"), "{screen}");
    // A page lies over them and takes nothing away.
    s.type_text("/keys").press("enter");
    s.notify(Notice::Delta { message: MessageId(12), thinking: false, text: "So it is.".into() });
    assert!(!s.screen().contains("So it is."));
    assert!(s.press("esc").screen().contains("So it is."));
    for id in [11, 12] {
        s.notify(Notice::Finished(answer(id, "So it is.")));
    }
    s.notify(Notice::Activity(Activity::Idle));
    let choices = [('1', "one"), ('2', "two"), ('\x1b', "keep the last")];
    let choices = choices.map(|(key, label)| Choice { key, label: label.into() }).to_vec();
    s.notify(Notice::Question { id: 7, text: "Which answer continues the conversation?".into(), choices, plan: None });
    s.sent();
    s.event(Event::Frame).type_text(" 1 2");
    assert_eq!((s.sent(), s.app.open.composer.text()), (vec![], " 1 2"), "a number behind a letter is no choice");
    s.press("backspace backspace backspace backspace 2");
    assert_eq!(s.sent(), [Request::Choose { question: 7, key: '2' }]);
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
