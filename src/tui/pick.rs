//! The files of a load plan: the selected ones and their total.

use ratatui::layout::Rect;

use super::acts::{HINT_MS, hint, send};
use super::cells::{fit, width};
use super::entry::grouped;
use super::keys::{Code, Key};
use super::lists::first_row;
use super::paint::Painter;
use super::rows::{Role, Row, Span};
use super::status::duration;
use super::{App, Asker};
use crate::runtime::protocol::{LoadPlan, PlanFile, Request};

#[derive(Clone, Debug, PartialEq)]
pub struct FilePick {
    plan: LoadPlan,
    chosen: Vec<bool>,
    selected: usize,
    pub open: bool,
}

impl FilePick {
    pub fn new(plan: LoadPlan) -> FilePick {
        let room = plan.free.saturating_sub(plan.reserve);
        let mut used = 0u64;
        let fits = |f: &PlanFile| {
            let fits = used.saturating_add(f.tokens) <= room;
            used += if fits { f.tokens } else { 0 };
            fits
        };
        let chosen = plan.files.iter().map(fits).collect();
        FilePick { plan, chosen, selected: 0, open: false }
    }

    pub fn step(&mut self, by: isize) {
        let last = self.plan.files.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }

    pub fn toggle(&mut self) {
        if let Some(chosen) = self.chosen.get_mut(self.selected) {
            *chosen = !*chosen;
        }
        self.step(1);
    }

    pub fn toggle_all(&mut self) {
        let all = self.chosen.iter().all(|c| *c);
        self.chosen.fill(!all);
    }

    pub fn files(&self) -> Vec<usize> {
        (0..self.chosen.len()).filter(|i| self.chosen[*i]).collect()
    }

    fn tokens(&self) -> u64 {
        self.picked().map(|(f, _)| f.tokens).sum()
    }

    fn picked(&self) -> impl Iterator<Item = (&PlanFile, bool)> {
        // Kept state depends on the text before it: after an omitted file, all files are read again.
        let mut unbroken = true;
        self.plan.files.iter().zip(&self.chosen).filter_map(move |(f, chosen)| {
            unbroken &= *chosen;
            chosen.then_some((f, f.kept && unbroken))
        })
    }

    pub fn over(&self) -> u64 {
        (self.tokens() + self.plan.reserve).saturating_sub(self.plan.free)
    }

    /// `9 of 11 files, 402,504 tokens, about 0:47, leaves 641,377.`
    pub fn summary(&self) -> String {
        let (count, all) = (self.files().len(), self.plan.files.len());
        let tokens = self.tokens();
        let head = format!("{count} of {all} files, {} tokens", grouped(tokens));
        match self.over() {
            0 => {
                let read: u64 = self.picked().filter(|p| !p.1).map(|p| p.0.tokens).sum();
                let about = match self.plan.tokens_per_s {
                    speed if speed > 0.0 => format!(", about {}", duration(read as f64 / speed)),
                    _ => String::new(),
                };
                let left = grouped(self.plan.free.saturating_sub(tokens));
                format!("{head}{about}, leaves {left}.")
            }
            over => format!("{head}: {} too many.", grouped(over)),
        }
    }

    pub(super) fn draw(&self, painter: &mut Painter<'_>, body: Rect, composer: Rect) {
        painter.clear(body);
        painter.text(body, 0, " Files to load", Role::Heading);
        painter.text(body, 1, "       file", Role::Dim);
        painter.right(body, 1, 1, "    tokens              ", Role::Dim);
        let files = &self.plan.files;
        // Title, header, a blank row and the total take four rows.
        let room = usize::from(body.height.saturating_sub(4)).max(1);
        let first = first_row(self.selected, files.len(), room);
        let cells = usize::from(body.width).saturating_sub(4);
        let rows = files.iter().zip(&self.chosen).enumerate();
        for (line, (i, (file, &chosen))) in (2..).zip(rows.skip(first).take(room)) {
            let mark = if chosen { "[x] " } else { "[ ] " };
            let kept = if file.kept { "from library" } else { "" };
            let tail = format!("{:>10}  {kept:<12}", grouped(file.tokens));
            let role = if chosen { Role::Text } else { Role::Dim };
            let name = fit(&file.name, cells.saturating_sub(width(&tail) + 5));
            let spans = [Span::new(mark, Role::Key), Span::new(format!("{name} "), role), Span::new(tail, Role::Dim)];
            painter.choice(body, line, &Row::from(spans.to_vec()), i == self.selected);
        }
        let role = if self.over() > 0 { Role::Warn } else { Role::Text };
        painter.text(body, body.height.saturating_sub(1), &format!(" {}", self.summary()), role);
        let shown = [("Space", "in/out"), ("a", "all/none"), ("Enter", "load these"), ("Esc", "back")];
        painter.keys(composer, shown.into_iter().map(|(k, what)| (k.to_string(), what)));
    }
}

pub(super) fn key(app: &mut App, key: Key) {
    let (page, vim) = (app.open.transcript.page(), app.config.ui.vim_keys);
    let Some(question) = app.questions.front_mut() else { return };
    let (asker, Some(pick)) = (question.asker, &mut question.pick) else { return };
    let letters = matches!(key.code, Code::Char('j' | 'k')) || vim && !key.ctrl && !key.alt;
    let key = if letters { key.as_arrow() } else { key };
    if let Some(by) = key.steps(page) {
        return pick.step(by);
    }
    match key.code {
        Code::Esc => pick.open = false,
        Code::Char(' ') => pick.toggle(),
        Code::Char('a') if !key.ctrl && !key.alt => pick.toggle_all(),
        Code::Enter => {
            let (files, over) = (pick.files(), pick.over());
            if files.is_empty() {
                return hint(app, "No file is selected; Space adds one", HINT_MS);
            }
            if over > 0 {
                return hint(app, "The files do not fit; Space removes one", HINT_MS);
            }
            app.questions.pop_front();
            if let Asker::Runtime(question) = asker {
                send(app, Request::ChooseFiles { question, files });
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(tokens: &[u64], free: u64) -> LoadPlan {
        LoadPlan {
            files: tokens
                .iter()
                .enumerate()
                .map(|(i, t)| PlanFile { name: format!("{i}.txt"), tokens: *t, kept: i == 1 })
                .collect(),
            free,
            reserve: 100,
            tokens_per_s: 10.0,
        }
    }

    #[test]
    fn totals_follow_marks_and_count_kept_state_after_loaded_text() {
        let mut p = FilePick::new(plan(&[100, 200, 300], 1_000));
        assert_eq!(p.summary(), "3 of 3 files, 600 tokens, about 0:40, leaves 400.");
        p.toggle();
        assert_eq!(p.files(), [1, 2]);
        assert_eq!(p.summary(), "2 of 3 files, 500 tokens, about 0:50, leaves 500.");
        p.toggle_all();
        assert_eq!(p.files(), [0, 1, 2]);
        p.toggle_all();
        assert!(p.files().is_empty() && p.over() == 0);
    }

    #[test]
    fn what_does_not_fit_is_left_out_at_first_and_the_excess_is_named() {
        let mut p = FilePick::new(plan(&[500, 400, 300], 1_000));
        assert_eq!(p.files(), [0, 1]);
        p.step(9);
        p.toggle();
        assert_eq!(p.over(), 300);
        assert_eq!(p.summary(), "3 of 3 files, 1,200 tokens: 300 too many.");
    }
}
