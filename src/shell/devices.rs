//! Which device and model a measuring command runs on, from what the user asked for.
//!
//! `auto` takes the GPU where there is a usable one, and otherwise the CPU with the reason as a note; asking for `cuda` and
//! not getting it is an error (exit code 4). The emulated device is for tests of the GPU backend without a GPU.

use std::path::Path;

use super::cli::TuningArgs;
use super::{Context, Exit, Failure};
use crate::config::{Device, ModelConfig, ModelSource};

use crate::backend::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{Cuda, Guards, Options};

/// A device that was opened.
pub enum Opened {
    /// The CPU, and why no GPU is used, if one was looked for.
    Cpu(Box<Cpu>, Option<String>),
    /// A GPU or the emulated device.
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
}

/// Opens the device of the settings, or the emulated one.
///
/// # Errors
/// A GPU was asked for and cannot be used (exit code 4).
pub fn open(config: &ModelConfig, tuning: &TuningArgs, guards: bool) -> Result<Opened, Failure> {
    let no_device = |reason: String| Failure::new(Exit::NoDevice, reason);
    let gpu = config.gpu as usize;
    if let Some(library) = &tuning.emulator {
        return open_emulated(library, tuning, guards).map_err(no_device);
    }
    match config.device {
        Device::Cpu => Ok(Opened::Cpu(Box::default(), None)),
        Device::Auto => Ok(open_gpu(gpu, tuning, guards)
            .unwrap_or_else(|reason| Opened::Cpu(Box::default(), Some(reason)))),
        Device::Cuda => open_gpu(gpu, tuning, guards)
            .map_err(|reason| no_device(reason).hint("--device cpu runs the built-in model")),
    }
}

/// What [`crate::model::Checkpoint::open`] is to open. `auto` without downloaded weights is the built-in model.
pub fn model_name(context: &Context) -> String {
    match context.config().model_source() {
        ModelSource::Demo => "demo".to_owned(),
        ModelSource::Synthetic(shape) => format!("synthetic:{shape}"),
        ModelSource::Path(path) => path,
        ModelSource::Auto => super::model_cmd::installed(&context.config().model)
            .map_or_else(|| "demo".to_owned(), |path| path.display().to_string()),
    }
}

#[cfg(feature = "cuda")]
fn options(tuning: &TuningArgs, guards: bool) -> Options {
    Options {
        prefill_rows: tuning.prefill_rows,
        own_products: tuning.own_products,
        no_recording: tuning.no_recording,
        guards: if guards { Guards::On } else { Guards::Off },
    }
}

#[cfg(feature = "cuda")]
fn open_gpu(gpu: usize, tuning: &TuningArgs, guards: bool) -> Result<Opened, String> {
    Cuda::open(gpu, options(tuning, guards))
        .map(|cuda| Opened::Cuda(Box::new(cuda)))
        .map_err(|e| e.to_string())
}

#[cfg(feature = "cuda")]
fn open_emulated(library: &Path, tuning: &TuningArgs, guards: bool) -> Result<Opened, String> {
    Cuda::emulated(library, options(tuning, guards))
        .map(|cuda| Opened::Cuda(Box::new(cuda)))
        .map_err(|e| e.to_string())
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_gpu: usize, _tuning: &TuningArgs, _guards: bool) -> Result<Opened, String> {
    Err("No usable NVIDIA GPU: this program was built without the feature `cuda`".to_owned())
}

#[cfg(not(feature = "cuda"))]
fn open_emulated(_library: &Path, tuning: &TuningArgs, guards: bool) -> Result<Opened, String> {
    open_gpu(0, tuning, guards)
}

/// Clocks, limits and driver as the driver's own tool prints them; `None` where it is missing.
pub fn clocks() -> Option<String> {
    let fields =
        "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu";
    printed(
        "nvidia-smi",
        &[&format!("--query-gpu={fields}"), "--format=csv"],
    )
}

/// Short commit of the working tree the program runs in; `None` outside of one.
pub fn commit() -> Option<String> {
    printed("git", &["rev-parse", "--short", "HEAD"])
}

fn printed(program: &str, args: &[&str]) -> Option<String> {
    let output = std::process::Command::new(program)
        .args(args)
        .stderr(std::process::Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}
