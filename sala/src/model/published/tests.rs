//! Readers against the values that the publishing libraries compute, and every cause of an unreadable weight.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;
use serde_json::Value;

use half::{bf16, f16};

use super::parts::Scales;
use super::*;
use crate::backend::forms::Packed;
use crate::model::format::Format;

type Parts = BTreeMap<String, (FileDtype, Vec<usize>, Vec<u8>)>;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/published")
}

struct Case {
    name: String,
    shape: Vec<usize>,
    config: Value,
}

fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(folder().join("cases.json")).unwrap();
    let all: serde_json::Map<String, Value> = serde_json::from_str(&text).unwrap();
    let case = |(name, v): (String, Value)| Case {
        name,
        shape: v["shape"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect(),
        config: v["config"].clone(),
    };
    all.into_iter().map(case).collect()
}

impl Case {
    fn named(name: &str) -> Case {
        cases().into_iter().find(|c| c.name == name).unwrap()
    }

    fn format(&self) -> Option<Format> {
        Format::declared(&self.config, None)
    }

    fn path(&self) -> PathBuf {
        folder().join(format!("{}.safetensors", self.name))
    }

    fn open(&self) -> Tensors {
        Tensors::open_files(&[self.path()]).unwrap().in_format(self.format())
    }

    fn edited(&self, edit: impl FnOnce(&mut Parts)) -> Tensors {
        let bytes = std::fs::read(self.path()).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut parts: Parts =
            file.iter().map(|(n, t)| (n.to_string(), (t.dtype(), t.shape().to_vec(), t.data().to_vec()))).collect();
        edit(&mut parts);
        let views = parts.iter().map(|(n, (d, s, b))| (n.clone(), TensorView::new(*d, s.clone(), b).unwrap()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        safetensors::serialize_to_file(views, None, &path).unwrap();
        Tensors::open_files(&[path]).unwrap().in_format(self.format())
    }

    /// The error of reading the weight after `edit`.
    fn refused(&self, edit: impl FnOnce(&mut Parts)) -> String {
        let error = self.edited(edit).get("w.weight", &self.shape).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(!error.contains('\n'), "{error}");
        error
    }
}

fn expected(tensors: &Tensors) -> Vec<f32> {
    let (dtype, _, bytes) = tensors.raw("expected").unwrap();
    let scales = Scales { part: "expected", dtype, bytes };
    (0..scales.len()).map(|i| scales.get(i)).collect()
}

fn floats(dtype: Dtype, data: &[u8]) -> Vec<f32> {
    match dtype {
        Dtype::Bf16 => data.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => data.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

#[test]
fn values_are_those_of_the_publishing_libraries_to_the_bit() {
    let cases = cases();
    assert!(cases.len() >= 20);
    let mut layouts = std::collections::BTreeSet::new();
    for case in cases {
        let tensors = case.open();
        let weight = Weight::open(&tensors, "w", &case.shape).unwrap().unwrap_or_else(|| panic!("{}", case.name));
        layouts.insert(weight.layout());
        let (dtype, data) = weight.values().unwrap();
        let (got, expected) = (floats(dtype, &data), expected(&tensors));
        let wrong = got.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits() && (*a != 0.0 || *b != 0.0));
        let at = wrong.map(|i| (i, got[i], expected[i]));
        assert!(at.is_none() && got.len() == expected.len(), "{}: {at:?}", case.name);
    }
    // The program's own layouts are tested with the code that writes them.
    let others = LAYOUTS.iter().filter(|l| !l.families.contains(&Family::SalaChat));
    let all: std::collections::BTreeSet<_> = others.map(|l| l.name).collect();
    assert_eq!(layouts, all, "every row of the table has a case");
}

#[test]
fn own_forms_hold_the_values_as_they_are() {
    let mut kept = Vec::new();
    for case in cases() {
        let tensors = case.open();
        let weight = Weight::open(&tensors, "w", &case.shape).unwrap().unwrap();
        let Some((form, exact)) = weight.own() else { continue };
        let (out, inner) = (case.shape[0], case.shape[1]);
        let packed = Packed::from_bytes(form, out, inner, weight.packed().unwrap().into_owned()).unwrap();
        let expected = expected(&tensors);
        let mut row = vec![0f32; inner];
        let (mut error, mut square) = (0f64, 0f64);
        for r in 0..out {
            packed.values(r, &mut row);
            for (a, b) in row.iter().zip(&expected[r * inner..]) {
                assert!(!exact || a.to_bits() == b.to_bits() || *a == *b, "{}: row {r}: {a} is not {b}", case.name);
                error += f64::from(a - b).powi(2);
                square += f64::from(*b).powi(2);
            }
        }
        assert!(error / square < 1e-5, "{}: {}", case.name, error / square);
        kept.push((case.name, form.name(), exact));
    }
    let has = |name: &str, form: &str, exact: bool| kept.iter().any(|k| *k == (name.to_owned(), leak(form), exact));
    assert!(has("ct-int4-g128", "group4", true) && has("gptq-v1-4bit-g128", "group4", false), "{kept:?}");
    assert!(has("ct-int8-g128", "int8", true) && has("ct-w8a8", "int8", false), "{kept:?}");
    assert!(has("ct-nvfp4", "nvfp4", true) && has("modelopt-nvfp4", "nvfp4", true), "{kept:?}");
    assert!(has("ct-mxfp4", "nvfp4", true) && has("mlx-mxfp4", "nvfp4", true), "{kept:?}");
    assert!(!kept.iter().any(|(name, ..)| name.contains("bit-g") && name.starts_with("mlx")), "{kept:?}");
    assert!(!kept.iter().any(|(name, ..)| name.ends_with("desc-act")), "{kept:?}");
}

fn leak(form: &str) -> &'static str {
    [Form::Int8, Form::Int6, Form::Int5, Form::Int4, Form::Group4(crate::backend::forms::Group4::G32), Form::Nvfp4]
        .map(Form::name)
        .into_iter()
        .find(|n| *n == form)
        .unwrap()
}

fn set_scale(parts: &mut Parts, name: &str, at: usize, value: f32) {
    let (dtype, _, bytes) = parts.get_mut(name).unwrap();
    match dtype {
        FileDtype::F16 => bytes[2 * at..2 * at + 2].copy_from_slice(&f16::from_f32(value).to_le_bytes()),
        FileDtype::BF16 => bytes[2 * at..2 * at + 2].copy_from_slice(&bf16::from_f32(value).to_le_bytes()),
        FileDtype::F8_E4M3 => bytes[at] = 0x7f,
        _ => bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_le_bytes()),
    }
}

#[test]
fn a_scale_that_is_not_finite_is_named_in_every_layout() {
    for (case, part) in [
        ("gptq-v1-4bit-g128", "scales"),
        ("awq-4bit-g128", "scales"),
        ("ct-int4-g128", "weight_scale"),
        ("ct-w8a8", "weight_scale"),
        ("ct-nvfp4", "weight_scale"),
        ("ct-nvfp4", "weight_global_scale"),
        ("modelopt-nvfp4", "weight_scale"),
        ("modelopt-nvfp4", "weight_scale_2"),
        ("fp8-128-blocks", "weight_scale_inv"),
        ("mlx-8bit-g64", "scales"),
        ("mlx-8bit-g64", "biases"),
    ] {
        let error = Case::named(case).refused(|parts| set_scale(parts, &format!("w.{part}"), 0, f32::NAN));
        assert!(error.starts_with(&format!("tensor `w.{part}` holds a scale that is not finite")), "{case}: {error}");
    }
    for (case, part) in [("ct-nvfp4", "weight_global_scale"), ("modelopt-nvfp4", "weight_scale_2")] {
        for bad in [0.0, -0.5, f32::MAX, 1e-40] {
            let says = Case::named(case).refused(|parts| set_scale(parts, &format!("w.{part}"), 0, bad));
            // A tiny factor, or a huge divisor, gives finite values.
            let fine = (case == "modelopt-nvfp4" && bad == 1e-40) || (case == "ct-nvfp4" && bad == f32::MAX);
            let named = says.starts_with(&format!("tensor `w.{part}` is ")) && says.contains("positive");
            assert!(if fine { says.is_empty() } else { named }, "{case} {bad}: {says}");
        }
    }
    let error = Case::named("ct-fp8-channel").refused(|p| p.get_mut("w.weight").unwrap().2[7] = 0x7f);
    assert!(error.starts_with("tensor `w.weight` holds a value that is not a number (number 7)"), "{error}");
}

fn cut(parts: &mut Parts, name: &str, axis: usize, n: usize) {
    let (dtype, shape, bytes) = parts.get_mut(name).unwrap();
    let size = bytes.len() / shape.iter().product::<usize>();
    assert!(matches!(dtype, FileDtype::I32 | FileDtype::F16 | FileDtype::BF16 | FileDtype::U8 | FileDtype::F8_E4M3));
    let (rows, columns) = (shape[0], shape[1]);
    let keep = |i: usize| if axis == 0 { i / columns < n } else { i % columns < n };
    *bytes = (0..rows * columns).filter(|i| keep(*i)).flat_map(|i| bytes[i * size..(i + 1) * size].to_vec()).collect();
    shape[axis] = n;
}

#[test]
fn shapes_that_do_not_match_are_named_with_what_was_expected() {
    let says = |case: &str, error: String, all: &[&str]| {
        assert!(all.iter().all(|part| error.contains(part)), "{case}: {error}");
    };
    let gptq = Case::named("gptq-v1-4bit-g128");
    says("rows", gptq.refused(|p| cut(p, "w.qweight", 1, 7)), &["`w.qweight`", "[32, 7]", "[32, 8]"]);
    says("bits", gptq.refused(|p| cut(p, "w.qweight", 0, 24)), &["`w.qweight`", "24 words for 256 columns"]);
    let endless = |p: &mut Parts| drop(p.insert("w.qweight".into(), (FileDtype::I32, vec![1 << 60, 0], Vec::new())));
    says("no values", gptq.refused(endless), &["`w.qweight`", "1152921504606846976 words for 256 columns"]);
    says("zeros", gptq.refused(|p| cut(p, "w.qzeros", 0, 1)), &["`w.qzeros`", "[1, 1]", "[2, 1]"]);
    let uneven = |p: &mut Parts| {
        let three: Vec<u8> = p["w.scales"].2.iter().copied().cycle().take(3 * 8 * 2).collect();
        p.insert("w.scales".into(), (FileDtype::F16, vec![3, 8], three));
    };
    says("groups", gptq.refused(uneven), &["`w.scales`", "3 groups, which do not divide 256 columns"]);
    let zero = |p: &mut Parts| p.get_mut("w.qzeros").unwrap().2.fill(0);
    says("zero point", gptq.refused(zero), &["`w.qzeros`", "zero point 0 where config.json says symmetric (7 or 8)"]);
    says("part", gptq.refused(|p| drop(p.remove("w.scales"))), &["w.scales"]);
    let index = Case::named("gptq-v1-4bit-desc-act");
    let far = |p: &mut Parts| p.get_mut("w.g_idx").unwrap().2[0] = 9;
    says("index", index.refused(far), &["`w.g_idx` names group 9 of 4 for column 0"]);
    let ct = Case::named("ct-int4-g128");
    let other = |p: &mut Parts| p.get_mut("w.weight_shape").unwrap().2[0] = 9;
    says("weight_shape", ct.refused(other), &["`w.weight_shape` says [9, 256], config.json asks for [8, 256]"]);
    let wide = |p: &mut Parts| {
        p.insert("w.weight_zero_point".into(), (FileDtype::I8, vec![8, 2], vec![200; 16]));
    };
    says("zero point", ct.refused(wide), &["`w.weight_zero_point` holds zero point -56, outside of -8..=7 of 4 bits"]);
    let nvfp4 = Case::named("modelopt-nvfp4");
    says("scales", nvfp4.refused(|p| cut(p, "w.weight_scale", 1, 15)), &["`w.weight_scale`", "[8, 15]", "[8, 16]"]);
    let both = |p: &mut Parts| {
        p.insert("w.weight".into(), (FileDtype::BF16, vec![8, 256], vec![0; 4096]));
    };
    says("both", gptq.refused(both), &["`w.weight` is there beside `qweight`"]);
}

#[test]
fn zero_points_and_indices_are_looked_at_to_the_last_and_scales_as_they_are_kept() {
    let gptq = Case::named("gptq-v1-4bit-g128");
    let zero = gptq.refused(|p| p.get_mut("w.qzeros").unwrap().2[7] = 0x70);
    assert!(
        zero.ends_with("`w.qzeros` means zero point 1 in row 6, group 1; config.json says symmetric (8)"),
        "{zero}"
    );
    let index = Case::named("gptq-v1-4bit-desc-act");
    let unused = |p: &mut Parts| p.get_mut("w.g_idx").unwrap().2[4..8].fill(0xff);
    assert!(index.refused(unused).contains("`w.g_idx` names group 4294967295 of 4 for column 1"));
    // A scale that is finite in the file, and not in bf16.
    let tensors = gptq.edited(|p| {
        let (_, shape, _) = p["w.scales"].clone();
        let mut scales = vec![0.5f32; shape.iter().product()];
        scales[3] = 3.4028e38;
        let bytes = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
        p.insert("w.scales".into(), (FileDtype::F32, shape, bytes));
    });
    let weight = Weight::open(&tensors, "w", &gptq.shape).unwrap().unwrap();
    let error = weight.packed().unwrap_err().to_string();
    assert!(error.contains("`w.qweight` has a scale that is too large for bf16"), "{error}");
}

#[test]
fn a_weight_of_another_family_than_config_json_says_is_refused() {
    let case = Case::named("ct-int4-g128");
    let tensors = Tensors::open_files(&[case.path()]).unwrap();
    let error = tensors.get("w.weight", &case.shape).err().unwrap().to_string();
    assert!(error.contains("`w.weight_packed`") && error.contains("declares no packed weights"), "{error}");
    let gptq = Case::named("gptq-v1-4bit-g128").format();
    let error = tensors.in_format(gptq).get("w.weight", &case.shape).err().unwrap().to_string();
    assert!(error.contains("pack-quantized") && error.contains("declares GPTQ"), "{error}");
}

#[test]
fn powers_of_two_that_e4m3_does_not_reach_are_packed_again_and_one_that_is_no_number_is_named() {
    for (name, scales, values) in
        [("ct-mxfp4", "w.weight_scale", "w.weight_packed"), ("mlx-mxfp4", "w.scales", "w.weight")]
    {
        let case = Case::named(name);
        let inner = case.shape[1];
        // Block 3 holds 6, -1.5, 0.5 and zeros, far below, far above and at the end of the range.
        for code in [0, 1, 90, 200, 252] {
            let tensors = case.edited(|parts| {
                parts.get_mut(scales).unwrap().2[3] = code;
                let bytes = &mut parts.get_mut(values).unwrap().2[3 * 16..4 * 16];
                bytes.fill(0);
                bytes[..2].copy_from_slice(&[0xb7, 0x01]);
            });
            let weight = Weight::open(&tensors, "w", &case.shape).unwrap().unwrap();
            assert_eq!(weight.own(), None, "{name}: 2^{}", i32::from(code) - 127);
            let (dtype, data) = weight.values().unwrap();
            let got = floats(dtype, &data);
            let scale = 2f64.powi(i32::from(code) - 127);
            let expected = [6.0, -1.5, 0.5, 0.0].map(|v| (v * scale) as f32);
            assert_eq!(got[3 * 32..][..4], expected, "{name}: 2^{}", i32::from(code) - 127);
            assert_eq!((dtype, got.len()), (Dtype::Bf16, case.shape[0] * inner));
        }
        let error = case.refused(|parts| parts.get_mut(scales).unwrap().2[5] = 0xff);
        assert!(
            error.starts_with(&format!("tensor `{scales}` holds a scale that is not finite (number 5)")),
            "{error}"
        );
        let error = case.refused(|parts| parts.get_mut(scales).unwrap().2[3] = 254);
        assert!(error.contains("stands for a value that is not finite (row 0, column"), "{error}");
        let error = case.refused(|parts| {
            let (dtype, shape, bytes) = parts.get_mut(scales).unwrap();
            (*dtype, shape[1]) = (FileDtype::U8, 4);
            bytes.truncate(32);
        });
        assert!(error.contains(scales) && error.contains("[8, 4]") && error.contains("[8, 8]"), "{error}");
    }
}

#[test]
fn small_floats_have_their_published_values() {
    assert_eq!((e2m1(0x1), e2m1(0x7), e2m1(0xf)), (0.5, 6.0, -6.0));
}

#[test]
fn parts_belong_to_their_weight() {
    assert_eq!(owner("model.layers.0.mlp.up_proj.qweight").as_deref(), Some("model.layers.0.mlp.up_proj.weight"));
    assert_eq!(owner("a.weight_scale_2").as_deref(), Some("a.weight"));
    assert_eq!(owner("model.rotary.inv_freq"), None);
}

#[test]
fn every_form_is_read_from_the_part_it_is_written_to() {
    use crate::backend::forms::Group4;
    let forms = [Form::Int8, Form::Int6, Form::Int5, Form::Int4, Form::Nvfp4, Form::Group4(Group4::G32)];
    let parts: Vec<&str> = forms.iter().map(|form| form.row().unwrap().part).collect();
    let ours = LAYOUTS.iter().filter(|l| l.families.contains(&Family::SalaChat));
    let (earlier, now): (Vec<_>, Vec<_>) =
        ours.map(|l| l.part).partition(|part| is_of_an_earlier_version(&format!("w.{part}")));
    assert_eq!(earlier, ours::EARLIER);
    assert!(now.len() == parts.len() && now.iter().all(|part| parts.contains(part)), "{now:?} {parts:?}");
}

/// A different scale for each column, also as bf16 tensor.
fn input_scales(inner: usize) -> (Vec<f32>, Vec<u8>) {
    let scales: Vec<bf16> = (0..inner).map(|k| bf16::from_f32(0.25 + (k * 37 % 64) as f32 / 16.0)).collect();
    (scales.iter().map(|s| s.to_f32()).collect(), scales.iter().flat_map(|s| s.to_le_bytes()).collect())
}

#[test]
fn scales_of_the_inputs_are_part_of_the_values_and_no_form_holds_them() {
    for name in ["modelopt-nvfp4", "modelopt-fp8"] {
        let case = Case::named(name);
        let (out, inner) = (case.shape[0], case.shape[1]);
        let (scales, bytes) = input_scales(inner);
        for shape in [vec![inner], vec![1, inner]] {
            let tensors = case.edited(|parts| {
                parts.insert("w.pre_quant_scale".into(), (FileDtype::BF16, shape, bytes.clone()));
            });
            let weight = Weight::open(&tensors, "w", &case.shape).unwrap().unwrap();
            assert_eq!(weight.own(), None, "{name}: what is published is not what is multiplied with");
            let (dtype, data) = weight.values().unwrap();
            let (got, expected) = (floats(dtype, &data), expected(&tensors));
            assert_eq!(got.len(), out * inner);
            for (i, (got, plain)) in got.iter().zip(&expected).enumerate() {
                assert_eq!(*got, plain * scales[i % inner], "{name}: value {i}");
            }
        }
        let scaled = |dtype, shape: Vec<usize>, bytes: Vec<u8>| {
            case.refused(|parts| {
                parts.insert("w.pre_quant_scale".into(), (dtype, shape, bytes));
            })
        };
        let short = scaled(FileDtype::BF16, vec![inner - 1], bytes[2..].to_vec());
        assert!(short.starts_with("tensor `w.pre_quant_scale` has shape ["), "{short}");
        let mut bad = bytes.clone();
        bad[2..4].copy_from_slice(&bf16::NAN.to_le_bytes());
        let bad = scaled(FileDtype::BF16, vec![inner], bad);
        assert!(bad.starts_with("tensor `w.pre_quant_scale` holds a scale that is not finite (number 1)"), "{bad}");
        let plain = case.refused(|parts| {
            parts.insert("w.weight".into(), (FileDtype::BF16, vec![out, inner], vec![0; out * inner * 2]));
            parts.insert("w.pre_quant_scale".into(), (FileDtype::BF16, vec![inner], bytes.clone()));
        });
        assert!(plain.starts_with("tensor `w.pre_quant_scale` is there beside a weight that is not packed"), "{plain}");
    }
    assert_eq!(owner("a.pre_quant_scale").as_deref(), Some("a.weight"));
}

#[test]
fn low_rank_parts_are_refused_under_either_name() {
    let case = Case::named("modelopt-nvfp4");
    refuse_low_rank(&case.open()).unwrap();
    for part in ["svdquant_lora_a", "weight_quantizer._svdquant_lora_b"] {
        let name = format!("w.{part}");
        let tensors = case.edited(|parts| {
            parts.insert(name.clone(), (FileDtype::BF16, vec![1, 2], vec![0; 4]));
        });
        let error = refuse_low_rank(&tensors).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor `{name}` belongs to a low-rank part (SVDQuant)")), "{error}");
    }
}

#[test]
fn one_scale_for_all_rows_is_that_scale_in_each() {
    for (name, zero) in [("ct-w8a8", None), ("ct-int4-g128", None), ("ct-int8-g128", None), ("ct-int4-g128", Some(3i8))]
    {
        let case = Case::named(name);
        let out = case.shape[0];
        let with = |scale: Vec<usize>, zeros: Vec<usize>| {
            case.edited(|parts| {
                let (dtype, _, bytes) = parts["w.weight_scale"].clone();
                let one = bytes[..bytes.len() / parts["w.weight_scale"].1.iter().product::<usize>()].to_vec();
                let count = scale.iter().product::<usize>();
                parts.insert("w.weight_scale".into(), (dtype, scale, one.repeat(count)));
                if let Some(zero) = zero {
                    let bytes = vec![zero as u8; zeros.iter().product::<usize>()];
                    parts.insert("w.weight_zero_point".into(), (FileDtype::I8, zeros, bytes));
                }
            })
        };
        let read = |tensors: &Tensors| {
            let weight = Weight::open(tensors, "w", &case.shape).unwrap().unwrap();
            let packed = weight.own().map(|own| (own, weight.packed().unwrap().into_owned()));
            (weight.values().unwrap(), packed)
        };
        let each = read(&with(vec![out, 1], vec![out, 1]));
        for one in [vec![], vec![1], vec![1, 1]] {
            assert!(read(&with(one.clone(), one.clone())) == each, "{name}: {one:?}");
        }
    }
    let wrong = Case::named("ct-w8a8").refused(|parts| {
        let (_, shape, _) = parts.get_mut("w.weight_scale").unwrap();
        shape.truncate(1);
    });
    assert!(wrong.starts_with("tensor `w.weight_scale` has shape [8]; int-quantized of a [8, "), "{wrong}");
}
