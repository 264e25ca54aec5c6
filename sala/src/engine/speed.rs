//! Speed over the last two seconds, for display. Callers pass the time in.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

const WINDOW: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub struct Speed {
    /// (when, tokens until then), oldest first. Never empty: the first entry is the start or the edge of the window.
    marks: VecDeque<(Instant, u64)>,
    tokens: u64,
}

impl Speed {
    pub fn new(now: Instant) -> Speed {
        Speed { marks: VecDeque::from([(now, 0)]), tokens: 0 }
    }

    /// Counts `tokens` more at `now` and returns tokens per second over the last two seconds.
    pub fn add(&mut self, tokens: u64, now: Instant) -> f64 {
        self.tokens += tokens;
        self.marks.push_back((now, self.tokens));
        // One mark at or before the edge stays: the window's count begins there.
        while self.marks.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.marks.pop_front();
        }
        match self.marks.front() {
            Some((at, before)) => rate(self.tokens - before, now.duration_since(*at)),
            None => 0.0,
        }
    }
}

pub fn rate(tokens: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_start_is_forgotten_after_the_window() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut speed = Speed::new(start);
        assert_eq!(speed.add(10, at(1000)), 10.0);
        let mut last = 0.0;
        for step in 0..40 {
            last = speed.add(10, at(1100 + step * 100));
        }
        assert!((last - 100.0).abs() < 6.0, "{last}");
    }

    #[test]
    fn no_time_gives_no_speed() {
        let start = Instant::now();
        assert_eq!(Speed::new(start).add(5, start), 0.0);
    }
}
