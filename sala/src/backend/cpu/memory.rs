//! Weights, activations and states in the machine's memory.

use super::matrix::{self, Matrix};
use super::selection::empty_sums;
use super::{Buf, Cache, Cpu, PREFILL_ROWS, Recurrent, Selection, Sums};
use crate::backend::sections::{self, Section};
use crate::backend::{BufKind, Form, MAX_VERIFY_ROWS, Memory, Result, Wanted, WeightView, host};
use crate::core::counted;
use crate::core::spec::{LightningSpec, SparseSpec};
use crate::engine::protocol::{Dtype, MemoryInfo};

impl Memory for Cpu {
    type Buf = Buf;
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Cache = Cache;
    type Recurrent = Recurrent;
    type Selection = Selection;
    type Sums = Sums;

    fn kind(&self) -> &'static str {
        "cpu"
    }

    fn describe(&self) -> String {
        format!("CPU, {}", counted(rayon::current_num_threads() as u64, "thread"))
    }

    fn cache_dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn prefill_rows(&self) -> usize {
        PREFILL_ROWS
    }

    fn matrices(&mut self, wanted: &[Wanted<'_>]) -> Result<Vec<Matrix>> {
        let one = |wanted: &Wanted<'_>| {
            let matrix = Matrix::stack(match wanted {
                Wanted::Stack(parts) => parts,
                Wanted::GateUp(pair) => pair,
            })?;
            self.count_weight(matrix.bytes());
            Ok(matrix)
        };
        wanted.iter().map(one).collect()
    }

    fn read_in(&mut self, matrix: &mut Matrix, sections: &[Section]) -> Result<()> {
        sections::check(sections, matrix.out)?;
        matrix.sections = sections.to_vec();
        Ok(())
    }

    fn vector(&mut self, view: WeightView<'_>) -> Result<Vec<f32>> {
        let values = matrix::floats(&view)?;
        self.count_weight(values.len() * 4);
        Ok(values)
    }

    fn random_matrix(&mut self, parts: &[(usize, Form)], inner: usize, std: f32, seed: u64) -> Result<Matrix> {
        let matrix = Matrix::synthetic(parts, inner, std, seed)?;
        self.count_weight(matrix.bytes());
        Ok(matrix)
    }

    fn random_gate_up(&mut self, out: usize, inner: usize, std: f32, seed: u64, form: Form) -> Result<Matrix> {
        self.random_matrix(&[(2 * out, form)], inner, std, seed)
    }

    fn parts(&self, matrix: &Matrix) -> Vec<(usize, Form, usize)> {
        matrix.parts()
    }

    fn ones(&mut self, n: usize) -> Result<Vec<f32>> {
        Ok(vec![1.0; n])
    }

    fn buf(&mut self, width: usize, kind: BufKind) -> Result<Buf> {
        let rows = match kind {
            BufKind::Residual | BufKind::Activation | BufKind::Wide => PREFILL_ROWS,
            BufKind::Logits => MAX_VERIFY_ROWS,
        };
        self.memory.work += (rows * width * 4) as u64;
        Ok(Buf { width, data: vec![0.0; rows * width] })
    }

    fn caches(&mut self, spec: &SparseSpec, _limit: usize, layers: usize) -> Result<Vec<Cache>> {
        Ok((0..layers).map(|_| Cache::new(spec, &self.state)).collect())
    }

    fn recurrent(&mut self, spec: &LightningSpec) -> Result<Recurrent> {
        Ok(Recurrent::new(spec, &self.state))
    }

    fn selection(&mut self, spec: &SparseSpec, limit: usize) -> Result<Selection> {
        Ok(Selection::new(spec, PREFILL_ROWS, limit))
    }

    fn sums(&mut self, sel: &Selection) -> Result<Sums> {
        Ok(empty_sums(sel.ld))
    }

    fn reserve(&mut self, cache: &mut Cache, limit: usize) -> Result<()> {
        cache.reserve(limit);
        Ok(())
    }

    fn wants_anew(&self, cache: &Cache, _keep: usize, limit: usize) -> u64 {
        cache.wants(limit) as u64
    }

    fn room(&self) -> Result<Option<u64>> {
        let most = self.most_state.get_or_init(|| {
            let available = host::free_bytes()?;
            Some(self.state.bytes() + available - SPARE_BYTES.min(available / 4))
        });
        Ok(most.map(|most| most.saturating_sub(self.state.bytes())))
    }

    #[cfg(any(test, feature = "emulated"))]
    fn page_out(
        &mut self,
        _spec: &crate::core::spec::ModelSpec,
        limit: usize,
        _sequences: &mut [Vec<&mut Cache>],
    ) -> Result<Option<String>> {
        if !std::mem::take(&mut self.can_page_out) {
            return Ok(None);
        }
        self.most_state = std::sync::OnceLock::new();
        Ok(Some(format!("{limit} tokens")))
    }

    fn memory(&self) -> MemoryInfo {
        let (used, total) = (host::own_bytes().unwrap_or(0), host::total_bytes().unwrap_or(0));
        MemoryInfo { state: self.state.bytes(), used, total, ..self.memory }
    }
}

/// Reserve when caches grow; a quarter of the free memory if that is less.
const SPARE_BYTES: u64 = 512 << 20;
