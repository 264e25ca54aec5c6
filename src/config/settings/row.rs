//! What a row of the table says, and what follows from it: which values are allowed, how they are read and shown.

use toml::Value;

use super::answers::Settings;
use super::value::{ALL, Field, OFF, Size, Time};

/// What a setting may be, and its built-in value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Bool(bool),
    /// A whole number: built-in, least, most; words that stand for a number.
    Int(i64, i64, i64, &'static [(&'static str, i64)]),
    /// A number: built-in, least, most.
    Float(f64, f64, f64),
    Text(&'static str),
    List(&'static str),
    /// One of these words: built-in, all.
    Word(&'static str, &'static [&'static str]),
    /// One of these words, or what a file is called: built-in, words.
    Named(&'static str, &'static [&'static str]),
    /// One of these words, the first is built in, or a whole number: least, most.
    WordOrInt(&'static [&'static str], i64, i64),
    Size,
    Time,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Flag {
    /// `--NAME VALUE`: its long name and what its value is called in help.
    Takes(&'static str, &'static str),
    /// `--NAME` sets a fixed value: long name, value, help.
    Means(&'static str, &'static str, &'static str),
}

#[derive(Clone, Copy, Debug)]
pub enum Owner {
    /// The session, with its text: get and set.
    Session(fn(&Settings) -> Value, fn(&mut Settings, &Value) -> bool),
    Screen,
}

#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub owner: Owner,
}

/// Makes the structs of the settings and the rows of their fields, for `table`.
macro_rules! settings {
    ($(
        #[doc = $about:literal]
        $section:ident: $Struct:ident {
            $( #[doc = $help:literal] $key:ident: $type:ty = $kind:expr $( , $way:ident($($arg:expr),*) )*; )+
            $( extra { $( $(#[$doc:meta])* $extra:ident: $extra_type:ty; )+ } )?
        }
    )+) => {
        $(
            #[doc = concat!(" `[", stringify!($section), "]`:", $about, ".")]
            #[derive(Clone, Debug, PartialEq)]
            pub struct $Struct {
                $( #[doc = concat!($help, ".")] pub $key: $type, )+
                $( $( $(#[$doc])* pub $extra: $extra_type, )+ )?
            }

            impl Default for $Struct {
                fn default() -> Self {
                    $Struct {
                        $( $key: built_in($kind), )+
                        $( $( $extra: Default::default(), )+ )?
                    }
                }
            }
        )+

        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Config {
            $( #[doc = concat!($about, ".")] pub $section: $Struct, )+
            /// Key to action, in the words of `/keys`.
            pub keys: BTreeMap<String, String>,
        }

        /// Every setting, in the order of `config.example.toml`.
        pub const ROWS: &[Row] = &[$($( row(
            concat!(stringify!($section), ".", stringify!($key)),
            $help,
            $kind,
            |config| config.$section.$key.to_value(),
            |config, value| put(&mut config.$section.$key, value),
        ) $( .$way($($arg),*) )*, )+)+];
    };
}
pub(super) use settings;

pub(super) const MANY: i64 = i64::MAX;

pub(super) const fn int(default: i64, least: i64, most: i64) -> Kind {
    Kind::Int(default, least, most, &[])
}

impl Kind {
    pub fn default(&self) -> Value {
        match *self {
            Kind::Bool(b) => Value::Boolean(b),
            Kind::Int(i, ..) => Value::Integer(i),
            Kind::Float(f, ..) => Value::Float(f),
            Kind::Text(t) | Kind::List(t) | Kind::Word(t, _) | Kind::Named(t, _) => Value::String(t.to_owned()),
            Kind::Size => Value::String(ALL.to_owned()),
            Kind::Time => Value::String(OFF.to_owned()),
            Kind::WordOrInt(words, ..) => Value::String(words.first().copied().unwrap_or_default().to_owned()),
        }
    }

    /// What is allowed: a phrase for "must be …".
    pub fn range(&self) -> String {
        match *self {
            Kind::Bool(_) => "true or false".to_owned(),
            Kind::Text(_) => "text in quotes".to_owned(),
            Kind::List(_) => "texts separated by commas, or a list of texts".to_owned(),
            // The least number is what the words mean.
            Kind::Int(_, least, MANY, also @ [(_, first), ..]) if *first == least => {
                let words: Vec<&str> = also.iter().map(|(word, _)| *word).collect();
                format!("{} or a whole number from {}", words.join(", "), least + 1)
            }
            Kind::Int(_, least, MANY, also) => format!("a whole number from {least}{}", words_of(also)),
            Kind::Int(_, least, most, also) => format!("a whole number from {least} to {most}{}", words_of(also)),
            Kind::Float(_, least, most) => format!("{least} to {most}"),
            Kind::Word(_, words) => format!("one of {}", words.join(", ")),
            Kind::Named(_, words) => format!("one of {}, or a file", words.join(", ")),
            Kind::Size => format!("{ALL}, or a size as 8GiB"),
            Kind::Time => format!("{OFF}, or a time as 90s, 20m or 2h"),
            Kind::WordOrInt(words, least, most) => {
                format!("one of {}, or a whole number from {least} to {most}", words.join(", "))
            }
        }
    }

    pub fn words(&self) -> Vec<&'static str> {
        match *self {
            Kind::Bool(_) => vec!["true", "false"],
            Kind::Int(.., also) => also.iter().map(|(word, _)| *word).collect(),
            Kind::Size => vec![ALL],
            Kind::Time => vec![OFF],
            Kind::Float(..) | Kind::Text(_) | Kind::List(_) => Vec::new(),
            Kind::Word(_, words) | Kind::Named(_, words) | Kind::WordOrInt(words, ..) => words.to_vec(),
        }
    }

    pub fn accept(&self, value: &Value) -> Result<Value, String> {
        let accepted = match (*self, value) {
            (Kind::Bool(_), Value::Boolean(_)) | (Kind::Text(_) | Kind::List(_), Value::String(_)) => {
                Some(value.clone())
            }
            (Kind::List(_), Value::Array(list)) => {
                let texts: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
                texts.map(|texts| Value::String(texts.join(", ")))
            }
            (Kind::Int(_, least, most, _), Value::Integer(i)) if (least..=most).contains(i) => Some(value.clone()),
            (Kind::Int(.., also), Value::String(s)) => {
                also.iter().find(|(word, _)| word == s).map(|(_, i)| Value::Integer(*i))
            }
            (Kind::Float(_, least, most), Value::Float(f)) if (least..=most).contains(f) => Some(value.clone()),
            (Kind::Float(_, least, most), Value::Integer(i)) if (least..=most).contains(&(*i as f64)) => {
                Some(Value::Float(*i as f64))
            }
            (Kind::Word(_, words) | Kind::WordOrInt(words, ..), Value::String(s)) if words.contains(&s.as_str()) => {
                Some(value.clone())
            }
            (Kind::Named(..), Value::String(s)) if is_name(s) => Some(value.clone()),
            (Kind::Size, Value::String(s)) => Size::parse(s).map(|size| Value::String(size.to_string())),
            (Kind::Time, value) => Time::from_value(value).map(|time| time.to_value()),
            (Kind::WordOrInt(_, least, most), Value::Integer(i)) if (least..=most).contains(i) => Some(value.clone()),
            _ => None,
        };
        accepted.ok_or_else(|| self.range())
    }

    /// Reads a value from a variable, an option or a command: no quotes needed.
    pub fn parse(&self, text: &str) -> Result<Value, String> {
        let text = text.trim();
        let itself = || Value::String(text.to_owned());
        let whole = || text.replace(['_', ','], "").parse().map_or_else(|_| itself(), Value::Integer);
        let value = match self {
            Kind::Text(_) | Kind::List(_) | Kind::Word(..) | Kind::Named(..) | Kind::Size | Kind::Time => itself(),
            Kind::Bool(_) => match text {
                "true" | "on" | "yes" | "1" => Value::Boolean(true),
                "false" | "off" | "no" | "0" => Value::Boolean(false),
                _ => itself(),
            },
            Kind::Int(..) | Kind::WordOrInt(..) => whole(),
            Kind::Float(..) => text.parse().map_or_else(|_| itself(), Value::Float),
        };
        self.accept(&value)
    }

    pub fn show(&self, value: &Value) -> String {
        match (self, value) {
            (Kind::Int(.., also), Value::Integer(i)) => {
                also.iter().find(|(_, n)| n == i).map_or_else(|| i.to_string(), |(word, _)| (*word).to_owned())
            }
            (_, Value::String(text)) => text.clone(),
            (_, Value::Float(f)) => f.to_string(),
            (_, other) => other.to_string(),
        }
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 4096 && !text.chars().any(char::is_control)
}

fn words_of(also: &[(&'static str, i64)]) -> String {
    also.iter().map(|(word, _)| format!(", or {word}")).collect()
}
