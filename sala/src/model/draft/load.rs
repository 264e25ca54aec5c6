//! Tensors of a head under any of their published names (docs/speculative.md §1.2, §1.3), packed for a backend.
//!
//! Accepted: an optional `model.` prefix, `layers.0.` for `midlayer.`, fused `qkv_proj` and `gate_up_proj`, packed
//! weights (dequantised: NVFP4 here, because its fused weights keep the scales of their parts, the rest by
//! `published`), optional embedding and output, `d2t` with or without `t2d`. The loader checks shapes, maps, and that
//! every value is finite before use, because a badly merged quantised head drafts noise silently.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::backend::draft::DraftOps;
use crate::backend::forms::Factor;
use crate::backend::internal;
use crate::engine::protocol::{Dtype, Token};
use crate::model::{LoadedTensor, Recipe, Tensors, published};

use super::Result;
use super::config::{DraftConfig, FcNorm, refuse};

pub(super) struct Weights<B: DraftOps> {
    /// `[hidden, aux·target_hidden]`
    pub(super) fc: B::Matrix,
    /// One per auxiliary hidden state, one for all of them, or none.
    pub(super) fc_norm: Vec<B::Vector>,
    pub(super) input_norm: B::Vector,
    pub(super) hidden_norm: B::Vector,
    /// Keys, values and queries, stacked. `[(2·kv + heads)·d, 2·hidden]`
    pub(super) kvq: B::Matrix,
    /// `[hidden, heads·d]`
    pub(super) out: B::Matrix,
    pub(super) post_norm: B::Vector,
    pub(super) gate_up: B::Matrix,
    /// `[hidden, intermediate]`
    pub(super) down: B::Matrix,
    pub(super) norm: B::Vector,
    /// `[vocab, hidden]`; `None` uses the model's.
    pub(super) embed: Option<B::Matrix>,
    pub(super) head: Output<B>,
    /// Id in the model's vocabulary of each draft id; `None` where they are equal.
    pub(super) to_target: Option<Vec<Token>>,
}

pub(super) enum Output<B: DraftOps> {
    /// `[draft_vocab, hidden]`
    Own(B::Matrix),
    Embedding,
    Model,
}

/// Values of NVFP4 that share a scale.
const GROUP: usize = 16;

struct Names<'a> {
    tensors: &'a Tensors,
    names: BTreeMap<String, Vec<String>>,
}

impl<'a> Names<'a> {
    fn new(tensors: &'a Tensors) -> Names<'a> {
        let short = |name: &str| {
            let name = name.strip_prefix("model.").unwrap_or(name);
            name.strip_prefix("layers.0.").map_or_else(|| name.to_string(), |rest| format!("midlayer.{rest}"))
        };
        let mut names: BTreeMap<String, Vec<String>> = BTreeMap::new();
        // A packed weight has no tensor under its own name.
        let packed = tensors.names().filter_map(published::owner).filter(|_| tensors.format().is_some());
        for name in tensors.names().map(str::to_owned).chain(packed) {
            let known = names.entry(short(&name)).or_default();
            if !known.contains(&name) {
                known.push(name);
            }
        }
        Names { tensors, names }
    }

    fn has(&self, short: &str) -> bool {
        self.names.contains_key(short)
    }

    fn file_name(&self, short: &str) -> Result<&str> {
        match self.names.get(short).map(Vec::as_slice).unwrap_or_default() {
            [name] => Ok(name),
            [] => refuse(format!("tensor `{short}` is missing; it is not an EAGLE-3 head or is incomplete")),
            [name, other, ..] => {
                refuse(format!("tensor `{other}` is there beside `{name}`: one of the two is of another download"))
            }
        }
    }

    /// A floating-point tensor, plain or NVFP4, of exactly this shape. `parts` are the (projection, rows), from the
    /// top down, with the scales of an NVFP4 tensor; scales keep the names of the projections even where the weight is
    /// fused.
    fn get(&self, short: &str, shape: &[usize], parts: &[(&str, usize)]) -> Result<LoadedTensor<'a>> {
        let name = self.file_name(&format!("{short}.weight"))?;
        let values = if let Ok((safetensors::Dtype::U8, found, bytes)) = self.tensors.raw(name) {
            let [rows, inner] = *shape else {
                return refuse(format!("tensor `{name}` is packed but no matrix"));
            };
            let scales_name = self.file_name(&format!("{short}.weight_scale"))?;
            let (scale_type, scale_shape, scales) = self.tensors.raw(scales_name)?;
            let groups = inner / GROUP;
            if inner % GROUP != 0
                || found != [rows, inner / 2]
                || scale_shape != [rows, groups]
                || scale_type != safetensors::Dtype::F8_E4M3
            {
                return refuse(format!(
                    "tensor `{name}` {found:?} with scales {scale_shape:?} {scale_type:?} is not NVFP4 of {shape:?}"
                ));
            }
            let mut data = Vec::with_capacity(rows * inner * 4);
            let mut row = 0;
            for (part, count) in parts {
                let scale = self.scalar(&[part, short])?;
                let packed = rows_of(bytes, row..row + count, inner / 2)?;
                let scales = rows_of(scales, row..row + count, groups)?;
                let mut values = dequantise(packed, scales, scale, inner);
                if let Some(columns) = self.input_scales(&[part, short], inner)? {
                    let rows = values.chunks_exact_mut(inner);
                    rows.for_each(|row| row.iter_mut().zip(&columns).for_each(|(v, scale)| *v *= scale));
                }
                data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
                row += count;
            }
            LoadedTensor::unpacked(name, shape, Dtype::F32, data)
        } else {
            self.tensors.get(name, shape)?
        };
        if !finite(values.view().dtype, values.view().data) {
            return refuse(format!("tensor `{name}` holds values that are not finite; the head was badly converted"));
        }
        Ok(values)
    }

    /// `weight_scale_2` of the first of the projections that has one.
    fn scalar(&self, projections: &[&str]) -> Result<f32> {
        let names: Vec<String> = projections.iter().map(|p| format!("{p}.weight_scale_2")).collect();
        let name = names.iter().find(|n| self.has(n)).or(names.first()).map_or("", String::as_str);
        let (dtype, _, bytes) = self.tensors.raw(self.file_name(name)?)?;
        match (dtype, <[u8; 4]>::try_from(bytes)) {
            (safetensors::Dtype::F32, Ok(bytes)) => match f32::from_le_bytes(bytes) {
                scale if Factor::Times(scale).is_usable() => Ok(scale),
                scale => refuse(format!(
                    "tensor `{name}` is {scale:e}; the factor of a weight is positive and leaves its values in range"
                )),
            },
            _ => refuse(format!("tensor `{name}` is not one f32 scale")),
        }
    }

    /// Factors of the inputs, one per column, of the first of the projections that has them.
    fn input_scales(&self, projections: &[&str], inner: usize) -> Result<Option<Vec<f32>>> {
        let mut names = projections.iter().map(|p| format!("{p}.{}", published::INPUT_SCALES));
        let Some(short) = names.find(|n| self.has(n)) else { return Ok(None) };
        let name = self.file_name(&short)?;
        let shape = if self.tensors.raw(name)?.1 == [1, inner] { vec![1, inner] } else { vec![inner] };
        let loaded = self.tensors.get(name, &shape)?;
        Ok(loaded.view().dtype.floats(loaded.view().data))
    }

    /// Row blocks that are one fused tensor or several separate ones: (projection, rows) from the top down.
    fn stacked<const N: usize>(
        &self,
        fused: &str,
        parts: [(&str, usize); N],
        inner: usize,
    ) -> Result<[LoadedTensor<'a>; N]> {
        let made: Vec<LoadedTensor<'a>> = if self.has(&format!("{fused}.weight")) {
            let whole = self.get(fused, &[parts.iter().map(|p| p.1).sum(), inner], &parts)?;
            let whole = whole.view();
            let (size, mut row) = (inner * whole.dtype.size(), 0);
            let part = |(_, count): &(&str, usize)| {
                let data = rows_of(whole.data, row..row + count, size)?.to_vec();
                row += count;
                Ok(LoadedTensor::unpacked(whole.name, &[*count, inner], whole.dtype, data))
            };
            parts.iter().map(part).collect::<Result<_>>()?
        } else {
            let part = |(name, rows): &(&str, usize)| self.get(name, &[*rows, inner], &[(name, *rows)]);
            parts.iter().map(part).collect::<Result<_>>()?
        };
        Ok(made.try_into().map_err(|_| internal("draft weights", "more or fewer parts than were asked for"))?)
    }

    /// Draft id to id of the model's vocabulary: `d2t` holds offsets, `t2d` marks the ids that occur.
    fn to_target(&self, config: &DraftConfig) -> Result<Option<Vec<Token>>> {
        if !self.has("d2t") {
            if config.draft_vocab == config.vocab {
                return Ok(None);
            }
            return refuse(format!(
                "`d2t` is missing: {} draft ids can not be mapped to {} tokens",
                config.draft_vocab, config.vocab
            ));
        }
        let (dtype, shape, bytes) = self.tensors.raw(self.file_name("d2t")?)?;
        let offsets: Vec<i64> = match dtype {
            safetensors::Dtype::I64 => {
                bytes.chunks_exact(8).filter_map(|b| b.try_into().ok().map(i64::from_le_bytes)).collect()
            }
            safetensors::Dtype::I32 => bytes
                .chunks_exact(4)
                .filter_map(|b| b.try_into().ok().map(|b| i64::from(i32::from_le_bytes(b))))
                .collect(),
            other => {
                return refuse(format!("`d2t` holds {other:?}; integers are needed"));
            }
        };
        if shape != [config.draft_vocab] {
            return refuse(format!("`d2t` has shape {shape:?}, the draft vocabulary is {}", config.draft_vocab));
        }
        let mut member = vec![false; config.vocab];
        let mut map = Vec::with_capacity(offsets.len());
        for (i, offset) in offsets.iter().enumerate() {
            let id = offset.checked_add(i as i64).and_then(|id| usize::try_from(id).ok()).unwrap_or(usize::MAX);
            match (member.get_mut(id), Token::try_from(id)) {
                (Some(seen @ false), Ok(token)) => {
                    *seen = true;
                    map.push(token);
                }
                _ => {
                    return refuse(format!(
                        "`d2t` maps draft id {i} to token {id}, which is taken or outside the vocabulary"
                    ));
                }
            }
        }
        if self.has("t2d") {
            let (_, _, marks) = self.tensors.raw(self.file_name("t2d")?)?;
            if marks.len() != member.len() || marks.iter().zip(&member).any(|(m, b)| (*m != 0) != *b) {
                return refuse("`d2t` and `t2d` disagree; the head is damaged");
            }
        }
        Ok(Some(map))
    }
}

/// Rows of `inner` values as f32, `e2m1 · (e4m3 · scale)`. `packed [rows, inner/2]`, the even value in the low half of a
/// byte; `scales [rows, inner/16]`.
fn dequantise(packed: &[u8], scales: &[u8], scale: f32, inner: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(packed.len() * 2);
    for (row, row_scales) in packed.chunks_exact(inner / 2).zip(scales.chunks_exact(inner / GROUP)) {
        for (group, &s) in row.chunks_exact(GROUP / 2).zip(row_scales) {
            let s = published::e4m3(s) * scale;
            out.extend(group.iter().flat_map(|&b| [published::e2m1(b & 15) * s, published::e2m1(b >> 4) * s]));
        }
    }
    out
}

fn rows_of(data: &[u8], rows: Range<usize>, row_bytes: usize) -> Result<&[u8]> {
    let found = data.get(rows.start * row_bytes..rows.end * row_bytes);
    Ok(found.ok_or_else(|| internal("draft weights", "a matrix with fewer rows than its shape says"))?)
}

fn finite(dtype: Dtype, data: &[u8]) -> bool {
    // All ones in the exponent is infinity or NaN; in both types the exponent is in the upper 16 bits.
    let high = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]) & 0x7f80 != 0x7f80;
    match dtype {
        Dtype::F32 => data.chunks_exact(4).all(|b| high(&b[2..])),
        Dtype::Bf16 => data.chunks_exact(2).all(high),
        Dtype::U32 | Dtype::U8 => true,
    }
}

impl<B: DraftOps> Weights<B> {
    pub(super) fn load(b: &mut B, tensors: &Tensors, c: &DraftConfig, recipe: Recipe) -> Result<Weights<B>> {
        published::refuse_low_rank(tensors)?;
        let names = Names::new(tensors);
        let s = &c.shape;
        let (h, q, kv) = (s.hidden, s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let attn = |name: &str| format!("midlayer.self_attn.{name}");
        if let Some(norm) = ["q_norm", "k_norm"].map(|norm| attn(norm) + ".weight").iter().find(|norm| names.has(norm))
        {
            return refuse(format!("it has `{norm}`; heads that norm queries and keys are not supported"));
        }
        let matrix = |b: &mut B, name: &str, rows: usize, inner: usize| -> Result<B::Matrix> {
            let form = recipe.draft_form(name, inner);
            Ok(b.matrix(&[names.get(name, &[rows, inner], &[(name, rows)])?.in_form(form).view()])?)
        };
        let vector = |b: &mut B, name: &str, n: usize| -> Result<B::Vector> {
            Ok(b.vector(names.get(name, &[n], &[])?.view())?)
        };

        let to_target = names.to_target(c)?;
        let (qn, kn, vn) = (attn("q_proj"), attn("k_proj"), attn("v_proj"));
        let form = recipe.draft_form(&qn, 2 * h);
        let qkv = names.stacked(&attn("qkv_proj"), [(&qn, q), (&kn, kv), (&vn, kv)], 2 * h)?;
        let [qw, kw, vw] = qkv.map(|part| part.in_form(form));
        let (gn, un) = ("midlayer.mlp.gate_proj", "midlayer.mlp.up_proj");
        let form = recipe.draft_form(gn, h);
        let gate_up = names.stacked("midlayer.mlp.gate_up_proj", [(gn, s.intermediate), (un, s.intermediate)], h)?;
        let [gate, up] = gate_up.map(|part| part.in_form(form));

        let embed = if names.has("embed_tokens.weight") {
            Some(matrix(b, "embed_tokens", c.vocab, h)?)
        } else if h != c.target_hidden {
            return refuse(format!(
                "it has no embedding of its own and the model's is {} wide, not {h}",
                c.target_hidden
            ));
        } else {
            None
        };
        let head = if names.has("lm_head.weight") {
            Output::Own(matrix(b, "lm_head", c.draft_vocab, h)?)
        } else if c.draft_vocab != c.vocab || to_target.is_some() {
            return refuse(format!(
                "`lm_head` is missing, and the model's does not fit a draft vocabulary of {}",
                c.draft_vocab
            ));
        } else if c.tied {
            Output::Embedding
        } else if h != c.target_hidden {
            return refuse("`lm_head` is missing, and the model's has another width");
        } else {
            Output::Model
        };
        let states = c.aux_layers.len();
        let fc_norm = match c.fc_norm {
            FcNorm::Off => Vec::new(),
            FcNorm::EachState => {
                let norms = (0..states).map(|i| vector(b, &format!("fc_norm.{i}"), c.target_hidden));
                norms.collect::<Result<_>>()?
            }
            FcNorm::WholeRow => vec![vector(b, "input_norm", states * c.target_hidden)?],
        };
        Ok(Weights {
            fc: matrix(b, "fc", h, states * c.target_hidden)?,
            fc_norm,
            input_norm: vector(b, "midlayer.input_layernorm", h)?,
            hidden_norm: vector(b, "midlayer.hidden_norm", h)?,
            kvq: b.matrix(&[kw.view(), vw.view(), qw.view()])?,
            out: matrix(b, &attn("o_proj"), h, q)?,
            post_norm: vector(b, "midlayer.post_attention_layernorm", h)?,
            gate_up: b.gate_up_matrix(gate.view(), up.view())?,
            down: matrix(b, "midlayer.mlp.down_proj", h, s.intermediate)?,
            norm: vector(b, "norm", h)?,
            embed,
            head,
            to_target,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_half_of_a_byte_is_the_first_value() {
        let mut packed = [0u8; 8];
        packed[0] = 0x21; // 0.5, then 1.0
        packed[7] = 0xf0; // 0.0, then -6.0
        let got = dequantise(&packed, &[0x40], 0.5, 16); // e4m3 2.0
        assert_eq!((got.len(), got[0], got[1], got[14], got[15]), (16, 0.5, 1.0, 0.0, -6.0));
    }

    #[test]
    fn rows_that_are_not_there_are_an_error() {
        assert_eq!(rows_of(&[1, 2, 3, 4], 1..2, 2).unwrap(), [3, 4]);
        assert!(rows_of(&[1, 2, 3], 1..2, 2).is_err());
    }
}
