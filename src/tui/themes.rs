//! Taking a theme for the screen or for code.

use super::acts::failed;
use super::palette::Palette;
use super::{App, Effect};
use crate::runtime::protocol::Display;

pub(super) fn display(app: &mut App, display: &Display) {
    app.config.set_display(display);
    for (key, value) in display {
        match *key {
            "ui.theme" if *value != app.config.theme.name => app.effects.push(Effect::Theme(value.clone())),
            "ui.code_theme" if *value != app.config.ui.code_theme => app.effects.push(Effect::CodeTheme(value.clone())),
            _ => {}
        }
    }
    app.effects.push(Effect::Repaint);
}

pub(super) fn read(app: &mut App, read: Result<Palette, String>) {
    match read {
        Ok(palette) => (app.config.theme, app.attempt) = (palette, None),
        Err(why) => failed(app, &why),
    }
}

pub(super) fn code(app: &mut App, read: Result<String, String>) {
    match read {
        Ok(name) => {
            (app.config.ui.code_theme, app.attempt) = (name, None);
            app.open.all().for_each(|session| session.transcript.forget_colours());
        }
        Err(why) => failed(app, &why),
    }
}
