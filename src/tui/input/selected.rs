//! Keys of a selected message.

use super::super::acts::{refuse, send, why_not_now};
use super::super::keys::{Action, Code, Key};
use super::super::perform::copy_text;
use super::super::{App, Effect};
use crate::config::commands::{CopyWhat, WhileBusy};
use crate::runtime::protocol::Request;

/// Actions on the transcript; ignored while it is hidden.
pub(super) fn is_about_the_transcript(action: Action) -> bool {
    matches!(
        action,
        Action::PageUp
            | Action::PageDown
            | Action::Top
            | Action::Follow
            | Action::PrevMessage
            | Action::NextMessage
            | Action::Find
            | Action::Thinking
    )
}

pub(super) fn selected_key(app: &mut App, key: Key, effects: &mut Vec<Effect>) -> bool {
    let Some((number, message)) = app.transcript.selected_message() else {
        return false;
    };
    let document = message.meta.document.as_ref().map(|d| d.name.clone());
    if key.ctrl || key.alt {
        return false;
    }
    let key = if app.config.ui.vim_keys { key.as_arrow() } else { key };
    let by = match key.code {
        Code::Up => -1,
        Code::Down => 1,
        Code::Home if app.config.ui.vim_keys => isize::MIN / 2,
        Code::End if app.config.ui.vim_keys => isize::MAX / 2,
        _ => 0,
    };
    if by != 0 {
        app.transcript.select(by);
        return true;
    }
    let request = match key.code {
        Code::Char('y') => {
            match copy_text(app, CopyWhat::Message(number)) {
                Ok(text) => effects.push(Effect::Copy(text)),
                Err(why) => refuse(app, why),
            }
            return true;
        }
        Code::Char(c @ ('i' | '1'..='9')) => {
            let passage = c.to_digit(10).map(u64::from);
            send(app, Request::Look { at: Some(number), passage }, effects);
            return true;
        }
        Code::Char('e') => Request::EditOpen(Some(number)),
        Code::Char('r') => Request::Regen { at: Some(number), count: 1, temperature: None, seed: None },
        Code::Char('f') => Request::Fork { at: Some(number), name: None },
        Code::Enter => match document {
            Some(name) => Request::Open(name),
            None => {
                app.transcript.open_selected();
                return true;
            }
        },
        _ => return false,
    };
    if request.while_busy() == WhileBusy::Waits
        && let Some(why) = why_not_now(app)
    {
        refuse(app, why);
        return true;
    }
    app.transcript.deselect();
    send(app, request, effects);
    true
}
