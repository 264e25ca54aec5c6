//! Refuses models that exceed the limits of `kernels/README.md` before any computation, by the field of `config.json`
//! and its value.

use super::driver::DeviceInfo;
use super::launch;
use super::tensors::HEAD;
use crate::backend::draft::DraftShape;
use crate::backend::{BackendError, MAX_POSITIONS, Result};
use crate::core::spec::{LightningSpec, Mixer, ModelSpec, SparseSpec};

pub(super) const BLOCK: usize = 64;
const WINDOW: usize = 32;
const STRIDE: usize = 16;
/// Limit of query heads per KV head: the rows of a tensor-core tile.
pub(super) const GROUP: usize = 16;
/// Limit of heads in all sparse layers together: their attention mass is summed in 32 bits.
const SPARSE_HEADS: usize = 1000;
/// Only these cards multiply e4m3 operands with a scale per row in cuBLASLt.
const FP8_CAPABILITY: u32 = 90;
pub(super) const INNER: usize = 64;

/// Runs before the weights are loaded; `shared_limit`: shared memory per block.
pub(super) fn model(spec: &ModelSpec, shared_limit: usize) -> Result<()> {
    multiple("hidden_size", spec.hidden, INNER)?;
    multiple("intermediate_size", spec.intermediate, INNER)?;
    let (vocab, room) = (spec.vocab, launch::most_logits(shared_limit));
    rule(vocab <= room, "vocab_size", vocab, format_args!("at most {room} on this GPU"))?;
    if spec.mixers.contains(&Mixer::Sparse) {
        sparse(&spec.sparse)?;
        let all = spec.sparse.heads * spec.layers(Mixer::Sparse);
        let wanted = format_args!("at most {SPARSE_HEADS} of them in all sparse layers together").to_string();
        rule(all <= SPARSE_HEADS, "num_attention_heads", spec.sparse.heads, wanted)?;
    }
    if spec.mixers.contains(&Mixer::Lightning) {
        lightning(&spec.lightning)?;
    }
    Ok(())
}

pub(super) fn sparse(spec: &SparseSpec) -> Result<()> {
    equal("head_dim", spec.head_dim, HEAD)?;
    equal("block_size", spec.block, BLOCK)?;
    equal("kernel_size", spec.kernel, WINDOW)?;
    equal("kernel_stride", spec.stride, STRIDE)?;
    grouped("num_attention_heads", spec.heads, spec.kv_heads)
}

pub(super) fn lightning(spec: &LightningSpec) -> Result<()> {
    equal("lightning_head_dim", spec.head_dim, HEAD)?;
    heads("lightning_nh", spec.heads, "lightning_nkv", spec.kv_heads)
}

pub(super) fn draft(shape: &DraftShape) -> Result<()> {
    equal("head_dim of the draft head", shape.head_dim, HEAD)?;
    multiple("hidden_size of the draft head", shape.hidden, INNER)?;
    multiple("intermediate_size of the draft head", shape.intermediate, INNER)?;
    grouped("num_attention_heads of the draft head", shape.heads, shape.kv_heads)
}

fn grouped(field: &str, found: usize, kv_heads: usize) -> Result<()> {
    heads(field, found, "num_key_value_heads", kv_heads)?;
    let most = format_args!("at most {GROUP} for each of the {kv_heads} num_key_value_heads");
    rule(found / kv_heads <= GROUP, field, found, most)
}

pub(super) fn fp8(info: &DeviceInfo) -> Result<()> {
    if info.capability == FP8_CAPABILITY {
        return Ok(());
    }
    let (major, minor) = (info.capability / 10, info.capability % 10);
    Err(no_fp8(format_args!("needs a Hopper GPU (capability 9.0), {} has {major}.{minor}", info.name)))
}

pub(super) fn no_fp8(why: impl std::fmt::Display) -> BackendError {
    BackendError::Unsupported(format!("prefill in fp8 {why}; --prefill bf16 does without"))
}

pub(super) fn positions(limit: usize) -> Result<()> {
    rule(limit <= MAX_POSITIONS, "max_context", limit, format_args!("at most {MAX_POSITIONS}"))
}

fn heads(field: &str, heads: usize, shared: &str, kv_heads: usize) -> Result<()> {
    let divides = kv_heads > 0 && heads.is_multiple_of(kv_heads);
    rule(divides, field, heads, format_args!("a multiple of {shared} = {kv_heads}"))
}

fn equal(field: &str, found: usize, wanted: usize) -> Result<()> {
    rule(found == wanted, field, found, wanted)
}

fn multiple(field: &str, found: usize, of: usize) -> Result<()> {
    rule(found > 0 && found.is_multiple_of(of), field, found, format_args!("a multiple of {of}"))
}

fn rule(holds: bool, field: &str, found: usize, wanted: impl std::fmt::Display) -> Result<()> {
    if holds {
        return Ok(());
    }
    Err(BackendError::Unsupported(format!("{field} = {found}: the GPU kernels need {wanted}; use --device cpu")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(change: impl Fn(&mut ModelSpec)) -> Result<()> {
        let mut spec = ModelSpec::from_json(include_str!("../../model/config_9b.json")).unwrap();
        change(&mut spec);
        model(&spec, 99 << 10)
    }

    #[test]
    fn the_released_model_fits_the_smallest_card_and_each_limit_names_its_field() {
        spec(|_| {}).unwrap();
        type Change = fn(&mut ModelSpec);
        let cases: [(&str, Change); 12] = [
            ("hidden_size = 4100", |s| s.hidden = 4100),
            ("intermediate_size = 96", |s| s.intermediate = 96),
            ("vocab_size = 900000", |s| s.vocab = 900_000),
            ("head_dim = 64", |s| s.sparse.head_dim = 64),
            ("block_size = 32", |s| s.sparse.block = 32),
            ("kernel_size = 64", |s| s.sparse.kernel = 64),
            ("kernel_stride = 32", |s| s.sparse.stride = 32),
            ("num_attention_heads = 64", |s| s.sparse.heads = 64),
            ("num_attention_heads = 31", |s| s.sparse.heads = 31),
            ("lightning_head_dim = 96", |s| s.lightning.head_dim = 96),
            ("lightning_nh = 31", |s| (s.lightning.heads, s.lightning.kv_heads) = (31, 2)),
            ("lightning_nh = 32", |s| s.lightning.kv_heads = 0),
        ];
        for (named, change) in cases {
            let error = spec(change).unwrap_err().to_string();
            assert!(error.starts_with(named) && error.contains("GPU kernels need"), "{named}: {error}");
        }
        let card = |capability, name: &str| DeviceInfo { name: name.to_owned(), capability, ..DeviceInfo::default() };
        assert!(fp8(&card(90, "NVIDIA H200")).is_ok());
        for (capability, name, has) in [(86, "NVIDIA A10", "8.6"), (100, "NVIDIA B200", "10.0")] {
            let error = fp8(&card(capability, name)).unwrap_err().to_string();
            let expected =
                format!("prefill in fp8 needs a Hopper GPU (capability 9.0), {name} has {has}; --prefill bf16");
            assert!(error.starts_with(&expected), "{error}");
        }
        assert!(positions(MAX_POSITIONS).is_ok());
        assert!(positions(MAX_POSITIONS + 1).unwrap_err().to_string().starts_with("max_context = 1048577"));
    }
}
