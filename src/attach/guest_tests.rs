//! The terminal's side without its thread.

use super::*;

#[test]
fn a_server_that_is_ready_and_gone_fails_all_that_waited_for_it() {
    let (to, other) = UnixStream::pair().unwrap();
    drop(other);
    let (events, told) = unbounded();
    let fork = |id| Command::Fork { id, from: SequenceId(0), to: SequenceId(1) };
    let mut guest = Guest {
        way: Way { find: Box::new(|| Found::Nobody), load: Box::new(|| Err(io::ErrorKind::NotFound.into())) },
        events,
        side: Side::Server { to, from: never(), host: "a server".into() },
        ready: false,
        known: Some("f".into()),
        held: [fork(7), fork(8), fork(9)].into(),
        pending: HashMap::new(),
        used: BTreeSet::new(),
        lost: BTreeSet::new(),
        heard: Instant::now(),
    };
    guest.now_ready(ModelInfo { fingerprint: "f".into(), ..ModelInfo::default() });
    let failed = |event| match event {
        EngineEvent::Failed { id, .. } => Some(id),
        _ => None,
    };
    // The first is the line that belongs to no command.
    assert_eq!(told.try_iter().filter_map(failed).collect::<Vec<_>>(), [0, 7, 8, 9]);
    assert!(guest.pending.is_empty() && guest.held.is_empty());
}
