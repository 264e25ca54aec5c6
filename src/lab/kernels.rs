//! `sala-chat doctor --kernels`: every operation of the GPU against the CPU, and whole texts. Every check runs even if
//! others fail; the report names every miss and the exit code is then 1.

mod cases;
mod fp8;
mod operations;
mod ready;
mod reference;
mod table;
mod whole;

pub use cases::Sizes;
pub use operations::{Extent, operations};
pub use whole::{Plan, run as whole_model};

use anyhow::bail;
use serde_json::json;

use super::checks::{Checks, report};
use super::golden::rms_ratio;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::prelude::*;
use crate::cli::args::DoctorArgs;
use crate::cli::devices::{self, Opened};
use crate::cli::{Context, Exit, Failure};
use crate::config::settings::Device;

/// Runs all checks. Exit code 1 for a miss.
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
    let mut device = open(true)?;
    let (name, gemms) = (device.describe(), device.gemm_library().map(str::to_owned));
    operations(&mut checks, &mut Cpu::new(), &mut device, &Extent::DEVICE);
    drop(device);
    whole_model(&mut checks, || open(false).map_err(|f| f.message), &Plan::DEVICE);
    let object = json!({"device": name, "gemm_library": gemms});
    let head = format!("{name}; GEMMs by {}", gemms.as_deref().unwrap_or("the program's own kernel"));
    report(context, head, &checks.list, object, Vec::new())
}

/// ‖out − ref‖ / ‖ref‖; infinite if the lengths differ, NaN for NaN.
pub fn relative(out: &[f32], reference: &[f32]) -> f64 {
    if out.len() == reference.len() { rms_ratio(out, reference) } else { f64::INFINITY }
}

fn same_bits(a: &[f32], b: &[f32], what: impl std::fmt::Display) -> anyhow::Result<()> {
    let at = a.iter().zip(b).position(|(a, b)| a.to_bits() != b.to_bits());
    match at.or((a.len() != b.len()).then_some(a.len().min(b.len()))) {
        Some(at) => bail!("{what}: value {at} of {} differs", a.len()),
        None => Ok(()),
    }
}
