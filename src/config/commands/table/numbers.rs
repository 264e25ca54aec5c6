//! What is going on.

use super::super::{Command, Group, Request};
use super::runtime;

const ROW: Command = Command { group: Group::Numbers, ..super::ROW };

pub(super) const ROWS: &[Command] = &[
    Command {
        name: "stats",
        help: "speeds, acceptance, memory",
        example: "/stats",
        wrong: "/stats x",
        parse: |a| a.none().and_then(|()| runtime(Request::Stats)),
        ..ROW
    },
    Command {
        name: "map",
        help: "map of the context, shaded by attention",
        example: "/map",
        wrong: "/map x",
        parse: |a| a.none().and_then(|()| runtime(Request::Map)),
        ..ROW
    },
    Command {
        name: "ctx",
        aliases: &["context", "tokens"],
        help: "tokens per message and document",
        example: "/ctx",
        wrong: "/ctx x",
        parse: |a| a.none().and_then(|()| runtime(Request::Context)),
        ..ROW
    },
    Command {
        name: "doctor",
        help: "check model, device, disk and terminal",
        example: "/doctor",
        wrong: "/doctor x",
        parse: |a| a.none().and_then(|()| runtime(Request::Doctor)),
        ..ROW
    },
];
