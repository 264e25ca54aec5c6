//! Keys while answers are written side by side: what moves the text moves them, all else is for the input as ever.

use super::super::App;
use super::super::keys::{Action, Code, Key};

/// A key for the answers; false if it is not for them.
pub(super) fn several_key(app: &mut App, key: Key) -> bool {
    let idle = !app.has_work();
    let Some(several) = &mut app.several else { return false };
    let action = app.config.keys.action(key);
    match (action, key.code) {
        // They went on in nothing: it failed, as a line below them says.
        (Some(Action::Escape), _) if idle && several.done() => app.several = None,
        (Some(Action::PageUp), _) => several.turn(-1),
        (Some(Action::PageDown), _) => several.turn(1),
        (Some(Action::Top), _) => several.turn(isize::MIN),
        (Some(Action::Follow), _) => several.turn(isize::MAX),
        // In what is written they move the caret.
        (_, Code::Up) if app.composer.is_empty() => several.scroll(-1),
        (_, Code::Down) if app.composer.is_empty() => several.scroll(1),
        // About the transcript, which nobody sees now.
        (Some(Action::PrevMessage | Action::NextMessage | Action::Find | Action::Thinking), _) => {}
        _ => return false,
    }
    true
}
