//! The form of each weight of a model.
//!
//! The user chooses a recipe; the forms follow from the weight's place in the model. Recipes of fewer than 8 bits are
//! mixed: on this model the gates, the tables and the queries, keys and values of sparse layers (they choose blocks)
//! need 8, all others work well with 4.5, and better with more. Norms, activations and KV rows are never packed.

use crate::backend::Form;
use crate::core::spec::{Mixer, ModelSpec};
use crate::engine::protocol::WeightsChoice;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// In the folder's form.
    #[default]
    Stored,
    Bf16,
    /// 8 bits, all matrices.
    Bits8,
    /// 6.5 bits, and 8 where the model is sensitive.
    Bits6,
    /// 5.5 bits, and 8 there.
    Bits5,
    /// 4.5 bits, and 8 there.
    Bits4,
}

struct Row {
    name: &'static str,
    word: &'static str,
    bits: &'static str,
    /// Form of the matrices that the model is not sensitive to; `None` without packing.
    form: Option<Form>,
}

impl Recipe {
    /// In descending bits.
    pub const PACKING: &'static [Recipe] = &[Recipe::Bits8, Recipe::Bits6, Recipe::Bits5, Recipe::Bits4];

    fn row(self) -> Row {
        let row = |name, word, bits, form| Row { name, word, bits, form };
        match self {
            Recipe::Stored => row("stored", "auto", "as the folder holds them", None),
            Recipe::Bf16 => row("bf16", "bf16", "16 bits", None),
            Recipe::Bits8 => row("8-bit", "8bit", "8 bits", Some(Form::Int8)),
            Recipe::Bits6 => row("6-bit", "6bit", "6.5 bits, and 8 where the model is sensitive", Some(Form::Int6)),
            Recipe::Bits5 => row("5-bit", "5bit", "5.5 bits, and 8 there", Some(Form::Int5)),
            Recipe::Bits4 => row("4-bit", "4bit", "4.5 bits, and 8 there", Some(Form::Int4)),
        }
    }

    pub fn asked_for(choice: WeightsChoice) -> Option<Recipe> {
        match choice {
            WeightsChoice::Auto => None,
            WeightsChoice::Bf16 => Some(Recipe::Bf16),
            WeightsChoice::Bits8 => Some(Recipe::Bits8),
            WeightsChoice::Bits6 => Some(Recipe::Bits6),
            WeightsChoice::Bits5 => Some(Recipe::Bits5),
            WeightsChoice::Bits4 => Some(Recipe::Bits4),
        }
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// Value of `--weights` and, for recipes that pack, of `--to`.
    pub fn word(self) -> &'static str {
        self.row().word
    }

    pub fn bits(self) -> &'static str {
        self.row().bits
    }

    /// Whether a copy of the weights in this form is worth keeping: it differs from the folder.
    pub fn packs(self) -> bool {
        self.row().form.is_some()
    }

    /// The form of a floating-point matrix with `inner` columns, by its name without `.weight`.
    pub fn form(self, spec: &ModelSpec, name: &str, inner: usize) -> Form {
        self.form_where(wants_8_bits(spec, name), inner)
    }

    /// The same for a draft head's matrix, by its name under `midlayer`, or without layer.
    pub fn draft_form(self, name: &str, inner: usize) -> Form {
        // Tables and `fc`, which fuses the model's hidden states, are sensitive.
        self.form_where(!name.starts_with("midlayer."), inner)
    }

    fn form_where(self, sensitive: bool, inner: usize) -> Form {
        let form = match self.row().form {
            None => Form::Bf16,
            Some(_) if sensitive => Form::Int8,
            Some(form) => form,
        };
        form.or_bf16(inner)
    }

    pub fn hash_into(self, hasher: &mut blake3::Hasher) {
        // Without packing the hash stays that of versions without recipes, so their state stays valid.
        if self.packs() {
            hasher.update(format!("weights {}", self.name()).as_bytes());
        }
    }
}

fn wants_8_bits(spec: &ModelSpec, name: &str) -> bool {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        // Embedding and head.
        return true;
    };
    let Some((layer, weight)) = rest.split_once('.') else { return true };
    let sparse = layer.parse::<usize>().ok().and_then(|i| spec.mixers.get(i)) == Some(&Mixer::Sparse);
    match weight {
        "self_attn.o_gate" | "self_attn.z_proj" => true,
        "self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj" => sparse,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Checkpoint;

    #[test]
    fn sizes_of_the_9b_model_are_those_that_are_promised() {
        let checkpoint = Checkpoint::open("synthetic:9b").unwrap();
        let gib = |recipe: Recipe| checkpoint.bytes(recipe) as f64 / (1u64 << 30) as f64;
        assert!((gib(Recipe::Bf16) - 17.66).abs() < 0.05, "{}", gib(Recipe::Bf16));
        assert!((gib(Recipe::Bits8) - 8.97).abs() < 0.05, "{}", gib(Recipe::Bits8));
        assert!((gib(Recipe::Bits6) - 7.42).abs() < 0.05, "{}", gib(Recipe::Bits6));
        assert!((gib(Recipe::Bits5) - 6.46).abs() < 0.05, "{}", gib(Recipe::Bits5));
        assert!((gib(Recipe::Bits4) - 5.51).abs() < 0.1, "{}", gib(Recipe::Bits4));
    }

    #[test]
    fn those_that_pack_are_listed_from_the_most_bits_down() {
        let checkpoint = Checkpoint::open("synthetic:9b").unwrap();
        let all = [
            WeightsChoice::Auto,
            WeightsChoice::Bf16,
            WeightsChoice::Bits8,
            WeightsChoice::Bits6,
            WeightsChoice::Bits5,
            WeightsChoice::Bits4,
        ];
        let packing: Vec<Recipe> = all.into_iter().filter_map(Recipe::asked_for).filter(|r| r.packs()).collect();
        assert_eq!(packing, Recipe::PACKING);
        assert!(packing.is_sorted_by_key(|recipe| std::cmp::Reverse(checkpoint.bytes(*recipe))));
    }

    #[test]
    fn sensitive_weights_keep_8_bits() {
        let checkpoint = Checkpoint::open("synthetic:9b").unwrap();
        let spec = checkpoint.spec();
        let sparse = spec.mixers.iter().position(|m| *m == Mixer::Sparse).unwrap();
        let lightning = spec.mixers.iter().position(|m| *m == Mixer::Lightning).unwrap();
        for (recipe, few) in [(Recipe::Bits6, Form::Int6), (Recipe::Bits5, Form::Int5), (Recipe::Bits4, Form::Int4)] {
            let form = |layer: usize, name: &str| recipe.form(spec, &format!("model.layers.{layer}.{name}"), 4096);
            assert_eq!(form(sparse, "self_attn.k_proj"), Form::Int8);
            assert_eq!(form(lightning, "self_attn.k_proj"), few);
            assert_eq!(form(lightning, "self_attn.z_proj"), Form::Int8);
            assert_eq!(form(sparse, "mlp.down_proj"), few);
            assert_eq!(recipe.form(spec, "lm_head", 4096), Form::Int8);
        }
        assert_eq!(Recipe::Bits8.form(spec, "lm_head", 320), Form::Bf16, "no multiple of 128");
    }
}
