//! Glyphs of a page to lines of text: spaces and line ends follow from where the glyphs stand.

use encoding_rs::{UTF_16BE, WINDOWS_1252};
use hayro_interpret::font::{Glyph, GlyphRun};
use hayro_interpret::hayro_cmap::{BfString, WritingMode};
use hayro_interpret::hayro_syntax::object::{self, Dict};
use hayro_interpret::kurbo::{Affine, BezPath, Point, Vec2};
use hayro_interpret::{BlendMode, ClipPath, Device, DrawMode, DrawProps, Image, ImageDrawProps, SoftMask};
use unicode_normalization::UnicodeNormalization;

/// Units of an em in the space of a glyph.
const EM: f64 = 1000.0;
/// Widths are in ems of the larger of two glyphs.
/// A gap that is a space, though none is written.
const SPACE: f64 = 0.15;
/// A step across the line that begins another line; exponents stay on theirs.
const LINE: f64 = 0.5;
/// A step across the line that leaves an empty line.
const PARAGRAPH: f64 = 2.0;
/// A step back that begins another line.
const BACK: f64 = 1.0;
/// A run this near to an equal one is its shadow, or its outline, if that is less than half of its first glyph.
const SHADOW: f64 = 0.15;
/// The widest gap between letters that are set apart; wider ones are columns.
const SPREAD: f64 = 0.5;

/// The text of a string outside of a page's content: UTF-16 or UTF-8 with a mark, else PDF's own encoding.
pub(super) fn decoded(bytes: &[u8]) -> String {
    match (bytes.strip_prefix(b"\xFE\xFF"), bytes.strip_prefix(b"\xEF\xBB\xBF")) {
        (Some(wide), _) => UTF_16BE.decode_without_bom_handling(wide).0.into_owned(),
        (None, Some(utf8)) => String::from_utf8_lossy(utf8).into_owned(),
        (None, None) => WINDOWS_1252.decode_without_bom_handling(bytes).0.into_owned(),
    }
}

/// Collects the text of a page in the order in which it is drawn.
#[derive(Default)]
pub(super) struct Layout {
    text: String,
    last: Option<Placed>,
    /// Text and start of the last run.
    run: Option<(String, Point)>,
    /// For each open mark the text that replaces its glyphs (`ActualText`); empty once it is written.
    marks: Vec<Option<String>>,
    unknown: bool,
    /// Code 0 was a space.
    zero: bool,
}

#[derive(Clone)]
struct Placed {
    text: String,
    code: u32,
    start: Point,
    end: Point,
    /// Unit vector of the writing direction.
    along: Vec2,
    em: f64,
}

/// From one glyph to the next, in ems.
struct Step {
    along: f64,
    across: f64,
    turned: bool,
}

impl Placed {
    fn new(glyph: &Glyph<'_>, to_page: Affine, mode: WritingMode) -> Placed {
        let width = match glyph {
            Glyph::Outline(glyph) => glyph.advance_width(),
            Glyph::Type3(glyph) => glyph.advance_width(),
        };
        let advance = match mode {
            WritingMode::Horizontal => Point::new(width.map_or(EM / 2.0, f64::from), 0.0),
            WritingMode::Vertical => Point::new(0.0, -EM),
        };
        let (start, end) = (to_page * Point::ZERO, to_page * advance);
        let ahead = to_page * if mode == WritingMode::Horizontal { Point::new(EM, 0.0) } else { advance } - start;
        let em = (to_page * Point::new(0.0, EM) - start).hypot();
        let text = match glyph.as_unicode() {
            // Ligatures such as fi.
            Some(BfString::Char(c @ '\u{FB00}'..='\u{FB06}')) => std::iter::once(c).nfkc().collect(),
            Some(BfString::Char(c)) => c.to_string(),
            Some(BfString::String(text)) => text,
            None => char::REPLACEMENT_CHARACTER.to_string(),
        };
        Placed { text, code: glyph.char_code(), start, end, along: ahead / ahead.hypot().max(f64::MIN_POSITIVE), em }
    }

    fn step_to(&self, next: &Placed) -> Step {
        let (way, em) = (next.start - self.end, self.em.max(next.em).max(f64::MIN_POSITIVE));
        let (ahead, to_the_left) = (way.dot(self.along), (self.start - next.end).dot(self.along));
        let may_go_left = |glyph: &Placed| is_leftward(&glyph.text) || glyph.text.trim().is_empty();
        let leftwards = ahead < 0.0 && may_go_left(self) && may_go_left(next);
        Step {
            along: if leftwards { to_the_left } else { ahead } / em,
            across: way.cross(self.along).abs() / em,
            turned: self.along.dot(next.along) < 0.9,
        }
    }
}

/// Whether it is written from right to left.
fn is_leftward(text: &str) -> bool {
    text.chars().any(|c| matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}'))
}

/// Puts words that are written from right to left, and that stand in the order of the page, into the order of reading. Whether there
/// were any.
fn in_reading_order(glyphs: &mut [Placed]) -> bool {
    let mut is_changed = false;
    let is_letter = |glyph: &Placed| glyph.text.chars().any(char::is_alphabetic);
    let is_part = |glyph: &Placed| is_leftward(&glyph.text) || !is_letter(glyph);
    let is_number = |glyph: &Placed| is_part(glyph) && glyph.text.chars().any(char::is_numeric);
    for part in glyphs.chunk_by_mut(|a, b| is_part(a) && is_part(b)) {
        let first = part.iter().position(|glyph| is_leftward(&glyph.text));
        let last = part.iter().rposition(|glyph| is_leftward(&glyph.text));
        let Some(words) = first.zip(last).and_then(|(first, last)| part.get_mut(first..=last)) else { continue };
        if let [left, .., right] = &*words
            && (right.start - left.start).dot(left.along) > 0.0
        {
            words.reverse();
            is_changed = true;
            for number in words.chunk_by_mut(|a, b| is_number(a) && is_number(b)) {
                if number.iter().all(is_number) {
                    number.reverse();
                }
            }
        }
    }
    is_changed
}

impl Layout {
    /// The text, whether a glyph had no character, and whether code 0 was a space.
    pub(super) fn finish(self) -> (String, bool, bool) {
        let mut text: String = self.text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
        if !text.is_empty() {
            text.push('\n');
        }
        (text, self.unknown, self.zero)
    }

    /// `spread`: the usual gap between glyphs of the run, in ems. `may_break`: a step back begins another line.
    fn add(&mut self, glyph: Placed, spread: f64, may_break: bool) {
        if let Some(step) = self.last.as_ref().map(|last| last.step_to(&glyph)) {
            if step.turned || step.across > LINE || may_break && step.along < -BACK {
                self.text.push_str(if step.across > PARAGRAPH && !step.turned { "\n\n" } else { "\n" });
            } else if step.along - spread > SPACE
                && !self.text.ends_with(char::is_whitespace)
                && !glyph.text.starts_with(char::is_whitespace)
            {
                self.text.push(' ');
            }
        }
        self.unknown |= glyph.text.contains(char::REPLACEMENT_CHARACTER);
        self.zero |= glyph.code == 0 && glyph.text.trim().is_empty();
        self.text.push_str(&glyph.text);
        self.last = Some(glyph);
    }
}

impl Device<'_> for Layout {
    fn draw_glyph_run(&mut self, run: &GlyphRun<'_, '_>, props: DrawProps<'_>, _: &DrawMode) {
        let placed = |glyph: &hayro_interpret::font::PositionedGlyph<'_>| {
            Placed::new(glyph, props.transform * glyph.transform(), run.writing_mode())
        };
        let mut glyphs: Vec<Placed> = run.glyphs().iter().map(placed).filter(|glyph| glyph.start.is_finite()).collect();
        let is_reordered = in_reading_order(&mut glyphs);
        let replaced = self.marks.iter_mut().flatten().next().map(std::mem::take);
        let Some(first) = glyphs.first() else { return };
        if let Some(text) = replaced {
            if !text.is_empty() {
                self.add(Placed { text, ..first.clone() }, 0.0, true);
            }
            self.last = glyphs.pop();
            return;
        }
        let text: String = glyphs.iter().map(|glyph| glyph.text.as_str()).collect();
        let shadow = (SHADOW * first.em).min((first.end - first.start).hypot() / 2.0);
        let near = |at: Point| (first.start - at).hypot() < shadow;
        if self.run.as_ref().is_some_and(|(last, at)| *last == text && near(*at)) {
            return;
        }
        self.run = Some((text, first.start));
        // Letters that are all set apart are still one word.
        let mut gaps: Vec<f64> =
            glyphs.windows(2).filter_map(|two| Some(two.first()?.step_to(two.get(1)?).along)).collect();
        gaps.sort_by(f64::total_cmp);
        let spread = gaps.get(gaps.len() / 2).copied().filter(|_| gaps.len() > 1).unwrap_or(0.0).clamp(0.0, SPREAD);
        for (i, glyph) in glyphs.into_iter().enumerate() {
            self.add(glyph, if i == 0 { 0.0 } else { spread }, i == 0 || !is_reordered);
        }
    }

    fn draw_path(&mut self, _: &BezPath, _: DrawProps<'_>, _: &DrawMode) {}
    fn push_clip_path(&mut self, _: &ClipPath) {}
    fn push_transparency_group(&mut self, _: f32, _: Option<SoftMask<'_>>, _: BlendMode) {}
    fn pop_clip(&mut self) {}
    fn pop_transparency_group(&mut self) {}
    fn begin_marked_content(&mut self, _: &[u8], properties: Option<&Dict<'_>>) {
        let text = properties.and_then(|properties| properties.get::<object::String<'_>>("ActualText"));
        self.marks.push(text.map(|text| decoded(text.as_bytes())).filter(|text| !text.is_empty()));
    }
    fn end_marked_content(&mut self) {
        self.marks.pop();
    }
    fn draw_image(&mut self, _: Image<'_, '_>, _: ImageDrawProps<'_>) {}
}
