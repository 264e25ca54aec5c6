//! Estimates the context that fits a GPU, with everything on the device, or with keys and values in host memory and a
//! pool of their blocks on the device. The estimates use only the model's shape; the allocators count the actual
//! memory.

use crate::core::spec::{Mixer, ModelSpec};
use crate::core::{bytes, grouped};

/// Working buffers, recurrent state and a reserve for other programs, where everything is on the device.
pub const RESERVE_BYTES: u64 = 5 << 28;
/// Reserve where keys and values are in host memory: growing caches keep clear of it, and rounding of pieces takes
/// from it.
const SPARE_BYTES: u64 = 160 << 20;
/// Default number of tokens that have to fit: enough for most documents.
pub const USUAL_CONTEXT: u64 = 131_072;
pub const SLICE_BYTES: usize = 64 << 20;
/// With fewer blocks in the pool (several times a row's choice), most blocks would be fetched anew for every token.
pub const USEFUL_BLOCKS: usize = 512;
const MOST_STAGED: u64 = 512 << 20;
const LEAST_STAGED: u64 = 16 << 20;

/// What remains on the device when keys and values are in host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PagedPlan {
    pub blocks: usize,
    pub staged_rows: usize,
    pub here: u64,
    pub host: u64,
}

impl PagedPlan {
    pub fn is_useful(&self, spec: &ModelSpec, tokens: u64) -> bool {
        let all = tokens.div_ceil(spec.sparse.block.max(1) as u64);
        self.blocks as u64 >= all.min(USEFUL_BLOCKS as u64)
    }

    /// Example: `1,048,576 tokens: 0.7 GiB of keys and values on the card, 8.0 GiB in memory`
    pub fn line(&self, tokens: u64) -> String {
        let (tokens, here, host) = (grouped(tokens), bytes(self.here), bytes(self.host));
        format!("{tokens} tokens: {here} of keys and values on the card, {host} in memory")
    }

    /// The error text if `free` bytes of host memory are too few for a context of `tokens`.
    pub fn short_of_host(&self, tokens: u64, free: u64) -> Option<String> {
        let fits =
            u64::try_from(u128::from(tokens) * u128::from(free) / u128::from(self.host.max(1))).unwrap_or(tokens);
        let short =
            || format!("{} of memory are free here, enough for {} tokens", bytes(free), grouped(fits / 1024 * 1024));
        (free < self.host).then(short)
    }
}

/// Bytes of a token in all layers: of keys and values, and of compressed keys.
fn token_bytes(spec: &ModelSpec) -> [u64; 2] {
    spec.sparse.token_bytes().map(|bytes| (spec.layers(Mixer::Sparse) * bytes) as u64)
}

fn work_bytes(spec: &ModelSpec, rows: usize) -> u64 {
    let (s, l) = (&spec.sparse, &spec.lightning);
    let sparse = 2 * s.projection_width() + 4 * s.heads * s.head_dim;
    let lightning = 2 * l.projection_width() + 4 * l.heads * l.head_dim;
    let columns = (2 * spec.intermediate).min(SLICE_BYTES / (2 * spec.hidden).max(1));
    let mlp = 2 * spec.intermediate + 2 * columns;
    // Mixers and MLPs share memory; the input of a product and the partial results of attention have their own.
    let others = 2 * spec.hidden + 32 * s.heads + 8 * s.kv_heads * s.topk;
    let pass = rows * (sparse.max(lightning).max(mlp) + others + 4 * spec.hidden);
    // A prefill pass widens packed weights one slice at a time.
    let widened = SLICE_BYTES;
    let state = 4 * l.heads * l.head_dim * l.head_dim;
    let states = 2 * state * spec.layers(Mixer::Lightning);
    let selection = 96 << 20;
    (pass + widened + states + selection) as u64
}

/// `free`: bytes that the weights leave.
pub fn resident_tokens(spec: &ModelSpec, free: u64) -> u64 {
    free.saturating_sub(RESERVE_BYTES) / token_bytes(spec).iter().sum::<u64>().max(1)
}

/// The plan for `tokens` with keys and values in host memory, for passes of `rows` rows; `free`: device bytes that the
/// weights leave.
///
/// # Errors
/// The bytes that would have to be free.
pub fn paged(spec: &ModelSpec, free: u64, rows: usize, tokens: u64) -> Result<PagedPlan, u64> {
    let (s, layers) = (&spec.sparse, spec.layers(Mixer::Sparse) as u64);
    let (kv_heads, block, row) = (s.kv_heads as u64, s.block as u64, (s.kv_heads * s.head_dim * 2) as u64);
    let [rows_of_token, compressed] = token_bytes(spec);
    // A slot, with its share of the owner, stamp and list arrays.
    let slot = layers * kv_heads * (2 * block * (row / kv_heads.max(1)) + 48);
    let all = tokens.div_ceil(block.max(1)).max(1);
    let tables = layers * kv_heads * all * 4;
    let fixed = work_bytes(spec, rows) + SPARE_BYTES + tokens * compressed + tables;
    let context = (all * block * 2 * row).max(1);
    let least = fixed + (s.topk as u64).min(all) * slot + LEAST_STAGED.min(context);
    if free < least {
        return Err(least);
    }
    let left = free - fixed;
    let staged = (left / 3).clamp(LEAST_STAGED, MOST_STAGED).min(context);
    let blocks = ((left - staged) / slot.max(1)).min(all);
    let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    Ok(PagedPlan {
        blocks: number(blocks),
        staged_rows: number(staged / (2 * row).max(1)),
        here: blocks * slot,
        host: tokens * rows_of_token,
    })
}

/// [`paged`] where the working buffers of such passes are already allocated.
pub fn paged_after_work(spec: &ModelSpec, free: u64, rows: usize, tokens: u64) -> Result<PagedPlan, u64> {
    let work = work_bytes(spec, rows);
    paged(spec, free + work, rows, tokens).map_err(|needed| needed - work)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ModelSpec {
        ModelSpec::from_json(include_str!("../model/config_9b.json")).unwrap()
    }

    #[test]
    fn a_million_tokens_fit_a_card_of_8_gib() {
        // Free bytes after 4-bit weights and the driver's context.
        let free = (8 << 30) - (11 << 29) - (1 << 29);
        let plan = paged(&spec(), free, 2048, 1 << 20).unwrap();
        assert!(plan.blocks >= 512 && plan.here < free, "{plan:?}");
        assert!(plan.staged_rows >= 1 << 14, "{plan:?}");
        assert_eq!(plan.host, 8 << 30);
        assert!(plan.line(1 << 20).starts_with("1,048,576 tokens: "), "{}", plan.line(1 << 20));
        assert!(plan.line(1 << 20).ends_with(" of keys and values on the card, 8.0 GiB in memory"));
    }

    #[test]
    fn too_little_memory_of_the_machine_is_reported_with_the_context_that_fits() {
        let plan = paged(&spec(), 4 << 30, 2048, 1 << 20).unwrap();
        assert_eq!(plan.short_of_host(1 << 20, 8 << 30), None);
        let line = plan.short_of_host(1 << 20, 3 << 30);
        assert_eq!(line.as_deref(), Some("3.0 GiB of memory are free here, enough for 393,216 tokens"));
    }

    #[test]
    fn more_memory_is_a_larger_pool_up_to_all_blocks() {
        let blocks = |gib: u64| paged(&spec(), gib << 30, 2048, 1 << 20).unwrap().blocks;
        assert!(blocks(2) < blocks(3) && blocks(3) < blocks(6));
        assert_eq!(blocks(64), 16_384);
        assert_eq!(paged(&spec(), 64 << 30, 2048, 1000).unwrap().blocks, 16);
    }

    #[test]
    fn too_little_says_how_much_would_do() {
        let needed = paged(&spec(), 3 << 28, 2048, 1 << 20).unwrap_err();
        assert!(needed > 3 << 28, "{needed}");
        assert!(paged(&spec(), needed, 2048, 1 << 20).is_ok());
        assert!(paged(&spec(), needed - 1, 2048, 1 << 20).is_err());
    }

    #[test]
    fn a_token_costs_8_kib_and_its_compressed_keys() {
        assert_eq!(token_bytes(&spec()), [8192, 320]);
    }
}
