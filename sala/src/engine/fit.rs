//! Chooses the format of the weights, so that they and the requested context fit into the device's memory together.

use crate::backend::Memory;
use crate::backend::room::{self, PagedPlan, RESERVE_BYTES, USUAL_CONTEXT};
use crate::core::sanitize::sanitize_line;
use crate::core::{Exit, bytes as size, grouped, printed};
use crate::engine::protocol::{EngineOptions, MemoryInfo};
use crate::model::{Checkpoint, Recipe};

use super::failure::Failure;

/// Rounds to full thousands: `790123` gives `790,000`.
fn tokens(n: u64) -> String {
    grouped(n / 1000 * 1000)
}

struct Sizes<'a> {
    checkpoint: &'a Checkpoint,
    /// From the best form down.
    recipes: Vec<Recipe>,
    rows: usize,
    /// The program has a memory limit below the free memory.
    limited: bool,
}

impl Sizes<'_> {
    fn new(checkpoint: &Checkpoint, rows: usize, limited: bool) -> Sizes<'_> {
        // Those of a folder that holds packed weights, or plain ones.
        let own = if checkpoint.published().is_some() { Recipe::Stored } else { Recipe::Bf16 };
        let recipes = std::iter::once(own).chain(Recipe::PACKING.iter().copied()).collect();
        Sizes { checkpoint, recipes, rows, limited }
    }

    fn name(&self, recipe: Recipe) -> &'static str {
        if recipe == Recipe::Stored { "published" } else { recipe.name() }
    }

    fn room(&self, recipe: Recipe, free: u64) -> u64 {
        room::resident_tokens(self.checkpoint.spec(), free.saturating_sub(self.checkpoint.bytes(recipe)))
    }

    fn plan(&self, recipe: Recipe, free: u64, tokens: u64) -> Option<PagedPlan> {
        let left = free.checked_sub(self.checkpoint.bytes(recipe))?;
        room::paged(self.checkpoint.spec(), left, self.rows, tokens).ok()
    }

    fn pages(&self, recipe: Recipe, free: u64, tokens: u64) -> bool {
        self.plan(recipe, free, tokens).is_some_and(|plan| plan.is_useful(self.checkpoint.spec(), tokens))
    }

    fn advice(&self) -> String {
        match self.limited {
            true => "raise --gpu-memory (model.max_gpu_memory)".to_owned(),
            false => format!("close other programs on the GPU{}", holders().unwrap_or_default()),
        }
    }
}

/// Which other programs hold memory of the GPUs, by the driver's own tool: ` (process 4711, python3, 20480 MiB)`.
fn holders() -> Option<String> {
    let text = printed("nvidia-smi", &["--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader"])?;
    let own = format!("{}, ", std::process::id());
    let others = text.lines().filter(|line| !line.starts_with(&own));
    let named: Vec<String> = others.map(|line| format!("process {}", sanitize_line(line.trim()))).collect();
    (!named.is_empty()).then(|| format!(" ({})", named.join("; ")))
}

/// The best form that leaves room for the context, and a line if it is not the first choice.
fn automatic(sizes: &Sizes<'_>, free: u64, wanted_context: Option<u64>) -> Result<(Recipe, Option<String>), String> {
    let wanted = wanted_context.unwrap_or(USUAL_CONTEXT);
    let fits = |recipe: &&Recipe| sizes.room(**recipe, free) >= wanted;
    // Next best: keys and values in host memory. Without a requested context, the longest that fits.
    let paged = || sizes.recipes.iter().find(|r| sizes.pages(**r, free, wanted));
    let most = || sizes.recipes.iter().rev().find(|r| sizes.room(**r, free) > 0);
    let possible = || sizes.recipes.iter().rev().find(|r| sizes.plan(**r, free, wanted).is_some());
    let Some(recipe) = sizes.recipes.iter().find(fits).or_else(paged).or_else(most).or_else(possible).copied() else {
        let least = sizes.checkpoint.bytes(Recipe::Bits4) + RESERVE_BYTES;
        return Err(format!(
            "{} of GPU memory are free, {} weights need {} with working memory; {}, or use --model demo",
            size(free),
            Recipe::Bits4.name(),
            size(least),
            sizes.advice()
        ));
    };
    let best = sizes.recipes.first().copied().unwrap_or(recipe);
    if recipe == best {
        return Ok((Recipe::Stored, None));
    }
    let name = sizes.name(best);
    let better = match sizes.room(best, free) {
        0 => format!("{name} does not fit"),
        n => format!("{name} would leave {}", tokens(n)),
    };
    let room = match sizes.room(recipe, free) {
        n if n >= wanted || !sizes.pages(recipe, free, wanted) => format!("{} tokens", tokens(n)),
        n => format!("{} tokens, and more with keys and values in memory", tokens(n)),
    };
    let line = format!(
        "{} weights ({}): leaves room for {room}. {better}.",
        recipe.name(),
        size(sizes.checkpoint.bytes(recipe))
    );
    Ok((recipe, Some(line)))
}

fn named(recipe: Recipe, sizes: &Sizes<'_>, free: u64) -> Result<Recipe, String> {
    let need = sizes.checkpoint.bytes(recipe) + RESERVE_BYTES;
    if need <= free {
        return Ok(recipe);
    }
    let smaller = sizes.recipes.iter().find(|r| sizes.checkpoint.bytes(**r) + RESERVE_BYTES <= free);
    let advice = match smaller {
        Some(recipe) => format!("--weights {} fits", recipe.word()),
        None => format!("no form of this model fits: {}, or use --model demo", sizes.advice()),
    };
    Err(format!("{} weights need {} with working memory, {} are free; {advice}", recipe.name(), size(need), size(free)))
}

/// The context that fits in `free` bytes of a card in passes of `rows` rows: `bf16 leaves room for 12,000 tokens,
/// 8-bit for 790,000, 4-bit for 1,048,000`; and the form in which the longest context fits with keys and values in
/// host memory, where it does not otherwise.
pub fn holds(checkpoint: &Checkpoint, free: u64, rows: usize) -> String {
    let sizes = Sizes::new(checkpoint, rows, false);
    let longest = 2 * checkpoint.spec().max_position as u64;
    let words = sizes.recipes.iter().map(|recipe| {
        let weights = format!("{} weights ({})", sizes.name(*recipe), size(checkpoint.bytes(*recipe)));
        match sizes.room(*recipe, free).min(longest) {
            0 => format!("{weights} do not fit"),
            n => format!("{weights} leave room for {} tokens", tokens(n)),
        }
    });
    let mut line = words.collect::<Vec<_>>().join(", ");
    let resident = sizes.recipes.iter().any(|recipe| sizes.room(*recipe, free) >= longest);
    let mut plans = sizes.recipes.iter().filter_map(|recipe| Some((recipe, sizes.plan(*recipe, free, longest)?)));
    let paged =
        plans.clone().find(|(_, plan)| plan.is_useful(checkpoint.spec(), longest)).or_else(|| plans.next_back());
    if let (false, Some((recipe, plan))) = (resident, paged) {
        line.push_str(&format!("; with {} weights {}", sizes.name(*recipe), plan.line(longest)));
    }
    line
}

/// Sets the form of a checkpoint's weights for this device: that of an `earlier` load, if any. Returns a line with the
/// reason if the choice was automatic.
pub(super) fn choose<B: Memory>(
    backend: &B,
    checkpoint: &mut Checkpoint,
    options: &EngineOptions,
    earlier: Option<Recipe>,
) -> Result<Option<String>, Failure> {
    let MemoryInfo { used, total, .. } = backend.memory();
    let free = total.saturating_sub(used);
    let sizes = Sizes::new(checkpoint, backend.prefill_rows(), options.gpu_memory.is_some());
    let on_gpu = backend.kind() == "cuda";
    let no_room = |error: String| Failure { error, exit: Exit::NoDevice };
    let (recipe, line) = match earlier.or(Recipe::asked_for(options.weights)) {
        Some(recipe) if on_gpu => (named(recipe, &sizes, free).map_err(no_room)?, None),
        Some(recipe) => (recipe, None),
        None if on_gpu => automatic(&sizes, free, options.context).map_err(no_room)?,
        None => (Recipe::Stored, None),
    };
    checkpoint.recipe = recipe;
    Ok(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes<T>(checkpoint: &Checkpoint, with: impl FnOnce(&Sizes<'_>) -> T) -> T {
        with(&Sizes::new(checkpoint, 2048, false))
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint::open("synthetic:9b").unwrap()
    }

    #[test]
    fn the_best_form_that_leaves_room_is_taken_and_says_why() {
        let checkpoint = checkpoint();
        let choose = |gib: u64, wanted_context| sizes(&checkpoint, |s| automatic(s, gib << 30, wanted_context));
        assert_eq!(choose(24, None).unwrap(), (Recipe::Stored, None));
        let (recipe, line) = choose(16, None).unwrap();
        assert_eq!(recipe, Recipe::Bits8);
        let line = line.unwrap();
        assert!(line.starts_with("8-bit weights (9.0 GiB): leaves room for "), "{line}");
        assert!(line.ends_with("tokens. bf16 does not fit."), "{line}");
        assert_eq!(choose(12, None).unwrap().0, Recipe::Bits8);
        for (context, recipe) in [(300_000, Recipe::Bits6), (450_000, Recipe::Bits5), (600_000, Recipe::Bits4)] {
            let (chosen, line) = choose(12, Some(context)).unwrap();
            assert_eq!(chosen, recipe, "more context wants smaller weights");
            assert!(line.unwrap().starts_with(&format!("{} weights (", recipe.name())));
        }
        assert_eq!(choose(24, Some(1_000_000)).unwrap().0, Recipe::Bits8);
        assert!(choose(4, None).unwrap_err().contains("4.0 GiB of GPU memory are free"));
    }

    #[test]
    fn a_form_that_does_not_fit_names_one_that_does() {
        let checkpoint = checkpoint();
        assert_eq!(sizes(&checkpoint, |s| named(Recipe::Bf16, s, 24 << 30)), Ok(Recipe::Bf16));
        assert!(sizes(&checkpoint, |s| named(Recipe::Bf16, s, 16 << 30)).unwrap_err().ends_with("--weights 8bit fits"));
        for (halves, fits) in [(18, "6bit"), (16, "5bit"), (15, "4bit")] {
            let error = sizes(&checkpoint, |s| named(Recipe::Bits8, s, halves << 29)).unwrap_err();
            assert!(error.ends_with(&format!("--weights {fits} fits")), "{error}");
        }
    }

    #[test]
    fn each_form_of_a_card_names_what_it_holds() {
        let checkpoint = checkpoint();
        let line = holds(&checkpoint, 12 << 30, 2048);
        assert!(
            line.starts_with("bf16 weights (17.7 GiB) do not fit, 8-bit weights (9.0 GiB) leave room for 2"),
            "{line}"
        );
        assert!(line.contains("6-bit weights (7.4 GiB) leave room for 4"), "{line}");
        assert!(line.contains("5-bit weights (6.5 GiB) leave room for 5"), "{line}");
        assert!(line.contains("4-bit weights (5.5 GiB) leave room for 6"), "{line}");
        let (_, paged) = line.split_once("; with 8-bit weights 1,048,576 tokens: ").unwrap();
        assert!(paged.ends_with(" of keys and values on the card, 8.0 GiB in memory"), "{line}");
        assert!(!holds(&checkpoint, 100 << 30, 4096).contains("in memory"));
    }

    #[test]
    fn where_a_context_does_not_fit_its_keys_and_values_go_to_memory() {
        let checkpoint = checkpoint();
        let choose = |gib: u64, wanted_context| sizes(&checkpoint, |s| automatic(s, gib << 30, wanted_context));
        // An 8 GiB card, minus the driver's memory.
        let free = 15 << 29;
        let (recipe, line) = sizes(&checkpoint, |s| automatic(s, free, Some(1 << 20))).unwrap();
        assert_eq!(recipe, Recipe::Bits4);
        assert!(line.unwrap().contains("tokens, and more with keys and values in memory."));
        assert_eq!(choose(12, Some(1 << 20)).unwrap().0, Recipe::Bits8, "no form has room for all of it");
    }

    #[test]
    fn tokens_are_named_in_full_thousands() {
        assert_eq!((tokens(790_123), tokens(1_048_576)), ("790,000".to_owned(), "1,048,000".to_owned()));
    }
}
