//! The time of day. A clock beyond the year 9999 must not crash the program.

use std::time::SystemTime;

use jiff::{Timestamp, Zoned, tz::TimeZone};

/// Now, clamped to the range of timestamps.
pub fn now() -> Timestamp {
    within(SystemTime::now())
}

pub fn local() -> Zoned {
    now().to_zoned(TimeZone::system())
}

fn within(time: SystemTime) -> Timestamp {
    let before = time < SystemTime::UNIX_EPOCH;
    Timestamp::try_from(time).unwrap_or(if before { Timestamp::MIN } else { Timestamp::MAX })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_beyond_the_calendar_is_held_at_its_end() {
        let far = SystemTime::UNIX_EPOCH + Duration::from_secs(300_000_000_000);
        assert_eq!(within(far), Timestamp::MAX);
        let zone = TimeZone::fixed(jiff::tz::offset(14));
        assert!(within(far).to_zoned(zone).strftime("%Y-%m-%d %H:%M").to_string().starts_with("9999-12-3"));
        let past = SystemTime::UNIX_EPOCH - Duration::from_secs(400_000_000_000);
        assert_eq!(within(past), Timestamp::MIN);
        assert!(local().year() > 2000);
    }
}
