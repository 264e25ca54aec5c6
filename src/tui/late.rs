//! Pages and lists that come while somebody writes. What was asked for may take its time, and letters are typed meanwhile: a page
//! over the input would swallow them, and one of them would close it. So it waits beside what is written, as a question does, until
//! [`TAKE_UP`] is pressed; and one that is open gives way to a letter or a paste that it has no use for.

use super::App;
use super::keys::TAKE_UP;
use super::overlay::Overlay;

/// Opens what came, or lets it wait while somebody writes.
pub(super) fn arrive(app: &mut App, page: Overlay) {
    match writes_on(app) {
        true => app.set_aside = Some(page),
        false => {
            app.popup = None;
            app.overlay = Some(page);
        }
    }
}

/// Whether something is being written that was begun after what was asked for last.
fn writes_on(app: &App) -> bool {
    // The tour waits for its pages, and so does whoever is on it.
    if app.tour.is_some() {
        return false;
    }
    match &app.overlay {
        Some(open) => open.query().is_some_and(|query| !query.is_empty()),
        None => app.wrote && !app.composer.is_empty() || app.find.as_ref().is_some_and(super::Find::typing),
    }
}

/// The page of this kind, open or waiting, that goes on being written.
pub(super) fn find(app: &mut App, is_it: impl Fn(&Overlay) -> bool) -> Option<&mut Overlay> {
    [&mut app.overlay, &mut app.set_aside].into_iter().flatten().find(|page| is_it(page))
}

/// Opens what waits; false if nothing does.
pub(super) fn take_up(app: &mut App) -> bool {
    let Some(page) = app.set_aside.take() else { return false };
    app.popup = None;
    app.overlay = Some(page);
    true
}

/// The open page has no use for what is typed: it waits, and that is written. False if nothing is open, or it stays.
pub(super) fn give_way(app: &mut App) -> bool {
    if app.tour.is_some() || app.overlay.as_ref().is_some_and(|open| open.query().is_some()) {
        return false;
    }
    match app.overlay.take() {
        Some(page) => {
            app.set_aside = Some(page);
            true
        }
        None => false,
    }
}

/// Another session is shown: what was being written beside the one that was left does not come any more.
pub(super) fn session_left(app: &mut App) {
    if matches!(app.set_aside, Some(Overlay::Aside { done: None, .. } | Overlay::FanOut(_))) {
        app.set_aside = None;
    }
}

/// Says that something waits, and how it is shown.
pub(super) fn said(app: &App) -> Option<String> {
    let page = app.set_aside.as_ref().filter(|_| app.overlay.is_none())?;
    Some(format!("Ready: {}. {TAKE_UP} shows it", page.name()))
}
