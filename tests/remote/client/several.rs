//! Several conversations of one engine: side by side, forked, and after one of them failed.

use std::time::{Duration, Instant};

use sala_chat::client::remote::{Patience, RemoteOptions};
use sala_chat::engine::protocol::{Cancel, Command, Ended, MAIN, SequenceId};
use sala_chat::text::{ChatMessage, ChatRole};

use super::chat_server::{ChatServer, Reply, STREAM, answer, delta, events};
use super::{Client, QUICK, options};

#[test]
fn sequences_run_concurrently_and_forks_share_their_history() {
    let begun = [STREAM.as_bytes(), &events(&[delta("content", "Eins")])].concat();
    let server = ChatServer::start(vec![Reply::Stall(begun), answer("Zwei."), answer("Drei.")]);
    let patience = Patience { stall: Duration::from_secs(60), ..QUICK };
    let mut client = Client::new(RemoteOptions { patience, ..options(&server.url) });
    let (one, two, cancel) = (SequenceId(1), SequenceId(2), Cancel::default());
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "slow?")]);
    let slow = client.send_to(one, prompt, 64, &cancel);
    // Only once the slow one has its answer is the next reply the other's.
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.requests().is_empty() {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "quick?")]);
    let quick = client.send_to(two, prompt, 64, &Cancel::default());
    assert_eq!(client.receive(quick).text, "Zwei.");
    // A fork waits for neither of the others.
    client.engine.commands.send(Command::Fork { id: 5, from: two, to: SequenceId(3) }).unwrap();
    let more = "<|im_end|>\n<|im_start|>user\nmore?<|im_end|>\n<|im_start|>assistant\n";
    let more = client.text.tokenizer.encode_prompt(more).unwrap();
    let fork = client.send_to(SequenceId(3), more, 64, &Cancel::default());
    assert_eq!(client.receive(fork).text, "Drei.");
    assert_eq!(server.requests()[2]["messages"].as_array().unwrap().len(), 3);
    cancel.cancel();
    assert_eq!(client.receive(slow).ended, Some(Ended::Cancelled));
}

#[test]
fn jobs_after_a_failure_fail_until_the_next_restore() {
    let slow = Reply::Pieces(
        vec![Vec::new(), b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n".to_vec()],
        Duration::from_millis(300),
    );
    let server = ChatServer::start(vec![slow, answer("Yes.")]);
    let mut client = Client::of(&server);
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "q")]);
    let ids = [0, 1].map(|_| client.send(prompt.clone(), 64, &Cancel::default()));
    client.restore(Vec::new());
    let last = client.send(prompt, 64, &Cancel::default());
    for id in ids {
        assert!(client.receive(id).failed.unwrap().contains("(403)"));
    }
    assert_eq!(client.receive(last).text, "Yes.");
    assert_eq!(server.requests().len(), 2);
}

#[test]
fn a_fork_of_a_conversation_that_was_lost_fails_with_it() {
    let server = ChatServer::start(vec![Reply::Pieces(vec![STREAM.as_bytes().to_vec()], Duration::from_millis(300))]);
    let mut client = Client::of(&server);
    let prompt = client.prompt(&[ChatMessage::new(ChatRole::User, "q")]);
    let first = client.send(prompt, 64, &Cancel::default());
    let fork = u64::MAX;
    client.engine.commands.send(Command::Fork { id: fork, from: MAIN, to: SequenceId(1) }).unwrap();
    // The answer breaks off while the fork waits for it.
    assert!(client.receive(first).failed.is_some());
    assert!(client.receive(fork).failed.is_some());
}
