//! Places of a load's documents in a plan: tokens, ends, and which of them are in kept state.

use super::super::Done;
use super::super::plan::Plan;
use super::super::render::Rendered;
use super::Item;
use crate::core::transcript::{Message, MessageId};
use crate::text::TextError;

pub(super) fn items(messages: &[Message], rendered: &Rendered, plan: &Plan) -> Done<Vec<Item>> {
    let mut ends: Vec<(MessageId, u64, bool)> = Vec::new();
    for (message, segment) in &plan.found {
        let end = plan.base.segments().iter().find(|s| s.id == *segment).map(|s| s.end_position());
        ends.extend(end.map(|e| (*message, e, true)));
    }
    let mut position = plan.base.position();
    for step in &plan.steps {
        position += step.prompt.len() as u64;
        ends.extend(step.message.map(|m| (m, position, false)));
    }
    let first = messages.first().map(|m| m.id);
    let start_of_first = ends.iter().take_while(|(m, ..)| Some(*m) != first).last().map_or(0, |(_, end, _)| *end);
    let mut start = start_of_first;
    let mut items = Vec::with_capacity(messages.len());
    for m in messages {
        let Some((_, end, kept)) = ends.iter().find(|(id, ..)| *id == m.id) else {
            let shown = rendered.cuts.len();
            return Err(
                TextError::Template(format!("it shows {shown} ends of turns, and not that of a document")).into()
            );
        };
        let name = m.meta.document.as_ref().map_or(String::new(), |d| d.name.clone());
        items.push(Item { name, tokens: end - start, end: *end, kept: *kept });
        start = *end;
    }
    Ok(items)
}
