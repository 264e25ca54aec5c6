//! Times as settings: `90s`, `20m`, `2h`, or off.

use std::time::Duration;

use toml::Value;

use super::value::Field;

/// The word for no time.
pub const OFF: &str = "off";
/// Units and their seconds; the first one that leaves a whole number is shown.
const UNITS: [(char, u64); 3] = [('h', 3600), ('m', 60), ('s', 1)];
const MOST: u64 = 365 * 86_400;

/// A time in whole seconds; `None`: off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub Option<Duration>);

impl Time {
    pub fn parse(text: &str) -> Option<Time> {
        if text == OFF {
            return Some(Time(None));
        }
        let (number, unit) = UNITS.iter().find_map(|(unit, s)| Some((text.strip_suffix(*unit)?, *s)))?;
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        let seconds = number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(unit)?;
        (1..=MOST).contains(&seconds).then_some(Time(Some(Duration::from_secs(seconds))))
    }
}

impl Field for Time {
    fn to_value(&self) -> Value {
        let seconds = self.0.map_or(0, |time| time.as_secs());
        let whole = UNITS.iter().find(|(_, unit)| seconds > 0 && seconds.is_multiple_of(*unit));
        Value::String(whole.map_or_else(|| OFF.to_owned(), |(name, unit)| format!("{}{name}", seconds / unit)))
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().and_then(Self::parse)
    }
}
