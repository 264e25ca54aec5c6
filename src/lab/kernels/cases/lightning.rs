use super::{Case, EPS, HEAD, Run, Sizes, bytes, cuts, norm, part, perform, poisoned, values};
use crate::backend::{Backend, BufKind, Pass, Result};
use crate::core::spec::LightningSpec;
use crate::engine::protocol::{Dtype, ImageTensor};

pub fn lightning_spec(s: Sizes) -> LightningSpec {
    LightningSpec {
        heads: s.lightning_heads,
        kv_heads: s.lightning_heads,
        head_dim: HEAD,
        scale: 1.0 / (HEAD as f32).sqrt(),
        rope_theta: Some(10_000.0),
        qk_norm: true,
        output_norm: true,
        output_gate: true,
    }
}

/// A lightning layer from a non-zero state: outputs of all rows, then the state after them. A verify pass follows one
/// of five rows with three accepted, so that it absorbs pending rows.
pub fn lightning<B: Backend + 'static>(b: &mut B, s: Sizes, case: Case) -> Result<Run<B>> {
    let spec = lightning_spec(s);
    let width = spec.projection_width();
    let (q_norm, k_norm) = (norm(b, case.seed + 1, HEAD)?, norm(b, case.seed + 2, HEAD)?);
    let (mut x, mut o) = (b.buf(width, BufKind::Activation)?, b.buf(spec.heads * HEAD, BufKind::Wide)?);
    let mut state = b.recurrent(&spec)?;
    let start = ImageTensor {
        name: "state".to_owned(),
        dtype: Dtype::F32,
        shape: vec![spec.heads, HEAD, HEAD],
        data: bytes(&values(case.seed + 3, spec.heads * HEAD * HEAD, 1.0)).into(),
    };
    let input = values(case.seed + 4, case.pass.rows() * width, 1.0);
    let early = values(case.seed + 5, 5 * width, 1.0);
    Ok(Box::new(move |b, mode| {
        b.seek(case.position)?;
        b.write_state(&mut state, Some(&start))?;
        let mut out = Vec::new();
        if let Pass::Verify { .. } = case.pass {
            let first = Pass::Verify { rows: 5 };
            b.write(&mut x, &early)?;
            b.set_tokens(&[0; 5])?;
            b.lightning(&mut o, &x, Some(&q_norm), Some(&k_norm), &mut [&mut state], &spec, EPS, first)?;
            b.advance(first, 3)?;
        }
        for (pass, rows) in cuts(b, &case) {
            b.write(&mut x, &part(&input, width, &rows))?;
            b.set_tokens(&vec![0; rows.len()])?;
            poisoned(b, &mut o, rows.len(), spec.heads * HEAD)?;
            perform(b, mode, pass, &mut |b| {
                b.lightning(&mut o, &x, Some(&q_norm), Some(&k_norm), &mut [&mut state], &spec, EPS, pass)
            })?;
            out.extend(b.read(&o, rows.len())?);
            b.advance(pass, rows.len())?;
        }
        b.fold(&mut state, &spec)?;
        b.folded();
        let after = b.read_state(&state)?;
        out.extend(after.data.chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])));
        Ok(out)
    }))
}
