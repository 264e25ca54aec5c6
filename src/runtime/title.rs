//! A title for the open session, made by the model from the beginning of the conversation.
//!
//! It is written in another slot while no verb runs, and every request goes first; a session that was left gets its
//! title then, too. Where none can be made, the first words of the first question take its place; a title typed by the
//! user stays for good. The built-in model was not trained to write titles, and a server bills each request: neither
//! is used.

use std::sync::Arc;

use super::fan_out::{Branch, Fan, Grown, Written};
use super::path::Path;
use super::render::{Rendered, nothing_known};
use super::segments::{self, Step};
use super::slot::Last;
use super::verb::Verb;
use super::{Done, RuntimeError, Session, State};
use crate::config::settings::ThinkMode;
use crate::core::transcript::{Finish, Message, MessageId, Role, SessionId};
use crate::engine::protocol::{Ended, Generate, Sampling};
use crate::runtime::protocol::{Level, Notice};
use crate::store::{Change, TitleBy};
use crate::text::sanitize::sanitize_line;
use crate::text::steer::Watched;
use crate::text::{Begin, StreamDecoder};

/// Characters of a question and of an answer that the model is shown.
const SHOWN: usize = 600;
/// Documents named in the request.
const DOCUMENTS: usize = 8;
/// Tokens of a title, and of thoughts before it.
const TITLE_TOKENS: u64 = 32;
const THOUGHT_TOKENS: u64 = 64;
/// Answers after which a title is tried: the first one may have been followed at once by another question.
const TRIES: usize = 3;
/// How long reading the beginning may take where the reading speed is known, in seconds: a step of the engine is not given up
/// in the middle.
const LONGEST_S: f64 = 2.0;
/// Characters of a title.
const LONGEST: usize = 60;
/// Characters of a title that somebody types.
const LONGEST_TYPED: usize = 120;

/// A session without a title, and the text that requests one.
#[derive(Clone, Debug)]
pub(super) struct Untitled {
    session: SessionId,
    asked: String,
}

/// A title that is being written.
struct Titling {
    of: Untitled,
    rendered: Arc<Rendered>,
    steps: Vec<Step>,
    last: Option<Last>,
    decoder: StreamDecoder,
    text: String,
    complete: bool,
}

impl State {
    /// An answer is complete: whether the session wants a title now.
    pub(super) fn wants_title(&mut self, answer: MessageId) {
        let finish = self.here.session.tree.get(answer).and_then(|m| m.meta.finish);
        let whole = matches!(finish, Some(Finish::Stop | Finish::Length));
        let answers = self.here.session.tree.path().iter().filter(|m| m.role == Role::Assistant).count();
        let able =
            self.engine.model().is_some_and(|m| !m.built_in && m.server.is_none()) && self.engine.free_slots() > 0;
        self.here.session.wants_title = self.titles
            && self.here.session.id.is_some()
            && self.here.session.title.is_empty()
            && able
            && whole
            && answers <= TRIES;
    }

    pub(super) fn left_untitled(&mut self, session: &mut Session) {
        self.untitled.extend(untitled(session));
    }

    /// Whether a title can be made now: no conversation is answered that it would take time from.
    pub(super) fn title_is_due(&self) -> bool {
        (self.here.session.wants_title || !self.untitled.is_empty())
            && self.engine.model().is_some()
            && self.engine.free_slots() > 0
            && self.others.iter().all(|other| other.wait.is_idle())
    }

    /// The request to the model; `None` where it would take too long.
    fn titling(&self, of: Untitled) -> Done<Option<Titling>> {
        let message = self.draft(Role::User, None, of.asked.clone());
        let rendered =
            self.bounded(|halt| self.engine.renderer.prompt(&[&message], ThinkMode::Off, halt, &nothing_known))?;
        let (renderer, piece) = (&self.engine.renderer, self.engine.piece);
        let steps = self.bounded(|halt| segments::steps(renderer, piece, &rendered, &Path::default(), halt))?;
        let tokens: usize = steps.iter().map(|s| s.prompt.len()).sum();
        if self.reading_speed > 0.0 && tokens as f64 / self.reading_speed > LONGEST_S {
            return Ok(None);
        }
        let begin = Begin::after_prompt(&rendered.text);
        let tokenizer = &renderer.model().tokenizer;
        let watched = Watched { thought_tokens: THOUGHT_TOKENS, loops: true };
        let generate = Generate {
            max_tokens: TITLE_TOKENS + THOUGHT_TOKENS,
            steering: watched.steering(tokenizer, begin, 0)?,
            ..self.generate(Sampling { temperature: 0.0, ..self.here.session.settings.for_answer(|| 0) }, begin, 0)?
        };
        Ok(Some(Titling {
            of,
            decoder: StreamDecoder::new(tokenizer.clone(), begin),
            rendered: Arc::new(rendered),
            steps,
            last: Some(Last::Generate(generate)),
            text: String::new(),
            complete: false,
        }))
    }

    /// `/title TEXT`.
    pub(super) fn title(&mut self, text: &str) -> Done {
        let title = shortened(&sanitize_line(text.trim()), LONGEST_TYPED);
        if title.is_empty() {
            return Err(RuntimeError::Refused("/title TEXT needs a title.".into()));
        }
        self.here.session.may_write()?;
        self.note(Level::Info, format!("Title: {title}. /rename changes the name it is resumed by."));
        self.has_title(title, TitleBy::Person);
        Ok(())
    }

    /// A title typed by the user stays.
    fn was_titled(&mut self, title: String) {
        if self.here.session.title.is_empty() {
            self.has_title(title, TitleBy::Model);
        }
    }

    /// A session without a row saves it with its first message.
    fn has_title(&mut self, title: String, by: TitleBy) {
        self.here.session.title.clone_from(&title);
        self.here.session.wants_title = false;
        if let Some(session) = self.here.session.id {
            self.disk.change(vec![Change::Title { session, title: title.clone(), by }]);
        }
        self.tell(Notice::Titled(title));
    }
}

impl Fan for Titling {
    fn count(&self) -> usize {
        1
    }

    fn prepare(&mut self, _state: &mut State, _which: usize) -> Done<Option<Branch>> {
        let Some(last) = self.last.take() else { return Ok(None) };
        let (rendered, steps) = (Arc::clone(&self.rendered), std::mem::take(&mut self.steps));
        Ok(Some(Branch { base: Path::default(), rendered, steps, last, message: None }))
    }

    fn tokens(&mut self, _state: &mut State, _which: usize, written: &Written<'_>) {
        self.text.push_str(&self.decoder.push_all(written.tokens).answer);
    }

    fn ended(&mut self, state: &mut State, _which: usize, grown: Done<Grown>) {
        self.text.push_str(&self.decoder.finish().answer);
        if let Some((_, answer)) = state.engine.unopened_thought(&self.text) {
            self.text = answer.to_owned();
        }
        match grown {
            Ok(grown) => self.complete = grown.stats.end.is_some_and(|end| end.done.ended != Ended::Cancelled),
            Err(e) => tracing::debug!(%e, "no title"),
        }
    }

    fn gives_way(&self) -> bool {
        true
    }
}

impl Verb {
    /// Has the model write a title.
    pub(super) async fn make_title(&mut self) -> Done {
        let wanted = untitled(&mut self.here.session).or_else(|| self.untitled.pop_front());
        let mut titling = match wanted.map(|wanted| self.titling(wanted)).transpose() {
            Ok(Some(Some(titling))) => titling,
            Ok(Some(None) | None) => return Ok(()),
            Err(e) => {
                tracing::debug!(%e, "no title");
                return Ok(());
            }
        };
        let slots = self.fan_out(&mut titling).await?;
        self.release(slots)?;
        let session = titling.of.session;
        let here = self.here.session.id == Some(session);
        if !titling.complete && !self.here.queue.is_empty() {
            // A request went first: it is tried again after that.
            match here {
                true => self.here.session.wants_title = true,
                false => self.untitled.push_back(titling.of),
            }
            return Ok(());
        }
        let made = Some(&titling.text).filter(|_| titling.complete).and_then(|text| cleaned(text));
        if let Some(title) = made {
            match self.at_work(|other| other.id == Some(session)) {
                Some(at) => self.beside(at, |state| state.was_titled(title)),
                None if here => self.was_titled(title),
                // It is not open any more.
                None => {
                    self.disk.change(vec![Change::Title { session, title, by: TitleBy::Model }]);
                }
            }
        }
        Ok(())
    }
}

fn untitled(of: &mut Session) -> Option<Untitled> {
    let wanted = std::mem::take(&mut of.wants_title) && of.title.is_empty();
    let session = of.id.filter(|_| wanted)?;
    Some(Untitled { session, asked: asked(&of.tree.path())? })
}

/// The request: how the conversation begins. `None` before there is a question and an answer, each whole.
fn asked(path: &[&Message]) -> Option<String> {
    let first = |role| path.iter().find(|m| m.role == role && !m.text.trim().is_empty());
    let (question, answer) = (first(Role::User)?, first(Role::Assistant)?);
    if question.meta.damaged || answer.meta.damaged {
        return None;
    }
    let names = path.iter().filter_map(|m| m.meta.document.as_ref()).take(DOCUMENTS);
    let names: Vec<&str> = names.map(|d| d.name.as_str()).collect();
    let documents = if names.is_empty() { String::new() } else { format!("Documents: {}\n\n", names.join(", ")) };
    Some(format!(
        "This is how a conversation begins.\n\n{documents}Question: {}\n\nAnswer: {}\n\nWrite a title for it: three to six \
         words that say what it is about, in the language of the question, without quotation marks. Write the title and \
         nothing else.",
        shortened(&question.text, SHOWN),
        shortened(&answer.text, SHOWN)
    ))
}

/// At most `most` characters, cut at the end of a word.
fn shortened(text: &str, most: usize) -> String {
    let text = text.trim();
    let Some((end, _)) = text.char_indices().nth(most) else { return text.to_owned() };
    let head = text.get(..end).unwrap_or_default();
    let words = head.rsplit_once(char::is_whitespace).map_or(head, |(words, _)| words);
    words.trim_end().to_owned()
}

/// The title in what the model wrote; `None` if it holds none.
fn cleaned(text: &str) -> Option<String> {
    let line = text.lines().map(str::trim).find(|l| l.chars().any(char::is_alphanumeric))?;
    let line = sanitize_line(line);
    let mark = |c: char| {
        c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '*' | '_' | '#' | '“' | '”' | '„' | '«' | '»' | '「' | '」')
    };
    let bare = line.trim_matches(mark);
    let bare = match bare.split_once([':', '：']) {
        Some((word, rest))
            if matches!(word.trim_matches(mark).to_lowercase().as_str(), "title" | "titel" | "titre" | "标题") =>
        {
            rest
        }
        _ => bare,
    };
    let words: Vec<&str> = bare.trim_matches(mark).trim_end_matches(['.', '。']).split_whitespace().collect();
    let title = shortened(&words.join(" "), LONGEST);
    title.chars().any(char::is_alphanumeric).then_some(title)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_title_is_one_short_line_without_marks() {
        for (written, title) in [
            ("Notice Period in Annex C", Some("Notice Period in Annex C")),
            ("\n**\"The bridge at Arvel.\"**\n\nMore words", Some("The bridge at Arvel")),
            ("Title: Kündigungsfrist", Some("Kündigungsfrist")),
            ("# 标题：桥梁的长度。", Some("桥梁的长度")),
            ("Rates: 3.5 or 4", Some("Rates: 3.5 or 4")),
            ("  \n--\n", None),
            ("", None),
        ] {
            assert_eq!(cleaned(written).as_deref(), title, "{written}");
        }
        let long = cleaned(&"word ".repeat(40)).unwrap();
        assert!(long.len() <= LONGEST && long.ends_with("word"), "{long}");
        assert!(!cleaned("a\u{1b}[31mb").unwrap().contains('\u{1b}'));
    }
}
