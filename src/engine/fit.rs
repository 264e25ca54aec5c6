//! Which form the weights take, so that weights and the context that was asked for fit into the device together.

use crate::backend::Memory;
use crate::model::{Checkpoint, Recipe};
use crate::protocol::engine::{MemoryInfo, WeightsChoice};
use crate::spec::{Mixer, ModelSpec};

use super::open::Failure;

/// Working buffers, recurrent state and what is left to others.
const RESERVE_BYTES: u64 = 3 << 29;
/// Tokens that have to fit if nobody asked for a number: enough for most documents.
const USUAL_CONTEXT: u64 = 131_072;
/// From the best form down.
const RECIPES: [Recipe; 3] = [Recipe::Bf16, Recipe::Bits8, Recipe::Bits4];

/// Bytes of cache per token on a GPU: keys, values and compressed keys of the sparse layers.
fn token_bytes(spec: &ModelSpec) -> u64 {
    let s = &spec.sparse;
    let row = s.kv_heads * s.head_dim * 2;
    let layers = spec.mixers.iter().filter(|m| **m == Mixer::Sparse).count();
    (layers * (2 * row + row / s.stride + row / (4 * s.stride))) as u64
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// `790000` as `790,000`, in full thousands.
fn tokens(n: u64) -> String {
    let thousands = n / 1000;
    if thousands < 1000 {
        format!("{thousands},000")
    } else {
        format!("{},{:03},000", thousands / 1000, thousands % 1000)
    }
}

/// Tokens that fit beside weights in a form.
fn room(recipe: Recipe, spec: &ModelSpec, free: u64) -> u64 {
    free.saturating_sub(recipe.bytes(spec) + RESERVE_BYTES) / token_bytes(spec).max(1)
}

/// The best form that leaves room for the context, and a line to say where it is not the first choice.
fn automatic(spec: &ModelSpec, free: u64, asked: Option<u64>) -> Result<(Recipe, Option<String>), String> {
    let wanted = asked.unwrap_or(USUAL_CONTEXT);
    let fits = |recipe: &&Recipe| room(**recipe, spec, free) >= wanted;
    let most = RECIPES.iter().rev().find(|r| room(**r, spec, free) > 0);
    let Some(recipe) = RECIPES.iter().find(fits).or(most).copied() else {
        let least = Recipe::Bits4.bytes(spec) + RESERVE_BYTES;
        return Err(format!(
            "{} of GPU memory are free, {} weights need {} with working memory; close other programs on the GPU, or use --model demo",
            gib(free),
            Recipe::Bits4.name(),
            gib(least)
        ));
    };
    if recipe == Recipe::Bf16 {
        return Ok((Recipe::Stored, None));
    }
    let bf16 = match room(Recipe::Bf16, spec, free) {
        0 => "bf16 does not fit".to_owned(),
        n => format!("bf16 would leave {}", tokens(n)),
    };
    let line = format!(
        "{} weights ({}): leaves room for {} tokens. {bf16}.",
        recipe.name(),
        gib(recipe.bytes(spec)),
        tokens(room(recipe, spec, free))
    );
    Ok((recipe, Some(line)))
}

/// A form that was asked for by name, if it fits.
fn named(recipe: Recipe, spec: &ModelSpec, free: u64) -> Result<Recipe, String> {
    let need = recipe.bytes(spec) + RESERVE_BYTES;
    if need <= free {
        return Ok(recipe);
    }
    let smaller = RECIPES.iter().find(|r| r.bytes(spec) + RESERVE_BYTES <= free);
    let advice = match smaller {
        Some(Recipe::Bits8) => "--weights 8bit fits",
        Some(Recipe::Bits4) => "--weights 4bit fits",
        _ => "no form of this model fits: close other programs on the GPU, or use --model demo",
    };
    Err(format!("{} weights need {} with working memory, {} are free; {advice}", recipe.name(), gib(need), gib(free)))
}

/// Sets the form of a checkpoint's weights for this device. The line says why, where the program chose.
pub(super) fn choose<B: Memory>(
    backend: &B,
    checkpoint: &mut Checkpoint,
    choice: WeightsChoice,
    asked: Option<u64>,
) -> Result<Option<String>, Failure> {
    let MemoryInfo { used, total, .. } = backend.memory();
    let free = total.saturating_sub(used);
    let spec = checkpoint.spec();
    let on_gpu = backend.kind() == "cuda";
    let by_name = match choice {
        WeightsChoice::Auto => None,
        WeightsChoice::Bf16 => Some(Recipe::Bf16),
        WeightsChoice::Bits8 => Some(Recipe::Bits8),
        WeightsChoice::Bits4 => Some(Recipe::Bits4),
    };
    let no_room = |error: String| Failure { error, code: 4 };
    let (recipe, line) = match by_name {
        Some(recipe) if on_gpu => (named(recipe, spec, free).map_err(no_room)?, None),
        Some(recipe) => (recipe, None),
        None if on_gpu => automatic(spec, free, asked).map_err(no_room)?,
        None => (Recipe::Stored, None),
    };
    checkpoint.set_recipe(recipe);
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ModelSpec {
        Checkpoint::open("synthetic:9b").unwrap().spec().clone()
    }

    #[test]
    fn the_best_form_that_leaves_room_is_taken_and_says_why() {
        let spec = spec();
        let choose = |gib: u64, asked| automatic(&spec, gib << 30, asked);
        assert_eq!(choose(24, None).unwrap(), (Recipe::Stored, None));
        let (recipe, line) = choose(16, None).unwrap();
        assert_eq!(recipe, Recipe::Bits8);
        let line = line.unwrap();
        assert!(line.starts_with("8-bit weights (9.0 GiB): leaves room for "), "{line}");
        assert!(line.ends_with("tokens. bf16 does not fit."), "{line}");
        assert_eq!(choose(12, None).unwrap().0, Recipe::Bits8);
        assert_eq!(choose(12, Some(500_000)).unwrap().0, Recipe::Bits4, "more context wants smaller weights");
        assert_eq!(choose(24, Some(1_000_000)).unwrap().0, Recipe::Bits8);
        assert!(choose(4, None).unwrap_err().contains("4.0 GiB of GPU memory are free"));
    }

    #[test]
    fn a_form_that_does_not_fit_names_one_that_does() {
        let spec = spec();
        assert_eq!(named(Recipe::Bf16, &spec, 24 << 30), Ok(Recipe::Bf16));
        assert!(named(Recipe::Bf16, &spec, 16 << 30).unwrap_err().ends_with("--weights 8bit fits"));
        assert!(named(Recipe::Bits8, &spec, 8 << 30).unwrap_err().ends_with("--weights 4bit fits"));
    }

    #[test]
    fn a_token_costs_8_kib_and_its_compressed_keys() {
        assert_eq!(token_bytes(&spec()), 8192 + 320);
        assert_eq!((tokens(790_123), tokens(1_048_576)), ("790,000".to_owned(), "1,048,000".to_owned()));
    }
}
