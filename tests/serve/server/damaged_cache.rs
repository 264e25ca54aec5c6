//! Damage in the folder of requests, which is a cache: it is moved aside and reported once, and every question is answered.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sala_chat::server::open_cache;
use sala_chat::store::{Access, Limits, RealDisk, Store, StoreError};

use crate::server::client::{Running, Setup};
use crate::server::{CHAT, question};

fn limits() -> Limits {
    Limits { min_free_bytes: 0, reserve_bytes: 64 << 10, ..Limits::default() }
}

/// Answers a question that continues an earlier one and a new one; returns the notice of the start.
fn answers(folder: &Path, at: &str) -> Option<String> {
    let (store, notice) = open_cache(folder, &limits()).unwrap_or_else(|e| panic!("{at}: {e}"));
    let server = Running::start(folder, Setup { store: Some(store), ..Setup::default() });
    for text in ["What is the rent?", "Something new"] {
        let reply = server.post(CHAT, &question(text));
        assert_eq!(reply.status, 200, "{at}: {}", reply.body);
    }
    server.end();
    notice
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
        match entry.path() {
            path if path.is_dir() => all.extend(files(&path).into_iter().chain([path])),
            path => all.push(path),
        }
    }
    all.sort();
    all
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        match entry.path() {
            path if path.is_dir() => copy(&path, &to.join(entry.file_name())),
            // The last save of the server may still rename a file.
            path => match fs::copy(path, to.join(entry.file_name())) {
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                copied => drop(copied.unwrap()),
            },
        }
    }
}

#[test]
fn every_question_is_answered_with_any_cache_file_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let (whole, data) = (dir.path().join("whole"), dir.path().join("data"));
    assert_eq!(answers(&whole, "whole"), None);
    assert_eq!(answers(&whole, "whole, once more"), None);
    let all = files(&whole);
    assert!(all.len() > 5 && all.iter().any(|path| path.ends_with("sala.db")), "{all:?}");
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 4] = [
        ("empty", |path| drop(fs::write(path, []))),
        ("cut", |path| drop(fs::read(path).map(|bytes| fs::write(path, &bytes[..bytes.len() / 2])))),
        ("a bit wrong", |path| {
            drop(fs::read(path).map(|mut bytes| {
                bytes.iter_mut().step_by(997).for_each(|byte| *byte ^= 4);
                fs::write(path, bytes)
            }));
        }),
        ("zeroed", |path| drop(fs::read(path).map(|bytes| fs::write(path, vec![0; bytes.len()])))),
    ];
    for (how, damage) in damages {
        for file in all.iter().filter(|file| file.is_file()) {
            let name = file.strip_prefix(&whole).unwrap();
            let at = format!("{}: {how}", name.display());
            let _ = fs::remove_dir_all(&data);
            let root = data.join("requests");
            copy(&whole, &root);
            damage(&root.join(name));
            let notice = answers(&root, &at);
            let aside = fs::read_dir(&data).unwrap().count() - 1;
            assert_eq!(aside, usize::from(notice.is_some()), "{at}: {notice:?}");
            if let Some(notice) = notice {
                assert!(notice.contains("requests.damaged-") && !notice.contains('\n'), "{at}: {notice}");
            }
            assert_eq!(answers(&root, &at), None, "{at}: reported once");
            let store = Store::open(&root, Arc::new(RealDisk), limits()).unwrap();
            assert_eq!((&store.access, store.damage()), (&Access::Writable, None), "{at}");
        }
    }
}

#[test]
fn a_foreign_folder_is_named_and_left_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("requests");
    fs::write(&root, "years of work").unwrap();
    let e = open_cache(&root, &limits()).unwrap_err();
    assert!(e.to_string().contains("requests") && fs::read(&root).unwrap() == b"years of work", "{e}");
    fs::remove_file(&root).unwrap();
    fs::create_dir(&root).unwrap();
    fs::write(root.join("thesis.tex"), "years of work").unwrap();
    let e = open_cache(&root, &limits()).unwrap_err();
    assert!(matches!(&e, StoreError::NotOurs { what, .. } if what == "thesis.tex"), "{e}");
    assert_eq!(fs::read_dir(&root).unwrap().count(), 1);
}
