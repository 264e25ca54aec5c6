//! Splits a rendered text into segments to read after a path, and converts the result of a job into a segment. Pure:
//! needs a tokenizer, but no engine or store. The runtime and the local server share it.

use super::{Path, Rendered, Renderer};
use crate::core::transcript::MessageId;
use crate::engine::protocol::{JobDone, Token};
use crate::store::{NewSegment, SegmentId, SegmentKind, TextBoundary};
use crate::text::tokenizer::SHIELD;
use crate::text::{Before, Halt, TextError};

#[derive(Clone, Debug)]
pub struct Step {
    pub prompt: Vec<Token>,
    /// Byte offset in the rendered text; equals the end of the path before it.
    pub text_start: usize,
    pub text_end: usize,
    pub kind: SegmentKind,
    /// The message that is complete at its end.
    pub message: Option<MessageId>,
}

pub fn boundary(rendered: &Rendered, end: usize) -> TextBoundary {
    TextBoundary::of(rendered.text.get(..end).unwrap_or(&rendered.text))
}

/// Cuts the text after a path into segments of about `piece` tokens; the last is answered, unless it ends a message.
///
/// # Errors
/// [`TextError::Encode`], [`TextError::Stopped`], [`TextError::TooLong`].
pub fn steps(
    renderer: &Renderer,
    piece: usize,
    rendered: &Rendered,
    path: &Path,
    halt: &Halt<'_>,
) -> Result<Vec<Step>, TextError> {
    let tokenizer = &renderer.model().tokenizer;
    let from = path.text_bytes();
    let mut steps = Vec::new();
    let mut at = from;
    let mut count = usize::try_from(path.position()).unwrap_or(usize::MAX);
    let mut before = tokenizer.before_next(path.last_tokens(), Before::Edge);
    let ends = rendered.cuts.iter().filter(|c| c.end > from).map(|c| (c.end, c.kind, Some(c.message)));
    let last = (rendered.text.len(), SegmentKind::Turn, None);
    for (end, kind, message) in ends.chain([last]) {
        let Some(slice) = rendered.text.get(at..end).filter(|s| !s.is_empty()) else {
            continue;
        };
        let room = Halt { most: halt.most.saturating_sub(count), ..*halt };
        let tokens = match path.position() {
            0 if at == 0 => tokenizer.encode_prompt_until(slice, &room),
            _ => tokenizer.encode_after_until(slice, before, &room),
        };
        let tokens = tokens.map_err(|e| match e {
            TextError::TooLong { .. } => TextError::TooLong { most: halt.most },
            e => e,
        })?;
        if tokens.is_empty() {
            // A tokenizer may drop characters, so a slice can have no tokens.
            continue;
        }
        count = count.saturating_add(tokens.len());
        // A long slice is cut into pieces, at character boundaries; a stop loses at most one piece.
        let ends = renderer.piece_ends(slice, &tokens, before, piece);
        let ends = ends.into_iter().map(|(tokens, bytes)| (tokens, at + bytes, SegmentKind::DocumentPart, None));
        let (mut start, mut text_start) = (0, at);
        for (piece_end, text_end, kind, message) in ends.chain([(tokens.len(), end, kind, message)]) {
            let prompt = tokens.get(start..piece_end).unwrap_or(&[]).to_vec();
            steps.push(Step { prompt, text_start, text_end, kind, message });
            (start, text_start) = (piece_end, text_end);
        }
        before = tokenizer.before_next(&tokens, before);
        at = end;
    }
    Ok(steps)
}

/// The text of the document that a path ends with, decoded from its tokens; `prefix` is the segment before it.
pub fn document_text(renderer: &Renderer, path: &Path, prefix: Option<SegmentId>, name: &str) -> Option<String> {
    let before = path.segments().iter().find(|s| Some(s.id) == prefix);
    let from = before.map_or(0, |s| usize::try_from(s.content.boundary.bytes).unwrap_or(usize::MAX));
    let text = renderer.model().tokenizer.spell(&path.tokens(), Before::Edge);
    let name = super::render::safe_name(name);
    let opening = format!("<document name=\"{}\">\n", renderer.safe(&name));
    let rest = text.get(from..)?;
    let start = rest.find(&opening)? + opening.len();
    let end = rest.rfind("\n</document>")?;
    let body = rest.get(start..end)?;
    Some(body.chars().filter(|c| *c != SHIELD).collect())
}

pub fn content(
    fingerprint: &str,
    path: &Path,
    prompt: &[Token],
    completion: &[Token],
    boundary: TextBoundary,
    kind: SegmentKind,
) -> NewSegment {
    NewSegment {
        fingerprint: fingerprint.to_owned(),
        parent: path.head(),
        start: path.position(),
        prompt: prompt.to_vec(),
        completion: completion.to_vec(),
        boundary,
        kind,
    }
}

/// The tokens that a job reports as part of the state.
fn in_state<'a>(tokens: &'a [Token], reported: u64, what: &str) -> Result<&'a [Token], String> {
    let part = usize::try_from(reported).ok().and_then(|n| tokens.get(..n));
    let have = tokens.len();
    part.ok_or_else(|| format!("internal error: the engine reports {reported} {what} tokens, there are {have}"))
}

/// Appends the result of a job to the live path: its end, and all tokens it reported. Returns the segment and whether
/// the whole step was read; `None` if the job did nothing.
///
/// # Errors
/// The job reports more tokens than exist, or the step does not begin at the end of the path. The state is then
/// unknown.
pub fn absorb(
    renderer: &Renderer,
    fingerprint: &str,
    live: &mut Path,
    rendered: &Rendered,
    step: &Step,
    (done, generated): (&JobDone, &[Token]),
) -> Result<Option<(NewSegment, bool)>, String> {
    let prompt = in_state(&step.prompt, done.prompt_in_state, "read")?;
    let completion = in_state(generated, done.generated_in_state, "generated")?;
    if prompt.is_empty() && completion.is_empty() {
        return Ok(None);
    }
    let (at, begins) = (live.text_bytes(), step.text_start);
    if at != begins {
        return Err(format!("internal error: what was read begins at byte {begins} of the text, its state at {at}"));
    }
    let complete = prompt.len() == step.prompt.len();
    let tokenizer = &renderer.model().tokenizer;
    let before = tokenizer.before_next(live.last_tokens(), Before::Edge);
    let boundary = if !complete {
        renderer.boundary_after(rendered, live.text_bytes(), prompt, before)
    } else if completion.is_empty() {
        boundary(rendered, step.text_end)
    } else {
        renderer.boundary_with(rendered, step.text_end, completion, tokenizer.before_next(prompt, before))
    };
    let kind = if complete { step.kind } else { SegmentKind::DocumentPart };
    let content = content(fingerprint, live, prompt, completion, boundary, kind);
    live.push(content.clone());
    Ok(Some((content, complete)))
}

#[cfg(test)]
mod tests {
    use super::super::render::Cut;
    use super::*;
    use crate::engine::protocol::Ended;
    use crate::model::{DEMO_TOKENIZER, DEMO_TOKENIZER_CONFIG};
    use crate::text::TextModel;

    #[test]
    fn a_step_is_taken_in_only_where_the_text_before_it_ends() {
        let text =
            TextModel::from_bytes(DEMO_TOKENIZER.as_bytes(), DEMO_TOKENIZER_CONFIG.as_bytes(), None, None).unwrap();
        let renderer = Renderer::new(text);
        let cut = Cut { end: 7, message: MessageId(1), kind: SegmentKind::DocumentEnd };
        let rendered = Rendered { text: "one two three".into(), cuts: vec![cut] };
        let empty = Path::default();
        let steps = steps(&renderer, 1_024, &rendered, &empty, &Halt::NEVER).unwrap();
        let places: Vec<(usize, usize)> = steps.iter().map(|s| (s.text_start, s.text_end)).collect();
        assert_eq!(places, [(0, 7), (7, 13)]);
        let take = |live: &mut Path, step: &Step| {
            let done = JobDone { ended: Ended::Read, prompt_in_state: step.prompt.len() as u64, ..JobDone::default() };
            absorb(&renderer, "f", live, &rendered, step, (&done, &[]))
        };
        // The state was lost between the two jobs.
        let mut live = Path::default();
        let why = take(&mut live, &steps[1]).unwrap_err();
        assert!(why.starts_with("internal error: ") && why.contains("byte 7") && why.ends_with("state at 0"), "{why}");
        assert_eq!(live, empty);
        for step in &steps {
            assert!(take(&mut live, step).unwrap().is_some());
        }
        assert_eq!(live.text_bytes(), 13);
    }
}
