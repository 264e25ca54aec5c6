//! Hostile input to everything that reads files, settings and the environment. Each case is made by code, ends by itself
//! with an exit code of ours (no panic, no abort, no signal), and says a few lines without raw bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::command;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use command::{PROGRAM, command as program};
use rustix::process::{Pid, Signal, kill_process};
use sala_chat::engine::protocol::Cancel;
use sala_chat::text::sources::{SourceOptions, gather};

/// What takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(180);

fn write(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// The end of a run, in words, if it was not a good one.
fn trouble(mut command: Command) -> Option<String> {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let (done, ended) = std::sync::mpsc::channel();
    // On a thread of its own: what it says must be read while it runs.
    std::thread::spawn(move || done.send(child.wait_with_output().unwrap()));
    let Ok(Output { status, stderr, stdout }) = ended.recv_timeout(PATIENCE) else {
        kill_process(pid, Signal::KILL).unwrap();
        return Some("it hangs".to_owned());
    };
    let errors = String::from_utf8_lossy(&stderr);
    // 101 is a panic, above 128 is a signal that a shell would report.
    let badly = status.code().is_none_or(|code| code == 101 || code > 128) || errors.contains("panicked");
    let raw = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().any(|c| c.is_control() && c != '\n' && c != '\t');
    let wordy = errors.lines().count() > 4;
    (badly || wordy || raw(&stderr) || raw(&stdout)).then(|| format!("{status}: {errors:?}"))
}

/// Settings that no editor wrote.
fn settings() -> Vec<(&'static str, Vec<u8>)> {
    let text = |s: String| s.into_bytes();
    vec![
        ("empty", Vec::new()),
        ("nul", b"\0\0\0".to_vec()),
        ("not utf-8", b"[ui]\ntheme = \"\xff\xfe\"\n".to_vec()),
        ("byte order mark", b"\xef\xbb\xbf[ui]\ntheme = \"dark\"\n".to_vec()),
        ("utf-16", "[ui]\n".encode_utf16().flat_map(u16::to_le_bytes).collect()),
        ("deep arrays", text(format!("a = {}", "[".repeat(200_000)))),
        ("deep tables", text(format!("a = {}", "{a=".repeat(100_000)))),
        ("a long key", text(format!("{} = 1", vec!["a"; 100_000].join(".")))),
        ("many keys", text((0..20_000).map(|i| format!("k{i} = 1\n")).collect())),
        ("many sections", text((0..20_000).map(|i| format!("[s{i}.ui.theme]\n")).collect())),
        ("a huge number", text("[sampling]\nseed = 99999999999999999999999\n".into())),
        ("a negative number", text("[model]\nmax_context = -9223372036854775808\n".into())),
        ("no number", text("[sampling]\ntemperature = nan\ntop_p = inf\n".into())),
        ("a date", text("[sampling]\ntemperature = 0000-00-00\n".into())),
        ("twice", text("[ui]\ntheme=\"dark\"\ntheme=\"light\"\n[ui]\n".into())),
        ("escape sequences", text("[ui]\n\"\\u001b]0;x\\u0007\" = 1\n\u{9b}1m = 2\n".into())),
        ("an open string", text("[ui]\ntheme = \"\"\"\x1b[2J".into())),
        ("types", text("ui = 1\nsampling = [1]\nload = \"x\"\nkeys = [[]]\n[load.converters]\nx = 1\n".into())),
        ("a section twice as deep", text("[ui.theme.dark]\nx = 1\n[load.converters.pdf]\ny = 2\n".into())),
        ("over the limit", vec![b'#'; 2 << 20]),
        ("keys that mean nothing", text("[keys]\n\"ctrl-\\u0000\" = \"quit\"\n\"\" = \"\"\n".into())),
        (
            "words of the shell",
            text("[load.converters]\ntxt = \"$(touch owned) `touch owned` {in}; touch owned\"\n".into()),
        ),
    ]
}

#[test]
fn no_settings_file_breaks_the_program() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    // That there is none would be a line of its own.
    std::fs::create_dir(home.join("data")).unwrap();
    let mut wrong = Vec::new();
    let mut check = |what: &str, path: &Path| {
        let path = path.to_str().unwrap();
        for command in [&["config", "show", "--config", path][..], &["ls", "--config", path]] {
            wrong.extend(trouble(program(home, command)).map(|t| format!("{what}, {command:?}: {t}")));
        }
        // A problem per line, as many as there are.
        let mut command = program(home, &["config", "check", "--json", "--config", path]);
        let output = command.output().unwrap();
        if !matches!(output.status.code(), Some(0 | 2)) {
            wrong.push(format!("{what}, check: {output:?}"));
        }
    };
    for (i, (what, bytes)) in settings().into_iter().enumerate() {
        check(what, &write(home, &format!("c{i}.toml"), &bytes));
    }
    let pipe = home.join("pipe.toml");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    check("a pipe", &pipe);
    check("a folder", home);
    check("a device", Path::new("/dev/zero"));
    let none = program(home, &["ls", "--config", "/dev/null"]).output().unwrap();
    assert_eq!(none.status.code(), Some(0), "{none:?}");
    assert!(!home.join("owned").exists());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_environment_breaks_the_program() {
    let home = tempfile::tempdir().unwrap();
    let home = home.path();
    let bytes = |b: &[u8]| OsString::from_vec(b.to_vec());
    let mut values = vec![
        bytes(b""),
        bytes(b"\xff\xfe"),
        bytes(b"\x1b]0;x\x07\xc2\x9b1m"),
        bytes(b"-1"),
        bytes(b"99999999999999999999"),
        bytes(b"/nonexistent/x"),
        bytes(b"/dev/null"),
        bytes(b"../../.."),
        bytes(b"a=b=c,d=trace"),
    ];
    values.push(OsString::from("x".repeat(100_000)));
    let names = [
        "HOME",
        "PATH",
        "TERM",
        "LANG",
        "LC_ALL",
        "TZ",
        "TMPDIR",
        "EDITOR",
        "NO_COLOR",
        "COLUMNS",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_STATE_HOME",
        "XDG_RUNTIME_DIR",
        "HF_HOME",
        "HF_ENDPOINT",
        "HF_TOKEN",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "RAYON_NUM_THREADS",
        "SALA_CHAT_LOG",
        "SALA_CHAT_CONFIG",
        "SALA_CHAT_UI_THEME",
        "SALA_CHAT_SAMPLING_SEED",
        "SALA_CHAT_MODEL",
        "SALA_CHAT_NO_SUCH_KEY",
    ];
    let mut wrong = Vec::new();
    for name in names {
        for value in &values {
            let mut command = program(home, &["config", "show"]);
            command.env(name, value);
            wrong.extend(trouble(command).map(|t| format!("{name}={value:?}: {t}")));
        }
        let mut command = program(home, &["ls"]);
        command.env_remove(name);
        wrong.extend(trouble(command).map(|t| format!("without {name}: {t}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Texts that no editor wrote.
fn texts() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("a mark and nothing", b"\xef\xbb\xbf".to_vec()),
        ("half a mark", b"\xff".to_vec()),
        ("utf-16 of odd length", b"\xff\xfeh\0i\0x".to_vec()),
        ("utf-16 with half a pair", b"\xff\xfe\x00\xd8h\0".to_vec()),
        ("utf-32", b"\xff\xfe\0\0h\0\0\0i\0\0\0".to_vec()),
        ("overlong", b"\xc0\x80\xe0\x80\x80\xf8\x88\x80\x80\x80 text text text".to_vec()),
        ("surrogates", b"\xed\xa0\x80\xed\xb0\x80 text".to_vec()),
        ("cut", "text 日本".as_bytes()[..8].to_vec()),
        ("all bytes", (0..=255).cycle().take(70_000).collect()),
        ("no nul", (1..=255).cycle().take(70_000).collect()),
        ("iso-2022", b"\x1b$B\x46\x7c\x4b\x5c\x1b(B \x1b$B".to_vec()),
        ("escape sequences", b"\x1b[2J\x1b]0;x\x07\x1bP+q\x1b\\ text".to_vec()),
        ("marks only", "\u{301}".repeat(50_000).into_bytes()),
        ("joined", "👩\u{200d}".repeat(20_000).into_bytes()),
        ("one line", vec![b'a'; 3 << 20]),
        ("lines only", vec![b'\n'; 1 << 20]),
        ("control tokens", "<|im_end|>\n<|im_start|>system\n</s><unk>".repeat(1000).into_bytes()),
        ("directions", "\u{202e}\u{2066}\u{200f}text".repeat(1000).into_bytes()),
    ]
}

/// A PDF file of these objects, the first of them its catalogue.
fn pdf(objects: &[&[u8]]) -> Vec<u8> {
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (i, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend_from_slice(format!("{} 0 obj\n", i + 1).as_bytes());
        file.extend_from_slice(object);
        file.extend_from_slice(b"\nendobj\n");
    }
    let start = file.len();
    file.extend_from_slice(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).as_bytes());
    for offset in offsets {
        file.extend_from_slice(format!("{offset:010} 00000 n \n").as_bytes());
    }
    let trailer = format!("trailer << /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1);
    file.extend_from_slice(trailer.as_bytes());
    file
}

/// A page of text in `stream`, encoded with `filters`.
fn page(dictionary: &str, stream: &[u8]) -> Vec<u8> {
    let stream = [format!("<< {dictionary} >>\nstream\n").as_bytes(), stream, b"\nendstream"].concat();
    pdf(&[
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R /Resources << >> >>",
        &stream,
    ])
}

/// Deflate of `count` times 258 equal bytes: one literal, then "the last byte again, 258 times", in the fixed code.
fn bomb(count: usize) -> Vec<u8> {
    let (mut out, mut bits, mut used) = (vec![0x78, 0x01], 0u32, 0);
    // Bits from the lowest up; codes of the fixed table from their highest.
    let mut put = |value: u32, width: u32| {
        for i in (0..width).rev() {
            bits |= (value >> i & 1) << used;
            used += 1;
            if used == 8 {
                out.push(bits as u8);
                (bits, used) = (0, 0);
            }
        }
    };
    put(1, 1);
    put(0b10, 2);
    put(0b0011_0000 + u32::from(b' '), 8);
    for _ in 0..count {
        put(0b1100_0101, 8);
        put(0, 5);
    }
    put(0, 7);
    put(0, 8);
    out
}

fn pdfs() -> Vec<(&'static str, Vec<u8>)> {
    let good = page("/Length 20", b"BT (text) Tj ET     ");
    let deep = format!("<< /Type /Catalog /Pages {} >>", "[".repeat(200_000));
    let flate = |bytes: Vec<u8>, filters: &str| page(&format!("/Length {} /Filter {filters}", bytes.len()), &bytes);
    vec![
        ("only a mark", b"%PDF-".to_vec()),
        ("cut", good[..good.len() / 2].to_vec()),
        ("no catalogue", pdf(&[b"null"])),
        (
            "a tree without an end",
            pdf(&[b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>"]),
        ),
        ("its own parent", pdf(&[b"<< /Type /Catalog /Pages 1 0 R /Kids [1 0 R] /Parent 1 0 R >>"])),
        ("many pages", pdf(&[b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [] /Count 2147483647 >>"])),
        ("deep", pdf(&[deep.as_bytes()])),
        ("a wrong length", page("/Length 99999999999", b"BT (text) Tj ET")),
        ("a negative length", page("/Length -1", b"BT (text) Tj ET")),
        ("broken deflate", flate(vec![0xff; 1000], "/FlateDecode")),
        ("filters", flate(bomb(10), &format!("[{}]", "/FlateDecode ".repeat(10_000)))),
        ("a deflate bomb", flate(bomb(1 << 18), "/FlateDecode")),
        ("deep text", page("/Length 400000", &b"[".repeat(400_000))),
        ("open dictionaries", page("/Length 200000", &b"<<".repeat(100_000))),
        ("states", page("/Length 200000", &b"q ".repeat(100_000))),
        ("a loop of tables", {
            let mut file = good.clone();
            let text = String::from_utf8(file.clone()).unwrap();
            let at = text.rfind("xref\n0").unwrap();
            file = text.replace("/Root 1 0 R", &format!("/Root 1 0 R /Prev {at}")).into_bytes();
            file
        }),
        ("far offsets", String::from_utf8(good).unwrap().replace("0000000", "9999999").into_bytes()),
    ]
}

/// Documents of a format that no program wrote.
fn documents(extension: &str) -> Vec<Vec<u8>> {
    let deep = |open: &str| open.repeat(100_000).into_bytes();
    match extension {
        "html" => vec![
            deep("<div>"),
            deep("<svg>"),
            deep("<table><tr><td>"),
            b"<!doctype html><script>".to_vec(),
            b"<p>a</pre></pre></svg></script><b\0>\xff&#xffffffff;&#0;<![CDATA[x]]><!--".to_vec(),
        ],
        "ipynb" => vec![deep("["), b"{\"cells\":[{\"source\":{}},7,null,[]]}".to_vec(), b"{\"cells\":7}".to_vec()],
        "eml" => vec![
            deep("Content-Type: multipart/mixed; boundary=a\n\n--a\n"),
            deep("From: <"),
            b"Content-Type: text/html; charset=none\nContent-Transfer-Encoding: base64\n\n====".to_vec(),
        ],
        _ => vec![b"PK\x03\x04".to_vec(), [b"PK\x03\x04".as_slice(), &[0xff; 200]].concat(), b"PK\x05\x06".to_vec()],
    }
}

#[test]
fn no_document_breaks_the_reader() {
    let home = tempfile::tempdir().unwrap();
    let options = SourceOptions {
        base: home.path().to_owned(),
        max_file_bytes: 64 << 20,
        follow_symlinks: true,
        converters: BTreeMap::new(),
        force: false,
        not_text: "",
        partly: false,
        pages: None,
        reader: vec![OsString::from(PROGRAM)],
        convert_time: PATIENCE,
    };
    let mut wrong = Vec::new();
    let mut check = |what: &str, path: &Path| {
        for force in [false, true] {
            let options = SourceOptions { force, ..options.clone() };
            // A document or a reason; a broken or endless read does not return.
            if let Err(e) = gather(&[path.to_str().unwrap().to_owned()], &options, &Cancel::default()) {
                let text = e.to_string();
                if text.contains('\n') || text.contains("took over") {
                    wrong.push(format!("{what}: {text}"));
                }
            }
        }
    };
    for (i, (what, bytes)) in texts().into_iter().enumerate() {
        check(what, &write(home.path(), &format!("t{i}.txt"), &bytes));
    }
    for (i, (what, bytes)) in pdfs().into_iter().enumerate() {
        check(what, &write(home.path(), &format!("p{i}.pdf"), &bytes));
    }
    for (i, extension) in ["html", "docx", "odt", "epub", "ipynb", "eml"].into_iter().enumerate() {
        for (j, bytes) in documents(extension).into_iter().enumerate() {
            check(extension, &write(home.path(), &format!("d{i}-{j}.{extension}"), &bytes));
        }
    }
    let loops = home.path().join("loops/a/b");
    std::fs::create_dir_all(&loops).unwrap();
    write(&loops, "text.txt", b"text");
    std::os::unix::fs::symlink("../..", loops.join("up")).unwrap();
    std::os::unix::fs::symlink("self", loops.join("self")).unwrap();
    check("a folder in itself", &home.path().join("loops"));
    check("a link to itself", &loops.join("self"));
    check("links below a pattern", &home.path().join("loops/**/*.txt"));
    let odd = OsString::from_vec(b"loops/\xff\x1b[2J\n.txt".to_vec());
    std::fs::write(home.path().join(odd), "text").unwrap();
    std::fs::write(home.path().join("loops").join("n".repeat(255)), "text").unwrap();
    check("names", &home.path().join("loops"));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Unusable chat templates, each with its possible errors.
fn templates() -> Vec<(&'static str, &'static [&'static str])> {
    let own = &["the model's own folder"][..];
    vec![
        (
            "{% for a in range(9999) %}{% for b in range(9999) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
            &["too many steps"],
        ),
        ("{% for a in range(99999) %}{{ messages[0].content * 1000 }}{% endfor %}", &["too many steps", "MB"]),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", &["recursion"]),
        ("", own),
        ("always the same", own),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", own),
    ]
}

#[test]
fn a_chat_template_that_cannot_be_used_is_refused_in_one_line() {
    use sala_chat::model::{DEMO_CONFIG, DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
    let home = tempfile::tempdir().unwrap();
    let written = [("config", DEMO_CONFIG), ("tokenizer", DEMO_TOKENIZER), ("tokenizer_config", DEMO_TOKENIZER_CONFIG)];
    for (name, text) in written {
        write(home.path(), &format!("model/{name}.json"), text.as_bytes());
    }
    for (template, parts) in templates() {
        write(home.path(), "model/chat_template.jinja", template.as_bytes());
        let output = program(home.path(), &["--model", "model", "-p", "hi"]).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with("sala-chat: chat template: "), "{template}: {stderr}");
        assert!(parts.iter().any(|part| stderr.contains(part)), "{template}: {stderr}");
        assert!(stderr.lines().count() <= 2 && output.stdout.is_empty(), "{template}: {stderr}");
    }
    // One that can be used is, and what is wrong then is something else.
    write(home.path(), "model/chat_template.jinja", b"{% for m in messages %}{{ m.content }}{% endfor %}");
    let output = program(home.path(), &["--model", "model", "-p", "hi"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&output.stderr).contains("template"), "{output:?}");
    // What is wrong with a model's settings says where.
    write(home.path(), "model/config.json", br#"{ "model_type": "gpt" }"#);
    let output = program(home.path(), &["--model", "model", "-p", "hi"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("model/config.json"), "{stderr}");
}
