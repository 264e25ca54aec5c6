//! The model's shape, read once from `config.json` and checked. Everything after load may rely on it.
//! Field meanings: spec/model.md §1.

/// Which mixer a layer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mixer {
    /// InfLLM-V2 block-sparse attention (`minicpm4`).
    Sparse,
    /// Lightning linear attention (`lightning-attn`).
    Lightning,
}

/// When a row attends densely (spec/model.md §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum DenseRule {
    /// Block selection at every length: the program's default, a row never depends on what follows.
    #[default]
    AsSparse,
    /// A row at position p is dense iff `p + 1 < dense_len`.
    Token,
    /// All rows of a call are dense iff the total length after the call is below `dense_len`; set per prompt.
    Call,
    /// Always dense.
    Always,
}

/// Which keys normalise stage-1 scores (spec/model.md §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ScoreNorm {
    /// Log-sum-exp over the coarse keys k2: the released behaviour.
    #[default]
    Coarse,
    /// Over the fine keys k1: the textbook form, for comparisons.
    Fine,
}

/// Shape of the sparse layers.
#[derive(Clone, Debug, PartialEq)]
pub struct SparseSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Output gate present.
    pub gate: bool,
    /// Tokens per block.
    pub block: usize,
    /// Window of a fine compressed key k1; k2's is four times this.
    pub kernel: usize,
    /// Stride of k1; k2's is four times this.
    pub stride: usize,
    /// Blocks at the start that are always chosen.
    pub init_blocks: usize,
    /// Blocks before the query's own that are always chosen.
    pub local_blocks: usize,
    /// Budget including forced blocks: `topk + local_blocks` of the config.
    pub topk: usize,
    /// Length from which the released code selects blocks.
    pub dense_len: usize,
    /// When rows are dense.
    pub dense_rule: DenseRule,
    /// How scores are normalised.
    pub score_norm: ScoreNorm,
}

/// Shape of the lightning layers.
#[derive(Clone, Debug, PartialEq)]
pub struct LightningSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Multiplies q before it reads the state.
    pub scale: f32,
    /// RoPE base, if rotated.
    pub rope_theta: Option<f64>,
    /// RMS norm on q and k, per head.
    pub qk_norm: bool,
    /// RMS norm over all lanes of the output.
    pub output_norm: bool,
    /// Sigmoid gate on the output.
    pub output_gate: bool,
}

/// The whole model's shape.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width of the MLP.
    pub intermediate: usize,
    /// One per layer.
    pub mixers: Vec<Mixer>,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Of every RMS norm.
    pub eps: f32,
    /// Sparse layers.
    pub sparse: SparseSpec,
    /// Lightning layers.
    pub lightning: LightningSpec,
    /// Multiplies embeddings.
    pub scale_emb: f32,
    /// Multiplies every branch before it is added: `scale_depth / sqrt(layers)`.
    pub residual_scale: f32,
    /// Divides the final hidden state: `hidden / dim_model_base`.
    pub logit_divisor: f32,
    /// The head is the embedding table.
    pub tie_embeddings: bool,
    /// Start of text.
    pub bos: Option<u32>,
    /// Any of these ends a turn.
    pub eos: Vec<u32>,
    /// Trained length; not a limit.
    pub max_position: usize,
}
