//! Finished lines of text: what the transcript and the pages are made of, before colours.
//!
//! A [`Row`] is one line of the screen, a list of [`Span`]s with a [`Face`] each. Faces say what a piece of text *is*;
//! which colour that gets is the theme's business (`ui/theme.rs`). Rows never contain control characters and carry
//! the byte offset of the source they show, so that a view can stay at the same words when its width changes.

/// What a piece of text is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Ordinary text, in the terminal's own foreground.
    #[default]
    Text,
    /// Less important: labels, folded thoughts, decoration.
    Dim,
    /// A heading.
    Heading,
    /// Code, inline or in a block, without a known colour.
    Code,
    /// An equation.
    Math,
    /// A link's text or target.
    Link,
    /// A quotation.
    Quote,
    /// The user's name and what belongs to the user.
    You,
    /// The model's name.
    Sala,
    /// A document.
    Document,
    /// A note of the program.
    Info,
    /// Something to know.
    Warn,
    /// Something failed.
    Error,
    /// Needs the eye now: reverse video.
    Alert,
    /// The selected row of a list.
    Selected,
    /// What a search found.
    Match,
    /// Frames and separators.
    Rule,
    /// Keys named in hints.
    Key,
    /// Coloured code: index into the terminal's 16 colours.
    Ansi(u8),
    /// Coloured code: red, green, blue.
    Rgb(u8, u8, u8),
}

/// A role plus the marks markdown can add to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Face {
    /// What it is.
    pub role: Role,
    /// `**strong**`.
    pub strong: bool,
    /// `*emphasis*`.
    pub emphasis: bool,
    /// `~~struck~~`.
    pub struck: bool,
}

impl From<Role> for Face {
    fn from(role: Role) -> Self {
        Face { role, ..Face::default() }
    }
}

impl Face {
    /// The same, bold.
    pub fn bold(self) -> Face {
        Face { strong: true, ..self }
    }
}

/// A piece of a row.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Printable text.
    pub text: String,
    /// What it is.
    pub face: Face,
}

impl Span {
    /// A piece of text with a face.
    pub fn new(text: impl Into<String>, face: impl Into<Face>) -> Span {
        Span { text: text.into(), face: face.into() }
    }
}

/// What stood between a row and the next one before the text was broken into rows. For copying.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Joint {
    /// A line ended here.
    #[default]
    Line,
    /// A space, which vanished at the edge.
    Space,
    /// Nothing: a long word or a line of code was cut.
    Nothing,
}

/// One line of the screen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// From left to right.
    pub spans: Vec<Span>,
    /// Byte offset in the source text of what the row begins with. Never decreases from row to row of one text.
    pub source: usize,
    /// Cells at the beginning that are decoration: indentation, bullets, bars, marks of wrapped lines.
    pub gutter: usize,
    /// How the next row continues it.
    pub joint: Joint,
}

impl From<Vec<Span>> for Row {
    fn from(spans: Vec<Span>) -> Row {
        Row { spans, ..Row::default() }
    }
}

impl Row {
    /// A row of one span.
    pub fn of(text: impl Into<String>, face: impl Into<Face>) -> Row {
        Row::from(vec![Span::new(text, face)])
    }

    /// A row that is decoration as a whole: nothing of it is copied.
    pub const DECORATION: usize = usize::MAX;

    /// An empty row for a place in the source.
    pub fn at(source: usize) -> Row {
        Row { source, ..Row::default() }
    }

    /// The text without faces.
    pub fn text(&self) -> String {
        self.spans.iter().map(|s| s.text.as_str()).collect()
    }

    /// Width in cells.
    pub fn width(&self) -> usize {
        self.spans.iter().map(|s| super::cells::width(&s.text)).sum()
    }

    /// Adds a span at the end; neighbours with the same face are joined.
    pub fn push(&mut self, text: &str, face: Face) {
        if text.is_empty() {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if last.face == face => last.text.push_str(text),
            _ => self.spans.push(Span::new(text, face)),
        }
    }
}
