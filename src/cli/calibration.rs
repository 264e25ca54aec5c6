//! Text for `model quantize --calibrate`: the user's documents or our own, put to the model the way a chat does.

use std::path::Path;

use super::args::TuningArgs;
use super::devices::{self, Opened};
use super::{Context, Exit, Failure, open};
use crate::backend::Backend;
use crate::core::grouped;
use crate::engine::protocol::{Cancel, Precision, Token};
use crate::model::Checkpoint;
use crate::model::calibrate::{Statistics, collect};
use crate::runtime::render::safe_name;
use crate::text::sources::Document;

/// Documents of several kinds, written for this; made by `assets/calibration/make.py`.
const OWN: &str = include_str!("../../assets/calibration/text.txt");
const QUESTION: &str = "Summarize this text.";
const PIECE_BYTES: usize = 8 << 10;
/// Of longer texts, pieces from all over them are read.
const MOST_PIECES: usize = 16;
const REPORT_EVERY: usize = 8_192;
const FEWEST_TOKENS: usize = 1_024;

pub(super) fn texts(context: &Context, model: &str, docs: Option<&Path>) -> Result<Vec<Vec<Token>>, Failure> {
    let documents = match docs {
        None => vec![Document::inline("notes.txt", OWN)?],
        Some(docs) => open::documents(context, docs)?,
    };
    let (text, _) = open::text(model)?;
    let pieces: Vec<(String, &str)> =
        documents.iter().flat_map(|d| pieces(&d.text).into_iter().map(|piece| (safe_name(&d.name), piece))).collect();
    let mut all = Vec::new();
    for i in 0..pieces.len().min(MOST_PIECES) {
        let Some((name, piece)) = pieces.get(i * pieces.len() / pieces.len().min(MOST_PIECES)) else { continue };
        let prompt = text.question_about(name, &text.tokenizer.shield(piece), QUESTION)?;
        all.push(text.tokenizer.encode_prompt(&prompt)?);
    }
    let tokens: usize = all.iter().map(Vec::len).sum();
    if tokens < FEWEST_TOKENS {
        let what = docs.map_or("the text".to_owned(), |docs| docs.display().to_string());
        let text = format!(
            "{what} is too short for calibration: {} tokens, at least {} are needed",
            grouped(tokens as u64),
            grouped(FEWEST_TOKENS as u64)
        );
        return Err(Failure::new(Exit::Usage, text).hint("Name a folder with more text, or take ours: --calibrate"));
    }
    Ok(all)
}

/// Statistics of the matrices' inputs over these texts: kept by an earlier run into `output`, or collected now.
pub(super) fn statistics(
    context: &Context,
    model: &str,
    texts: &[Vec<Token>],
    id: &str,
    output: &Path,
    stop: &Cancel,
) -> Result<Statistics, Failure> {
    let mut checkpoint = open::checkpoint(context, model)?;
    // Statistics under one `id` must not depend on how this machine prefills.
    checkpoint.set_prefill(Precision::Bf16);
    if let Some(kept) = Statistics::kept(output, id, checkpoint.spec()) {
        context.note("Using the statistics of an earlier run");
        return Ok(kept);
    }
    let read = match devices::open(&context.config().model, &TuningArgs::default(), false)? {
        Opened::Cpu(cpu, _) => read(context, *cpu, &checkpoint, texts, stop)?,
        #[cfg(feature = "cuda")]
        Opened::Cuda(cuda) => read(context, *cuda, &checkpoint, texts, stop)?,
    };
    read.save(output, id)?;
    Ok(read)
}

fn read<B: Backend>(
    context: &Context,
    mut b: B,
    checkpoint: &Checkpoint,
    texts: &[Vec<Token>],
    stop: &Cancel,
) -> Result<Statistics, Failure> {
    let all: usize = texts.iter().map(Vec::len).sum();
    let mut reported = 0;
    let mut progress = |tokens: usize| {
        if tokens >= reported + REPORT_EVERY || tokens == all {
            reported = tokens;
            context.note(&format!("calibrating: {} of {} tokens", grouped(tokens as u64), grouped(all as u64)));
        }
    };
    collect(&mut b, checkpoint, texts, stop, &mut progress)?.ok_or_else(|| {
        Failure::new(Exit::Stopped, "stopped while calibrating; nothing is packed yet")
            .hint("The same command begins again")
    })
}

/// Cuts a text into pieces, at line ends where possible.
fn pieces(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while rest.len() > PIECE_BYTES {
        let (most, least) = (rest.floor_char_boundary(PIECE_BYTES), rest.floor_char_boundary(PIECE_BYTES / 2));
        let at = rest.get(least..most).and_then(|end| end.rfind('\n')).map_or(most, |at| least + at + 1);
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces.retain(|piece| !piece.trim().is_empty());
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_after_lines_and_nothing_is_lost() {
        for text in [OWN.to_owned(), "word ".repeat(9_000), "灯塔".repeat(5_000), "short".to_owned()] {
            let pieces = pieces(&text);
            assert_eq!(pieces.concat(), text);
            assert!(pieces.iter().all(|piece| piece.len() <= PIECE_BYTES && !piece.is_empty()));
        }
        assert!(pieces(OWN).iter().rev().skip(1).all(|piece| piece.ends_with('\n')));
        assert!((12..=MOST_PIECES).contains(&pieces(OWN).len()), "our own text is read whole");
        assert_eq!(pieces(" \n "), Vec::<&str>::new());
    }
}
