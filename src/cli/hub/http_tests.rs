//! A hub on this machine that does what hubs do on bad days.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
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
    pub(super) faults: Mutex<VecDeque<Fault>>,
    /// Requests so far: the first line, and the range.
    pub(super) seen: Mutex<Vec<String>>,
    pub(super) files: Vec<(&'static str, Vec<u8>)>,
    info: String,
}

pub(super) fn serve(weight_bytes: usize) -> Arc<Server> {
    serve_as(weight_bytes, &format!(r#"{{"sha": "{COMMIT}", "cardData": {{"license": "apache-2.0"}}}}"#))
}

fn serve_as(weight_bytes: usize, info: &str) -> Arc<Server> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let settings = ["config.json", "tokenizer.json", "tokenizer_config.json"].map(|n| (n, b"{}".to_vec()));
    let files = settings.into_iter().chain([("model.safetensors", weights(weight_bytes))]).collect();
    let (faults, seen) = Default::default();
    let server = Arc::new(Server { endpoint, faults, seen, files, info: info.to_owned() });
    let serving = server.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let server = serving.clone();
            std::thread::spawn(move || drop(server.answer(stream)));
        }
    });
    server
}

impl Server {
    pub(super) fn fail(&self, faults: &[Fault]) {
        self.faults.lock().unwrap().extend(faults);
    }

    /// The requests for the weights.
    pub(super) fn for_weights(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().filter(|l| l.contains("model.safetensors")).cloned().collect()
    }

    pub(super) fn weights(&self) -> &[u8] {
        &self.files[3].1
    }

    fn answer(&self, mut stream: TcpStream) -> std::io::Result<()> {
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
        self.seen.lock().unwrap().push(format!("{first} {range:?}"));
        let path = first.split(' ').nth(1).unwrap_or("");
        let mut send = |head: &str, length: usize, body: &[u8]| {
            write!(stream, "HTTP/1.1 {head}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n")?;
            stream.write_all(body)
        };
        for (owner, status) in [("nobody", "404 Not Found"), ("private", "401 Unauthorized")] {
            if path.starts_with(&format!("/api/models/{owner}/")) {
                return send(status, 0, b"");
            }
        }
        if path.contains("/revision/") {
            let text = match serde_json::from_str::<serde_json::Value>(&self.info) {
                Ok(mut info) => {
                    info["siblings"] = listing(&self.files);
                    info.to_string()
                }
                Err(_) => self.info.clone(),
            };
            return send("200 OK", text.len(), text.as_bytes());
        }
        let Some((_, body)) = self.files.iter().find(|(n, _)| path.ends_with(&format!("/resolve/{COMMIT}/{n}"))) else {
            return send("404 Not Found", 0, b"");
        };
        let (from, to) = range.unwrap_or((0, body.len()));
        let range = &body[from..to];
        let mut part = |from: usize, length: usize, bytes: &[u8]| {
            let place = format!("Content-Range: bytes {from}-{}/{}", to - 1, body.len());
            send(&format!("206 Partial Content\r\n{place}"), length, bytes)
        };
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            None => part(from, range.len(), range),
            Some(Fault::Status(code)) => send(&format!("{code} No\r\nRetry-After: 7"), 0, b""),
            Some(Fault::Short(n)) => part(from, range.len(), &range[..n.min(range.len())]),
            Some(Fault::Stall) => {
                part(from, range.len(), &range[..1])?;
                std::thread::sleep(Duration::from_secs(20));
                Ok(())
            }
            Some(Fault::Endless) => {
                let head = format!("206 Partial Content\r\nContent-Range: bytes {from}-");
                write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n")?;
                stream.write_all(range)?;
                loop {
                    stream.write_all(&[0; 4096])?;
                }
            }
            Some(Fault::Boast) => part(from, 1 << 62, range),
            Some(Fault::Elsewhere) => part(from + 1, range.len(), range),
            Some(Fault::Whole) => send("200 OK", body.len(), body),
            Some(Fault::Lie) => part(from, range.len(), &vec![7; range.len()]),
        }
    }
}

fn listing(files: &[(&str, Vec<u8>)]) -> serde_json::Value {
    let hex = |hash: &[u8]| hash.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let entry = |(name, body): &(&str, Vec<u8>)| match name.ends_with(".safetensors") {
        true => serde_json::json!({"rfilename": name, "size": body.len(), "blobId": "0".repeat(40),
            "lfs": {"sha256": hex(&Sha256::digest(body)), "size": body.len(), "pointerSize": 134}}),
        false => {
            let hash = sha1::Sha1::new().chain_update(format!("blob {}\0", body.len())).chain_update(body).finalize();
            serde_json::json!({"rfilename": name, "size": body.len(), "blobId": hex(&hash)})
        }
    };
    serde_json::Value::Array(files.iter().map(entry).collect())
}

pub(super) fn hub(server: &Server) -> Hub {
    Hub::at(&server.endpoint, "o/n", None, Duration::from_millis(300)).unwrap()
}

/// What a download reports, and how long it waits.
type Reported = (Vec<Progress>, Vec<Duration>);

pub(super) fn download(repo: &CachedRepo, server: &Server) -> (Result<PathBuf, HubError>, Reported) {
    let hub = hub(server);
    let (mut seen, waits) = (Vec::new(), Mutex::new(Vec::new()));
    let wait = |d| waits.lock().unwrap().push(d);
    let snapshot = hub.snapshot("main").unwrap();
    let done = repo.download(&hub, "main", &snapshot, &wait, &mut |p| seen.push(p.clone()));
    (done, (seen, waits.into_inner().unwrap()))
}

/// A download into a new folder.
fn fetched(server: &Server) -> (tempfile::TempDir, Result<PathBuf, HubError>, Reported) {
    let dir = tempfile::tempdir().unwrap();
    let (done, reported) = download(&CachedRepo::new(dir.path(), "o/n"), server);
    (dir, done, reported)
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
        Fault::Endless,
        Fault::Boast,
        Fault::Elsewhere,
        Fault::Whole,
    ];
    for fault in faults {
        let server = serve(50_000);
        // The three settings files are fetched first.
        server.fail(&[fault]);
        let begun = Instant::now();
        let (_dir, done, (seen, waits)) = fetched(&server);
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
    let server = serve(50_000);
    // The three settings files are one blob, requested once.
    server.fail(&[Fault::Short(usize::MAX), Fault::Short(20_000), Fault::Stall]);
    let (_dir, done, _) = fetched(&server);
    assert_eq!(std::fs::read(done.unwrap().join("model.safetensors")).unwrap(), server.weights());
    let requests = server.for_weights();
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
        let server = serve(50_000);
        server.fail(&[fault]);
        let error = fetched(&server).1.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains('\n'), "{fault:?}: {error}");
    }
}

#[test]
fn a_repository_that_is_not_there_or_not_shown_is_not_known_to_the_hub() {
    let server = serve(50_000);
    let refusal = |repo: &str, token: Option<&str>| {
        let hub = Hub::at(&server.endpoint, repo, token.map(str::to_owned), STALL).unwrap();
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
    let server = serve(50_000);
    server.fail(&[Fault::Short(usize::MAX), Fault::Short(1_000), Fault::Status(416)]);
    let (_dir, done, _) = fetched(&server);
    assert_eq!(std::fs::read(done.unwrap().join("model.safetensors")).unwrap(), server.weights());
}

#[test]
fn what_a_hub_says_of_itself_is_not_believed() {
    for (name, info, expected) in [
        ("commit", r#"{"sha": "../../../../etc"}"#, "no commit"),
        ("short", r#"{"sha": "c0ffee"}"#, "no commit"),
        ("none", "{}", "no commit"),
        ("junk", "<html>", "cannot be read"),
    ] {
        let error = hub(&serve_as(50_000, info)).snapshot("main").unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    for repo in ["", "a", "a/b/c", "../b", "a/..", "a/b?x=1", "a/b#c", "a b/c"] {
        assert!(Hub::at("http://127.0.0.1:1", repo, None, STALL).is_err(), "{repo}");
    }
    assert!(Hub::at("file:///etc", "a/b", None, STALL).is_err());
}
