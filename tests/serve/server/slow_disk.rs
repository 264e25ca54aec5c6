//! A slow disk: no request waits for it, and pending writes are read from memory.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sala_chat::store::{Disk, DiskFile, Limits, RealDisk, Store};
use serde_json::{Value, json};

use crate::server::client::{Running, Setup, permits};
use crate::server::prefix::{ask, long, setup};
use crate::server::{CHAT, with};

/// A disk on which no file of state is made while it hangs.
#[derive(Debug, Default)]
struct Hanging {
    hangs: Mutex<bool>,
    changed: Condvar,
}

impl Hanging {
    fn set(&self, hangs: bool) {
        *self.hangs.lock().unwrap() = hangs;
        self.changed.notify_all();
    }
}

impl Disk for Hanging {
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if path.components().any(|c| c.as_os_str() == "segments") {
            let hangs = self.hangs.lock().unwrap();
            drop(self.changed.wait_while(hangs, |hangs| *hangs).unwrap());
        }
        RealDisk.create(path)
    }
    as_the_real_disk!(rename sync_dir remove read_at look list make_dir free_bytes);
}

/// A server on a disk that hangs; its engine holds two sequences.
fn on_hanging_disk(dir: &Path) -> (Running, Arc<Hanging>) {
    let disk = Arc::new(Hanging::default());
    let limits = Limits { min_free_bytes: 0, ..Limits::default() };
    let store = Arc::new(Store::open(dir, Arc::clone(&disk) as Arc<dyn Disk>, limits).unwrap());
    disk.set(true);
    let server = Running::start(dir, Setup { store: Some(store), sequences: 2, ..setup() });
    (server, disk)
}

fn system_and(question: &str) -> Value {
    json!([{ "role": "system", "content": long("Rules") }, { "role": "user", "content": question }])
}

#[test]
fn no_request_waits_for_the_disk_and_pending_state_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let (server, disk) = on_hanging_disk(dir.path());
    let begun = Instant::now();
    let mut chat = system_and("First?");
    let (answer, first, cached) = ask(&server, &chat);
    assert_eq!(cached, 0);
    // Others, until nothing of it is live any more; what begins alike is found though nothing is on disk.
    for question in ["Second?", "Third?"] {
        let (_, prompt, cached) = ask(&server, &system_and(question));
        assert!(cached > 100 && prompt - cached < 40, "{cached} of {prompt}");
    }
    for what in ["Noise", "More noise"] {
        assert_eq!(ask(&server, &json!([{ "role": "user", "content": long(what) }])).2, 0);
    }
    let list = chat.as_array_mut().unwrap();
    list.push(json!({ "role": "assistant", "content": answer }));
    list.push(json!({ "role": "user", "content": "And then?" }));
    let (answer, prompt, cached) = ask(&server, &chat);
    assert!(cached >= first && prompt - cached < 40, "{cached} of {prompt}, {first} were known");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    disk.set(false);
    server.end();

    // The same conversation where no disk hangs and nothing was put back: the fake's answers are hashes over its state.
    let other = tempfile::tempdir().unwrap();
    let server = Running::start(other.path(), setup());
    ask(&server, &system_and("First?"));
    assert_eq!(ask(&server, &chat).0, answer);
    server.end();
    // And all of it came to disk after all.
    let server = Running::start(dir.path(), setup());
    let list = chat.as_array_mut().unwrap();
    list.push(json!({ "role": "assistant", "content": answer }));
    list.push(json!({ "role": "user", "content": "And now?" }));
    assert!(ask(&server, &chat).2 >= prompt);
    server.end();
}

#[test]
fn an_answer_deleted_during_its_save_is_gone_from_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = Running::start(dir.path(), Setup::default());
    let respond = || server.post("/v1/responses", &json!({ "input": "Hi" })).json()["id"].as_str().unwrap().to_owned();
    let database = || rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    let count = |which: &str| -> i64 {
        let sql = format!("SELECT count(*) FROM session WHERE trashed_ms IS {which}");
        database().query_row(&sql, [], |row| row.get(0)).unwrap()
    };
    // Its numbers are from the database; that of the next one is there.
    respond();
    server.until("the first is on disk", || count("NULL") > 0);
    let before = count("NULL");
    let other = database();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let path = format!("/v1/responses/{}", respond());
    let gone = server.raw(&format!("DELETE {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    assert_eq!((gone.status, server.get(&path).status, count("NULL")), (200, 404, before), "{}", gone.body);
    other.execute_batch("ROLLBACK").unwrap();
    // So a server started after a kill finds it.
    server.until("its row came and went", || count("NOT NULL") == 1);
    server.end();
}

#[test]
fn a_common_beginning_is_read_once() {
    // The second arrives while the first is read, with a free slot: it is planned, and then waits.
    two_that_begin_alike(&|server| {
        let waits = || server.metric("requests_waiting") == 1 && server.metric("requests_running") == 1;
        server.until("the second waits", waits);
    });
    // The first is read while the second is planned, whenever that is.
    for delay in (0..20).step_by(2) {
        two_that_begin_alike(&|_| std::thread::sleep(Duration::from_millis(delay)));
    }
}

/// Two questions with the same beginning, the second sent while the first is held; `wait` runs before the first continues.
fn two_that_begin_alike(wait: &dyn Fn(&Running)) {
    let dir = tempfile::tempdir().unwrap();
    let (gate, permit) = crossbeam_channel::unbounded();
    let server = Running::start(dir.path(), Setup { gate: Some(permit), ..setup() });
    let send = |question: &str| {
        let body = with(json!({ "messages": system_and(question), "temperature": 0 }), "stream", true.into());
        let body = with(body, "stream_options", json!({ "include_usage": true }));
        let mut stream = server.open();
        io::Write::write_all(&mut stream, server.request(CHAT, "", &body.to_string()).as_bytes()).unwrap();
        stream
    };
    let first = send("One?");
    server.until("the first is read", || server.metric("prompt_tokens_total") > 0);
    let second = send("Two?");
    wait(&server);
    permits(&gate, 200);
    let usage = |stream| crate::server::client::Reply::read(stream).events().last().unwrap()["usage"].clone();
    let cached = |usage: &Value| usage["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let (first, second) = (usage(first), usage(second));
    assert_eq!(cached(&first), 0);
    assert!(cached(&second) > 100, "{second}");
    server.end();
}
