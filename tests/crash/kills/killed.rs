//! The program is killed at any moment.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sala_chat::core::transcript::MessageId;
use sala_chat::store::{RealDisk, SegmentId};

use crate::kills::check_no_orphans;
use crate::kills::store_support::*;

const CHILD: &str = "SALA_CHAT_TEST_STORE";

/// The process that [`kill_nine_at_random_moments_loses_nothing_acknowledged`] kills: saves turns and prints acknowledgements.
#[test]
#[ignore = "run by another test"]
fn child_saves_until_killed() {
    let Ok(root) = std::env::var(CHILD) else {
        return;
    };
    let bench = Bench::new(open(Path::new(&root), RealDisk));
    let (mut chat, save) = Chat::begin(&bench.store, "killed");
    bench.save(save);
    for n in 0.. {
        let save = chat.turn(&bench.store, &format!("question {n}"), &format!("answer {n}"));
        let event = bench.save(save);
        println!("ACK {} {} {}", chat.head.unwrap().0, chat.tip.unwrap().hex(), is_saved(&event));
    }
}

#[test]
fn kill_nine_at_random_moments_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut acknowledged = 0;
    for round in 0..12u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kills::killed::child_saves_until_killed", "--ignored", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut acks = Vec::new();
        // Let it get going, then kill at a moment that differs from round to round, inside or between saves.
        while acks.len() < 3 {
            let line = lines.next().expect("the child works").unwrap();
            acks.extend(line.find("ACK ").map(|at| line[at..].to_owned()));
        }
        let until = Instant::now() + Duration::from_micros(round * 1_913 % 17_000);
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines.map_while(Result::ok) {
            acks.extend(line.find("ACK ").map(|at| line[at..].to_owned()));
        }
        let store = open(dir.path(), RealDisk);
        check_no_orphans(&store);
        let (mut messages, mut depth) = (0, 0);
        for line in &acks {
            let words: Vec<&str> = line.split(' ').collect();
            // The kill may cut the last line.
            let [_, head, tip, saved] = words[..] else {
                continue;
            };
            if saved != "true" {
                continue;
            }
            depth += 1;
            let path = store.path(MessageId(head.parse().unwrap())).unwrap();
            messages = path.len();
            let restored = restore(&store, &SegmentId::from_hex(tip).unwrap(), 0).unwrap();
            assert_eq!((restored.plan.usable, restored.plan.replay_tokens()), (depth, 0));
        }
        assert_eq!(messages, 2 * depth);
        acknowledged += depth;
        // The killed process left its lock; it does not block.
        let session = store.last_session().unwrap().unwrap();
        assert!(store.lock_session(session.id, &session.name).is_ok());
    }
    println!("{acknowledged} acknowledged saves in 12 rounds");
}
