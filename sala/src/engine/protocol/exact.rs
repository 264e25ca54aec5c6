//! Numbers in JSON: f32 as bits, which preserves every bit and NaN; f64 rates, where a value that is not finite is 0.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Token;

pub(super) trait Exact: Sized {
    type Raw: Serialize + DeserializeOwned;
    fn raw(&self) -> Self::Raw;
    fn of(raw: Self::Raw) -> Self;
}

impl Exact for f32 {
    type Raw = u32;
    fn raw(&self) -> u32 {
        self.to_bits()
    }
    fn of(raw: u32) -> f32 {
        f32::from_bits(raw)
    }
}

impl Exact for f64 {
    type Raw = f64;
    fn raw(&self) -> f64 {
        if self.is_finite() { *self } else { 0.0 }
    }
    fn of(raw: f64) -> f64 {
        raw
    }
}

impl Exact for (Token, f32) {
    type Raw = (Token, u32);
    fn raw(&self) -> (Token, u32) {
        (self.0, self.1.to_bits())
    }
    fn of(raw: (Token, u32)) -> (Token, f32) {
        (raw.0, f32::from_bits(raw.1))
    }
}

impl<T: Exact> Exact for Vec<T> {
    type Raw = Vec<T::Raw>;
    fn raw(&self) -> Vec<T::Raw> {
        self.iter().map(T::raw).collect()
    }
    fn of(raw: Vec<T::Raw>) -> Vec<T> {
        raw.into_iter().map(T::of).collect()
    }
}

pub(super) fn serialize<T: Exact, S: Serializer>(value: &T, to: S) -> Result<S::Ok, S::Error> {
    value.raw().serialize(to)
}

pub(super) fn deserialize<'de, T: Exact, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
    T::Raw::deserialize(from).map(T::of)
}
