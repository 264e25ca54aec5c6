//! The device and the model that the command line and the settings choose. `auto` takes a usable GPU, else the CPU with
//! the reason as a note; `cuda` without a GPU is an error (exit code 4).

use std::path::PathBuf;

use super::args::TuningArgs;
use super::{Exit, Failure};
use crate::backend::cpu::Cpu;
#[cfg(feature = "cuda")]
use crate::backend::cuda::{Cuda, Guards, Options};
use crate::config::settings::{Device, ModelConfig};
use crate::engine::protocol::BUILT_IN;

pub enum Opened {
    /// The CPU, and why no GPU is used, if one was looked for.
    Cpu(Box<Cpu>, Option<String>),
    #[cfg(feature = "cuda")]
    Cuda(Box<Cuda>),
}

pub fn open(config: &ModelConfig, tuning: &TuningArgs, guards: bool) -> Result<Opened, Failure> {
    match config.device {
        Device::Cpu => Ok(Opened::Cpu(Box::default(), None)),
        Device::Auto => {
            Ok(open_gpu(config, tuning, guards).unwrap_or_else(|reason| Opened::Cpu(Box::default(), Some(reason))))
        }
        Device::Cuda => open_gpu(config, tuning, guards)
            .map_err(|reason| Failure::of_chat(Exit::NoDevice, &reason).hint("--device cpu runs the built-in model")),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen {
    /// `demo`, `synthetic:…` or a folder: what [`crate::model::Checkpoint::open`] is to open.
    pub name: String,
    /// Why another model was chosen than expected; one line.
    pub note: Option<String>,
}

impl Chosen {
    pub fn new(name: impl Into<String>) -> Chosen {
        Chosen { name: name.into(), note: None }
    }
}

/// What `auto` means on this machine: the downloaded weights where a GPU can run them, else the built-in model.
pub fn automatic(config: &ModelConfig) -> Chosen {
    let gpu = || usable(config.gpu as usize);
    choose(super::hub::installed(config), config.device, gpu)
}

fn choose(installed: Option<PathBuf>, device: Device, gpu: impl FnOnce() -> Result<(), String>) -> Chosen {
    let Some(folder) = installed else {
        return Chosen::new(BUILT_IN);
    };
    let why = match device {
        // Opening it reports a missing GPU.
        Device::Cuda => None,
        Device::Cpu => Some("The downloaded model needs a GPU".to_owned()),
        Device::Auto => gpu().err().map(|why| format!("No usable NVIDIA GPU: {why}")),
    };
    match why {
        None => Chosen::new(folder.display().to_string()),
        Some(why) => Chosen {
            note: Some(format!("{why}. The built-in model answers instead of the downloaded one.")),
            ..Chosen::new(BUILT_IN)
        },
    }
}

#[cfg(not(feature = "cuda"))]
const NOT_BUILT: &str = "this program was built without the feature `cuda`";

fn usable(_gpu: usize) -> Result<(), String> {
    #[cfg(feature = "cuda")]
    return crate::backend::cuda::usable(_gpu);
    #[cfg(not(feature = "cuda"))]
    Err(NOT_BUILT.to_owned())
}

#[cfg(feature = "cuda")]
fn open_gpu(config: &ModelConfig, tuning: &TuningArgs, guards: bool) -> Result<Opened, String> {
    let options = Options {
        prefill: config.prefill,
        guards: if guards { Guards::On } else { Guards::Off },
        limits: tuning.limits,
        most_bytes: config.max_gpu_memory.0,
        ..Options::default()
    };
    let cuda = Cuda::open(config.gpu as usize, options).map_err(|e| e.to_string())?;
    Ok(Opened::Cuda(Box::new(cuda)))
}

#[cfg(not(feature = "cuda"))]
fn open_gpu(_config: &ModelConfig, _tuning: &TuningArgs, _guards: bool) -> Result<Opened, String> {
    Err(format!("No usable NVIDIA GPU: {NOT_BUILT}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_leaves_a_model_aside_that_no_gpu_can_run() {
        let folder = || Some(PathBuf::from("/models/sala"));
        let (some, none) = (|| Ok(()), || Err("driver not found".to_owned()));
        let taken = Chosen::new("/models/sala");
        assert_eq!(choose(None, Device::Auto, none), Chosen::new("demo"));
        assert_eq!(choose(folder(), Device::Auto, some), taken);
        // Named by the user: opening the device reports what is wrong, with exit code 4.
        assert_eq!(choose(folder(), Device::Cuda, none), taken);
        let fallback = choose(folder(), Device::Auto, none);
        assert_eq!(fallback.name, "demo");
        assert_eq!(
            fallback.note.unwrap(),
            "No usable NVIDIA GPU: driver not found. The built-in model answers instead of the downloaded one."
        );
        let cpu = choose(folder(), Device::Cpu, some);
        assert_eq!((cpu.name.as_str(), cpu.note.is_some()), ("demo", true));
    }
}
