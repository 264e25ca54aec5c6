//! The laboratory: proves and measures the program on a new card.
//!
//! | file | command |
//! |---|---|
//! | `kernels` | `doctor --kernels`: operations against the oracle |
//! | `golden` | `doctor --fixtures DIR`: golden data |
//! | `bench` | `bench`: prefill, decode, verify, sequences |
//! | `sessions` | `bench sessions`: resume, undo, fork |
//! | `serve` | `bench serve`: clients of the local server against the engine's own figures |
//! | `eval` | `eval`: reference logits, consistency, needles |
//! | `capture` | `draft capture`: hidden states for training a draft head |
//! | `checks` | of `kernels`, `golden` and `eval`: a check with its verdict, and the report of all |
//! | `layers` | of `kernels` and `golden`: a lightning or sparse layer with its buffers |
//! | `subject` | of `bench`, `eval`, `kernels` and `golden`: a model on a device |
//! | `report`, `scratch` | of every bench: JSON and table; data directory and documents |
//! | `clients` | an engine, and a runtime, that receive commands one at a time |
//!
//! The cli calls it through [`LABORATORY`] alone; no answer to a user depends on this module.

mod bench;
mod capture;
pub mod checks;
mod clients;
mod eval;
pub mod golden;
#[cfg(feature = "cuda")]
pub mod kernels;
#[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "golden data needs less of it than kernel checks"))]
mod layers;
mod report;
mod scratch;
mod serve;
mod sessions;
mod subject;

use crate::cli::args::{BenchArgs, BenchWhat, DoctorArgs};
use crate::cli::{Context, Exit, Failure, Laboratory};

pub const LABORATORY: Laboratory = Laboratory { check: doctor, bench: measure, eval: eval::run, draft: capture::run };

fn doctor(context: &Context, args: &DoctorArgs) -> Result<Exit, Failure> {
    match &args.fixtures {
        Some(dir) => golden::run(context, args, dir),
        #[cfg(feature = "cuda")]
        None => kernels::run(context, args),
        #[cfg(not(feature = "cuda"))]
        None => Err(Failure::new(Exit::NoDevice, "this program was built without the feature `cuda`")),
    }
}

fn measure(context: &Context, args: &BenchArgs) -> Result<Exit, Failure> {
    let scenario = match args.what {
        BenchWhat::Model => bench::measure,
        BenchWhat::Sessions => sessions::measure,
        BenchWhat::Serve => serve::measure,
    };
    report::print(context, args, scenario(context, args)?)
}
