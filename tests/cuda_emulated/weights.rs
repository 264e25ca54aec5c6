//! Weights: from files as from memory, joined and below each other, made up as on the CPU.

use std::io::Write;

use half::bf16;
use sala_chat::backend::forms::{Group4, Packed};
use sala_chat::backend::fp8::PLAIN_ROWS;
use sala_chat::backend::{WeightView, synthetic_value};
use sala_chat::lab::kernels::relative;

use super::*;

/// Weights of more than the pipeline's shortest length, at an odd place of a file.
struct InFile {
    shape: [usize; 2],
    form: Form,
    dtype: Dtype,
    bytes: Vec<u8>,
    nothing: Vec<u8>,
    file: std::fs::File,
}

const FIRST: usize = 4_099;

impl InFile {
    fn new(shape: [usize; 2], form: Form, seed: u64) -> InFile {
        let value = |row: usize, column: usize| synthetic_value(seed, (row * shape[1] + column) as u64, 0.03);
        let (dtype, bytes) = match form {
            Form::Bf16 => {
                let all = (0..shape[0]).flat_map(|r| (0..shape[1]).map(move |c| (r, c)));
                (Dtype::Bf16, all.flat_map(|(r, c)| bf16::from_f32(value(r, c)).to_le_bytes()).collect())
            }
            form => {
                let fill = |row: usize, dst: &mut [f32]| {
                    dst.iter_mut().enumerate().for_each(|(column, v)| *v = value(row, column));
                };
                let published = Packed::random(form, seed, shape[0], shape[1], 0.03);
                let packed = published.unwrap_or_else(|| Packed::pack(form, shape[0], shape[1], fill).unwrap());
                (Dtype::U8, packed.into_bytes())
            }
        };
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0xff; FIRST]).unwrap();
        file.write_all(&bytes).unwrap();
        InFile { shape, form, dtype, nothing: vec![0; bytes.len()], bytes, file }
    }

    fn in_memory(&self) -> WeightView<'_> {
        let InFile { shape, form, dtype, bytes, .. } = self;
        WeightView { name: "weight", shape, dtype: *dtype, data: bytes, file: None, form: *form }
    }

    /// What is mapped would be found out.
    fn on_disk(&self) -> WeightView<'_> {
        WeightView { data: &self.nothing, file: Some((&self.file, FIRST as u64)), ..self.in_memory() }
    }
}

/// One row times a weight.
fn projected<B: Backend>(b: &mut B, w: &B::Matrix, norm: &B::Vector, [out, inner]: [usize; 2]) -> Vec<f32> {
    let (mut h, mut to) = (b.buf(inner, BufKind::Residual).unwrap(), b.buf(out, BufKind::Activation).unwrap());
    let values: Vec<f32> = (0..inner as u64).map(|i| synthetic_value(9, i, 1.0)).collect();
    b.write(&mut h, &values).unwrap();
    let pass = Pass::Verify { rows: 1 };
    b.set_tokens(&[0]).unwrap();
    b.norm_linear(&mut to, &h, norm, 1e-6, w, None, pass).unwrap();
    let found = b.read(&to, 1).unwrap();
    b.advance(pass, 0).unwrap();
    found
}

fn random_gate_up<B: Backend>(b: &mut B, form: Form) -> Vec<f32> {
    let w = b.random_gate_up(96, 256, 0.1, 8, form).unwrap();
    norm_gate_up(b, &w, [96, 256])
}

fn gate_up<B: Backend>(b: &mut B, [gate, up]: [WeightView<'_>; 2]) -> Vec<f32> {
    let [half, inner] = *gate.shape else { panic!("{:?}", gate.shape) };
    let w = b.gate_up_matrix(gate, up).unwrap();
    norm_gate_up(b, &w, [half, inner])
}

fn norm_gate_up<B: Backend>(b: &mut B, w: &B::Matrix, [half, inner]: [usize; 2]) -> Vec<f32> {
    let norm = b.ones(inner).unwrap();
    let (mut h, mut out) = (b.buf(inner, BufKind::Residual).unwrap(), b.buf(half, BufKind::Activation).unwrap());
    let values: Vec<f32> = (0..inner as u64).map(|i| synthetic_value(9, i, 1.0)).collect();
    b.write(&mut h, &values).unwrap();
    let pass = Pass::Verify { rows: 1 };
    b.set_tokens(&[0]).unwrap();
    b.norm_gate_up(&mut out, &h, &norm, 1e-6, w, pass).unwrap();
    let found = b.read(&out, 1).unwrap();
    b.advance(pass, 0).unwrap();
    found
}

#[test]
fn weights_are_read_from_where_they_lie_in_files() {
    let mut b = device();
    for form in [Form::Bf16, Form::Int8, Form::Int6, Form::Int5, Form::Int4, Form::Nvfp4] {
        // Joined, more than four megabytes, and no whole number of pieces.
        let weights = [3, 4].map(|seed| InFile::new([3_056, 1_024], form, seed));
        let [gate, up] = &weights;
        let from_files = gate_up(&mut b, [gate.on_disk(), up.on_disk()]);
        assert_eq!(from_files, gate_up(&mut b, [gate.in_memory(), up.in_memory()]), "{}", form.name());
        let oracle = gate_up(&mut Cpu::new(), [gate.in_memory(), up.in_memory()]);
        let error = relative(&from_files, &oracle);
        assert!(error < 6e-3, "{}: {error}", form.name());
    }
    // Stacked: one part where pairs of tiles divide evenly.
    for (form, rows, parts) in
        [(Form::Int4, [96, 3_040, 33], 1), (Form::Nvfp4, [96, 3_040, 33], 1), (Form::Nvfp4, [33, 64, 96], 2)]
    {
        let weights = [0, 1, 2].map(|i| InFile::new([rows[i], 1_024], form, 7 + i as u64));
        let (norm, size) = (b.ones(1_024).unwrap(), [rows.iter().sum(), 1_024]);
        let w = b.matrix(&weights.each_ref().map(InFile::on_disk)).unwrap();
        assert_eq!(b.parts(&w).len(), parts);
        let found = projected(&mut b, &w, &norm, size);
        let w = b.matrix(&weights.each_ref().map(InFile::in_memory)).unwrap();
        assert_eq!(found, projected(&mut b, &w, &norm, size));
        let mut cpu = Cpu::new();
        let (w, norm) = (cpu.matrix(&weights.each_ref().map(InFile::in_memory)).unwrap(), cpu.ones(1_024).unwrap());
        let error = relative(&found, &projected(&mut cpu, &w, &norm, size));
        assert!(error < 6e-3, "{}: {error}", form.name());
    }
    // Made up there as on the CPU.
    for form in [Form::Group4(Group4::G128), Form::Nvfp4] {
        let made = |b: &mut dyn FnMut(&[(usize, Form)]) -> Vec<f32>| b(&[(96, form), (64, Form::Int8), (32, form)]);
        let found = made(&mut |forms| {
            let (w, norm) = (b.random_matrix(forms, 256, 0.1, 5).unwrap(), b.ones(256).unwrap());
            projected(&mut b, &w, &norm, [192, 256])
        });
        let mut cpu = Cpu::new();
        let expected = made(&mut |forms| {
            let (w, norm) = (cpu.random_matrix(forms, 256, 0.1, 5).unwrap(), cpu.ones(256).unwrap());
            projected(&mut cpu, &w, &norm, [192, 256])
        });
        let error = relative(&found, &expected);
        assert!(error < 6e-3, "{}: {error}", form.name());
        let found = random_gate_up(&mut b, form);
        let error = relative(&found, &random_gate_up(&mut Cpu::new(), form));
        assert!(error < 6e-3, "{}: {error}", form.name());
    }
    // Tables, plain and packed already.
    for (form, rows) in [(Form::Bf16, 2_101), (Form::Int8, 4_801)] {
        let weight = InFile::new([rows, 1_024], form, 5);
        let (mut h, pass) = (b.buf(1_024, BufKind::Residual).unwrap(), Pass::Verify { rows: 4 });
        let mut found = Vec::new();
        for view in [weight.on_disk(), weight.in_memory()] {
            let table = b.matrix(&[view]).unwrap();
            b.set_tokens(&[0, 513, rows as u32 / 2, rows as u32 - 1]).unwrap();
            b.embed(&mut h, &table, 1.0, pass).unwrap();
            found.push(b.read(&h, 4).unwrap());
            b.advance(pass, 0).unwrap();
        }
        assert_eq!(found[0], found[1], "{}", form.name());
        assert!(found[0].iter().any(|v| *v != 0.0));
    }
    let short = InFile::new([2_101, 1_024], Form::Bf16, 5);
    short.file.set_len(4_000_000).unwrap();
    let error = b.matrix(&[short.on_disk()]).err().unwrap().to_string();
    assert!(error.contains("a file is shorter than it was"), "{error}");
    b.check_guards().unwrap();
}

/// Weights that fp8 prefill keeps in e4m3 stay until the memory is needed, and no bit depends on them.
#[test]
fn spare_weights_are_freed_on_demand() {
    const MOST: u64 = 64 << 20;
    let options = Options { most_bytes: Some(MOST), prefill_rows: 2 * PLAIN_ROWS, ..Options::default() };
    let mut b = Cuda::emulated(library(), options).unwrap();
    let [out, inner, rows] = [512, 256, 128];
    let mut w = b.random_matrix(&[(out, Form::Int8)], inner, 0.1, 9).unwrap();
    b.read_in_fp8(&mut w).unwrap();
    let norm = b.ones(inner).unwrap();
    let (mut h, mut to) = (b.buf(inner, BufKind::Residual).unwrap(), b.buf(out, BufKind::Activation).unwrap());
    let values: Vec<f32> = (0..rows * inner).map(|i| synthetic_value(5, i as u64, 1.0)).collect();
    b.write(&mut h, &values).unwrap();
    let mut read = |b: &mut Cuda, segment: usize| {
        b.segment_at(segment);
        b.norm_linear(&mut to, &h, &norm, 1e-6, &w, None, Pass::Prefill { rows }).unwrap();
        b.read(&to, rows).unwrap()
    };
    let alone = b.memory().weights;
    // A text's first pass may be its last: nothing is kept of it.
    let expected = read(&mut b, PLAIN_ROWS);
    assert_eq!(b.memory().weights, alone);
    for _ in 0..2 {
        assert_eq!(read(&mut b, 2 * PLAIN_ROWS), expected);
        assert_eq!(b.memory().weights, alone + (out * (inner + 4)) as u64);
    }
    // An allocation counts them as free memory and can take it.
    let bytes = |b: &Cuda| {
        let memory = b.memory();
        memory.weights + memory.state + memory.work
    };
    let width = (MOST - bytes(&b)) as usize / (2 * b.prefill_rows()) + 1;
    let large = b.buf(width, BufKind::Activation).unwrap();
    assert_eq!(b.memory().weights, alone);
    assert_eq!(read(&mut b, 2 * PLAIN_ROWS), expected);
    assert_eq!(b.memory().weights, alone, "there is no room to keep them");
    drop(large);
    assert_eq!(read(&mut b, 2 * PLAIN_ROWS), expected);
    assert!(b.memory().weights > alone);
}
