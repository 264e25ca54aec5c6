//! Checks imported state before it is kept: names, types and shapes must be those of state, the same in every segment
//! and the same as in state made here; every value must be a number.
//!
//! The engine checks the shapes against the model when it takes the state ([`crate::engine::protocol`]): the store
//! knows no model.

use super::format::{Kind, kinds};
use crate::engine::protocol::{Dtype, ImageTensor, ROW_ARRAYS};

#[derive(Debug)]
pub(super) struct Vetted {
    rows: Vec<Kind>,
    end: Vec<Kind>,
}

impl Vetted {
    /// Compares with these kinds if known, sorted by name: of rows and of the recurrent state.
    pub fn of([rows, end]: [Vec<Kind>; 2]) -> Vetted {
        Vetted { rows, end }
    }

    pub fn rows(&mut self, tensors: &[ImageTensor], count: u64) -> Result<(), String> {
        for t in tensors {
            let first = t.shape.first().map_or(0, |n| *n as u64);
            // Compressed keys: those with a window that ends inside these rows.
            let fits = match part(&t.name, &ROW_ARRAYS) {
                Some("k" | "v") => first == count,
                Some(_) => first <= count,
                None => return Err(format!("{} is no array of KV rows", t.name)),
            };
            if !fits || t.shape.len() != 3 {
                return Err(format!("{} has the shape {:?} for {count} tokens", t.name, t.shape));
            }
        }
        numbers(tensors)?;
        let kinds = kinds(tensors.iter().map(|t| (&t.name, t.dtype, &t.shape)), 1);
        for k in kinds.iter().filter(|k| k.name.starts_with("k.")) {
            let v = k.name.replacen('k', "v", 1);
            if !kinds.iter().any(|o| o.name == v && (o.dtype, &o.shape) == (k.dtype, &k.shape)) {
                return Err(format!("{} has no {v} like it", k.name));
            }
        }
        compare(&mut self.rows, kinds)
    }

    pub fn end(&mut self, tensors: &[ImageTensor]) -> Result<(), String> {
        for t in tensors {
            match part(&t.name, &["state"]) {
                Some(_) if t.shape.len() != 3 || t.dtype != Dtype::F32 => {
                    return Err(format!("{} has the shape {:?} and type {:?}", t.name, t.shape, t.dtype));
                }
                Some(_) => {}
                None if t.name.starts_with("draft.") => {}
                None => return Err(format!("{} is no array of a state", t.name)),
            }
        }
        numbers(tensors)?;
        // Draft heads differ between machines, and a draft head can start without its window: compare the state only.
        let states = tensors.iter().filter(|t| t.name.starts_with("state."));
        self.end.retain(|k| k.name.starts_with("state."));
        compare(&mut self.end, kinds(states.map(|t| (&t.name, t.dtype, &t.shape)), 0))
    }
}

/// The part of `PART.LAYER` if it is one of `parts`.
fn part<'a>(name: &'a str, parts: &[&str]) -> Option<&'a str> {
    let (part, layer) = name.split_once('.')?;
    (parts.contains(&part) && layer.len() < 5 && layer.bytes().all(|b| b.is_ascii_digit())).then_some(part)
}

fn compare(known: &mut Vec<Kind>, found: Vec<Kind>) -> Result<(), String> {
    if known.is_empty() {
        *known = found;
        return Ok(());
    }
    match known.iter().zip(&found).find(|(a, b)| a != b) {
        Some((a, b)) => {
            Err(format!("{} {:?} {:?} where {} {:?} {:?} belongs", b.name, b.shape, b.dtype, a.name, a.shape, a.dtype))
        }
        None if known.len() != found.len() => Err(format!("{} arrays where {} belong", found.len(), known.len())),
        None => Ok(()),
    }
}

fn numbers(tensors: &[ImageTensor]) -> Result<(), String> {
    for t in tensors {
        let wild = match t.dtype {
            Dtype::F32 => t.data.as_chunks::<4>().0.iter().position(|b| !f32::from_le_bytes(*b).is_finite()),
            Dtype::Bf16 => t.data.as_chunks::<2>().0.iter().position(|b| u16::from_le_bytes(*b) & 0x7f80 == 0x7f80),
            Dtype::U32 | Dtype::U8 => None,
        };
        if let Some(at) = wild {
            return Err(format!("value {at} of {} is no number", t.name));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bf16(name: &str, rows: usize, value: u16) -> ImageTensor {
        let data: Vec<u8> = (0..rows * 2 * 4).flat_map(|_| value.to_le_bytes()).collect();
        ImageTensor { name: name.into(), dtype: Dtype::Bf16, shape: vec![rows, 2, 4], data: data.into() }
    }

    fn f32s(name: &str, value: f32) -> ImageTensor {
        let data: Vec<u8> = (0..8).flat_map(|_| value.to_le_bytes()).collect();
        ImageTensor { name: name.into(), dtype: Dtype::F32, shape: vec![2, 2, 2], data: data.into() }
    }

    #[test]
    fn values_names_and_shapes_are_looked_at() {
        let new = || Vetted::of([Vec::new(), Vec::new()]);
        let one = 0x3f80;
        let good = [bf16("k.0", 5, one), bf16("v.0", 5, one), bf16("k1.0", 0, one)];
        assert_eq!(new().rows(&good, 5), Ok(()));
        let mut seen = new();
        seen.rows(&good, 5).unwrap();
        assert!(seen.rows(&[bf16("k.1", 5, one), bf16("v.1", 5, one), bf16("k1.1", 0, one)], 5).is_err());
        assert!(seen.rows(&good[..2], 5).is_err(), "an array less than the segment before");
        for (bad, why) in [
            (vec![bf16("k.0", 4, one), bf16("v.0", 5, one)], "[4, 2, 4] for 5 tokens"),
            (vec![bf16("k.0", 5, one)], "no v.0"),
            (vec![bf16("k.0", 5, 0x7f80), bf16("v.0", 5, one)], "value 0 of k.0 is no number"),
            (vec![bf16("k.0", 5, one), bf16("v.0", 5, 0xffc1)], "value 0 of v.0 is no number"),
            (vec![bf16("state.0", 5, one)], "no array of KV rows"),
            (vec![bf16("k.00000", 5, one)], "no array of KV rows"),
        ] {
            let found = new().rows(&bad, 5).unwrap_err();
            assert!(found.contains(why), "{found}");
        }
        assert_eq!(new().end(&[f32s("state.0", 0.5), f32s("draft.window", 1.0)]), Ok(()));
        assert!(new().end(&[f32s("state.0", f32::NAN)]).unwrap_err().contains("no number"));
        assert!(new().end(&[f32s("draft.window", f32::INFINITY)]).unwrap_err().contains("no number"));
        assert!(new().end(&[bf16("state.0", 2, one)]).is_err());
    }
}
