//! A hub on this machine that does what hubs do on bad days.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};

use super::tests::weights;
use super::*;

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A fault of one request for a file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fault {
    Status(u16),
    /// This many bytes, then the connection ends.
    Short(usize),
    /// Some bytes, then silence.
    Stall,
    /// A byte now and then.
    Drip,
    /// More than the requested range, without end.
    Endless,
    /// A length in the header that no memory holds.
    Boast,
    /// Other bytes than those requested.
    Elsewhere,
    /// The whole file for any range.
    Whole,
    /// Wrong content.
    Lie,
}

pub(super) struct Server {
    endpoint: String,
    pub(super) faults: Arc<Mutex<VecDeque<Fault>>>,
    /// Requests so far: the first line, and the range.
    pub(super) seen: Arc<Mutex<Vec<String>>>,
    pub(super) files: Arc<Vec<(String, Vec<u8>)>>,
}

pub(super) fn serve(files: Vec<(&str, Vec<u8>)>, info: impl Fn() -> String + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let faults = Arc::new(Mutex::new(VecDeque::new()));
    let seen = Arc::new(Mutex::new(Vec::new()));
    let files: Arc<Vec<(String, Vec<u8>)>> = Arc::new(files.into_iter().map(|(n, b)| (n.to_owned(), b)).collect());
    let (f, s, all, info) = (faults.clone(), seen.clone(), files.clone(), Arc::new(info));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (f, s, all, info) = (f.clone(), s.clone(), all.clone(), info.clone());
            std::thread::spawn(move || drop(answer(stream, &f, &s, &all, &*info)));
        }
    });
    Server { endpoint, faults, seen, files }
}

fn answer(
    mut stream: TcpStream,
    faults: &Mutex<VecDeque<Fault>>,
    seen: &Mutex<Vec<String>>,
    files: &[(String, Vec<u8>)],
    info: &dyn Fn() -> String,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    let mut range = None;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some(r) = line.to_lowercase().strip_prefix("range: bytes=") {
            let (a, b) = r.split_once('-').unwrap();
            range = Some((a.parse::<usize>().unwrap(), b.parse::<usize>().unwrap() + 1));
        }
    }
    seen.lock().unwrap().push(format!("{first} {range:?}"));
    let path = first.split(' ').nth(1).unwrap_or("");
    let ok = |stream: &mut TcpStream, body: &[u8]| {
        write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
        stream.write_all(body)
    };
    for (owner, status) in [("nobody", "404 Not Found"), ("private", "401 Unauthorized")] {
        if path.starts_with(&format!("/api/models/{owner}/")) {
            return write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    }
    if path.contains("/revision/") {
        let text = match serde_json::from_str::<serde_json::Value>(&info()) {
            Ok(mut info) => {
                info["siblings"] = listing(files);
                info.to_string()
            }
            Err(_) => info(),
        };
        return ok(&mut stream, text.as_bytes());
    }
    let Some((_, body)) = files.iter().find(|(n, _)| path.ends_with(&format!("/resolve/{COMMIT}/{n}"))) else {
        return write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    };
    let (from, to) = range.unwrap_or((0, body.len()));
    let fault = faults.lock().unwrap().pop_front();
    let head = |stream: &mut TcpStream, length: u64, from: usize| {
        write!(
            stream,
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {length}\r\nContent-Range: bytes {from}-{}/{}\r\nConnection: close\r\n\r\n",
            to - 1,
            body.len()
        )
    };
    let (range, length) = (&body[from..to], (to - from) as u64);
    match fault {
        None => {
            head(&mut stream, length, from)?;
            stream.write_all(range)
        }
        Some(Fault::Status(code)) => {
            write!(stream, "HTTP/1.1 {code} No\r\nRetry-After: 7\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        }
        Some(Fault::Short(n)) => {
            head(&mut stream, length, from)?;
            stream.write_all(&range[..n.min(range.len())])
        }
        Some(Fault::Stall) => {
            head(&mut stream, length, from)?;
            stream.write_all(&range[..1])?;
            std::thread::sleep(Duration::from_secs(20));
            Ok(())
        }
        Some(Fault::Drip) => {
            head(&mut stream, length, from)?;
            for byte in range {
                stream.write_all(&[*byte])?;
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        }
        Some(Fault::Endless) => {
            write!(
                stream,
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {from}-\r\nConnection: close\r\n\r\n"
            )?;
            stream.write_all(range)?;
            loop {
                stream.write_all(&[0; 4096])?;
            }
        }
        Some(Fault::Boast) => {
            head(&mut stream, 1 << 62, from)?;
            stream.write_all(range)
        }
        Some(Fault::Elsewhere) => {
            head(&mut stream, length, from + 1)?;
            stream.write_all(range)
        }
        Some(Fault::Whole) => ok(&mut stream, body),
        Some(Fault::Lie) => {
            head(&mut stream, length, from)?;
            stream.write_all(&vec![7; range.len()])
        }
    }
}

fn listing(files: &[(String, Vec<u8>)]) -> serde_json::Value {
    let hex = |hash: &[u8]| hash.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let entry = |(name, body): &(String, Vec<u8>)| match name.ends_with(".safetensors") {
        true => serde_json::json!({"rfilename": name, "size": body.len(), "blobId": "0".repeat(40),
            "lfs": {"sha256": hex(&Sha256::digest(body)), "size": body.len(), "pointerSize": 134}}),
        false => {
            let hash = sha1::Sha1::new().chain_update(format!("blob {}\0", body.len())).chain_update(body).finalize();
            serde_json::json!({"rfilename": name, "size": body.len(), "blobId": hex(&hash)})
        }
    };
    serde_json::Value::Array(files.iter().map(entry).collect())
}

pub(super) fn model(weight_bytes: usize) -> Vec<(&'static str, Vec<u8>)> {
    let settings = ["config.json", "tokenizer.json", "tokenizer_config.json"].map(|n| (n, b"{}".to_vec()));
    settings.into_iter().chain([("model.safetensors", weights(weight_bytes))]).collect()
}

pub(super) fn info() -> String {
    format!(r#"{{"sha": "{COMMIT}", "cardData": {{"license": "apache-2.0"}}}}"#)
}

pub(super) fn hub(server: &Server) -> Hub {
    let ms = Duration::from_millis;
    let patience = Patience { connect: ms(2_000), stall: ms(300), slow: ms(400), least_bytes: 1_000 };
    Hub::at(&server.endpoint, "o/n", None, patience).unwrap()
}

fn download(server: &Server, dir: &Path) -> (Result<PathBuf, HubError>, Vec<Progress>, Vec<Duration>) {
    let hub = hub(server);
    let repo = CachedRepo::new(dir, "o/n");
    let (mut seen, waits) = (Vec::new(), Mutex::new(Vec::new()));
    let wait = |d| waits.lock().unwrap().push(d);
    let snapshot = match hub.snapshot("main") {
        Ok(snapshot) => snapshot,
        Err(e) => return (Err(e), Vec::new(), Vec::new()),
    };
    let done = repo.download(&hub, "main", &snapshot, &wait, &mut |p| seen.push(p.clone()));
    (done, seen, waits.into_inner().unwrap())
}

#[test]
fn a_download_over_http_is_whole_verified_and_says_its_licence() {
    let server = serve(model(50_000), info);
    let dir = tempfile::tempdir().unwrap();
    let (done, ..) = download(&server, dir.path());
    let folder = done.unwrap();
    assert_eq!(CachedRepo::new(dir.path(), "o/n").installed("main", Kind::Model), Some(folder.clone()));
    assert_eq!(std::fs::read(folder.join("model.safetensors")).unwrap(), server.files[3].1);
    assert_eq!(hub(&server).snapshot("main").unwrap().licence.as_deref(), Some("apache-2.0"));
}

#[test]
fn every_fault_that_passes_is_outlived() {
    let faults = [
        Fault::Status(500),
        Fault::Status(502),
        Fault::Status(429),
        Fault::Status(503),
        Fault::Short(0),
        Fault::Short(17),
        Fault::Stall,
        Fault::Drip,
        Fault::Endless,
        Fault::Boast,
        Fault::Elsewhere,
        Fault::Whole,
    ];
    for fault in faults {
        let server = serve(model(50_000), info);
        let dir = tempfile::tempdir().unwrap();
        // The three settings files are fetched first.
        server.faults.lock().unwrap().extend([fault]);
        let begun = Instant::now();
        let (done, seen, waits) = download(&server, dir.path());
        let folder = done.unwrap_or_else(|e| panic!("{fault:?}: {e}"));
        assert_eq!(std::fs::read(folder.join("config.json")).unwrap(), b"{}", "{fault:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{fault:?}");
        if matches!(fault, Fault::Status(429 | 503)) {
            assert_eq!(waits, [Duration::from_secs(7)], "the hub says how long");
            assert!(seen.iter().any(|p| p.trouble.is_some()));
        }
    }
}

#[test]
fn a_torn_connection_in_the_middle_of_the_weights_costs_nothing() {
    let server = serve(model(50_000), info);
    let dir = tempfile::tempdir().unwrap();
    // The three settings files are one blob, requested once.
    let (ok, torn) = (Fault::Short(usize::MAX), Fault::Short(20_000));
    server.faults.lock().unwrap().extend([ok, torn, Fault::Drip]);
    let (done, ..) = download(&server, dir.path());
    assert_eq!(std::fs::read(done.unwrap().join("model.safetensors")).unwrap(), server.files[3].1);
    let requests =
        server.seen.lock().unwrap().iter().filter(|l| l.contains("model.safetensors")).cloned().collect::<Vec<_>>();
    assert!(requests[1].contains("Some((20000, 50000))"), "{requests:?}");
}

#[test]
fn faults_that_do_not_pass_are_one_line_each() {
    for (fault, expected) in [
        (Fault::Status(401), "a login"),
        (Fault::Status(403), "HF_TOKEN"),
        (Fault::Status(404), "not on the hub"),
        (Fault::Status(410), "not on the hub"),
        (Fault::Status(451), "status 451"),
    ] {
        let server = serve(model(50_000), info);
        let dir = tempfile::tempdir().unwrap();
        server.faults.lock().unwrap().push_back(fault);
        let error = download(&server, dir.path()).0.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{fault:?}: {error}");
    }
    let server = serve(model(50_000), info);
    let dir = tempfile::tempdir().unwrap();
    server.faults.lock().unwrap().extend([Fault::Status(500); 9]);
    let (done, seen, _) = download(&server, dir.path());
    assert!(matches!(done, Err(HubError::Network(_))) && seen.len() < 9);
    // Content that is not what was published does not stay.
    let lies = serve(model(50_000), info);
    let ok = Fault::Short(usize::MAX);
    lies.faults.lock().unwrap().extend([ok, Fault::Lie]);
    assert!(matches!(download(&lies, dir.path()).0, Err(HubError::Damaged(_))));
    assert_eq!(CachedRepo::new(dir.path(), "o/n").installed("main", Kind::Model), None);
}

#[test]
fn a_repository_that_is_not_there_or_not_shown_is_not_known_to_the_hub() {
    let server = serve(model(50_000), info);
    let refusal = |repo: &str, token: Option<&str>| {
        let hub = Hub::at(&server.endpoint, repo, token.map(str::to_owned), Patience::default()).unwrap();
        hub.snapshot("v1").unwrap_err()
    };
    for (repo, token) in [("nobody/n", None), ("nobody/n", Some("t")), ("private/n", None)] {
        let error = refusal(repo, token);
        assert!(matches!(&error, HubError::Unknown(what) if *what == format!("{repo} at v1")), "{error}");
    }
    // A refused token is reported.
    assert!(refusal("private/n", Some("t")).to_string().contains("a login"));
}

#[test]
fn a_part_that_is_longer_than_the_hub_has_begins_again() {
    let server = serve(model(50_000), info);
    let dir = tempfile::tempdir().unwrap();
    let ok = Fault::Short(usize::MAX);
    server.faults.lock().unwrap().extend([ok, Fault::Short(1_000), Fault::Status(416)]);
    let (done, ..) = download(&server, dir.path());
    assert_eq!(std::fs::read(done.unwrap().join("model.safetensors")).unwrap(), server.files[3].1);
}

#[test]
fn what_a_hub_says_of_itself_is_not_believed() {
    for (name, info, expected) in [
        ("commit", r#"{"sha": "../../../../etc"}"#.to_owned(), "no commit"),
        ("short", r#"{"sha": "c0ffee"}"#.to_owned(), "no commit"),
        ("none", "{}".to_owned(), "no commit"),
        ("junk", "<html>".to_owned(), "cannot be read"),
    ] {
        let server = serve(model(50_000), move || info.clone());
        let error = hub(&server).snapshot("main").unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    for repo in ["", "a", "a/b/c", "../b", "a/..", "a/b?x=1", "a/b#c", "a b/c"] {
        assert!(Hub::at("http://127.0.0.1:1", repo, None, Patience::default()).is_err(), "{repo}");
    }
    assert!(Hub::at("file:///etc", "a/b", None, Patience::default()).is_err());
}
