//! The terminal's side without its thread.

use super::*;

fn connection() -> (Connection, Receiver<EngineEvent>) {
    let (to, _) = UnixStream::pair().unwrap();
    let (events, reported) = unbounded();
    let connection = Connection {
        way: Way { find: Box::new(|| Ok(None)), load: Box::new(|| Err(io::ErrorKind::NotFound.into())) },
        events,
        side: Side::Server { to, from: never(), host: "a server".into() },
        ready: false,
        known: Some("f".into()),
        held: VecDeque::new(),
        pending: HashMap::new(),
        used: BTreeSet::new(),
        lost: BTreeMap::new(),
        heard: Instant::now(),
    };
    (connection, reported)
}

fn fork(id: u64) -> Command {
    Command::Fork { id, from: SequenceId(0), to: SequenceId(1) }
}

#[test]
fn a_server_that_is_ready_and_gone_fails_all_that_waited_for_it() {
    let (mut connection, reported) = connection();
    connection.held = [fork(7), fork(8), fork(9)].into();
    connection.now_ready(ModelInfo { fingerprint: "f".into(), ..ModelInfo::default() });
    let failed = |event| match event {
        EngineEvent::Failed { id, .. } => Some(id),
        _ => None,
    };
    // The first is the line that belongs to no command.
    assert_eq!(reported.try_iter().filter_map(failed).collect::<Vec<_>>(), [0, 7, 8, 9]);
    assert!(connection.pending.is_empty() && connection.held.is_empty());
}

#[test]
fn what_rests_on_a_state_that_went_with_the_server_hears_that_it_is_gone() {
    let (mut connection, reported) = connection();
    connection.used = [SequenceId(0)].into();
    connection.gone(None);
    connection.on_command(fork(7));
    let gone = |event| match event {
        EngineEvent::Failed { id, fault: EngineFault::Gone(why) } => Some((id, why)),
        _ => None,
    };
    let message: Vec<(u64, String)> = reported.try_iter().filter_map(gone).collect();
    assert_eq!(message.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 7]);
    assert!(message[0].1.contains("has ended") && message[0].1 == message[1].1, "{message:?}");
}
