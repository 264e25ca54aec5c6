//! Published weights on the device: unchanged where one of its forms holds them, else repacked.

use std::collections::BTreeMap;

use super::{Checkpoint, LoadedTensor, Recipe, Source, Tensors};
use crate::backend::Form;
use crate::model::format::{Family, Format};
use crate::model::published::Weight;
use crate::model::{ModelError, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::model) enum Fate {
    /// As published, to the bit.
    Exact,
    /// As published, with scales rounded to bf16.
    Nearly,
    /// To 16 bits.
    Widened,
    Repacked,
    /// Not packed in the folder.
    Plain,
}

#[derive(Clone, Debug)]
pub struct Kept {
    details: String,
    counts: BTreeMap<(Fate, &'static str), usize>,
}

impl std::fmt::Display for Kept {
    /// `GPTQ, 4 bits, groups of 128: 224 matrices kept as they are; 12 not packed, as bf16.`
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut parts = Vec::new();
        for ((fate, form), n) in &self.counts {
            parts.push(match fate {
                Fate::Exact => format!("{n} matrices kept as published ({form})"),
                Fate::Nearly => format!("{n} kept as published ({form}), scales rounded to bf16"),
                Fate::Widened => format!("{n} widened to bf16"),
                Fate::Repacked => format!("{n} packed again ({form}), which changes their values"),
                Fate::Plain => format!("{n} that were not packed as {form}"),
            });
        }
        write!(f, "{}: {}.", self.details, parts.join("; "))
    }
}

impl Recipe {
    /// The form of a packed weight: its own if there is one and it has no more bits than requested.
    fn published_form(self, own: Option<Form>, plain: Form, inner: usize) -> Form {
        match (self, own) {
            (Recipe::Bf16, _) => Form::Bf16,
            (Recipe::Stored | Recipe::Bits8, Some(own)) => own,
            (Recipe::Stored | Recipe::Bits8, None) => Form::Int8.or_bf16(inner),
            // Groups of 32 take 5 bits, a tenth more than packing again, and lose nothing.
            (
                Recipe::Bits6 | Recipe::Bits5 | Recipe::Bits4,
                Some(own @ (Form::Group4(_) | Form::Nvfp4 | Form::Int4)),
            ) => own,
            (Recipe::Bits6 | Recipe::Bits5, Some(own @ Form::Int5)) => own,
            (Recipe::Bits6 | Recipe::Bits5 | Recipe::Bits4, Some(own)) if own == plain => own,
            (Recipe::Bits6 | Recipe::Bits5 | Recipe::Bits4, _) => plain,
        }
    }
}

impl Checkpoint {
    fn tensors(&self) -> Result<&Tensors> {
        match &self.source {
            Source::Tensors(tensors) => Ok(tensors),
            Source::Synthetic(..) => {
                Err(ModelError::MissingTensor { name: "weights".into(), origin: self.name().into() })
            }
        }
    }

    /// A matrix of a folder by its name without `.weight`: the weight if it is packed, its form for the device, and the
    /// effect on its values.
    pub(in crate::model) fn fate(
        &self,
        recipe: Recipe,
        name: &str,
        shape: &[usize],
    ) -> Result<(Option<Weight<'_>>, Form, Fate)> {
        let inner = shape.last().copied().unwrap_or(0);
        let plain = recipe.form(self.spec(), name, inner);
        let Some(weight) = Weight::open(self.tensors()?, name, shape)? else { return Ok((None, plain, Fate::Plain)) };
        let own = weight.own();
        let form = recipe.published_form(own.map(|(form, _)| form), plain, inner);
        let fate = match own {
            _ if form == Form::Bf16 => Fate::Widened,
            Some((own, true)) if own == form => Fate::Exact,
            Some((own, false)) if own == form => Fate::Nearly,
            _ => Fate::Repacked,
        };
        Ok((Some(weight), form, fate))
    }

    /// The form of a matrix that is made up, of a folder, or damaged there.
    pub(in crate::model) fn form(&self, recipe: Recipe, name: &str, shape: &[usize]) -> Form {
        let inner = shape.last().copied().unwrap_or(0);
        let plain = recipe.form(self.spec(), name, inner);
        match self.source {
            Source::Tensors(_) => self.fate(recipe, name, shape).map_or(plain, |(_, form, _)| form),
            Source::Synthetic(_, Some(own)) if own.fits(inner) && name.starts_with("model.layers.") => {
                recipe.published_form(Some(own), plain, inner)
            }
            Source::Synthetic(..) => plain,
        }
    }

    /// A matrix by its name without `.weight`, in its form for the device.
    pub(in crate::model) fn weight(&self, name: &str, shape: &[usize]) -> Result<LoadedTensor<'_>> {
        let (full, tensors) = (format!("{name}.weight"), self.tensors()?);
        let (weight, form, fate) = self.fate(self.recipe, name, shape)?;
        match (weight, fate) {
            // Our own packing checked the contents, and the seal vouches for them; a check here would read all of them
            // once more.
            (Some(weight), Fate::Exact | Fate::Nearly) if self.made_from.is_some() => {
                Ok(tensors.packed(&full, shape, form, weight.packed_unchecked()?))
            }
            (Some(weight), Fate::Exact | Fate::Nearly) => Ok(tensors.packed(&full, shape, form, weight.packed()?)),
            _ => Ok(tensors.get(&full, shape)?.in_form(form)),
        }
    }

    /// Two matrices with interleaved rows on the device: both in one form, packed or not.
    pub(in crate::model) fn pair(&self, names: [&str; 2], shape: &[usize]) -> Result<[LoadedTensor<'_>; 2]> {
        let [gate, up] = names;
        let (first, second) = (self.weight(gate, shape)?, self.weight(up, shape)?);
        let (a, b) = (first.view(), second.view());
        if (a.form, a.dtype) == (b.form, b.dtype) {
            return Ok([first, second]);
        }
        // The folder packs the two differently: take the values of both, in the larger form.
        let inner = shape.last().copied().unwrap_or(0);
        let form = if self.recipe == Recipe::Bf16 { Form::Bf16 } else { Form::Int8.or_bf16(inner) };
        let tensors = self.tensors()?;
        let plain =
            |name: &str| Ok::<_, ModelError>(tensors.get(&format!("{name}.weight"), shape)?.into_f32().in_form(form));
        Ok([plain(gate)?, plain(up)?])
    }

    fn matrices(&self) -> impl Iterator<Item = (String, Vec<usize>)> {
        let all = self.spec().tensors().into_iter().filter(|(_, shape)| shape.len() == 2);
        all.map(|(name, shape)| (name.trim_end_matches(".weight").to_owned(), shape))
    }

    /// On a GPU.
    pub fn bytes(&self, recipe: Recipe) -> u64 {
        let size = |(name, shape): (String, Vec<usize>)| match shape.as_slice() {
            [out, inner] => self.form(recipe, name.trim_end_matches(".weight"), &shape).bytes(*out, *inner),
            other => other.iter().product::<usize>() * 4,
        };
        self.spec().tensors().into_iter().map(|t| size(t) as u64).sum()
    }

    /// The forms of a packed folder's weights; `None` for plain folders and for those of this program.
    pub fn kept(&self) -> Result<Option<Kept>> {
        let Some(format) = self.packed_format() else { return Ok(None) };
        let mut counts = BTreeMap::new();
        for (name, shape) in self.matrices() {
            let (_, form, fate) = self.fate(self.recipe, &name, &shape)?;
            *counts.entry((fate, form.name())).or_default() += 1;
        }
        Ok(Some(Kept { details: format.details(), counts }))
    }

    /// The declared format of a packed folder; `None` for plain weights and for kept copies.
    fn packed_format(&self) -> Option<&Format> {
        self.tensors().ok()?.format().filter(|_| self.made_from.is_none())
    }

    /// The published format, `GPTQ, 4 bits, groups of 128`; `None` for plain weights.
    pub fn published(&self) -> Option<String> {
        match (&self.source, &self.made_from) {
            (_, Some(made_from)) => made_from.published.clone(),
            (Source::Tensors(tensors), None) => tensors.format().map(Format::details),
            (Source::Synthetic(_, form), None) => form.map(|form| format!("synthetic {}", form.name())),
        }
    }

    /// Whether loading by this recipe packs plain weights or repacks published ones. A kept copy saves that work at
    /// the next start.
    pub fn packs_while_loading(&self, recipe: Recipe) -> bool {
        let Source::Tensors(tensors) = &self.source else { return false };
        let packs = match tensors.format().map(|format| format.family) {
            None => recipe.packs(),
            Some(Family::SalaChat) => false,
            Some(_) => recipe != Recipe::Bf16,
        };
        packs && self.directory().is_some() && self.made_from.is_none()
    }

    /// Form of the weights in reports of measurements: `stored`, `8-bit`, or `nvfp4` for synthetic published ones.
    pub fn weights_name(&self) -> &'static str {
        match (&self.source, self.recipe) {
            (Source::Synthetic(_, Some(form)), Recipe::Stored) => form.name(),
            (_, recipe) => recipe.name(),
        }
    }

    pub(super) fn hash_published_forms(&self, recipe: Recipe, hasher: &mut blake3::Hasher) {
        let Source::Tensors(tensors) = &self.source else { return };
        let Some(format) = tensors.format() else { return };
        if let Some(decides) = format.decides() {
            hasher.update(format!("{decides}\n").as_bytes());
        }
        for (name, shape) in self.matrices() {
            let form = self.form(recipe, &name, &shape);
            hasher.update(format!("{name} {form:?}\n").as_bytes());
        }
    }

    /// Refuses a folder that packs a weight in some layers and not in others, unless it declares so: a mix of two
    /// downloads.
    pub(in crate::model) fn check_packed_alike(&self) -> Result<()> {
        // A kept copy was checked when it was packed, and the seal shows that its files belong together.
        let Some(format) = self.packed_format() else { return Ok(()) };
        let (mut packed, mut plain) = (BTreeMap::new(), Vec::new());
        for (name, shape) in self.matrices() {
            let Some((_, rest)) = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) else {
                continue;
            };
            match Weight::open(self.tensors()?, &name, &shape)? {
                Some(weight) => {
                    packed.entry(rest.to_owned()).or_insert_with(|| format!("{name} is {}", weight.layout()));
                }
                None => plain.push((name.clone(), rest.to_owned())),
            }
        }
        let odd = plain.into_iter().find(|(name, rest)| packed.contains_key(rest) && !format.excludes(name));
        match odd.and_then(|(name, rest)| packed.remove(&rest).map(|other| (name, other))) {
            None => Ok(()),
            Some((name, other)) => {
                let why = format!(
                    "is not packed, but {other} and config.json does not exclude it; files of two downloads may be mixed, download it again"
                );
                Err(ModelError::Packed { name: format!("{name}.weight"), why })
            }
        }
    }
}
