//! Keys of parallel answers: scrolling keys move them, all others reach the input.

use super::super::App;
use super::super::keys::{Action, Code, Key};

pub(super) fn several_key(app: &mut App, key: Key) -> bool {
    let idle = !app.has_work();
    let Some(several) = &mut app.several else { return false };
    let action = app.config.keys.action(key);
    match (action, key.code) {
        (Some(Action::Escape), _) if idle && several.done() => app.several = None,
        (Some(Action::PageUp), _) => several.turn(-1),
        (Some(Action::PageDown), _) => several.turn(1),
        (Some(Action::Top), _) => several.turn(isize::MIN),
        (Some(Action::Follow), _) => several.turn(isize::MAX),
        (_, Code::Up) if app.composer.is_empty() => several.scroll(-1),
        (_, Code::Down) if app.composer.is_empty() => several.scroll(1),
        (Some(Action::PrevMessage | Action::NextMessage | Action::Find | Action::Thinking), _) => {}
        _ => return false,
    }
    true
}
