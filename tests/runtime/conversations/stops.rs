//! After a stop: no work without a request.

use super::*;

/// The note when thoughts are dropped from the history.
const LEFT_OUT: &str = "drops earlier thoughts";

fn noted(t: &Chat, part: &str) -> bool {
    t.seen.iter().any(|n| matches!(n, Notice::Note(_, text) if text.contains(part)))
}

fn read_some_and_stop(t: &mut Chat) {
    t.wait("reading", |n| matches!(n, Notice::Activity(Activity::Reading(p)) if p.done >= 8 * 64).then_some(()));
    t.send(Request::Stop);
}

fn a_history_with_a_stopped_read_waits_for_the_next_question() {
    let dir = dir();
    write_notes(dir.path());
    let mut t = Chat::new(dir.path(), Setup::default());
    t.load("notes.txt");
    let (all, name) = (t.work().0, t.name());
    t.quit();
    let (permit, gate) = crossbeam_channel::unbounded();
    let mut t = Chat::new(dir.path(), Setup { fingerprint: "fake-2".into(), gate: Some(gate), ..resume(&name) });
    let permits = || (0..10).for_each(|_| permit.send(()).unwrap());
    permits();
    let (id, _) = question(&mut t);
    t.send(Request::Choose { question: id, key: '\n' });
    read_some_and_stop(&mut t);
    t.note_with("Stopped: ");
    permits();
    t.send(Request::Ask("Well?".into()));
    read_some_and_stop(&mut t);
    assert_eq!(t.finished().meta.finish, Some(Finish::Stopped));
    // Whatever is read now is not held up any more.
    drop(permit);
    t.sync();
    let read = t.work().0;
    assert!((16 * 64..=20 * 64).contains(&read), "{read} of {all}");
    assert!(!noted(&t, LEFT_OUT));
    t.ask("And now?");
    let rest = t.work().0;
    assert!(read + rest < all + 150, "{read} and {rest} of {all}");
    assert!(!noted(&t, LEFT_OUT));
}

fn dropped_thoughts_are_reported_when_there_were_some() {
    // A thought without words, which is left out of the past, is none.
    let template = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}\
        {{ m.content.split('</think>')[-1].strip() }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
        {% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% if enable_thinking is defined \
        and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}";
    let text = text_model(Some(template));
    let thoughtful = "<think>\nlet me see\n</think>\n\nIt is four.";
    for (answer, think, left_out) in [("It is four.", "off", false), (thoughtful, "auto", true)] {
        let (dir, script) = (dir(), always(text.clone(), answer));
        let mut t = Chat::new(dir.path(), Setup { text: text.clone(), script, ..Setup::default() });
        t.send(Request::Set(Some(("think".into(), think.into()))));
        assert_eq!(t.ask("What is it?").text, "It is four.");
        assert_eq!(t.given().len(), 2, "the past is read again: {answer}");
        assert_eq!(noted(&t, LEFT_OUT), left_out, "{answer}");
    }
}

with_both_tokenizers!(
    a_history_with_a_stopped_read_waits_for_the_next_question,
    dropped_thoughts_are_reported_when_there_were_some,
);
