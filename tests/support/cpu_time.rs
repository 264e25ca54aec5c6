//! Time that a thread works. A machine that runs other programs changes it little, unlike the time on the clock.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

pub fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}
