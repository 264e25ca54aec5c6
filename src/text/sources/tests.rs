use super::*;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new(files: &[(&str, &[u8])]) -> Folder {
        let folder = Folder(tempfile::tempdir().unwrap());
        for (name, bytes) in files {
            let path = folder.0.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        folder
    }

    fn options(&self) -> SourceOptions {
        SourceOptions {
            base: self.0.path().to_owned(),
            ..SourceOptions::new(&crate::config::settings::Config::default().load)
        }
    }

    fn gather(&self, paths: &[&str]) -> Result<Gathered, SourceError> {
        self.gather_with(paths, &self.options())
    }

    fn gather_with(&self, paths: &[&str], options: &SourceOptions) -> Result<Gathered, SourceError> {
        let paths: Vec<String> = paths.iter().map(|p| p.to_string()).collect();
        gather(&paths, options, &Cancel::default())
    }

    fn error(&self, path: &str) -> String {
        self.gather(&[path]).unwrap_err().to_string()
    }
}

fn names(gathered: &Gathered) -> Vec<&str> {
    gathered.documents.iter().map(|d| d.name.as_str()).collect()
}

#[test]
fn folders_are_sorted_and_leave_out_what_is_hidden_ignored_or_binary() {
    let f = Folder::new(&[
        ("d/b.md", b"b"),
        ("d/a.txt", b"a"),
        ("d/sub/c.txt", b"c"),
        ("d/.hidden", b"h"),
        ("d/.gitignore", b"*.log\n"),
        ("d/x.log", b"log"),
        ("d/pic.png", b"\x89PNG\0\0"),
        ("d/void.txt", b""),
    ]);
    let g = f.gather(&["d"]).unwrap();
    assert_eq!(names(&g), ["d/a.txt", "d/b.md", "d/sub/c.txt"]);
    let skipped: Vec<String> = g.skipped.iter().map(|s| format!("{} {}", s.name, s.reason)).collect();
    assert_eq!(skipped[0], "d/pic.png not text (NUL at byte 4). Convert it to text first.");
    assert_eq!(skipped[1], "d/void.txt the file is empty.");
    assert_eq!(names(&f.gather(&["d/sub/c.txt", "d/*.md", "d/**/a*"]).unwrap()), ["c.txt", "d/b.md", "d/a.txt"]);
    assert_eq!(f.error("d/*.rs"), "No file matches d/*.rs");
}

#[test]
fn patterns_find_names_of_any_bytes_and_leave_hidden_ones_out() {
    use std::os::unix::ffi::OsStrExt;
    let f = Folder::new(&[
        ("w[1]/a.md", b"1"),
        ("w[1]/sub/deep/b.md", b"2"),
        ("w[1]/.git/c.md", b"3"),
        ("w[1]/.d.md", b"4"),
        ("w[1]/x1.txt", b"5"),
    ]);
    std::fs::write(f.0.path().join("w[1]").join(std::ffi::OsStr::from_bytes(b"\xff\xfe.md")), "odd").unwrap();
    let inside = SourceOptions { base: f.0.path().join("w[1]"), ..f.options() };
    let find = |pattern: &str| -> Vec<String> {
        find(&[pattern.to_owned()], &inside, &Cancel::default()).unwrap().found.into_iter().map(|f| f.name).collect()
    };
    assert_eq!(find("*.md"), ["a.md", "\u{fffd}\u{fffd}.md"]);
    assert_eq!(find("**/*.md"), ["a.md", "sub/deep/b.md", "\u{fffd}\u{fffd}.md"]);
    assert_eq!(find("./s?b/**/b.md"), ["sub/deep/b.md"]);
    assert_eq!(find(".*.md"), [".d.md"]);
    assert_eq!(find("x[0-9].txt"), ["x1.txt"]);
    assert_eq!(find("sub/../*.txt"), ["x1.txt"]);
    let odd = f.gather_with(&["*.md"], &inside).unwrap();
    assert_eq!(odd.documents[1].text, "odd");
    assert_eq!(f.error("w[/*"), "No such file: w[/*.");
    assert_eq!(f.error("w[1]/x1[.txt"), "No such file: w[1]/x1[.txt. Similar: ./w[1]/x1.txt");
}

#[test]
fn what_has_no_end_is_refused() {
    let f = Folder::new(&[("d/a.txt", &[b'a'; 900_000]), ("d/b.txt", &[b'b'; 900_000]), ("d/c.txt", &[b'c'; 900_000])]);
    assert_eq!(f.error(""), "A file name is empty. Write the path of a file or folder; . is the current one");
    assert!(matches!(f.gather(&["  "]), Err(SourceError::Blank)));
    for d in ["d", "d/*"] {
        let one = SourceOptions { max_file_bytes: 1 << 20, ..f.options() };
        assert_eq!(f.gather_with(&[d], &one).unwrap().documents.len(), 3);
    }
    std::fs::write(f.0.path().join("d/d.txt"), vec![b'd'; 900_000]).unwrap();
    std::fs::write(f.0.path().join("d/e.txt"), vec![b'e'; 900_000]).unwrap();
    let one = SourceOptions { max_file_bytes: 1 << 20, ..f.options() };
    let all = f.gather_with(&["d"], &one).unwrap_err().to_string();
    assert!(all.starts_with("The files have together more than 4 MiB of text, the limit of one load"), "{all}");
    let pipe = f.0.path().join("pipe.txt");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(f.error("*.txt").contains("skipped pipe.txt: not a regular file"), "{}", f.error("*.txt"));
    assert!(pattern::expand(f.0.path(), "**", 1, &Cancel::default()).is_err());
    let stopped = Cancel::default();
    stopped.cancel();
    assert!(matches!(super::gather(&["d".into()], &f.options(), &stopped), Err(SourceError::Cancelled)));
}

#[test]
fn every_bad_file_gets_a_line_that_says_what_to_do() {
    let f = Folder::new(&[
        ("books/war.txt", b"text"),
        ("notes.txt", b"text"),
        ("dump.bin", b"some bytes..\0"),
        ("report.docx", b"\xd0\xcf\x11\xe0\0\0"),
        ("empty.txt", b""),
        ("spaces.txt", b" \r\n\t\xe2\x80\x83\n"),
        ("pics/a.png", b"\0"),
        ("pics/b.png", b"\0"),
        ("fake.pdf", b"%PDF-1.4 nonsense"),
        ("rich.doc", b"{\\rtf1 hi}"),
    ]);
    assert!(f.error("rich.doc").starts_with("rich.doc: needs a converter. Set load.converters.rtf"));
    assert_eq!(f.error("war.txt"), "No such file: war.txt. Similar: ./books/war.txt");
    assert_eq!(f.error("note.txt"), "No such file: note.txt. Similar: ./notes.txt");
    assert_eq!(f.error("zzz.txt"), "No such file: zzz.txt.");
    assert_eq!(f.error("dump.bin"), "dump.bin: not text (NUL at byte 12). Convert it to text first.");
    assert_eq!(
        f.error("report.docx"),
        "report.docx: needs a converter. Set load.converters.docx, for example \"pandoc --to plain {in}\""
    );
    assert_eq!(f.error("empty.txt"), "empty.txt: the file is empty. Nothing was loaded.");
    assert_eq!(f.error("spaces.txt"), "spaces.txt: only white space. Nothing was loaded.");
    assert!(
        f.error("pics").starts_with("pics: no text files in it (skipped pics/a.png: not text"),
        "{}",
        f.error("pics")
    );
    assert!(
        f.error("pics").ends_with("not text (NUL at byte 0) and 1 more). Nothing was loaded."),
        "{}",
        f.error("pics")
    );
    std::os::unix::fs::symlink("gone.txt", f.options().base.join("link.txt")).unwrap();
    assert_eq!(f.error("link.txt"), "link.txt: a link to gone.txt, which is not there. Nothing was loaded.");
    assert_eq!(
        f.error("/dev/null"),
        "/dev/null: not a regular file. Copy it to a file first, or pipe it in: COMMAND | sala-chat -p TEXT"
    );
    // As it was typed, whichever file of that name is meant.
    assert_eq!(f.error("pics/a.png"), "pics/a.png: not text (NUL at byte 0). Convert it to text first.");
    assert_eq!(f.error("pics/../empty.txt"), "pics/../empty.txt: the file is empty. Nothing was loaded.");
    let small = SourceOptions { max_file_bytes: 3, ..f.options() };
    assert_eq!(
        f.gather_with(&["notes.txt"], &small).unwrap_err().to_string(),
        "notes.txt: 1 MiB, the limit is 0. Raise load.max_file_mib or split it"
    );
    let paged = SourceOptions { pages: Some((1, 2)), ..f.options() };
    assert!(f.gather_with(&["notes.txt"], &paged).unwrap_err().to_string().contains("--pages works for PDF"));
    let force = SourceOptions { force: true, ..f.options() };
    assert_eq!(f.gather_with(&["dump.bin"], &force).unwrap().documents[0].text, "some bytes..\0");
}

#[test]
fn links_are_followed_when_named_and_otherwise_by_the_setting() {
    let f = Folder::new(&[("real/a.txt", b"a"), ("d/b.txt", b"b")]);
    std::os::unix::fs::symlink(f.0.path().join("real/a.txt"), f.0.path().join("d/link.txt")).unwrap();
    assert_eq!(names(&f.gather(&["d"]).unwrap()), ["d/b.txt"]);
    assert_eq!(names(&f.gather(&["d/link.txt"]).unwrap()), ["link.txt"]);
    let follow = SourceOptions { follow_symlinks: true, ..f.options() };
    assert_eq!(names(&f.gather_with(&["d"], &follow).unwrap()), ["d/b.txt", "d/link.txt"]);
}

#[test]
fn what_cannot_be_looked_at_in_a_folder_is_listed() {
    let f = Folder::new(&[("d/b.txt", b"b"), ("d/sub/c.txt", b"c")]);
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(f.0.path().join(to), f.0.path().join(at)).unwrap();
    link("gone", "d/gone.txt");
    link("d", "d/sub/round");
    let follow = SourceOptions { follow_symlinks: true, ..f.options() };
    let g = f.gather_with(&["d"], &follow).unwrap();
    let skipped: Vec<(&str, &str)> = g.skipped.iter().map(|s| (s.name.as_str(), s.reason.as_str())).collect();
    let ([("d/gone.txt", gone), ("d/sub/round", round)], ["d/b.txt", "d/sub/c.txt"]) = (&*skipped, &*names(&g)) else {
        panic!("{g:?}")
    };
    assert!(gone.contains("not found") && round.contains("a link back to"), "{skipped:?}");
    let g = f.gather(&["d/*.txt"]).unwrap();
    assert_eq!((names(&g), g.skipped[0].name.as_str()), (vec!["d/b.txt"], "d/gone.txt"));
}

#[test]
fn names_are_safe_in_the_text_and_distinct() {
    let f = Folder::new(&[("a/x.txt", b"1"), ("b/x.txt", b"2"), ("odd\"<\n.txt", b"3")]);
    let g = f.gather(&["a/x.txt", "b/x.txt", "odd\"<\n.txt", "a/x.txt"]).unwrap();
    assert_eq!(g.documents.len(), 3);
    assert!(g.documents[0].name.ends_with("a/x.txt") && g.documents[1].name.ends_with("b/x.txt"));
    assert_eq!(g.documents[2].name, "odd___.txt");
    assert_eq!(find(&["a/x.txt".into(), "a/x.txt".into()], &f.options(), &Cancel::default()).unwrap().found.len(), 1);
}

#[test]
fn converters_run_without_a_shell() {
    let f = Folder::new(&[("a b;c.docx", b"PK\0")]);
    let mut options = f.options();
    options.converters.insert("docx".into(), "printf '%s|%s' {in} '$HOME'".into());
    let g = f.gather_with(&["a b;c.docx"], &options).unwrap();
    assert!(g.documents[0].text.ends_with("a b;c.docx|$HOME"), "{}", g.documents[0].text);
    for (line, expected) in [
        ("cat", "it has no {in} for the path"),
        ("/nonexistent/tool {in}", "/nonexistent/tool did not start (not found)"),
        ("sh -c 'echo broken >&2; exit 2' {in}", "broken"),
        ("cat 'x {in}", "a quote is not closed"),
        ("true {in}", "it gave no text"),
    ] {
        options.converters.insert("docx".into(), line.into());
        let error = f.gather_with(&["a b;c.docx"], &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // As people write an extension.
    for written in [".docx", "DOCX"] {
        let mut config = crate::config::settings::Config::default().load;
        config.converters.insert(written.into(), "printf '%s' {in}".into());
        let options = SourceOptions { base: f.options().base, ..SourceOptions::new(&config) };
        assert_eq!(f.gather_with(&["a b;c.docx"], &options).unwrap().documents.len(), 1, "{written}");
    }
}

#[test]
fn a_failed_reader_is_reported_in_one_line() {
    let f = Folder::new(&[("x.pdf", b"%PDF-1.4\n")]);
    let with = |script: &str| SourceOptions {
        reader: vec!["sh".into(), "-c".into(), script.into(), "sh".into()],
        ..f.options()
    };
    let text = |script: &str| f.gather_with(&["x.pdf"], &with(script));
    assert_eq!(text(r#"echo '[{"text":"one"},{"text":"two"}]'"#).unwrap().documents[0].text, "one\n\u{0C}\ntwo");
    let second = SourceOptions { pages: Some((2, 9)), ..with(r#"echo '[{"text":"one"},{"text":"two"}]'"#) };
    assert_eq!(f.gather_with(&["x.pdf"], &second).unwrap().documents[0].text, "two");
    let beyond = SourceOptions { pages: Some((3, 9)), ..second };
    assert_eq!(
        f.gather_with(&["x.pdf"], &beyond).unwrap_err().to_string(),
        "x.pdf: it has 2 pages, none of 3-9. Nothing was loaded."
    );
    assert_eq!(
        text(r#"echo '[{"text":" "},{}]'"#).unwrap_err().to_string(),
        "x.pdf: 2 pages, no text layer (probably scanned). Nothing was loaded."
    );
    let some = text(r#"echo '[{"text":"one"},{"failed":true},{},{},{"text":"five","partial":true}]'"#).unwrap();
    let note =
        "page 2 could not be read; no text on pages 3-4 (perhaps a scan); some characters of page 5 could not be read";
    assert_eq!(some.documents[0].note, Some(Remark::Missing(note.to_owned())));
    let cut = text(r#"echo '[{"text":"one","cut":true,"partial":true},{"text":"two"}]'"#).unwrap();
    assert_eq!(cut.documents[0].note, Some(Remark::Missing("only part of page 1 could be read".to_owned())));
    let none = text(r#"echo '[{"failed":true},{"failed":true}]'"#).unwrap_err().to_string();
    assert!(none.starts_with("x.pdf: it is damaged: no page could be read. Nothing was loaded."), "{none}");
    let fonts = text(r#"echo '[{"partial":true},{}]'"#).unwrap_err().to_string();
    assert!(fonts.starts_with("x.pdf: its fonts cannot be read. Nothing was loaded."), "{fonts}");
    let failed = text("echo no good >&2; exit 1").unwrap_err().to_string();
    assert!(failed.starts_with("x.pdf: no good. Nothing was loaded."), "{failed}");
    // How the child ends when a file makes it ask for more memory than it may have.
    let bomb = text("echo memory allocation of 4294967296 bytes failed >&2; kill -ABRT $$").unwrap_err().to_string();
    assert!(bomb.starts_with("x.pdf: reading it needs more than 4 GiB of memory, or breaks the reader"), "{bomb}");
}

#[test]
fn a_file_is_read_once_however_its_path_is_written() {
    let f = Folder::new(&[("a.txt", b"a"), ("d/b.txt", b"b")]);
    std::os::unix::fs::symlink("a.txt", f.0.path().join("link.txt")).unwrap();
    let whole = f.0.path().join("a.txt");
    let g = f.gather(&["a.txt", "./a.txt", "d/../a.txt", whole.to_str().unwrap(), "link.txt", "d", "d/b.txt"]).unwrap();
    assert_eq!(names(&g), ["a.txt", "d/b.txt"]);
    assert!(g.skipped.is_empty());
}

#[test]
fn where_others_can_be_read_a_named_file_that_cannot_is_skipped() {
    let f = Folder::new(&[("a.txt", b"a"), ("notes.txt", b"n"), ("dump.bin", b"bytes\0"), ("void.txt", b"")]);
    let partly = SourceOptions { partly: true, ..f.options() };
    let g = f.gather_with(&["note.txt", "a.txt", "dump.bin", "void.txt", "x*"], &partly).unwrap();
    assert_eq!(names(&g), ["a.txt"]);
    let skipped: Vec<String> = g.skipped.iter().map(|s| format!("{}: {}", s.name, s.reason)).collect();
    assert_eq!(
        skipped,
        [
            "note.txt: No such file. Similar: ./notes.txt",
            "dump.bin: not text (NUL at byte 5). Convert it to text first.",
            "void.txt: the file is empty.",
            "x*: no file matches it",
        ]
    );
    // Where nothing is left, the first problem is the error.
    let nothing = f.gather_with(&["zzz.txt", "void.txt"], &partly).unwrap_err().to_string();
    assert_eq!(nothing, "No such file: zzz.txt.");
    let blank = f.gather_with(&["a.txt", ""], &partly).unwrap_err().to_string();
    assert!(blank.starts_with("A file name is empty."), "{blank}");
}

#[test]
fn where_nothing_can_be_read_each_file_is_read_once() {
    let f = Folder::new(&[("a.docx", b"PK\0"), ("b.docx", b"PK\0")]);
    let log = f.0.path().join("log");
    let mut options = SourceOptions { partly: true, ..f.options() };
    options.converters.insert("docx".into(), format!("sh -c 'echo $0 >> {}; exit 2' {{in}}", log.display()));
    let error = f.gather_with(&["a.docx", "b.docx"], &options).unwrap_err().to_string();
    assert!(error.starts_with("a.docx: the converter"), "{error}");
    assert_eq!(std::fs::read_to_string(log).unwrap().lines().count(), 2);
}

#[test]
fn a_limit_names_its_outcome_unless_only_a_path_is_skipped() {
    let error = SourceError::TooMany { limit: 3 };
    assert!(error.to_string().ends_with("or a narrower pattern. Nothing was loaded."), "{error}");
    assert!(error.reason().ends_with("or a narrower pattern."), "{}", error.reason());
}
