//! Conversations with a damaged message. The interface shows the damage; the model never receives a replacement. The
//! original text is decoded from the tokens of kept segments if their hash proves it; otherwise the request is
//! refused.

use super::plan::SMALL_REST;
use super::render::Known;
use super::{Attendance, Done, Form, Rendered, Renderer, RuntimeError, State};
use crate::core::sanitize::shell_word;
use crate::core::transcript::{Message, MessageId, Role};
use crate::runtime::protocol::ThinkMode;
use crate::store::TextBoundary;
use crate::text::{Before, Specials, TextError};

impl Renderer {
    /// A rendering in which kept segments prove the text up to a message after the last damaged one.
    pub(super) fn without_damage(
        &self,
        rendered: Rendered,
        path: &[&Message],
        known: &Known<'_>,
    ) -> Result<Rendered, TextError> {
        let Some(last) = path.iter().rposition(|m| m.meta.damaged) else { return Ok(rendered) };
        let items = self.items(&rendered, path);
        let span = |index: usize| items.iter().find(|i| i.number == index as u64 + 1).map(|i| i.range.clone());
        let mended = |(index, message): (usize, &&Message)| {
            let from = span(last)?.end;
            let cut = rendered.cuts.iter().find(|c| c.message == message.id)?.end;
            // The state may lack the end of an answer, which the answer itself has. It must contain a damaged document
            // completely.
            let least = if index == last { cut } else { span(index)?.start.max(cut.saturating_sub(SMALL_REST)) };
            let text = known(message.id)?;
            let ends_there =
                |to: &usize| rendered.text.get(from..*to).is_some_and(|s| !s.is_empty() && text.ends_with(s));
            let to = (least..=cut).rev().find(ends_there)?;
            Some((text, to))
        };
        let after = path.iter().enumerate().skip(last).rev();
        let Some((mut text, to)) = { after }.find_map(mended) else {
            return Err(TextError::Damaged { number: path.iter().position(|m| m.meta.damaged).unwrap_or(last) + 1 });
        };
        let proven = text.len();
        text.push_str(rendered.text.get(to..).unwrap_or_default());
        let mut cuts = rendered.cuts;
        cuts.retain_mut(|cut| match cut.end.checked_sub(to) {
            Some(beyond) => {
                cut.end = proven + beyond;
                true
            }
            // Before the damage both texts are equal.
            None => text.get(..cut.end).is_some_and(|s| rendered.text.get(..cut.end) == Some(s)),
        });
        Ok(Rendered { text, cuts })
    }
}

impl State {
    /// As the session thinks.
    pub(super) fn rendered(&self, path: &[&Message], form: Form<'_>) -> Done<Rendered> {
        self.rendering(path, form, self.here.session.settings.think)
    }

    pub(super) fn rendering(&self, path: &[&Message], form: Form<'_>, think: ThinkMode) -> Done<Rendered> {
        let known = |message| self.text_up_to(message);
        match self.bounded(|halt| self.engine.renderer.render(path, form, think, halt, &known)) {
            Err(TextError::Damaged { number }) => Err(RuntimeError::Damaged(self.what_is_damaged(path, number))),
            rendered => Ok(rendered?),
        }
    }

    /// The rendered text up to the end of a message, if its segments' tokens reproduce the text that was read.
    fn text_up_to(&self, message: MessageId) -> Option<String> {
        let segment = self.here.session.ends.get(&message)?;
        let stored = self.disk.stored_path(segment).ok()?;
        let path = if stored.head() == Some(*segment) { stored } else { self.here.slot.live.up_to(segment)? };
        let boundary = path.segments().last().map(|s| s.content.boundary)?;
        let tokenizer = self.engine.tokenizer();
        let spelled = tokenizer.spell(&path.tokens(), Before::Edge);
        // A start token that the template did not write has no text.
        let start = tokenizer.bos().map(|bos| tokenizer.decode(&[bos], Specials::Show));
        let bare = start.and_then(|start| spelled.strip_prefix(start.as_str()));
        let proven = |text: &&str| TextBoundary::of(text) == boundary;
        [Some(spelled.as_str()), bare].into_iter().flatten().find(proven).map(str::to_owned)
    }

    fn what_is_damaged(&self, path: &[&Message], number: usize) -> String {
        let damaged = path.get(number.saturating_sub(1));
        let what = format!(
            "Message #{number} is damaged and its state is not kept: the conversation cannot continue after it."
        );
        if self.attendance == Attendance::Absent {
            return format!(
                "{what} Open the session (sala-chat -r {}) and /undo to before it, or start a new one.",
                shell_word(&self.here.session.name)
            );
        }
        let open = self.here.session.tree.path();
        let place = damaged.and_then(|d| open.iter().position(|m| m.id == d.id));
        match (damaged.map(|d| d.role), place) {
            (Some(Role::System), _) => format!("{what} /system TEXT sets the system text again."),
            (Some(role), Some(at)) => {
                let own = usize::from(role == Role::Assistant);
                let count = open.iter().skip(at).filter(|m| m.begins_exchange()).count() + own;
                format!("{what} /undo {count} goes back to before it.")
            }
            (Some(_) | None, _) => format!("{what} /undo goes back to before it."),
        }
    }
}
