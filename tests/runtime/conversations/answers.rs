//! Questions and answers: what is read for them, what is kept of them, how they end, what they looked at.

use super::*;

#[test]
fn the_remaining_context_is_known_before_a_question() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    let used = t.wait("meters without a question", |n| match n {
        Notice::Meters(m) if m.context_limit > 0 => Some(m.context_used),
        _ => None,
    });
    assert_eq!(used, 0);
}

fn the_second_question_gives_only_what_is_new() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    t.ask("First question?");
    t.ask("Second?");
    let given = t.given();
    assert_eq!(given.len(), 2, "{given:?}");
    assert_eq!(given[0], "<s><|im_start|>user\nFirst question?<|im_end|>\n<|im_start|>assistant\n");
    // The last drawn token is outside the state; it is read with the next text, before the token that ends the turn.
    assert!(
        given[1].ends_with("<|im_end|>\n<|im_start|>user\nSecond?<|im_end|>\n<|im_start|>assistant\n"),
        "{}",
        given[1]
    );
    assert!(given[1].len() < 100, "{}", given[1]);
    assert_eq!(t.name(), "first-question");
    assert!(t.quit().unwrap().contains("first-question"));
}

fn an_answer_remembers_which_lines_it_looked_at() {
    let dir = dir();
    let line =
        |n: usize| format!("Entry {n}: the station at {} is kept by number {}.\n", n * 37 % 101, n * 7919 % 9973);
    let notes: String = (1..=200).map(line).collect();
    std::fs::write(dir.path().join("notes.txt"), &notes).unwrap();
    let text = text_model(None);
    // It answers with words of line 120.
    let script = always(text.clone(), line(120).trim_end());
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    t.load("notes.txt");
    let answer = t.ask("Who keeps it?");
    let looked = answer.meta.looked.clone().unwrap();
    let best = &looked.passages[0];
    assert_eq!((best.document.as_deref(), best.number), (Some("notes.txt"), 1));
    assert!((best.first_line..=best.last_line).contains(&120) && best.last_line - best.first_line < 8, "{looked:?}");
    assert!(best.share > 0.3 && (looked.first - 0.8).abs() < 0.01, "{looked:?}");
    assert!(best.lines(&notes).any(|(n, l)| n == 120 && l.starts_with("Entry 120:")));
    // Its only sentence looked there too.
    let sentences = looked.by_sentence(&answer.text);
    let words: Vec<&str> = sentences.iter().map(|s| s.0).collect();
    assert_eq!(words.concat().replace(' ', ""), answer.text.replace(' ', ""), "{words:?}");
    let of = |n: usize| sentences[n].1.first().map(|p| (p.number, p.document.clone(), p.first_line));
    assert!(
        of(0).is_some_and(|(n, name, line)| n == 1 && name.as_deref() == Some("notes.txt") && line > 100),
        "{sentences:?}"
    );
    let mut page = |request| {
        t.send(request);
        t.wait("a page", |n| if let Notice::Looked { text, .. } = n { Some(text.clone()) } else { None })
    };
    let all = page(Request::Look { at: None, passage: None });
    assert!(all.contains("s1 Entry 120: the station") && all.contains("notes.txt 1"), "{all}");
    let one = page(Request::LookSentence { at: None, sentence: 1 });
    assert!(one.starts_with("Entry 120:") && one.contains("notes.txt 1"), "{one}");
    t.send(Request::LookSentence { at: None, sentence: 9 });
    t.note_with("has no sentence s9: it has 1 recorded sentence.");
    // The next answer has the same text and also looks at the first.
    let second = t.ask("Again?").meta.looked.unwrap();
    assert!(second.passages.iter().any(|p| p.document.is_some()), "{second:?}");
    assert!(second.blocks.iter().any(|b| b.0 >= best.first_block), "{second:?}");
    // It is kept with the message and survives an export and import.
    let name = t.name();
    let file = dir.path().join("out.json").display().to_string();
    t.on_disk();
    let export = Request::Export { path: file.clone(), format: None, tree: false, with_state: false, force: false };
    t.note(export);
    t.quit();
    let mut t = Chat::new(dir.path(), resume(&name));
    t.note_with("Resumed");
    assert_eq!(t.view().messages[2].meta.looked.as_ref(), Some(&looked));
    t.note(Request::Import(file));
    t.sync();
    assert_eq!(t.view().messages[2].meta.looked.as_ref(), Some(&looked));
    assert_ne!(t.name(), name);
}

fn passages_on_a_rebuilt_branch_are_of_the_messages_there() {
    let dir = dir();
    let line = |n: usize| format!("Entry {n}: the station at {} is kept by {}.\n", n * 37 % 101, n * 7919 % 9973);
    std::fs::write(dir.path().join("a.txt"), "Nothing to see.\n").unwrap();
    std::fs::write(dir.path().join("notes.txt"), (1..=200).map(line).collect::<String>()).unwrap();
    let text = text_model(None);
    let script = always(text.clone(), line(120).trim_end());
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    t.load("a.txt");
    t.load("notes.txt");
    let looked = t.ask("Who keeps it?").meta.looked.unwrap();
    let places = |of: &Sources| of.passages.iter().map(|p| (p.number, p.document.clone())).collect::<Vec<_>>();
    assert_eq!(places(&looked)[0], (2, Some("notes.txt".into())));
    let mut rebuilt = |request, part: &str| {
        t.send(request);
        let id = question(&mut t).0;
        t.send(Request::Choose { question: id, key: '\n' });
        t.note_with(part);
        t.sync();
        t.view().messages
    };
    let messages = rebuilt(Request::Unload("a.txt".into()), "a.txt unloaded, now at");
    let moved = messages[2].meta.looked.clone().unwrap();
    assert_eq!(places(&moved)[0], (1, Some("notes.txt".into())));
    assert!(moved.names.keys().all(|n| *n == 1) && moved.names.len() == 1, "{moved:?}");
    assert!(moved.passages.iter().all(|p| p.number < 3), "{moved:?}");
    let messages = rebuilt(Request::System(Some("Be brief.".into())), "System text changed, now at");
    let moved = messages[3].meta.looked.clone().unwrap();
    assert_eq!(places(&moved)[0], (2, Some("notes.txt".into())));
    t.quit();
}

fn why_names_what_rests_on_a_passage_and_the_next_answer_is_the_same() {
    let ask = |why: bool| {
        let dir = dir();
        let line = |n: usize| format!("Entry {n}: the station at {} is kept by {}.\n", n * 37 % 101, n * 7919 % 9973);
        let notes: String = (1..=200).map(line).collect();
        std::fs::write(dir.path().join("notes.txt"), &notes).unwrap();
        let text = text_model(None);
        // It answers with words of line 120, then with the state it is in.
        let mut first = Some(text.tokenizer.encode_after(line(120).trim_end(), Before::Text).unwrap());
        let mut then = support::digest_answers(text.clone());
        let script = Box::new(move |hash: &str, tokens: &[u32]| first.take().unwrap_or_else(|| then(hash, tokens)));
        let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
        t.load("notes.txt");
        t.ask("Who keeps it?");
        if why {
            t.send(Request::Why { at: None, count: Some(1) });
            let (number, page, rows) = t.wait("figures", |n| match n {
                Notice::Why { number, text, rows, .. } => Some((*number, text.clone(), rows.clone())),
                _ => None,
            });
            assert_eq!((number, rows.len()), (3, 1));
            assert!(rows[0].times > 100.0, "{rows:?}");
            assert!(page.contains("without [1] notes.txt") && page.contains("lower bound"), "{page}");
            assert!(line(120).contains(rows[0].part.as_deref().unwrap()), "{rows:?}");
            t.sync();
            let refused = t.note(Request::Why { at: Some(2), count: None });
            assert!(refused.starts_with("#2 is not an answer"), "{refused}");
        }
        t.ask("And now?").text
    };
    assert_eq!(ask(true), ask(false));
}

fn dropped_thoughts_are_read_again_in_the_background() {
    let dir = dir();
    let template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\
        {{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let text = text_model(Some(template));
    let script = always(text.clone(), "<think>\nlet me see\n</think>\n\nIt is four.");
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    let answer = t.ask("What is 2+2?");
    assert_eq!((answer.thinking.as_str(), answer.text.as_str()), ("let me see", "It is four."));
    let given = t.given();
    assert_eq!(given.len(), 2, "the question, then the past without thoughts: {given:?}");
    assert!(given[1].ends_with("<|im_start|>assistant\nIt is four."), "{}", given[1]);
    assert!(!given[1].contains("let me see"));
    t.ask("Sure?");
    assert_eq!(t.given()[0], "<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n");
}

fn a_stop_keeps_the_text_and_continue_extends_it() {
    let dir = dir();
    let (permit, gate) = crossbeam_channel::unbounded();
    let text = text_model(None);
    let script = {
        let text = text.clone();
        let all = text.tokenizer.encode_after("one two three four five six seven eight", Before::Text).unwrap();
        Box::new(move |_: &str, tokens: &[u32]| {
            // Continues after the text already in the context.
            let written = text.tokenizer.spell(tokens, Before::Edge);
            let written = written.rsplit("assistant\n").next().unwrap().to_owned();
            let done = (0..=all.len()).find(|n| text.tokenizer.spell(&all[..*n], Before::Text) == written);
            all[done.unwrap_or(0)..].to_vec()
        })
    };
    let mut t = Chat::new(dir.path(), Setup { text, script, gate: Some(gate), ..Setup::default() });
    for _ in 0..5 {
        permit.send(()).unwrap();
    }
    t.send(Request::Ask("Count".into()));
    let mut written = String::new();
    t.wait("some words", |n| {
        if let Notice::Delta { text, .. } = n {
            written.push_str(text);
        }
        written.contains("two").then_some(())
    });
    t.send(Request::Stop);
    let stopped = t.finished();
    assert_eq!(stopped.meta.finish, Some(Finish::Stopped));
    assert!(stopped.text.starts_with("one two"), "{}", stopped.text);
    drop(permit);
    t.send(Request::Continue(None));
    let whole = t.finished();
    assert_eq!(whole.id, stopped.id);
    assert_eq!(whole.text, "one two three four five six seven eight");
    assert_eq!(whole.meta.finish, Some(Finish::Stop));
}

fn one_token(text: &sala_chat::text::TextModel) -> support::fake_engine::Script {
    let one = text.tokenizer.encode_plain("Yes").unwrap()[..1].to_vec();
    Box::new(move |_, _| one.clone())
}

#[test]
fn a_question_with_state_up_to_the_prompt_is_answered_again() {
    let dir = dir();
    let text = text_model(None);
    let script = one_token(&text);
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    let first = t.ask("Is it?");
    assert_eq!((first.meta.completion_tokens, first.meta.finish), (1, Some(Finish::Stop)));
    // One token is drawn in the prompt's own pass, so there is no speed.
    assert_eq!(first.meta.tokens_per_s, 0.0);
    for count in [1, 2] {
        t.send(Request::Regen { at: None, count, temperature: None, seed: None });
        for _ in 0..count {
            assert_eq!(t.finished().meta.finish, Some(Finish::Stop));
        }
        if count > 1 {
            let id = question(&mut t).0;
            t.send(Request::Choose { question: id, key: '1' });
        }
        t.sync();
    }
    t.send(Request::Undo(1));
    t.note_with("Went back");
    assert_eq!(t.ask("Is it?").text, first.text);
    t.send(Request::Aside("Is it?".into()));
    let done = t.wait("the aside", |n| match n {
        Notice::Aside { done, .. } => *done,
        _ => None,
    });
    assert_eq!(done, Finish::Stop);
}

#[test]
fn a_question_stopped_after_one_token_can_be_repeated() {
    let dir = dir();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { gate: Some(gate), ..Setup::default() });
    // One for the prompt, one for the first token.
    permit.send(()).unwrap();
    permit.send(()).unwrap();
    t.send(Request::Ask("Is it?".into()));
    t.wait("a token", |n| matches!(n, Notice::Activity(Activity::Answering { .. })).then_some(()));
    t.send(Request::Stop);
    assert_eq!(t.finished().meta.finish, Some(Finish::Stopped));
    drop(permit);
    let again = || Request::Regen { at: None, count: 1, temperature: Some(0.0), seed: None };
    t.send(again());
    t.note_with("At temperature 0 a complete answer is always the same");
    assert_eq!(t.finished().meta.finish, Some(Finish::Stop));
}

#[test]
fn an_empty_question_is_refused_at_once() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    assert_eq!(t.note(Request::Ask("  \n".into())), "The question is empty. Nothing was asked.");
    assert_eq!(t.work(), (0, 0));
    let mut t = Chat::new(dir.path(), Setup { attendance: Attendance::Absent, ..Setup::default() });
    t.send(Request::Ask(String::new()));
    let exit = t.wait("the end", |n| match n {
        Notice::Fatal { exit, .. } => Some(*exit),
        _ => None,
    });
    assert_eq!(exit, Exit::Failure);
}

#[test]
fn advice_in_a_shell_names_options_of_the_shell() {
    let dir = dir();
    std::fs::write(dir.path().join("big.txt"), "word ".repeat(5000)).unwrap();
    let load = Request::Load { paths: vec!["big.txt".into()], options: Default::default() };
    for request in [load, Request::Ask("word ".repeat(5000))] {
        let absent = Setup { context_limit: 1000, attendance: Attendance::Absent, ..Setup::default() };
        let mut t = Chat::new(dir.path(), absent);
        t.send(request);
        let note = t.wait("the end", |n| match n {
            Notice::Fatal { error, .. } => Some(error.clone()),
            _ => None,
        });
        assert!(note.contains("--ctx") && !note.contains("/load") && !note.contains("/new"), "{note}");
    }
    let mut t = Chat::new(dir.path(), Setup { context_limit: 1000, ..Setup::default() });
    let note = t.load("big.txt");
    assert!(note.contains("/big.txt --head") && !note.contains("/new"), "a new session is no way out of one: {note}");
}

/// The last notice of branch and timeline.
fn outline(t: &Chat) -> ((u64, u64), usize) {
    let outline_in = |n: &Notice| match n {
        Notice::Tree(o) => Some((o.branch, o.timeline.len())),
        Notice::Session(v) => Some((v.tree.branch, v.tree.timeline.len())),
        _ => None,
    };
    t.seen.iter().rev().find_map(outline_in).unwrap()
}

#[test]
fn timeline_and_branch_follow_every_exchange() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    for (i, question) in ["One?", "Two?", "Three?", "Four?"].iter().enumerate() {
        t.ask(question);
        assert_eq!(outline(&t), ((1, 1), i + 1));
    }
    t.send(Request::Undo(1));
    t.note_with("Went back");
    t.ask("Another?");
    assert_eq!(outline(&t), ((2, 2), 5));
}

#[test]
fn reported_shared_tokens_match_the_state() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup::default());
    for question in ["One?", "Two?", "Three?"] {
        t.ask(question);
    }
    t.note(Request::Undo(1));
    let note = t.note(Request::Fork { at: Some(4), name: None });
    assert!(note.contains("forked at #4: ") && !note.contains(" 0 tokens shared"), "{note}");
    t.note(Request::Undo(1));
    t.ask(&"And what else is there to say about it? ".repeat(20));
    t.send(Request::Compact { instruction: None, yes: true });
    let note = t.note_with(" tokens before, ");
    assert!(!note.starts_with("0 tokens before"), "{note}");
    // An empty session has no speeds of its own.
    t.send(Request::New(None));
    t.sync();
    let meters =
        t.seen.iter().rev().find_map(|n| if let Notice::Meters(m) = n { Some(m.clone()) } else { None }).unwrap();
    assert_eq!(
        (meters.context_used, meters.tokens_per_s, meters.ttft_ms, meters.prefill_tokens_per_s),
        (0, 0.0, 0.0, 0.0)
    );
}

fn thoughts_end_at_their_budget_and_an_answer_that_repeats_itself_is_stopped() {
    let dir = dir();
    let text = text_model(None);
    let script = always(text.clone(), &format!("<think>\n{}", "one two three four five six ".repeat(20)));
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    assert!(t.note(Request::Set(Some(("thinking_budget".into(), "12".into())))).contains("12"));
    let answer = t.ask("Why?");
    assert!(answer.thinking.starts_with("one two") && answer.thinking.len() < 80, "{:?}", answer.thinking);
    assert!(answer.text.ends_with("five six ") && !answer.text.contains("</think>"), "{:?}", answer.text);
    t.quit();

    let text = text_model(None);
    let script = always(text.clone(), &"and so on, ".repeat(3_000));
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    let answer = t.ask("Why?");
    assert_eq!(answer.meta.finish, Some(Finish::Repeats));
    assert!((1_500..1_700).contains(&answer.meta.completion_tokens), "{:?}", answer.meta);
    t.send(Request::Continue(None));
    assert!(t.finished().meta.completion_tokens > answer.meta.completion_tokens, "/continue goes on");
    t.sync();
    t.note(Request::Set(Some(("stop_loops".into(), "false".into()))));
    assert_eq!(t.ask("Why?").meta.finish, Some(Finish::Length));
}

fn a_switch_for_thinking_that_does_nothing_is_refused_with_what_works() {
    let dir = dir();
    let text = text_model(Some(include_str!("../../templates/released.jinja")));
    let script = always(text.clone(), "Yes.");
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    let note = t.note(Request::Set(Some(("think".into(), "off".into()))));
    assert!(note.contains("cannot switch thinking") && note.contains("thinking.budget"), "{note}");
    let set = |key: &str, value: &str| Request::Set(Some((key.into(), value.into())));
    assert!(t.note(set("think", "on")).contains("cannot switch thinking"), "whichever way it is asked for");
    assert!(t.note(set("temperature", "0.4")).contains("0.4"));
    assert_eq!(t.ask("Why?").text, "Yes.");
}

fn a_summary_replaces_the_context_after_a_look_and_only_if_it_is_shorter() {
    let dir = dir();
    let text = text_model(None);
    let script = always(text.clone(), "All of it in short.");
    let mut t = Chat::new(dir.path(), Setup { text, script, ..Setup::default() });
    let compact = |yes| Request::Compact { instruction: None, yes };
    t.ask("One?");
    for yes in [false, true] {
        t.send(compact(yes));
        let note = t.note_with("would not make the context shorter");
        assert!(note.ends_with("Nothing was changed."), "{note}");
    }
    t.ask(&"And what else is there to say about it? ".repeat(40));
    for (key, branch) in [('n', (1, 1)), ('\x1b', (1, 1)), ('y', (2, 2))] {
        t.send(compact(false));
        let page = t.wait("the summary", |n| match n {
            Notice::Page { text, .. } => Some(text.clone()),
            _ => None,
        });
        assert_eq!(page, "All of it in short.");
        let (id, text) = question(&mut t);
        assert!(text.contains(" tokens now, ") && text.contains(" with the summary"), "{text}");
        t.send(Request::Choose { question: id, key });
        t.sync();
        assert_eq!(t.view().tree.branch, branch, "{key:?}");
    }
    assert_eq!(t.view().messages.len(), 1, "the summary alone");
    t.quit();
}

#[test]
fn the_built_in_model_and_a_run_without_a_user_get_no_summary() {
    let dir = dir();
    let mut t = Chat::new(dir.path(), Setup { model: "demo", ..Setup::default() });
    t.ask("One?");
    t.work();
    let note = t.note(Request::Compact { instruction: None, yes: true });
    assert!(note.starts_with("The built-in model cannot summarize"), "{note}");
    t.quit();
    let mut t = Chat::new(dir.path(), Setup { attendance: Attendance::Absent, ..resume("last") });
    t.send(Request::Compact { instruction: None, yes: false });
    let error = t.wait("the refusal", |n| match n {
        Notice::Fatal { error, .. } => Some(error.clone()),
        _ => None,
    });
    assert!(error.contains("/compact --yes"), "{error}");
    assert_eq!(t.work(), (0, 0));
}

with_both_tokenizers!(
    a_summary_replaces_the_context_after_a_look_and_only_if_it_is_shorter,
    thoughts_end_at_their_budget_and_an_answer_that_repeats_itself_is_stopped,
    a_switch_for_thinking_that_does_nothing_is_refused_with_what_works,
    the_second_question_gives_only_what_is_new,
    an_answer_remembers_which_lines_it_looked_at,
    passages_on_a_rebuilt_branch_are_of_the_messages_there,
    why_names_what_rests_on_a_passage_and_the_next_answer_is_the_same,
    dropped_thoughts_are_read_again_in_the_background,
    a_stop_keeps_the_text_and_continue_extends_it,
);
