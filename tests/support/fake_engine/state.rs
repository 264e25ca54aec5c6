//! The state of the scripted engine: tokens, and a hash over the path that led to them.

use std::sync::Arc;

use sala_chat::engine::protocol::{
    CheckpointImage, Dtype, EngineFault, ImageTensor, RowSource, RowsImage, StateImage, Token,
};

#[derive(Clone)]
pub(super) struct State {
    pub(super) tokens: Vec<Token>,
    pub(super) hash: blake3::Hash,
    pub(super) live: bool,
    pub(super) coming: Vec<Arc<dyn RowSource>>,
}

impl State {
    pub(super) fn empty() -> State {
        State { tokens: Vec::new(), hash: blake3::hash(b""), live: true, coming: Vec::new() }
    }
    pub(super) fn mix(&mut self, kind: u8, token: Token) {
        let mut h = blake3::Hasher::new();
        h.update(self.hash.as_bytes()).update(&[kind]).update(&token.to_le_bytes());
        self.hash = h.finalize();
    }
    pub(super) fn absorb(&mut self, kind: u8, token: Token) {
        self.mix(kind, token);
        self.tokens.push(token);
    }
    pub(super) fn image(&self, from: usize) -> StateImage {
        let tokens = &self.tokens[from..];
        let bytes = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let tensor = |name: &str, dtype, shape, data: Vec<u8>| ImageTensor {
            name: name.into(),
            dtype,
            shape,
            data: data.into(),
        };
        StateImage {
            rows: RowsImage {
                start: from as u64,
                rows: tokens.len() as u64,
                tensors: vec![tensor("k.0", Dtype::U32, vec![tokens.len(), 1, 1], bytes)],
                segment: None,
            },
            end: Some(CheckpointImage {
                position: self.tokens.len() as u64,
                tensors: vec![tensor("state.0", Dtype::U8, vec![1, 32, 1], self.hash.as_bytes().to_vec())],
            }),
        }
    }
}

pub(super) fn restore(
    state: &mut State,
    keep: u64,
    rows: &[Arc<dyn RowSource>],
    end: Option<&CheckpointImage>,
    history: &[Token],
    late: bool,
) -> Result<(), EngineFault> {
    let wrong = |what: String| Err(EngineFault::Device(what));
    if keep as usize > state.tokens.len() {
        return wrong(format!("keep {keep} of {} rows", state.tokens.len()));
    }
    let mut tokens = state.tokens[..keep as usize].to_vec();
    for r in rows {
        if r.start() != tokens.len() as u64 {
            return wrong(format!("rows start at {} instead of {}", r.start(), tokens.len()));
        }
        if late {
            tokens.extend(&history[tokens.len()..][..r.rows() as usize]);
            continue;
        }
        let data = r.load("k.0").map_err(EngineFault::RowsLost)?.data;
        tokens.extend(data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    }
    if tokens != history {
        return wrong("the rows are not those of the history".into());
    }
    match end {
        None if tokens.is_empty() => *state = State::empty(),
        None => return wrong("rows without an end state".into()),
        Some(e) => {
            if e.position != tokens.len() as u64 {
                return wrong(format!("end state at {}, rows end at {}", e.position, tokens.len()));
            }
            let bytes: [u8; 32] = e.tensors[0].data[..].try_into().unwrap();
            *state =
                State { tokens, hash: bytes.into(), live: true, coming: if late { rows.to_vec() } else { Vec::new() } };
        }
    }
    Ok(())
}
