use crossbeam_channel::unbounded;

use super::*;
use crate::config::settings::LoadConfig;

fn looker(folder: &Path) -> Looker {
    let options = SourceOptions { base: folder.to_owned(), ..SourceOptions::new(&LoadConfig::default()) };
    let paths = whole_paths(&[".".into()], &options);
    Looker::new(paths, options, &Cancel::default()).unwrap()
}

fn changes(looker: &mut Looker) -> Vec<(String, OnDisk)> {
    let look = looker.look(&Cancel::default()).unwrap();
    look.changes.into_iter().map(|c| (c.path.file_name().unwrap().to_string_lossy().into_owned(), c.now)).collect()
}

/// Waits until files have a time stamp that a later change cannot have.
fn settled() {
    std::thread::sleep(SAME_STAMP + Duration::from_millis(20));
}

#[test]
fn a_look_reads_only_what_changed_since_the_last() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a.txt", "b.txt", "c.txt", "ignored.log"] {
        std::fs::write(dir.path().join(name), name).unwrap();
    }
    std::fs::write(dir.path().join(".gitignore"), "*.log\n").unwrap();
    settled();
    let mut looker = looker(dir.path());
    assert_eq!(changes(&mut looker), []);
    // Saved as editors do, deleted, made binary, ignored, and with a name that would forge a line.
    std::fs::write(dir.path().join(".a.swp"), "new a").unwrap();
    std::fs::rename(dir.path().join(".a.swp"), dir.path().join("a.txt")).unwrap();
    std::fs::remove_file(dir.path().join("b.txt")).unwrap();
    std::fs::write(dir.path().join("c.txt"), b"a\0b").unwrap();
    std::fs::write(dir.path().join("ignored.log"), "more").unwrap();
    std::fs::write(dir.path().join("odd\n\u{1b}[2J.txt"), "odd").unwrap();
    settled();
    let look = looker.look(&Cancel::default()).unwrap();
    let names: Vec<&str> = look.changes.iter().map(|c| c.name.rsplit('/').next().unwrap()).collect();
    assert_eq!(names, ["b.txt", "a.txt", "c.txt", "odd__[2J.txt"]);
    assert_eq!([&look.changes[0].now, &look.changes[1].now], [&OnDisk::Gone, &OnDisk::Text("new a".into())]);
    assert!(matches!(&look.changes[2].now, OnDisk::Unreadable(why) if why.contains("not text")));
    assert_eq!(changes(&mut looker), []);
    // A folder that is gone as a whole may be a disk that is away.
    for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
        std::fs::remove_file(entry.path()).unwrap();
    }
    let look = looker.look(&Cancel::default()).unwrap();
    assert!(look.changes.is_empty() && look.note.unwrap().contains("has no files any more"));
}

#[test]
fn a_file_dated_in_the_future_changes_once() {
    let dir = tempfile::tempdir().unwrap();
    let write = |text: &str| {
        let path = dir.path().join("a.txt");
        std::fs::write(&path, text).unwrap();
        let ahead = SystemTime::now() + Duration::from_secs(3600);
        std::fs::File::options().write(true).open(path).unwrap().set_modified(ahead).unwrap();
    };
    write("one");
    let mut looker = looker(dir.path());
    assert_eq!(changes(&mut looker), []);
    write("two");
    assert_eq!(changes(&mut looker), [("a.txt".into(), OnDisk::Text("two".into()))]);
    assert_eq!(changes(&mut looker), []);
}

#[test]
fn a_named_file_is_gone_and_back() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("plan.md");
    std::fs::write(&file, "one").unwrap();
    settled();
    let options = SourceOptions::new(&LoadConfig::default());
    let mut looker = Looker::new(vec![file.to_str().unwrap().into()], options, &Cancel::default()).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(changes(&mut looker), [("plan.md".into(), OnDisk::Gone)]);
    assert_eq!(changes(&mut looker), []);
    std::fs::write(&file, " ").unwrap();
    assert_eq!(changes(&mut looker), [("plan.md".into(), OnDisk::Text(String::new()))]);
}

#[test]
fn a_follower_reports_changes_alone_and_looks_now_and_then() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.txt"), "a").unwrap();
    settled();
    let (to, seen) = unbounded();
    let begun = Instant::now();
    let follower = Follower::start(looker(dir.path()), move |look| drop(to.send(look))).unwrap();
    for n in 0..10_000 {
        std::fs::write(dir.path().join("a.txt"), format!("text {n}")).unwrap();
    }
    let (last, mut reports) = (OnDisk::Text("text 9999".into()), 1);
    while !seen.recv_timeout(Duration::from_secs(60)).unwrap().changes.iter().any(|c| c.now == last) {
        reports += 1;
    }
    assert!(reports <= 2 + begun.elapsed().as_millis() / EVERY.as_millis(), "{reports}");
    // A look at once is reported in any case.
    follower.look()(&Cancel::default());
    assert!(seen.recv_timeout(Duration::from_secs(60)).is_ok());
    drop(follower);
    while seen.recv_timeout(Duration::from_secs(60)).is_ok() {}
    assert_eq!(seen.try_recv(), Err(crossbeam_channel::TryRecvError::Disconnected));
}

#[test]
fn folders_of_many_files_are_looked_at_again_in_seconds() {
    let dir = tempfile::tempdir().unwrap();
    for folder in 0..100 {
        let folder = dir.path().join(folder.to_string());
        std::fs::create_dir(&folder).unwrap();
        (0..200).for_each(|n| std::fs::write(folder.join(n.to_string()), "x").unwrap());
    }
    settled();
    let mut looker = looker(dir.path());
    let begun = Instant::now();
    assert_eq!(changes(&mut looker), []);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    for n in 0..100_000 {
        std::fs::hard_link(dir.path().join("0/0"), dir.path().join(format!("1/more{n}"))).ok();
    }
    if std::fs::read_dir(dir.path().join("1")).unwrap().count() > 100_000 {
        let error = looker.look(&Cancel::default()).unwrap_err().to_string();
        assert!(error.contains("More than 100000 files"), "{error}");
    }
}
