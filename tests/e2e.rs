//! What a person does on the first day and on the second: type, read a file, ask, quit, come back, ask again.

mod pty;

use pty::{Terminal, document};

#[test]
fn a_document_is_read_once_and_answered_from_on_the_next_day() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(
        home.path().join("notes.txt"),
        document(3000, "The password of the north gate is KV-4471."),
    )
    .unwrap();

    let mut first = Terminal::start(home.path(), 80, 24, &["--device", "cpu"]);
    first.wait_for("DEMO");
    first.line("What is sala-chat?");
    first.wait_for("chat program for the terminal");
    first.line("/load notes.txt");
    first.wait_for("I have read notes.txt");
    first.line("What is the password of the north gate?");
    first.wait_for("KV-4471");
    first.wait("all saved", |text| text.contains("saved"));
    first.line("/quit");
    assert!(first.exit().success());

    let mut second = Terminal::start(home.path(), 80, 24, &["--device", "cpu", "-c"]);
    second.wait("resumed", |text| {
        text.contains("Resumed") && text.contains("tokens")
    });
    second.line("What is the password of the north gate?");
    second.wait("answered again", |text| {
        text.matches("KV-4471").count() >= 2
    });
    second.line("/quit");
    assert!(second.exit().success());
}
