//! Fields of the settings as values of the configuration, and back.

use toml::Value;

use crate::engine::protocol::{DeviceChoice, Precision, SpecMode};

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

plain!(bool, String, f64, u8, u16, u32, u64, usize, i64, DeviceChoice, Precision);

impl Field for f32 {
    /// The shortest number that is this one: 0.7, not 0.699999988.
    fn to_value(&self) -> Value {
        Value::Float(self.to_string().parse().unwrap_or(f64::from(*self)))
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_float().map(|f| f as f32)
    }
}

/// A seed: -1 is a new one for each answer.
impl Field for Option<u64> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Integer(-1), Field::to_value)
    }

    fn from_value(value: &Value) -> Option<Self> {
        value.as_integer().map(|i| u64::try_from(i).ok())
    }
}

impl Field for SpecMode {
    fn to_value(&self) -> Value {
        match self {
            SpecMode::Auto => Value::String("auto".to_owned()),
            SpecMode::On => Value::String("on".to_owned()),
            SpecMode::Off => Value::String("off".to_owned()),
            SpecMode::Depth(depth) => depth.to_value(),
        }
    }

    fn from_value(value: &Value) -> Option<Self> {
        match (value.as_str(), value.as_integer()) {
            (Some("auto"), _) => Some(SpecMode::Auto),
            (Some("on"), _) => Some(SpecMode::On),
            (Some("off"), _) => Some(SpecMode::Off),
            (_, Some(depth)) => u8::try_from(depth).ok().map(SpecMode::Depth),
            _ => None,
        }
    }
}
