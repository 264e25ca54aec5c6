//! Named pipes as documents.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::time::Duration;

use super::super::{SourceError, gather};
use super::*;

fn options() -> SourceOptions {
    SourceOptions::new(&crate::config::settings::Config::default().load)
}

#[test]
fn a_pipe_that_is_named_is_read_to_its_end() {
    let (from, mut to) = std::io::pipe().unwrap();
    let number = from.as_raw_fd();
    let path = format!("/dev/fd/{number}");
    let writer = std::thread::spawn(move || {
        for piece in ["from a ", "pipe\n"] {
            std::thread::sleep(Duration::from_millis(150));
            to.write_all(piece.as_bytes()).unwrap();
        }
    });
    let read = gather(&[path], &options(), &Cancel::default()).unwrap().documents;
    writer.join().unwrap();
    let [one] = read.as_slice() else { panic!("{read:?}") };
    assert_eq!(
        (one.name.as_str(), &one.path, one.text.as_str()),
        (format!("pipe-{number}").as_str(), &None, "from a pipe\n")
    );
}

#[test]
fn a_pipe_neither_holds_anybody_up_nor_fills_the_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pipe.txt");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let error =
        |path: &str, options: &SourceOptions, cancel: &Cancel| gather(&[path.to_owned()], options, cancel).unwrap_err();
    // A pipe without a writer.
    let unwritten = error(path.to_str().unwrap(), &options(), &Cancel::default());
    assert!(matches!(unwritten, SourceError::File { problem: Problem::Empty, .. }), "{unwritten}");
    // Somebody could, and does not.
    let (from, mut to) = std::io::pipe().unwrap();
    let path = format!("/dev/fd/{}", from.as_raw_fd());
    let cancel = Cancel::default();
    let stop = cancel.clone();
    let stopper = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        stop.cancel();
    });
    assert!(matches!(error(&path, &options(), &cancel), SourceError::Cancelled));
    stopper.join().unwrap();
    to.write_all(b"some bytes..\0").unwrap();
    let small = SourceOptions { max_file_bytes: 2, ..options() };
    let problem = |options| match error(&path, options, &Cancel::default()) {
        SourceError::File { problem, .. } => problem,
        other => panic!("{other}"),
    };
    assert!(matches!(problem(&small), Problem::TooLarge { bytes: 13, .. }));
    to.write_all(b"some bytes..\0").unwrap();
    drop(to);
    assert!(problem(&options()).to_string().starts_with("not text (NUL at byte 12)"));
}
