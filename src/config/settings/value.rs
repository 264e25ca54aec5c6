//! Fields of the settings as values of the configuration, and back. Sizes and times have units.

use std::time::Duration;

use toml::Value;

use crate::engine::protocol::{DeviceChoice, Precision, SpecMode, WeightsChoice};

/// A field's type: how it is written in the configuration. What a [`super::Kind`] accepts, its field's type takes.
pub trait Field: Sized {
    fn to_value(&self) -> Value;
    /// From a value; `None` for one that the type cannot hold.
    fn from_value(value: &Value) -> Option<Self>;
}

macro_rules! plain {
    ($($type:ty),+) => {$(
        impl Field for $type {
            fn to_value(&self) -> Value {
                // Only a whole number can be too large.
                Value::try_from(self).unwrap_or(Value::Integer(i64::MAX))
            }

            fn from_value(value: &Value) -> Option<Self> {
                value.clone().try_into().ok()
            }
        }
    )+};
}
pub(super) use plain;

plain!(bool, String, f64, u8, u16, u32, u64, usize, i64, DeviceChoice, Precision, WeightsChoice);

impl Field for f32 {
    /// The shortest number that is this one: 0.7, not 0.699999988.
    fn to_value(&self) -> Value {
        Value::Float(self.to_string().parse().unwrap_or(f64::from(*self)))
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_float().map(|f| f as f32)
    }
}

impl Field for Option<u64> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Integer(-1), Field::to_value)
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_integer().map(|i| u64::try_from(i).ok())
    }
}

const SPEC_WORDS: [(&str, SpecMode); 3] = [("auto", SpecMode::Auto), ("on", SpecMode::On), ("off", SpecMode::Off)];

impl Field for SpecMode {
    fn to_value(&self) -> Value {
        match self {
            SpecMode::Depth(depth) => depth.to_value(),
            mode => {
                let word = SPEC_WORDS.iter().find(|(_, named)| named == mode).map_or("auto", |(word, _)| word);
                Value::from(word)
            }
        }
    }

    fn from_value(value: &Value) -> Option<Self> {
        let named = SPEC_WORDS.iter().find(|(word, _)| value.as_str() == Some(word)).map(|(_, mode)| *mode);
        named.or_else(|| u8::from_value(value).map(SpecMode::Depth))
    }
}

pub const ALL: &str = "all";
/// Units and their bytes; the first is what sizes are shown in where they are whole.
const SIZES: [(&str, f64); 4] = [("GiB", (1u64 << 30) as f64), ("MiB", (1u64 << 20) as f64), ("GB", 1e9), ("MB", 1e6)];
const MOST_BYTES: f64 = (1u64 << 50) as f64;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Size(pub Option<u64>);

impl Size {
    pub fn parse(text: &str) -> Option<Size> {
        if text == ALL {
            return Some(Size(None));
        }
        let (number, bytes) =
            SIZES.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?.trim_end(), *bytes)))?;
        let plain =
            number.starts_with(|c: char| c.is_ascii_digit()) && number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let bytes = number.parse::<f64>().ok().filter(|_| plain)? * bytes;
        (1.0..=MOST_BYTES).contains(&bytes).then_some(Size(Some(bytes as u64)))
    }
}

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => f.write_str(ALL),
            Some(bytes) if bytes % (1 << 30) == 0 => write!(f, "{}GiB", bytes >> 30),
            Some(bytes) => write!(f, "{}MiB", bytes as f64 / (1u64 << 20) as f64),
        }
    }
}

impl Field for Size {
    fn to_value(&self) -> Value {
        Value::String(self.to_string())
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().and_then(Self::parse)
    }
}

pub const OFF: &str = "off";
/// Units and their seconds; the first one that leaves a whole number is shown.
const TIMES: [(char, u64); 3] = [('h', 3600), ('m', 60), ('s', 1)];
const MOST_SECONDS: u64 = 365 * 86_400;

/// A time in whole seconds; `None`: off.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time(pub Option<Duration>);

impl Time {
    pub fn parse(text: &str) -> Option<Time> {
        if text == OFF {
            return Some(Time(None));
        }
        let (number, unit) = TIMES.iter().find_map(|(unit, s)| Some((text.strip_suffix(*unit)?, *s)))?;
        let digits = number.bytes().all(|b| b.is_ascii_digit());
        let seconds = number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(unit)?;
        (1..=MOST_SECONDS).contains(&seconds).then_some(Time(Some(Duration::from_secs(seconds))))
    }
}

impl Field for Time {
    fn to_value(&self) -> Value {
        let seconds = self.0.map_or(0, |time| time.as_secs());
        let whole = TIMES.iter().find(|(_, unit)| seconds > 0 && seconds.is_multiple_of(*unit));
        Value::String(whole.map_or_else(|| OFF.to_owned(), |(name, unit)| format!("{}{name}", seconds / unit)))
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_str().and_then(Self::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_written() {
        for (text, bytes) in [
            ("8GiB", Some(8 << 30)),
            ("7.5 GiB", Some(15 << 29)),
            ("6000MiB", Some(6000 << 20)),
            ("24GB", Some(24_000_000_000)),
            ("all", None),
        ] {
            let size = Size::parse(text).unwrap();
            assert_eq!(size, Size(bytes), "{text}");
            assert_eq!(Size::parse(&size.to_string()), Some(size), "{text}");
        }
        for bad in ["", "8", "GiB", "-1GiB", "0GiB", "1e3GiB", "infGiB", "8 gib", "9999999GiB", "1.2.3MB", "ALL"] {
            assert_eq!(Size::parse(bad), None, "{bad}");
        }
    }
}
