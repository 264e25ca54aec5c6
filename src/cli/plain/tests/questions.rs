//! Questions of the runtime, and the lines that answer them.

use super::*;

#[test]
fn files_of_a_plan_are_listed_and_loaded_by_name() {
    let mut p = Plain::new(None, true);
    let plan = Notice::Question {
        id: 7,
        text: "3 files".into(),
        choices: vec![
            Choice { key: 'e', label: "choose files".into() },
            Choice { key: '\x1b', label: "cancel".into() },
        ],
        plan: Some(crate::runtime::protocol::LoadPlan {
            files: ["a.txt", "b.txt", "c.txt"]
                .map(|name| crate::runtime::protocol::PlanFile { name: name.into(), tokens: 1_200, kept: false })
                .into(),
            ..Default::default()
        }),
    };
    let shown = printed(&p.notice(plan));
    assert!(shown.starts_with("a.txt, 1,200 tokens\nb.txt") && shown.ends_with("3 files\nEsc (e) cancel\n"), "{shown}");
    assert_eq!(printed(&p.line("1")), "Esc (e) cancel\n");
    assert_eq!(p.line("esc"), [Out::Send(Request::Choose { question: 7, key: '\x1b' })]);
}

#[test]
fn the_line_of_a_pipe_after_a_question_answers_it_however_early_it_arrived() {
    let question = || {
        let choices = vec![Choice { key: '\n', label: "read".into() }, Choice { key: '\x1b', label: "cancel".into() }];
        Notice::Question { id: 5, text: "11 files".into(), choices, plan: None }
    };
    let chosen = |key| Some(Out::Send(Request::Choose { question: 5, key }));
    for (line, key, after) in [("", '\n', None), ("esc", '\x1b', None), ("/docs", '\x1b', Some(Request::Docs))] {
        for early in [true, false] {
            let mut p = Plain::new(None, false);
            p.notice(Notice::Activity(Activity::Idle));
            assert_eq!(p.line("/save"), [Out::Send(Request::Save)]);
            let mut out = if early { p.line(line) } else { p.notice(question()) };
            out.extend(if early { p.notice(question()) } else { p.line(line) });
            assert_eq!(out.last().cloned(), chosen(key), "{line}: {out:?}");
            let then = p.notice(Notice::Acknowledged(2));
            assert_eq!(then.last().cloned(), after.clone().map(Out::Send), "{line}: {then:?}");
        }
    }
}

#[test]
fn no_is_the_opposite_of_yes() {
    for (prompts, line) in [(false, "n"), (false, "No"), (true, "n"), (true, "no")] {
        let mut p = Plain::new(None, prompts);
        p.notice(Notice::Activity(Activity::Idle));
        let choices = Choice::all(&[('y', "delete"), ('n', "keep")]);
        p.notice(Notice::Question { id: 5, text: "Delete?".into(), choices, plan: None });
        assert_eq!(p.line(line), [Out::Send(Request::Choose { question: 5, key: 'n' })], "{line}");
    }
    // To another question it is none.
    let mut p = Plain::new(None, true);
    p.notice(Notice::Activity(Activity::Idle));
    let choices = vec![Choice { key: '1', label: "go on".into() }, Choice { key: '\x1b', label: "keep it".into() }];
    p.notice(Notice::Question { id: 5, text: "Stopped.".into(), choices, plan: None });
    assert_eq!(printed(&p.line("n")), "1 go on, Esc (e) keep it\n");
}
