//! Reading JSON of other programs as it comes, keeping only what is wanted of it.
//!
//! A value of another type than expected counts as missing: one broken node does not end an import.

use std::io::Read;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use crate::store::error::StoreError;

/// Made of one kind of value or several; all others give nothing.
pub(super) trait Lenient: Sized {
    fn text(_: &str) -> Option<Self> {
        None
    }

    fn number(_: f64) -> Option<Self> {
        None
    }

    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Self>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Self>, A::Error> {
        while fields.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}

/// Any value, and what it gives.
pub(super) struct Any<T>(pub Option<T>);

impl<'de, T: Lenient> Deserialize<'de> for Any<T> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_any(AnyVisitor(PhantomData))
    }
}

struct AnyVisitor<T>(PhantomData<T>);

impl<'de, T: Lenient> Visitor<'de> for AnyVisitor<T> {
    type Value = Any<T>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any value")
    }

    fn visit_unit<E>(self) -> Result<Any<T>, E> {
        Ok(Any(None))
    }

    fn visit_bool<E>(self, _: bool) -> Result<Any<T>, E> {
        Ok(Any(None))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Any<T>, E> {
        Ok(Any(T::number(number as f64)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Any<T>, E> {
        Ok(Any(T::number(number as f64)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Any<T>, E> {
        Ok(Any(T::number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Any<T>, E> {
        Ok(Any(T::text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Any<T>, A::Error> {
        T::list(items).map(Any)
    }

    fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Any<T>, A::Error> {
        T::object(fields).map(Any)
    }
}

/// The value of a field. Of fields of one name the last one counts.
pub(super) fn value<'de, T: Lenient, A: MapAccess<'de>>(fields: &mut A) -> Result<Option<T>, A::Error> {
    Ok(fields.next_value::<Any<T>>()?.0)
}

pub(super) fn step_over<'de, A: MapAccess<'de>>(fields: &mut A) -> Result<(), A::Error> {
    fields.next_value::<IgnoredAny>().map(drop)
}

impl Lenient for String {
    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }
}

impl Lenient for f64 {
    fn number(number: f64) -> Option<f64> {
        Some(number)
    }
}

/// All names of fields that are looked at, in any form.
#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
pub(super) enum Key {
    Attachments,
    Author,
    Chat,
    Content,
    ContentType,
    CreateTime,
    #[serde(rename = "currentId")]
    CurrentId,
    CurrentNode,
    Files,
    Format,
    History,
    Language,
    Mapping,
    Message,
    Messages,
    Metadata,
    #[serde(alias = "mimeType")]
    MimeType,
    Parent,
    #[serde(rename = "parentId")]
    ParentId,
    Parts,
    Result,
    Role,
    #[serde(rename = "stderr")]
    PrintedErrors,
    #[serde(rename = "stdout")]
    Printed,
    Summary,
    Text,
    Thoughts,
    Timestamp,
    Title,
    Type,
    Version,
    #[serde(other)]
    Other,
}

/// Why [`each`] ended early.
pub(super) enum Fault {
    /// The file.
    Json(serde_json::Error),
    /// Whoever was given a conversation.
    Store(StoreError),
}

/// Hands on each conversation of a file that is a list of them, or one.
pub(super) fn each<T: Lenient>(file: impl Read, put: &mut dyn FnMut(T) -> Result<(), StoreError>) -> Result<(), Fault> {
    let mut failed = None;
    let mut json = serde_json::Deserializer::from_reader(file);
    let read = json.deserialize_any(Each { put, failed: &mut failed }).and_then(|()| json.end());
    match (failed, read) {
        (Some(e), _) => Err(Fault::Store(e)),
        (None, Err(e)) => Err(Fault::Json(e)),
        (None, Ok(())) => Ok(()),
    }
}

struct Each<'a, T> {
    put: &'a mut dyn FnMut(T) -> Result<(), StoreError>,
    failed: &'a mut Option<StoreError>,
}

impl<T: Lenient> Each<'_, T> {
    fn put<E: serde::de::Error>(&mut self, talk: Option<T>) -> Result<(), E> {
        let Some(talk) = talk else { return Ok(()) };
        (self.put)(talk).map_err(|e| {
            *self.failed = Some(e);
            E::custom("not taken")
        })
    }
}

impl<'de, T: Lenient> Visitor<'de> for Each<'_, T> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(Any(talk)) = list.next_element::<Any<T>>()? {
            self.put(talk)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, fields: A) -> Result<(), A::Error> {
        let talk = T::object(fields)?;
        self.put(talk)
    }
}
