//! Which form each weight of a model takes.
//!
//! A recipe is what the user chooses; the forms follow from the weight's place in the model. Fewer than 8 bits are mixed: on this model
//! the gates, the tables and the queries, keys and values of sparse layers (they choose blocks) want 8, everything else does well with
//! 4.5, and better with more. Norms, activations and KV rows are never packed.

use crate::backend::Form;
use crate::spec::{Mixer, ModelSpec};

/// How weights are kept on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Recipe {
    /// As the folder holds them.
    #[default]
    Stored,
    /// 16 bits, whatever the folder holds.
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

impl Recipe {
    /// What people call it.
    pub fn name(self) -> &'static str {
        match self {
            Recipe::Stored => "stored",
            Recipe::Bf16 => "bf16",
            Recipe::Bits8 => "8-bit",
            Recipe::Bits6 => "6-bit",
            Recipe::Bits5 => "5-bit",
            Recipe::Bits4 => "4-bit",
        }
    }

    /// The form of a floating-point matrix with `inner` columns, by its name without `.weight`.
    pub fn form(self, spec: &ModelSpec, name: &str, inner: usize) -> Form {
        let form = match self {
            Recipe::Stored | Recipe::Bf16 => Form::Bf16,
            Recipe::Bits8 => Form::Int8,
            Recipe::Bits6 | Recipe::Bits5 | Recipe::Bits4 if wants_8_bits(spec, name) => Form::Int8,
            Recipe::Bits6 => Form::Int6,
            Recipe::Bits5 => Form::Int5,
            Recipe::Bits4 => Form::Int4,
        };
        form.or_bf16(inner)
    }

    /// The same of a draft head's matrix, by its name under `midlayer`, or without layer.
    pub fn draft_form(self, name: &str, inner: usize) -> Form {
        let form = match self {
            Recipe::Stored | Recipe::Bf16 => Form::Bf16,
            // Tables, and what brings the model's hidden states together.
            Recipe::Bits6 | Recipe::Bits5 | Recipe::Bits4 if !name.starts_with("midlayer.") => Form::Int8,
            Recipe::Bits8 => Form::Int8,
            Recipe::Bits6 => Form::Int6,
            Recipe::Bits5 => Form::Int5,
            Recipe::Bits4 => Form::Int4,
        };
        form.or_bf16(inner)
    }

    /// Makes a fingerprint that of weights in this recipe.
    pub fn hash_into(self, hasher: &mut blake3::Hasher) {
        match self {
            // What was saved before there was a choice is still good.
            Recipe::Stored | Recipe::Bf16 => {}
            Recipe::Bits8 | Recipe::Bits6 | Recipe::Bits5 | Recipe::Bits4 => {
                hasher.update(format!("weights {}", self.name()).as_bytes());
            }
        }
    }

    /// Bytes of a bf16 model's matrices on a GPU.
    pub fn bytes(self, spec: &ModelSpec) -> u64 {
        let size = |(name, shape): (String, Vec<usize>)| match shape.as_slice() {
            [out, inner] => self.form(spec, name.trim_end_matches(".weight"), *inner).bytes(*out, *inner),
            other => other.iter().product::<usize>() * 4,
        };
        super::Checkpoint::expected_tensors(spec).into_iter().map(|t| size(t) as u64).sum()
    }
}

fn wants_8_bits(spec: &ModelSpec, name: &str) -> bool {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        // Embedding and head.
        return true;
    };
    let Some((layer, weight)) = rest.split_once('.') else {
        return true;
    };
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
        let gib = |recipe: Recipe| recipe.bytes(checkpoint.spec()) as f64 / (1u64 << 30) as f64;
        assert!((gib(Recipe::Bf16) - 17.66).abs() < 0.05, "{}", gib(Recipe::Bf16));
        assert!((gib(Recipe::Bits8) - 8.97).abs() < 0.05, "{}", gib(Recipe::Bits8));
        assert!((gib(Recipe::Bits6) - 7.42).abs() < 0.05, "{}", gib(Recipe::Bits6));
        assert!((gib(Recipe::Bits5) - 6.46).abs() < 0.05, "{}", gib(Recipe::Bits5));
        assert!((gib(Recipe::Bits4) - 5.51).abs() < 0.1, "{}", gib(Recipe::Bits4));
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
