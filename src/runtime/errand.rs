//! Errands: what another thread does for the runtime, which goes on meanwhile. Files are opened so, and the store is asked so for
//! what may take it long.
//!
//! An errand in hand is a [`Work`] like any other. One that needs nothing of a conversation goes on beside whatever else is to
//! be done: it is in [`State::errands`] then. What it brought is taken where it was asked for.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};

use super::{Attendance, Done, RuntimeError, State, Then, Work};
use crate::engine::protocol::Cancel;
use crate::runtime::protocol::Activity;
use crate::store::Watch;

/// What is done by then need not be shown as going on.
pub(super) const SHORT: Duration = Duration::from_millis(100);
/// One that was told to end has so long for it when the program ends; then nobody waits for it any more.
const GRACE: Duration = Duration::from_millis(500);

/// What is to be done elsewhere.
pub(super) struct Order {
    /// What is shown while it goes on.
    pub what: String,
    /// Why nothing came of it if its thread cannot be started or ends without a word.
    pub failed: &'static str,
    pub place: Place,
    /// How long it may take without being shown: until then the runtime waits for it.
    pub patience: Duration,
}

/// Where an errand goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In its turn, as a work of the conversation.
    InTurn,
    /// Beside what else there is to do.
    Beside,
}

/// Something that another thread does.
pub(super) struct Errand {
    /// What it is at. Holds one; what does not fit is not shown. Closed when the thread ends.
    said: Receiver<String>,
    what: String,
    place: Place,
    cancel: Cancel,
    /// Serial of the conversation it was asked for in.
    serial: u64,
    /// When nobody waits for it any more.
    until: Option<Instant>,
    then: Then<()>,
}

/// The thread's side of it.
pub(super) struct Doing {
    pub cancel: Cancel,
    out: Sender<String>,
}

impl Doing {
    /// Does something long of the store's; `line` says how far it is.
    pub(super) fn watched<T>(&self, line: impl Fn(u64, u64) -> String, work: impl FnOnce(&Watch<'_>) -> T) -> T {
        let told = |done, of| {
            if self.out.is_empty() {
                // Full or closed: what comes next says more, or nobody listens.
                let _ = self.out.try_send(line(done, of));
            }
        };
        work(&Watch { stop: &|| self.cancel.is_cancelled(), told: &told })
    }
}

impl Errand {
    /// Where it says what it is at, until it has ended.
    pub(super) fn said(&self) -> &Receiver<String> {
        &self.said
    }

    /// When it wants to be looked at without a word of it.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// What is shown of it.
    pub(super) fn activity(&self) -> Activity {
        match (self.place, self.cancel.is_cancelled()) {
            (Place::InTurn, true) => Activity::Stopping,
            (Place::InTurn, false) => Activity::Busy { what: self.what.clone() },
            (Place::Beside, true) => Activity::Beside { what: format!("stopping: {}", self.what) },
            (Place::Beside, false) => Activity::Beside { what: self.what.clone() },
        }
    }

    /// Whether what is asked next need not wait for it.
    pub(super) fn holds_up_nothing(&self) -> bool {
        self.place == Place::Beside
    }

    /// Ends it as soon as it can.
    pub(super) fn stop(&self) {
        self.cancel.cancel();
    }

    /// Nobody waits long for it any more.
    pub(super) fn leave(&mut self) {
        self.stop();
        self.until.get_or_insert(Instant::now() + GRACE);
    }

    /// Whether nobody waits for it any more.
    pub(super) fn is_left(&self) -> bool {
        self.until.is_some_and(|until| until <= Instant::now())
    }

    /// It is at something else.
    pub(super) fn is_at(&mut self, what: String) {
        self.what = what;
    }

    /// It has ended: what is to be done with what it brought.
    pub(super) fn then(self) -> Then<()> {
        self.then
    }
}

impl std::fmt::Debug for Errand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Errand({})", self.what)
    }
}

impl State {
    /// Has another thread do something and goes on with what it brought. What is done in a moment is done at once.
    pub(super) fn elsewhere<T: Send + 'static>(
        &mut self,
        order: Order,
        work: impl FnOnce(&Doing) -> T + Send + 'static,
        then: impl FnOnce(&mut State, Done<T>) -> Done + Send + 'static,
    ) -> Done {
        let Order { what, failed, place, patience } = order;
        let (out, said) = crossbeam_channel::bounded(1);
        let cancel = Cancel::default();
        let doing = Doing { cancel: cancel.clone(), out };
        // What the thread says is closed with what it was given, at its end, however it ends.
        let thread = std::thread::Builder::new().name("errand".into()).spawn(move || work(&doing));
        let thread = thread.map_err(|e| RuntimeError::Failed(format!("{failed} ({e})")))?;
        let then = move |runtime: &mut State, ()| then(runtime, brought(thread, failed));
        let mut errand =
            Errand { said, what, place, cancel, serial: self.here.session.serial, until: None, then: Box::new(then) };
        if self.quitting {
            errand.leave();
        }
        let until = Instant::now() + patience;
        loop {
            match errand.said.recv_deadline(until) {
                Ok(what) => errand.is_at(what),
                Err(RecvTimeoutError::Disconnected) => return errand.then()(self, ()),
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        self.here.work = Work::Errand(errand);
        Ok(())
    }

    /// An errand that needs nothing of the conversation makes room for what is asked next. With nobody there, all is done in
    /// the order it was asked.
    pub(super) fn make_room(&mut self) -> bool {
        if self.attendance == Attendance::Absent {
            return false;
        }
        match std::mem::take(&mut self.here.work) {
            Work::Errand(errand) if errand.place == Place::Beside => {
                self.errands.push(errand);
                true
            }
            work => {
                self.here.work = work;
                false
            }
        }
    }

    /// The errand in hand is at something else, or has ended.
    pub(super) fn on_errand(&mut self, what: Option<String>) {
        match (std::mem::take(&mut self.here.work), what) {
            (Work::Errand(mut errand), Some(what)) => {
                errand.is_at(what);
                self.activity(errand.activity());
                self.here.work = Work::Errand(errand);
            }
            (Work::Errand(errand), None) => self.resumed(errand.then(), ()),
            // Nothing else is listened to.
            (work, _) => self.here.work = work,
        }
    }

    /// The same of one that goes on beside.
    pub(super) fn on_errand_beside(&mut self, at: usize, what: Option<String>) {
        match (self.errands.get_mut(at), what) {
            (Some(errand), Some(what)) => errand.is_at(what),
            (Some(_), None) => {
                let errand = self.errands.remove(at);
                let serial = errand.serial;
                let take = |runtime: &mut State| runtime.beside_work(|runtime| errand.then()(runtime, ()));
                match self.seat_of(|session| session.serial == serial) {
                    Some(seat) => self.beside(seat, take),
                    None => take(self),
                }
            }
            (None, _) => {}
        }
        self.show_rest();
    }

    /// With nothing else in hand, what goes on beside is what is shown.
    fn show_rest(&mut self) {
        if self.here.work.is_idle() || self.here.work.gives_way() {
            self.idle();
        }
    }

    /// Ends what goes on beside.
    pub(super) fn stop_errands(&mut self) {
        self.errands.iter().for_each(Errand::stop);
        if !self.errands.is_empty() {
            self.show_rest();
        }
    }

    /// The program ends: nobody waits long for what another thread does.
    pub(super) fn leave_errands(&mut self) {
        self.errands.iter_mut().for_each(Errand::leave);
        self.leave_errand();
        self.beside_each(|work| matches!(work, Work::Errand(_)), State::leave_errand);
    }

    fn leave_errand(&mut self) {
        if let Work::Errand(errand) = &mut self.here.work {
            errand.leave();
        }
    }
}

/// What a thread that has ended brought.
fn brought<T>(thread: JoinHandle<T>, failed: &'static str) -> Done<T> {
    thread.join().map_err(|_| RuntimeError::Failed(failed.into()))
}
