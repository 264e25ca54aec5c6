//! Pages and lists that arrive while the user types. They wait for [`TAKE_UP`], because a page over the input would
//! swallow letters. An open page closes when the user types a letter that it does not use.

use super::App;
use super::acts::hint;
use super::keys::TAKE_UP;
use super::overlay::Overlay;

/// After this many milliseconds the keys take the place of the hint, among them the one that opens the page.
const SEEN_MS: u64 = 8_000;

pub(super) fn arrive(app: &mut App, page: Overlay, now: u64) {
    match writes_on(app) {
        true => set_aside(app, page, now),
        false => {
            app.popup = None;
            app.overlay = Some(page);
        }
    }
}

fn set_aside(app: &mut App, page: Overlay, now: u64) {
    hint(app, format!("Ready: {}. {TAKE_UP} shows it", page.name()), now + SEEN_MS);
    (app.set_aside, app.sent_since_set_aside) = (Some(page), false);
}

/// Whether the user typed after the last request.
fn writes_on(app: &App) -> bool {
    // The tour needs its pages at once.
    if app.tour.is_some() {
        return false;
    }
    match &app.overlay {
        Some(open) => open.query().is_some_and(|query| !query.is_empty()),
        None => app.wrote && !app.open.composer.is_empty() || app.open.find.as_ref().is_some_and(super::Find::typing),
    }
}

pub(super) fn find(app: &mut App, is_it: impl Fn(&Overlay) -> bool) -> Option<&mut Overlay> {
    [&mut app.overlay, &mut app.set_aside].into_iter().flatten().find(|page| is_it(page))
}

pub(super) fn take_up(app: &mut App) -> bool {
    let Some(page) = app.set_aside.take() else { return false };
    (app.popup, app.hint) = (None, None);
    app.overlay = Some(page);
    true
}

pub(super) fn give_way(app: &mut App, now: u64) -> bool {
    if app.tour.is_some() || app.overlay.as_ref().is_some_and(|open| open.query().is_some()) {
        return false;
    }
    match app.overlay.take() {
        Some(page) => {
            set_aside(app, page, now);
            true
        }
        None => false,
    }
}

/// A page that still waits when the second line is sent is forgotten.
pub(super) fn line_sent(app: &mut App) {
    if app.set_aside.is_some() && std::mem::replace(&mut app.sent_since_set_aside, true) {
        app.set_aside = None;
    }
}

pub(super) fn session_left(app: &mut App) {
    if app.set_aside.as_ref().is_some_and(Overlay::belongs_to_session) {
        app.set_aside = None;
    }
}
