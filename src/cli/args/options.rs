//! Options that set a setting: made from the table of [`crate::config::settings`], so that names, ranges, words and help are its.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::config::commands::help::sentence;
use crate::config::settings::table::ROWS;
use crate::config::settings::{Flag, Kind, Row, Value};

pub type Given = (&'static str, Value);

fn long(flag: &Flag) -> &'static str {
    match flag {
        Flag::Takes(long, _) | Flag::Means(long, ..) => long,
    }
}

fn is_of_screen(row: &Row) -> bool {
    row.section() == "ui"
}

fn flags(screen: bool) -> impl Iterator<Item = (&'static Row, &'static Flag)> {
    let rows = ROWS.iter().filter(move |row| is_of_screen(row) == screen);
    rows.flat_map(|row| row.flags.iter().map(move |flag| (row, flag)))
}

fn heading(row: &Row) -> &'static str {
    match row.section() {
        "model" | "engine" | "speculation" => "Model",
        "ui" => "Screen",
        _ => "Answer",
    }
}

fn arg(row: &'static Row, flag: &'static Flag) -> Arg {
    let others = row.flags.iter().map(long).filter(|other| *other != long(flag));
    let arg = Arg::new(long(flag)).long(long(flag)).help_heading(heading(row)).conflicts_with_all(others);
    let arg = if is_of_screen(row) { arg.conflicts_with("prompt") } else { arg.global(true) };
    match flag {
        Flag::Takes(_, value) => {
            // Words are listed by the parser; a range is not.
            let help = match row.kind {
                Kind::Int(..) | Kind::Float(..) | Kind::Size => {
                    format!("{} [{}]", sentence(row.help), row.kind.range())
                }
                _ => sentence(row.help),
            };
            arg.value_name(*value).value_parser(RowParser(row)).allow_negative_numbers(true).help(help)
        }
        Flag::Means(_, _, help) => arg.action(ArgAction::SetTrue).help(sentence(help)),
    }
}

/// Reads what [`Kind::parse`] reads.
#[derive(Clone)]
struct RowParser(&'static Row);

impl TypedValueParser for RowParser {
    type Value = Given;

    fn parse_ref(&self, command: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<Given, clap::Error> {
        let text = value.to_string_lossy();
        self.0.kind.parse(&text).map(|value| (self.0.name, value)).map_err(|range| {
            let name = arg.and_then(Arg::get_long).unwrap_or(self.0.name);
            let line = format!("--{name} must be {range} (got {text})\n");
            clap::Error::raw(ErrorKind::ValueValidation, line).with_cmd(command)
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let Kind::Word(_, words) = self.0.kind else { return None };
        Some(Box::new(words.iter().map(PossibleValue::new)))
    }
}

/// Adds the options of a chat on a screen, or those of every command.
pub(super) fn add(command: Command, screen: bool) -> Command {
    flags(screen).fold(command, |command, (row, flag)| command.arg(arg(row, flag)))
}

/// The settings that were given as options, those of the screen last.
pub(super) fn given(matches: &ArgMatches) -> Vec<Given> {
    let given = |(row, flag): (&'static Row, &'static Flag)| match flag {
        Flag::Takes(long, _) => matches.get_one::<Given>(long).cloned(),
        // A test walks the values of the table.
        Flag::Means(long, value, _) if matches.get_flag(long) => Some((row.name, row.kind.parse(value).ok()?)),
        Flag::Means(..) => None,
    };
    flags(false).chain(flags(true)).filter_map(given).collect()
}
