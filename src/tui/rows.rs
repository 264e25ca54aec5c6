//! Lines of text before colours.
//!
//! A [`Row`] is one line of the screen, made of [`Span`]s with a [`Face`] each. Faces name the kind of text; the theme
//! chooses its colour. Rows contain no control characters and carry their source offset, so that a view keeps its
//! place when its width changes.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    #[default]
    Text,
    Dim,
    Heading,
    Code,
    Math,
    Link,
    Quote,
    You,
    Sala,
    Document,
    Info,
    Warn,
    Error,
    Alert,
    Selected,
    Match,
    Rule,
    Key,
    Ansi(u8),
    Rgb(u8, u8, u8),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Face {
    pub role: Role,
    pub strong: bool,
    pub emphasis: bool,
    pub struck: bool,
}

impl From<Role> for Face {
    fn from(role: Role) -> Self {
        Face { role, ..Face::default() }
    }
}

impl Face {
    pub fn bold(self) -> Face {
        Face { strong: true, ..self }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Span {
    pub text: String,
    pub face: Face,
}

impl Span {
    pub fn new(text: impl Into<String>, face: impl Into<Face>) -> Span {
        Span { text: text.into(), face: face.into() }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    pub spans: Vec<Span>,
    /// Byte offset in the source text at which the row begins. Never decreases from row to row of one text.
    pub source: usize,
}

impl From<Vec<Span>> for Row {
    fn from(spans: Vec<Span>) -> Row {
        Row { spans, ..Row::default() }
    }
}

/// The first `most` rows; the last one ends with dots if more follow.
pub(super) fn first_rows(mut rows: Vec<Row>, most: usize, cells: usize) -> Vec<Row> {
    if rows.len() > most {
        rows.truncate(most);
        let used = rows.last().map_or(0, Row::width);
        if let Some(span) = rows.last_mut().and_then(|last| last.spans.last_mut()) {
            let room = cells.saturating_sub(used - super::cells::width(&span.text));
            span.text = super::cells::ellipsis(&format!("{}...", span.text.trim_end()), room);
        }
    }
    rows
}

impl Row {
    pub fn of(text: impl Into<String>, face: impl Into<Face>) -> Row {
        Row::from(vec![Span::new(text, face)])
    }

    pub fn at(source: usize) -> Row {
        Row { source, ..Row::default() }
    }

    pub fn text(&self) -> String {
        self.spans.iter().map(|s| s.text.as_str()).collect()
    }

    pub fn width(&self) -> usize {
        self.spans.iter().map(|s| super::cells::width(&s.text)).sum()
    }

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
