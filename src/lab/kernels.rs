//! `sala-chat doctor --kernels`: every operation of the GPU against the CPU, and whole texts; `--rates`: their speeds
//! against the limits of the device. Every check runs even if others fail; the report names every miss and the exit
//! code is then 1.

mod cases;
pub mod checks;
mod cuts;
mod fp8;
mod operations;
mod rates;
mod ready;
mod reference;
mod table;
mod whole;

pub use operations::operations;
pub use whole::run as whole_model;

use serde_json::json;

use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::cli::args::DoctorArgs;
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure};
use crate::config::settings::Device;
use checks::{Checks, Extent};
use rates::Rates;

/// Runs the selected checks, or measures the rates. Exit code 1 for a miss.
pub(super) fn run(context: &Context, args: &DoctorArgs) -> Result<Exit, Failure> {
    let mut config = context.config().model.clone();
    if config.device == Device::Auto {
        config.device = Device::Cuda;
    }
    // Opens a fresh device for each part: an error of one must not poison the next.
    let open = |guards: bool| -> Result<Cuda, Failure> {
        match devices::open(&config, &args.tuning, guards)? {
            Opened::Cuda(cuda) => Ok(*cuda),
            Opened::Cpu(..) => Err(Failure::usage("doctor --kernels is about a GPU: --device cuda")),
        }
    };
    let progress = |text: &str| context.note(text);
    let mut checks = Checks { progress: Some(&progress), ..Checks::default() };
    let mut device = open(args.kernels)?;
    let (name, gemms) = (device.describe(), device.gemm_library().map(str::to_owned));
    let extent = match (device.info().emulated, args.tuning.limits) {
        (true, _) => Extent::Emulated,
        (_, Some(_)) => Extent::Limits,
        (_, None) => Extent::Device,
    };
    if args.kernels {
        operations(&mut checks, &mut Cpu::new(), &mut device, extent);
        drop(device);
        whole_model(&mut checks, || open(false).map_err(|f| f.message), extent);
    }
    let rates = if args.rates { rates::measure(&mut open(false)?) } else { Rates::default() };
    let missed = checks.failed().count();
    let ok = missed == 0 && rates.failed.is_empty();
    let as_json = || {
        json!({
            "device": name, "gemm_library": gemms, "ok": ok, "missed": missed, "checks": checks.list,
            "ceilings": rates.ceilings, "rates": rates.list, "rates_failed": rates.failed,
        })
    };
    let as_text = || {
        let mut lines = vec![format!("{name}; GEMMs by {}", gemms.as_deref().unwrap_or("the program's own kernel"))];
        lines.extend(checks.list.iter().map(|c| {
            let word = if c.ok { "ok" } else { "MISS" };
            let error = c.error.map_or(String::new(), |e| format!("{e:.2e}"));
            format!("{word:>4} {:<60} {error:>9} {}", c.name, c.message.as_deref().unwrap_or_default())
        }));
        lines.extend(rates.ceilings.iter().map(|c| {
            let (read, copy, gemm) = (c.read_gb_per_s, c.copy_gb_per_s, c.gemm_tflops);
            format!("ceilings: read {read:.0} GB/s, copy {copy:.0} GB/s, GEMM {gemm:.0} TFLOP/s")
        }));
        lines.extend(rates.list.iter().map(|r| {
            let (ms, gb, tflops, share) = (r.ms, r.gb_per_s, r.tflops, 100.0 * r.share);
            let speed = format!("{ms:>9.4} ms {gb:>7.0} GB/s {tflops:>7.1} TFLOP/s {share:>5.1}% of {}", r.ceiling);
            format!("{:<44} {speed}", r.name)
        }));
        lines.extend(rates.failed.iter().map(|(what, why)| format!("MISS {what}: {why}")));
        lines.push(format!("{} checks, {missed} missed", checks.list.len()));
        lines.join("\n")
    };
    context.result(as_json, as_text)?;
    Ok(if ok { Exit::Ok } else { Exit::Failure })
}
