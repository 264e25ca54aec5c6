//! The binary: everything is in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(sala_chat::cli::main(std::env::args_os(), sala_chat::lab::LABORATORY))
}
