//! Options for loading an engine, and its description.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::core::grouped;

pub const BUILT_IN: &str = "demo";

/// `false` for the built-in model and for random weights.
pub fn is_folder(model: &str) -> bool {
    model != BUILT_IN && !model.starts_with("synthetic:")
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceChoice {
    /// A usable GPU, else the CPU; [`ModelInfo::notes`] has the choice and its reason.
    #[default]
    Auto,
    Cpu,
    Cuda,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WeightsChoice {
    /// The best form that leaves room for the context; [`ModelInfo::notes`] has the choice and its reason.
    #[default]
    Auto,
    Bf16,
    #[serde(rename = "8bit")]
    Bits8,
    /// 6.5 bits, and 8 for sensitive weights.
    #[serde(rename = "6bit")]
    Bits6,
    /// 5.5 bits, and 8 for sensitive weights.
    #[serde(rename = "5bit")]
    Bits5,
    /// 4.5 bits, and 8 for sensitive weights.
    #[serde(rename = "4bit")]
    Bits4,
}

/// The number type of prefill products. Decode does not depend on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// The device's own: bf16 on a GPU, f32 on a CPU.
    #[default]
    Bf16,
    /// 8 bits with a scale per row, for weights that do not produce keys and values.
    Fp8,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Precision::Bf16 => "bf16",
            Precision::Fp8 => "fp8",
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DraftChoice {
    /// The model's own: in `eagle3/` next to the weights, or that of the built-in model.
    #[default]
    Auto,
    Off,
    Folder(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// `demo`, `synthetic:9b[:seed]`, `synthetic:tiny[:seed]`, or a folder.
    pub model: String,
    pub device: DeviceChoice,
    pub gpu: usize,
    /// Limit of the caches in tokens; `None`: twice the trained length, at most 1,048,576, and what fits.
    pub context: Option<u64>,
    /// Limit in bytes; `None`: the free memory.
    pub gpu_memory: Option<u64>,
    pub weights: WeightsChoice,
    pub prefill: Precision,
    pub draft: DraftChoice,
    /// Folder of packed weights for the next start; `None`: they are not kept.
    pub keep_weights: Option<PathBuf>,
    /// Time without work after which the engine parks; `None`: only on request.
    pub park_after: Option<Duration>,
    /// The first of [`ModelInfo::notes`].
    pub notes: Vec<String>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            model: BUILT_IN.into(),
            device: DeviceChoice::Auto,
            gpu: 0,
            context: None,
            gpu_memory: None,
            weights: WeightsChoice::Auto,
            prefill: Precision::Bf16,
            draft: DraftChoice::Auto,
            keep_weights: None,
            park_after: None,
            notes: Vec::new(),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelInfo {
    /// `demo`, `MiniCPM-SALA`, `synthetic:9b`; for a server or a folder its own name.
    pub name: String,
    pub built_in: bool,
    pub device: String,
    pub device_kind: String,
    /// `bf16`, `f32`, `8-bit`, `6-bit`, `5-bit`, `4-bit`; then the type of prefill products, if that differs.
    pub dtype: String,
    pub parameters: u64,
    pub context_limit: u64,
    pub max_sequences: u32,
    pub draft: Option<String>,
    /// Hash over weights, spec and format: state is only valid with the same.
    pub fingerprint: String,
    pub memory: MemoryInfo,
    /// Shown once: fallbacks taken while loading.
    pub notes: Vec<String>,
    /// Address of a remote server; `None` for a local engine. A server keeps no state and reports no attention; any
    /// path can be restored from its history alone, and token counts are estimates.
    pub server: Option<String>,
    /// The local process that runs the engine, if not this one. It has all features of an engine in this process.
    pub host: Option<String>,
    /// Weights, states and the device are freed until the next use.
    pub parked: bool,
}

impl ModelInfo {
    /// Example: `up to 4,096 tokens`.
    pub fn holds(&self) -> String {
        match self.context_limit {
            0 => "a context of unknown length (engine.context)".to_owned(),
            limit => format!("up to {} tokens", grouped(limit)),
        }
    }
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct MemoryInfo {
    pub weights: u64,
    pub state: u64,
    pub work: u64,
    /// Where keys and values are in host memory: the device's pool of their blocks, and the staging ring.
    #[serde(skip_serializing_if = "is_zero")]
    pub pool: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub host: u64,
    /// Use of the device by all programs; process memory on a CPU.
    pub used: u64,
    pub total: u64,
}
