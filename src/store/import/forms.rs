//! Which form a file has that is imported.

use std::io::Read;

use serde::de::{MapAccess, SeqAccess};

use super::lenient::{Any, Key, Lenient, step_over, value};
use crate::store::export::{JSON_FORMAT, JSON_VERSION};

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Ours,
    ChatGpt,
    OpenWebUi,
}

const UNKNOWN: &str = "neither a sala-chat, ChatGPT nor Open WebUI export";

/// Reads a file to its end and says what it is; otherwise a phrase.
pub(super) fn form_of(file: impl Read) -> serde_json::Result<Result<Form, String>> {
    let Any(top) = serde_json::from_reader::<_, Any<Top>>(file)?;
    let Some(Top { one, any }) = top else { return Ok(Err(UNKNOWN.into())) };
    if one.is_some_and(|seen| seen.ours) {
        return Ok(match any.version {
            Some(version) if version == f64::from(JSON_VERSION) => Ok(Form::Ours),
            Some(version) if version > f64::from(JSON_VERSION) => {
                Err("written by a newer sala-chat: update this one".into())
            }
            _ => Err(format!("a damaged sala-chat export (its version is not {JSON_VERSION})")),
        });
    }
    Ok(match any {
        Seen { mapping: true, .. } => Ok(Form::ChatGpt),
        Seen { chat: true, .. } => Ok(Form::OpenWebUi),
        _ => Err(UNKNOWN.into()),
    })
}

/// What an object has that tells what it is.
#[derive(Clone, Copy, Default)]
struct Seen {
    ours: bool,
    version: Option<f64>,
    mapping: bool,
    chat: bool,
}

impl Lenient for Seen {
    fn object<'de, A: MapAccess<'de>>(mut fields: A) -> Result<Option<Seen>, A::Error> {
        let mut seen = Seen::default();
        while let Some(key) = fields.next_key()? {
            match key {
                Key::Format => seen.ours = value::<String, A>(&mut fields)?.is_some_and(|f| f == JSON_FORMAT),
                Key::Version => seen.version = value(&mut fields)?,
                Key::Mapping | Key::Chat => {
                    step_over(&mut fields)?;
                    (seen.mapping, seen.chat) =
                        (seen.mapping | matches!(key, Key::Mapping), seen.chat | matches!(key, Key::Chat));
                }
                _ => step_over(&mut fields)?,
            }
        }
        Ok(Some(seen))
    }
}

/// A whole file: what is in its objects, and the object that it is itself.
struct Top {
    one: Option<Seen>,
    any: Seen,
}

impl Lenient for Top {
    fn list<'de, A: SeqAccess<'de>>(mut items: A) -> Result<Option<Top>, A::Error> {
        let mut any = Seen::default();
        while let Some(Any(seen)) = items.next_element::<Any<Seen>>()? {
            any.mapping |= seen.is_some_and(|seen| seen.mapping);
            any.chat |= seen.is_some_and(|seen| seen.chat);
        }
        Ok(Some(Top { one: None, any }))
    }

    fn object<'de, A: MapAccess<'de>>(fields: A) -> Result<Option<Top>, A::Error> {
        let one = Seen::object(fields)?;
        Ok(Some(Top { one, any: one.unwrap_or_default() }))
    }
}
