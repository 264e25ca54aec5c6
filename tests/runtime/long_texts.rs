//! Texts that are far too long, and templates that take their time: what is refused, how soon, and that a stop is heard.

use crate::support;

use std::path::Path;
use std::time::{Duration, Instant};

use sala_chat::core::Exit;
use sala_chat::runtime::Attendance;
use sala_chat::runtime::protocol::{Activity, Level, LoadOptions, LoadPlan, Notice, Request};
use support::{Chat, Setup, text_model, with_both_tokenizers};

/// A stop is to be heard within 0.3 s; test machines are busy, and doing it all takes far longer than this.
const SOON: Duration = Duration::from_secs(3);

const LINE: &str = "The quick brown fox jumps over the lazy dog, again and again; 12 times, 你好.\n";

/// A file of about so many megabytes of words.
fn words(dir: &Path, name: &str, mb: usize) {
    std::fs::write(dir.join(name), LINE.repeat(mb * 1_000_000 / LINE.len())).unwrap();
}

fn load(t: &Chat, paths: &[&str], options: LoadOptions) {
    t.send(Request::Load { paths: paths.iter().map(|p| (*p).to_owned()).collect(), options });
}

/// The next warning or error, and how long it took.
fn refusal(t: &mut Chat) -> (String, Duration) {
    let begun = Instant::now();
    let text = t.wait("a refusal", |n| match n {
        Notice::Note(Level::Warn | Level::Error, text) => Some(text.clone()),
        _ => None,
    });
    (text, begun.elapsed())
}

fn what_the_context_cannot_hold_is_refused_by_name_and_limit_without_being_counted() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Chat::new(dir.path(), Setup { context_limit: 200_000, ..Setup::default() });
    // Some tokens are long: the first is refused by its length alone, the second has to be looked at.
    words(dir.path(), "huge.txt", 60);
    words(dir.path(), "large.txt", 2);
    let letters = "a".repeat(60_000_000);
    std::fs::write(dir.path().join("letters.txt"), &letters).unwrap();
    for name in ["huge.txt", "large.txt", "letters.txt"] {
        load(&t, &[name], LoadOptions::default());
        let (note, took) = refusal(&mut t);
        assert!(note.starts_with(&format!("{name} is longer than the whole context of 200,000 tokens. ")), "{note}");
        assert!(note.contains("--head"), "{note}");
        // Its tokens would take a minute to count.
        assert!(took < Duration::from_secs(15), "{name}: {took:?}");
        t.idle();
    }
    t.send(Request::Ask(letters));
    let (note, _) = refusal(&mut t);
    assert!(
        note.starts_with("This question is longer than the whole context of 200,000 tokens. Nothing was read."),
        "{note}"
    );
    assert_eq!(t.work(), (0, 0));
    // The session continues as if there had been no question.
    t.ask("A short one?");
}

fn a_stop_is_heard_while_a_text_is_tokenized() {
    let dir = tempfile::tempdir().unwrap();
    words(dir.path(), "huge.txt", 100);
    let mut t = Chat::new(dir.path(), Setup { context_limit: 1 << 40, ..Setup::default() });
    load(&t, &["huge.txt"], LoadOptions::default());
    let tokenizing = |n: &Notice| matches!(n, Notice::Activity(Activity::Busy { what }) if what == "tokenizing");
    t.wait("tokenizing", |n| tokenizing(n).then_some(()));
    // Requests sent meanwhile are kept.
    t.send(Request::Docs);
    let begun = Instant::now();
    t.send(Request::Stop);
    t.note_with("Stopped: nothing was loaded.");
    t.idle();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    t.wait("the documents", |n| matches!(n, Notice::Documents { rows, .. } if rows.is_empty()).then_some(()));
    assert_eq!(t.work(), (0, 0));
    assert!(!t.ask("And now?").text.is_empty());
    t.quit();
}

fn the_end_of_the_program_is_heard_while_a_text_is_tokenized() {
    let dir = tempfile::tempdir().unwrap();
    words(dir.path(), "huge.txt", 100);
    let mut t = Chat::new(dir.path(), Setup { context_limit: 1 << 40, ..Setup::default() });
    load(&t, &["huge.txt"], LoadOptions::default());
    t.wait("tokenizing", |n| {
        matches!(n, Notice::Activity(Activity::Busy { what }) if what == "tokenizing").then_some(())
    });
    let begun = Instant::now();
    t.quit();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
}

fn a_stop_ends_the_run_without_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    words(dir.path(), "huge.txt", 100);
    let setup = Setup { context_limit: 1 << 40, attendance: Attendance::Absent, ..Setup::default() };
    let mut t = Chat::new(dir.path(), setup);
    load(&t, &["huge.txt"], LoadOptions::default());
    t.send(Request::Ask("hi".into()));
    t.send(Request::Quit);
    t.wait("tokenizing", |n| {
        matches!(n, Notice::Activity(Activity::Busy { what }) if what == "tokenizing").then_some(())
    });
    let begun = Instant::now();
    t.send(Request::Stop);
    let exit = t.wait("the end", |n| if let Notice::Fatal { exit, .. } = n { Some(*exit) } else { None });
    assert!(begun.elapsed() < SOON && exit == Exit::Stopped, "{exit:?} after {:?}", begun.elapsed());
}

fn a_stop_is_heard_while_a_template_runs() {
    let dir = tempfile::tempdir().unwrap();
    let template = "{% for m in messages %}{% if 'dawdle' in m.content %}{% for i in range(20000) %}\
        {% set x = range(90000)|join|length %}{% endfor %}{% endif %}{{ '<|im_start|>' + m.role + '\n' + m.content + \
        '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let mut t = Chat::new(dir.path(), Setup { text: text_model(Some(template)), ..Setup::default() });
    t.idle();
    t.send(Request::Ask("Please dawdle.".into()));
    // Less than the template's instructions last.
    std::thread::sleep(Duration::from_millis(50));
    let begun = Instant::now();
    t.send(Request::Stop);
    // The question is not lost: it returns to the input.
    let back = t.wait("the question", |n| if let Notice::Input { text, .. } = n { Some(text.clone()) } else { None });
    assert_eq!(back, "Please dawdle.");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    t.ask("Quickly, then.");
}

fn the_head_of_a_huge_file_is_read_without_counting_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    words(dir.path(), "huge.txt", 100);
    let mut t = Chat::new(dir.path(), Setup { context_limit: 200_000, ..Setup::default() });
    for options in [
        LoadOptions { head: Some(500), ..LoadOptions::default() },
        LoadOptions { tail: Some(500), ..LoadOptions::default() },
    ] {
        t.send(Request::New(None));
        let begun = Instant::now();
        load(&t, &["huge.txt"], options);
        let note = t.note_with("Read huge.txt: ");
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(note.contains("tokens in"), "{note}");
        let read = t.work().0;
        assert!((480..600).contains(&read), "{read}");
    }
}

fn files_that_do_not_fit_together_can_be_chosen_from() {
    let dir = tempfile::tempdir().unwrap();
    words(dir.path(), "huge.txt", 20);
    std::fs::write(dir.path().join("small.txt"), LINE.repeat(3)).unwrap();
    let mut t = Chat::new(dir.path(), Setup { context_limit: 100_000, ..Setup::default() });
    load(&t, &["huge.txt", "small.txt"], LoadOptions::default());
    let plan = |n: &Notice| match n {
        Notice::Question { id, text, plan: Some(plan), .. } => Some((*id, text.clone(), plan.clone())),
        _ => None,
    };
    let (question, text, LoadPlan { files, .. }) = t.wait("the plan", plan);
    assert!(text.contains("Leave some out"), "{text}");
    assert_eq!(files[0].tokens, 100_001, "not counted further than it can matter");
    assert!((30..200).contains(&files[1].tokens), "{files:?}");
    t.send(Request::ChooseFiles { question, files: vec![1] });
    let note = t.note_with("Read small.txt: ");
    assert!(note.contains("tokens in"), "{note}");
}

with_both_tokenizers!(
    what_the_context_cannot_hold_is_refused_by_name_and_limit_without_being_counted,
    a_stop_is_heard_while_a_text_is_tokenized,
    the_end_of_the_program_is_heard_while_a_text_is_tokenized,
    a_stop_ends_the_run_without_a_terminal,
    a_stop_is_heard_while_a_template_runs,
    the_head_of_a_huge_file_is_read_without_counting_the_rest,
    files_that_do_not_fit_together_can_be_chosen_from,
);
