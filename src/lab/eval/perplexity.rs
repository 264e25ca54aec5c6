use super::super::engine_client::failed;
use super::Subject;
use super::numbers::log_prob;
use crate::backend::Backend;
use crate::cli::{Exit, Failure};
use crate::engine::protocol::Token;

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Perplexity {
    pub tokens: usize,
    pub window: usize,
    pub stride: usize,
    /// Mean negative log-probability, nats a token.
    pub loss: f64,
    pub perplexity: f64,
}

pub fn check(window: usize, stride: usize) -> Result<(), Failure> {
    if (1..window).contains(&stride) {
        return Ok(());
    }
    let most = window.saturating_sub(1);
    Err(Failure::usage(format!("--stride must be 1 to {most} with a window of {window} tokens (got {stride})")))
}

/// Scores `tokens` in windows, each from an empty state. A window counts only the tokens after the end of the window
/// before it, so every token counts once and, after the first window, has at least `window - stride` tokens before it.
pub fn measure<B: Backend>(
    subject: &mut Subject<B>,
    tokens: &[Token],
    window: usize,
    stride: usize,
) -> Result<Perplexity, Failure> {
    let limit = subject.live.limit();
    if window < 2 || window > limit {
        return Err(Failure::new(Exit::Usage, format!("--window must be 2 to {limit} here (got {window})")));
    }
    check(window, stride)?;
    if tokens.len() < 2 {
        return Err(Failure::new(Exit::Usage, "--text: a text of one token or none predicts nothing"));
    }
    let (mut sum, mut counted, mut start) = (0.0, 1, 0);
    while counted < tokens.len() {
        let end = tokens.len().min(start + window);
        let part = tokens.get(start..end).unwrap_or_default();
        // The row before a token predicts it.
        let rows: Vec<usize> = (counted - start - 1..part.len() - 1).collect();
        subject.read_as_released(part, &rows, &mut |row, logits| {
            sum -= part.get(row + 1).map_or(f64::NAN, |t| log_prob(logits, *t));
        })?;
        (counted, start) = (end, start + stride);
    }
    if !f64::is_finite(sum) {
        return Err(failed("the model gave no probability to the text: its logits are not numbers"));
    }
    let count = tokens.len() - 1;
    let loss = sum / count as f64;
    Ok(Perplexity { tokens: count, window, stride, loss, perplexity: loss.exp() })
}
