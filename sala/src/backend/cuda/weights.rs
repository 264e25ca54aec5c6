//! Loads weights onto the device: stacks rows of several tensors in one matrix, interleaves gate and up, converts to
//! bf16, packs forms of fewer bits on the device. Also makes synthetic weights.

mod read;

use super::device::{Account, DeviceBuffer};
use super::driver::{DevicePtr, Queue};
use super::staging::Outgoing;
use super::stretch::Stretch;
use super::tensors::{Matrix, Part};
use super::{Cuda, check_shape, launch, shape};
use crate::backend::forms::{Interleaving, PAIR_ROWS, Packed};
use crate::backend::{Form, Result, Wanted, WeightView, internal};
use crate::engine::protocol::Dtype;
use read::{fill_parts, fill_rows};

const SLICE_BYTES: usize = 64 << 20;

/// Gate and up tiles; [`launch::TakeTurns`] interleaves their rows in place.
struct Couples {
    memory: DevicePtr,
    form: Form,
    pairs: Interleaving,
}

#[derive(Default)]
struct Travelling<'v> {
    outgoing: Vec<Outgoing<'v>>,
    couples: Vec<Couples>,
}

impl Cuda {
    /// Rehearses loading with a few bytes on all threads. The first call of each kind resolves a symbol, which waits
    /// while the GEMM library loads: 70 ms on an H200.
    pub(super) fn rehearse(&mut self) -> Result<()> {
        const BYTES: usize = 4096;
        let bytes = BYTES * rayon::current_num_threads();
        let memory = self.device.alloc("weights in flight", bytes, Account::Work)?;
        let fill = |_: usize, to: &mut [u8]| {
            to.fill(0);
            Ok(())
        };
        self.staging.send(&[Outgoing::new(Stretch::plain(memory.ptr(), bytes), 1, fill)])?;
        self.staging.send_bytes(memory.ptr(), &[0; 4])?;
        // SAFETY: so many words are there.
        unsafe {
            launch::FillF32 { dst: memory.ptr(), n: (bytes / 4) as u64, value: 0.0 }.launch(self.device.driver())?
        };
        self.device.driver().synchronize(Queue::Compute)
    }

    /// Loads weights in one batch: threads synchronise once, not once per weight.
    pub(super) fn weights(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<Matrix>> {
        let (mut made, mut travelling) = (Vec::new(), Travelling::default());
        for wanted in wanted {
            made.push(match wanted {
                Wanted::Stack(parts) => self.stack(parts, &mut travelling.outgoing)?,
                Wanted::GateUp([gate, up]) => self.interleave(gate, up, &mut travelling)?,
            });
        }
        self.staging.send(&travelling.outgoing)?;
        travelling.couples.iter().try_for_each(|couples| self.take_turns(couples))?;
        Ok(made)
    }

    /// Rows of all parts, one after the other. Neighbours in the same form become one part.
    fn stack<'v>(&mut self, parts: &'v [WeightView<'v>], outgoing: &mut Vec<Outgoing<'v>>) -> Result<Matrix> {
        let inner = parts.first().and_then(|p| p.shape.get(1)).copied().unwrap_or(0);
        let (mut made, mut out, mut at) = (Vec::new(), 0, 0);
        while let Some(first) = parts.get(at) {
            let form = first.form.or_bf16(inner);
            let run = match first.dtype {
                // A pair of tiles holds rows of one weight only; otherwise the next weight's rows would begin at the
                // wrong place.
                Dtype::U8 => {
                    let even = |p: &&WeightView<'_>| p.shape.first().is_some_and(|n| n.is_multiple_of(PAIR_ROWS));
                    let alike = |p: &&WeightView<'_>| p.dtype == Dtype::U8 && p.form == first.form;
                    let before = parts.iter().skip(at).take_while(|p| alike(p) && even(p)).count();
                    before + usize::from(parts.get(at + before).is_some_and(|p| alike(&p)))
                }
                _ => {
                    parts.iter().skip(at).take_while(|p| p.form.or_bf16(inner) == form && p.dtype != Dtype::U8).count()
                }
            };
            let run = parts.get(at..at + run).unwrap_or_default();
            let mut rows = Vec::new();
            for (i, part) in run.iter().enumerate() {
                rows.extend((0..rows_of(part, inner)?).map(|row| (i as u32, row as u32)));
            }
            let count = rows.len();
            let memory = match first.dtype {
                Dtype::U8 => self.packed_already(run, outgoing)?,
                _ => {
                    let from = move |row: usize| {
                        let (part, row) = rows.get(row).copied().unwrap_or_default();
                        run.get(part as usize).map(|view| (view, row as usize))
                    };
                    self.formed_rows(form, count, inner, from, outgoing)?
                }
            };
            made.push(Part { memory, form, rows: count });
            out += count;
            at += run.len();
        }
        Ok(Matrix::of(made, out, inner))
    }

    fn interleave<'v>(
        &mut self,
        gate: &'v WeightView<'v>,
        up: &'v WeightView<'v>,
        travelling: &mut Travelling<'v>,
    ) -> Result<Matrix> {
        let inner = gate.shape.get(1).copied().unwrap_or(0);
        let half = rows_of(gate, inner)?;
        let form = gate.form.or_bf16(inner);
        let fits =
            rows_of(up, inner)? == half && half.is_multiple_of(8) && up.form == gate.form && up.dtype == gate.dtype;
        let found = format_args!("{:?} {:?} and {:?} {:?}", gate.shape, gate.form, up.shape, up.form);
        check_shape(fits, "gate_up_matrix", "two equal matrices of a multiple of 8 rows in one form", found)?;
        let memory = if gate.dtype == Dtype::U8 {
            self.packed_pairs(form, half, inner, [gate, up], travelling)?
        } else {
            let from = move |packed: usize| {
                let (block, r) = (packed / 16, packed % 16);
                Some(if r < 8 { (gate, 8 * block + r) } else { (up, 8 * block + r - 8) })
            };
            self.formed_rows(form, 2 * half, inner, from, &mut travelling.outgoing)?
        };
        Ok(Matrix::whole(memory, form, 2 * half, inner))
    }

    /// Memory for rows `from(0..rows)` in a form: bf16 rows travel with the others, packed rows have arrived on
    /// return.
    fn formed_rows<'v>(
        &mut self,
        form: Form,
        rows: usize,
        inner: usize,
        from: impl Fn(usize) -> Option<(&'v WeightView<'v>, usize)> + Sync + 'v,
        outgoing: &mut Vec<Outgoing<'v>>,
    ) -> Result<DeviceBuffer> {
        let memory = self.device.alloc("weights", form.bytes(rows, inner), Account::Weights)?;
        let row_bytes = inner * 2;
        if form == Form::Bf16 {
            let fill = move |at: usize, to: &mut [u8]| fill_rows(at / row_bytes, inner, &from, to);
            outgoing.push(Outgoing::new(Stretch::plain(memory.ptr(), rows * row_bytes), row_bytes, fill));
            return Ok(memory);
        }
        // The device packs slice by slice, so that it never holds all bf16 rows at once.
        let slice = (SLICE_BYTES / row_bytes).next_multiple_of(PAIR_ROWS).min(rows.next_multiple_of(PAIR_ROWS));
        let plain = self.device.alloc("weights in flight", slice * row_bytes, Account::Work)?;
        for first in (0..rows).step_by(slice) {
            let count = slice.min(rows - first);
            let fill = |at: usize, to: &mut [u8]| fill_rows(first + at / row_bytes, inner, &from, to);
            let dst = Stretch::plain(plain.ptr(), count * row_bytes);
            self.staging.send(&[Outgoing::new(dst, row_bytes, fill)])?;
            let to = memory.ptr() + form.bytes(first, inner) as u64;
            self.pack_rows(form, to, plain.ptr(), count, inner)?;
        }
        self.all_finite(|| from(0).map_or_else(String::new, |(view, _)| view.name.to_owned()))?;
        Ok(memory)
    }

    fn packed_already<'v>(
        &mut self,
        run: &'v [WeightView<'v>],
        outgoing: &mut Vec<Outgoing<'v>>,
    ) -> Result<DeviceBuffer> {
        let all = run.iter().map(|view| view.data.len()).sum();
        let memory = self.device.alloc("weights", all, Account::Weights)?;
        let fill = move |at: usize, to: &mut [u8]| {
            let (mut skip, mut to, mut parts) = (at, to, Vec::new());
            for view in run {
                let n = to.len().min(view.data.len().saturating_sub(skip));
                let (here, rest) = std::mem::take(&mut to).split_at_mut(n);
                if n > 0 {
                    parts.push((view, skip, here));
                }
                (skip, to) = (skip.saturating_sub(view.data.len()), rest);
            }
            fill_parts(parts.into_iter())
        };
        outgoing.push(Outgoing::new(Stretch::plain(memory.ptr(), all), 1, fill));
        Ok(memory)
    }

    /// Packed gate and up, loaded as alternating pairs of tiles; the device interleaves their rows afterwards, so the
    /// host only reads.
    fn packed_pairs<'v>(
        &mut self,
        form: Form,
        half: usize,
        inner: usize,
        weights: [&'v WeightView<'v>; 2],
        travelling: &mut Travelling<'v>,
    ) -> Result<DeviceBuffer> {
        let pairs = Interleaving::new(form, half, inner)
            .ok_or_else(|| shape("gate_up_matrix", "a multiple of 16 rows in a packed form", half))?;
        let pair_bytes = pairs.pair_bytes;
        let bytes = 2 * pairs.couples * pair_bytes;
        let memory = self.device.alloc("weights", bytes, Account::Weights)?;
        let fill = move |at: usize, to: &mut [u8]| {
            let (mut at, mut to, mut parts) = (at, to, Vec::new());
            while !to.is_empty() {
                let (pair, within) = (at / pair_bytes, at % pair_bytes);
                let n = (pair_bytes - within).min(to.len());
                let (here, rest) = std::mem::take(&mut to).split_at_mut(n);
                at += here.len();
                parts.push((weights[pair % 2], pair / 2 * pair_bytes + within, here));
                to = rest;
            }
            fill_parts(parts.into_iter())
        };
        travelling.outgoing.push(Outgoing::new(Stretch::plain(memory.ptr(), bytes), 1, fill));
        travelling.couples.push(Couples { memory: memory.ptr(), form, pairs });
        Ok(memory)
    }

    fn take_turns(&mut self, couples: &Couples) -> Result<()> {
        let Couples { memory: w, form, pairs } = couples;
        for (i, turns) in pairs.turns.iter().enumerate() {
            let from = self.places_of(*form, i, &turns.from)?;
            let (first, bytes, units) = (turns.first, turns.bytes, turns.units);
            let (pair_bytes, couples) = (pairs.pair_bytes, pairs.couples);
            let turns = launch::TakeTurns { w: *w, from, first, bytes, pair_bytes, units, couples };
            // SAFETY: the memory has room for all pairs of both; the table covers the units of one place.
            unsafe { turns.launch(self.device.driver())? };
        }
        Ok(())
    }

    /// The table of [`launch::TakeTurns`] for one form on the device; the first weight of that form sends it.
    fn places_of(&mut self, form: Form, which: usize, from: &[u16]) -> Result<DevicePtr> {
        if let Some(there) = self.scratch.places.get(&(form, which)) {
            return Ok(there.ptr());
        }
        let table: Vec<u8> = from.iter().flat_map(|at| at.to_le_bytes()).collect();
        let made = self.device.alloc("working buffers", table.len(), Account::Work)?;
        self.staging.send_bytes(made.ptr(), &table)?;
        Ok(self.scratch.places.entry((form, which)).or_insert(made).ptr())
    }

    pub(super) fn random(&mut self, parts: &[(usize, Form)], inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        let out = parts.iter().map(|p| p.0).sum();
        let mut runs: Vec<(usize, Form)> = Vec::new();
        for (rows, form) in parts {
            match runs.last_mut() {
                Some((n, last)) if *last == form.or_bf16(inner) => *n += rows,
                _ => runs.push((*rows, form.or_bf16(inner))),
            }
        }
        let pairs = runs.iter().map(|(_, form)| Packed::random(*form, seed, PAIR_ROWS, inner, std)).collect::<Vec<_>>();
        let plain = match runs.as_slice() {
            [(_, Form::Bf16)] => {
                return Ok(Matrix::whole(self.random_rows(out, inner, std, seed)?, Form::Bf16, out, inner));
            }
            _ if pairs.iter().all(Option::is_some) => None,
            _ => Some(self.random_rows(out, inner, std, seed)?),
        };
        let mut made: Vec<Part> = Vec::new();
        let mut first = 0;
        for ((rows, form), pair) in runs.into_iter().zip(pairs) {
            let memory = match (pair, &plain) {
                (Some(pair), _) => self.repeated(pair.bytes(), form.bytes(rows, inner))?,
                (None, Some(plain)) => {
                    let from = plain.ptr() + (first * inner * 2) as u64;
                    self.in_form(form, from, rows, inner)?
                }
                (None, None) => return Err(internal("matrix", "synthetic rows that were not made")),
            };
            made.push(Part { memory, form, rows });
            first += rows;
        }
        Ok(Matrix::of(made, out, inner))
    }

    fn repeated(&mut self, once: &[u8], bytes: usize) -> Result<DeviceBuffer> {
        let memory = self.device.alloc("weights", bytes, Account::Weights)?;
        let mut done = once.len().min(bytes);
        self.staging.send_bytes(memory.ptr(), once.get(..done).unwrap_or_default())?;
        while done > 0 && done < bytes {
            let n = done.min(bytes - done);
            // SAFETY: both ranges are in the memory that was just made, and do not overlap.
            unsafe { self.device.driver().copy(memory.ptr() + done as u64, memory.ptr(), n, Queue::Compute)? };
            done += n;
        }
        Ok(memory)
    }

    fn random_rows(&mut self, out: usize, inner: usize, std: f32, seed: u64) -> Result<DeviceBuffer> {
        let memory = self.device.alloc("weights", out * inner * 2, Account::Weights)?;
        // SAFETY: the memory was just made with this size.
        unsafe {
            launch::RandomBf16 { dst: memory.ptr(), n: (out * inner) as u64, std, seed }.launch(self.device.driver())?
        };
        Ok(memory)
    }

    fn in_form(&mut self, form: Form, from: DevicePtr, rows: usize, inner: usize) -> Result<DeviceBuffer> {
        let memory = self.device.alloc("weights", form.bytes(rows, inner), Account::Weights)?;
        if form == Form::Bf16 {
            // SAFETY: both hold `rows` rows.
            unsafe { self.device.driver().copy(memory.ptr(), from, rows * inner * 2, Queue::Compute)? };
        } else {
            self.pack_rows(form, memory.ptr(), from, rows, inner)?;
            self.all_finite(|| "synthetic weight".to_owned())?;
        }
        Ok(memory)
    }

    pub(super) fn random_interleaved(
        &mut self,
        half: usize,
        inner: usize,
        std: f32,
        seed: u64,
        form: Form,
    ) -> Result<Matrix> {
        if let Some(pair) = Packed::random(form.or_bf16(inner), seed, PAIR_ROWS, inner, std) {
            let joined = Interleaving::new(form, half, inner).filter(|_| half.is_multiple_of(PAIR_ROWS));
            let joined =
                joined.ok_or_else(|| shape("gate_up_matrix", "a multiple of 32 rows in a published form", half))?;
            let mut two = [pair.bytes(), pair.bytes()].concat();
            joined.join(&mut two);
            let memory = self.repeated(&two, form.bytes(2 * half, inner))?;
            return Ok(Matrix::whole(memory, form, 2 * half, inner));
        }
        let plain = self.random_rows(2 * half, inner, std, seed)?;
        let memory = self.device.alloc("weights", 2 * half * inner * 2, Account::Weights)?;
        let eight = 8 * inner * 2;
        for block in 0..half / 8 {
            for (part, from) in [block, half / 8 + block].into_iter().enumerate() {
                let (dst, src) = ((2 * block + part) * eight, from * eight);
                let (dst, src) = (memory.ptr() + dst as u64, plain.ptr() + src as u64);
                // SAFETY: both matrices have `2 · half` rows.
                unsafe { self.device.driver().copy(dst, src, eight, Queue::Compute)? };
            }
        }
        drop(plain);
        let form = form.or_bf16(inner);
        let memory = if form == Form::Bf16 { memory } else { self.in_form(form, memory.ptr(), 2 * half, inner)? };
        Ok(Matrix::whole(memory, form, 2 * half, inner))
    }
}

fn rows_of(view: &WeightView<'_>, inner: usize) -> Result<usize> {
    match (view.shape, view.dtype) {
        ([rows, columns], Dtype::F32 | Dtype::Bf16)
            if *columns == inner && view.data.len() == rows * columns * view.dtype.size() =>
        {
            Ok(*rows)
        }
        ([rows, columns], Dtype::U8)
            if *columns == inner && view.form.fits(inner) && view.data.len() == view.form.bytes(*rows, inner) =>
        {
            Ok(*rows)
        }
        _ => Err(shape(
            "matrix",
            format!("{} as f32, bf16 or packed [rows, {inner}]", view.name),
            format!("{:?} {:?} of {} bytes", view.dtype, view.shape, view.data.len()),
        )),
    }
}
