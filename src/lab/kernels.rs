//! `sala-chat doctor --kernels`: every operation of the GPU against the CPU, and whole texts; `--rates`: their speeds
//! against the limits of the device. Every check runs even if others fail; the report names every miss and the exit
//! code is then 1.

#[cfg(feature = "cuda")]
mod beside;
#[cfg(feature = "cuda")]
mod cases;
#[cfg(feature = "cuda")]
pub mod checks;
#[cfg(feature = "cuda")]
mod cuts;
#[cfg(feature = "cuda")]
mod ends;
#[cfg(feature = "cuda")]
mod fp8;
#[cfg(feature = "cuda")]
mod operations;
#[cfg(feature = "cuda")]
mod packed;
#[cfg(feature = "cuda")]
mod rates;
#[cfg(feature = "cuda")]
mod ready;
#[cfg(feature = "cuda")]
mod reference;
#[cfg(feature = "cuda")]
mod subject;

#[cfg(feature = "cuda")]
pub use ends::run as whole_model;
#[cfg(feature = "cuda")]
pub use operations::operations;

use crate::cli::args::DoctorArgs;
use crate::cli::{Context, Exit, Failure};

#[cfg(not(feature = "cuda"))]
pub(super) fn run(_context: &Context, _args: &DoctorArgs) -> Result<Exit, Failure> {
    Err(Failure::new(Exit::NoDevice, "this program was built without the feature `cuda`"))
}

/// Runs the selected checks, or measures the rates. Exit code 1 for a miss.
#[cfg(feature = "cuda")]
pub(super) fn run(context: &Context, args: &DoctorArgs) -> Result<Exit, Failure> {
    use std::fmt::Write as _;

    use checks::{Checks, Extent};
    use serde_json::json;

    use crate::backend::prelude::*;
    use crate::cli::devices::{self, Opened};

    let mut config = context.config().model.clone();
    if config.device == crate::config::settings::Device::Auto {
        config.device = crate::config::settings::Device::Cuda;
    }
    // Opens a fresh device for each part: an error of one must not poison the next.
    let open = |guards: bool| -> Result<crate::backend::cuda::Cuda, Failure> {
        match devices::open(&config, &args.tuning, guards)? {
            Opened::Cuda(cuda) => Ok(*cuda),
            Opened::Cpu(..) => Err(Failure::usage("doctor --kernels is about a GPU: --device cuda")),
        }
    };
    let told = |text: &str| context.note(text);
    let mut checks = Checks::default();
    checks.told = Some(&told);
    let mut device = open(args.kernels)?;
    let (name, gemms) = (device.describe(), device.gemm_library().map(str::to_owned));
    let extent = match (device.info().emulated, args.tuning.limits) {
        (true, _) => Extent::Emulated,
        (_, Some(_)) => Extent::Limits,
        (_, None) => Extent::Device,
    };
    if args.kernels {
        operations(&mut checks, &mut crate::backend::cpu::Cpu::new(), &mut device, extent);
        drop(device);
        ends::run(&mut checks, || open(false).map_err(|f| f.message), extent);
    }
    let (mut speeds, mut ceilings, mut broken) = (Vec::new(), None, Vec::new());
    if args.rates {
        let mut device = open(false)?;
        match device.ceilings(2 << 30, 8192) {
            Ok(measured) => {
                ceilings = Some(measured);
                let mut rates =
                    rates::Rates { dev: &mut device, ceilings: measured, list: Vec::new(), failed: Vec::new() };
                if let Err(e) = rates.run() {
                    rates.failed.push(("rates".to_owned(), e.to_string()));
                }
                (speeds, broken) = (rates.list, rates.failed);
            }
            Err(e) => broken.push(("ceilings".to_owned(), e.to_string())),
        }
    }
    let missed = checks.failed().count();
    let ok = missed == 0 && broken.is_empty();
    let as_json = || {
        json!({
            "device": name, "gemm_library": gemms, "ok": ok, "missed": missed, "checks": checks.list,
            "ceilings": ceilings, "rates": speeds, "rates_failed": broken,
        })
    };
    let as_text = || {
        let mut out = format!("{name}; GEMMs by {}\n", gemms.as_deref().unwrap_or("the program's own kernel"));
        for c in &checks.list {
            let (word, error) =
                (if c.ok { "ok" } else { "MISS" }, c.error.map_or(String::new(), |e| format!("{e:.2e}")));
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{word:>4} {:<60} {error:>9} {}", c.name, c.message.as_deref().unwrap_or_default());
        }
        if let Some(c) = &ceilings {
            let _ = writeln!(
                out,
                "ceilings: read {:.0} GB/s, copy {:.0} GB/s, GEMM {:.0} TFLOP/s",
                c.read_gb_per_s, c.copy_gb_per_s, c.gemm_tflops
            );
        }
        for r in &speeds {
            let _ = writeln!(
                out,
                "{:<44} {:>9.4} ms {:>7.0} GB/s {:>7.1} TFLOP/s {:>5.1}% of {}",
                r.name,
                r.ms,
                r.gb_per_s,
                r.tflops,
                100.0 * r.share,
                r.ceiling
            );
        }
        for (what, why) in &broken {
            let _ = writeln!(out, "MISS {what}: {why}");
        }
        let _ = write!(out, "{} checks, {missed} missed", checks.list.len());
        out
    };
    context.result(as_json, as_text)?;
    Ok(if ok { Exit::Ok } else { Exit::Failure })
}
