//! Constrains quotes: between the words that open a quote and the mark that closes it, the model may write only whole
//! sentences of the text before. A small model finds the right sentence but sometimes loses a word while it copies
//! it. `generation_config.json` of such a model says how a quote begins and how evidence for a sentence is weighed
//! ([`Recommended::quoting`](super::Recommended::quoting), `evidence`). The constraint depends only on the tokens
//! before, so an answer is the same with speculation on and off, and the same after a stop.

use std::borrow::Cow;
use std::cell::OnceCell;
use std::sync::Arc;

use super::evidence::{self, Evidence};
use super::own_space::Before;
use super::sentences::{BETWEEN, beginnings, ends};
use super::tokenizer::Tokenizer;
use super::vocabulary::Piece;
use crate::engine::protocol::{Constrain, Constraint, Quoting, Token};

pub(super) const MARK: u8 = b'"';

/// The constraint that keeps quotes to the text before an answer.
pub fn constraint(quoting: &Quoting, tokenizer: &Arc<Tokenizer>, stop: &[Token]) -> Constraint {
    let named = quoting.clone();
    let (tokenizer, stop, quoting) = (Arc::clone(tokenizer), stop.to_vec(), quoting.clone());
    let make = move |before: &[Token]| -> Box<dyn Constrain> {
        let (text, written) = spelled(&tokenizer, before);
        let (tokenizer, stop, quoting) = (Arc::clone(&tokenizer), stop.clone(), quoting.clone());
        let looks = quoting.margin > 0.0 && is_empty(&written);
        let opening = looks.then(|| tokenizer.encode_after(&quoting.opening, Before::Text).ok()).flatten();
        let ahead = |opening| Ahead { opening, path: Vec::new(), at: At::default(), margin: f32::INFINITY };
        let ahead = opening.map(ahead);
        let mut quotes = Quotes {
            tokenizer,
            stop,
            quoting,
            text: evidence::documents_alone(&text),
            read: text,
            sentences: OnceCell::new(),
            at: At::default(),
            ahead,
            first: None,
        };
        quotes.at = quotes.after(&quotes.at, &written).unwrap_or_default().0;
        Box::new(quotes)
    };
    Constraint(Arc::new(make), Some(named))
}

/// The text of tokens, and the part after the last special one: the beginning of a continued answer.
fn spelled(tokenizer: &Tokenizer, tokens: &[Token]) -> (Vec<u8>, Vec<u8>) {
    let mut text = Vec::new();
    for token in tokens {
        match tokenizer.pieces.get(*token) {
            Piece::Bytes(bytes) => text.extend_from_slice(bytes),
            Piece::Special(_) => text.push(BETWEEN),
        }
    }
    let written = text.iter().rposition(|byte| *byte == BETWEEN).map_or(0, |at| at + 1);
    let after = text.split_off(written);
    (text, after)
}

/// Whether an answer has not begun: at most its role is written, on a line of its own.
fn is_empty(written: &[u8]) -> bool {
    let after = written.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    written.get(after..).is_some_and(|rest| rest.trim_ascii().is_empty())
}

#[derive(Clone, Debug, PartialEq)]
enum At {
    /// Outside of quotes: the last bytes, as many as an opening has.
    Free(Vec<u8>),
    Quote(Reached),
}

/// The possible source sentences of an open quote.
#[derive(Clone, Debug, PartialEq)]
struct Reached {
    places: Arc<[Place]>,
    evidence: Evidence,
}

/// The quote so far ends at a position of the text.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    at: usize,
    evidence: Evidence,
}

/// The best evidence of some positions; the first wins a tie.
fn best<'a>(places: impl IntoIterator<Item = &'a Place>) -> Option<Evidence> {
    let better = |best: Evidence, next: Evidence| if next.favours > best.favours { next } else { best };
    places.into_iter().map(|place| place.evidence).reduce(better)
}

impl Default for At {
    fn default() -> Self {
        At::Free(Vec::new())
    }
}

/// Tokens to look ahead: by then sentences differ.
const AHEAD: usize = 12;
/// Favour of a quote for each logit by which its sentence leads.
const CLEAR: f32 = 1.5;
/// Highest favour of a quote.
const FAVOUR: f32 = 2.0;

/// The quote that an answer would begin with, explored before its first token is drawn.
struct Ahead {
    opening: Vec<Token>,
    path: Vec<Token>,
    at: At,
    /// The least lead of the sentence over others on its way.
    margin: f32,
}

struct Quotes {
    tokenizer: Arc<Tokenizer>,
    stop: Vec<Token>,
    quoting: Quoting,
    /// The text that may be quoted: documents alone.
    text: Vec<u8>,
    /// The text with frames, which delimit documents for the evidence.
    read: Vec<u8>,
    /// The quotable sentences, found when a quote opens.
    sentences: OnceCell<Option<Reached>>,
    at: At,
    ahead: Option<Ahead>,
    /// The first token of the opening, and its favour as the first one of an answer.
    first: Option<(Token, f32)>,
}

impl Quotes {
    /// Explores the quote further; `None` when enough is known, or the model is not about to begin one.
    fn look(&mut self, ahead: &mut Ahead, rows: &[Vec<(Token, f32)>]) -> Option<()> {
        let row = rows.last()?;
        if ahead.path.is_empty() {
            let begins = *ahead.opening.first()?;
            let logit = |token: Token| row.iter().find(|(id, _)| *id == token).map(|(_, logit)| *logit);
            if logit(begins)? + FAVOUR < row.first()?.1 {
                return None;
            }
            ahead.path.clone_from(&ahead.opening);
            return Some(());
        }
        if ahead.path.len() == ahead.opening.len() {
            let continues = |(row, next): (&Vec<(Token, f32)>, &Token)| row.first().is_some_and(|(id, _)| id == next);
            if !rows.iter().zip(ahead.opening.iter().skip(1)).all(continues) {
                return None;
            }
            ahead.at = self.begun()?;
        }
        let At::Quote(_) = &ahead.at else { return None };
        let leads = |(token, logit): &(Token, f32)| {
            let Piece::Bytes(bytes) = self.tokenizer.pieces.get(*token) else { return None };
            let (at, favoured) = self.after(&ahead.at, bytes).filter(|_| !bytes.is_empty())?;
            Some((*token, logit + favoured, at))
        };
        let mut leading: Vec<(Token, f32, At)> = row.iter().filter_map(leads).collect();
        leading.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let mut leading = leading.into_iter();
        let (token, most, at) = leading.next()?;
        ahead.margin = leading.next().map_or(ahead.margin, |(_, next, _)| ahead.margin.min(most - next));
        let begins = *ahead.opening.first()?;
        let (covers, among) = match &at {
            At::Quote(reached) => (reached.evidence.covers, reached.places.len() > 1),
            At::Free(_) => (0.0, false),
        };
        self.first = Some((begins, (CLEAR * (ahead.margin - self.quoting.margin) + covers).min(FAVOUR)));
        ahead.path.push(token);
        ahead.at = at;
        (among && ahead.path.len() < AHEAD).then_some(())
    }

    /// The state of an answer after more bytes, and its favour; `None` if they are no quote of the text.
    fn after(&self, at: &At, bytes: &[u8]) -> Option<(At, f32)> {
        let (mut now, mut favoured) = (Cow::Borrowed(at), 0.0);
        for byte in bytes {
            let (next, more) = self.step(&now, *byte)?;
            (now, favoured) = (Cow::Owned(next), favoured + more);
        }
        Some((now.into_owned(), favoured))
    }

    fn step(&self, at: &At, byte: u8) -> Option<(At, f32)> {
        match at {
            At::Free(last) => {
                let opening = self.quoting.opening.as_bytes();
                let more = (last.len() + 1).saturating_sub(opening.len());
                let last: Vec<u8> = last.iter().copied().chain([byte]).skip(more).collect();
                let at = if last == opening { self.begun()? } else { At::Free(last) };
                // Without a quotable sentence not even its first words are written.
                let says = self.quoting.opening.trim_end_matches(|c: char| !c.is_alphanumeric());
                let leads = matches!(&at, At::Free(last) if last.ends_with(says.as_bytes()));
                if leads && self.sentences().is_none() {
                    return None;
                }
                Some((at, 0.0))
            }
            At::Quote(reached) => {
                let closed = reached.places.iter().filter(|place| byte == MARK && ends(&self.text, place.at));
                if let Some(evidence) = best(closed) {
                    return Some((At::default(), evidence.favours - reached.evidence.favours));
                }
                let continues = |place: &&Place| byte != BETWEEN && self.text.get(place.at) == Some(&byte);
                let on = |place: &Place| Place { at: place.at + 1, evidence: place.evidence };
                let places: Arc<[Place]> = reached.places.iter().filter(continues).map(on).collect();
                let evidence = best(places.iter())?;
                let favoured = evidence.favours - reached.evidence.favours;
                Some((At::Quote(Reached { places, evidence }), favoured))
            }
        }
    }

    /// The state at the beginning of a quote; `None` without a quotable sentence.
    fn begun(&self) -> Option<At> {
        self.sentences().clone().map(At::Quote)
    }

    fn sentences(&self) -> &Option<Reached> {
        self.sentences.get_or_init(|| {
            let begin = beginnings(&self.text);
            let evidence = evidence::weigh(&self.read, &begin, &self.quoting);
            let place = |(at, evidence): (&usize, Evidence)| Place { at: *at, evidence };
            let places: Arc<[Place]> = begin.iter().zip(evidence).map(place).collect();
            best(places.iter()).map(|evidence| Reached { places, evidence })
        })
    }
}

impl Constrain for Quotes {
    fn allows(&mut self, token: Token) -> bool {
        self.favours(token).is_some()
    }

    fn favours(&mut self, token: Token) -> Option<f32> {
        let whole = self.stop.contains(&token);
        let after = |bytes: &[u8]| self.after(&self.at, bytes).map(|(_, favoured)| favoured);
        let favoured = match (&self.at, self.tokenizer.pieces.get(token)) {
            // A quote may end at the end of the text.
            (At::Quote(reached), _) if whole => {
                reached.places.iter().all(|place| place.at == self.text.len()).then_some(0.0)
            }
            (At::Quote(_), Piece::Special(_)) => None,
            (At::Quote(_), Piece::Bytes(bytes)) => after(bytes).filter(|_| !bytes.is_empty()),
            (At::Free(_), Piece::Special(_)) => Some(0.0),
            (At::Free(_), Piece::Bytes(bytes)) => after(bytes).or(whole.then_some(0.0)),
        };
        let first = self.first.filter(|(first, _)| *first == token).map(|(_, favoured)| favoured);
        favoured.map(|favoured| first.unwrap_or(favoured))
    }

    fn ahead(&mut self, rows: &[Vec<(Token, f32)>]) -> Vec<Token> {
        let Some(mut ahead) = self.ahead.take() else { return Vec::new() };
        match self.look(&mut ahead, rows) {
            Some(()) => self.ahead.insert(ahead).path.clone(),
            None => Vec::new(),
        }
    }

    fn accept(&mut self, token: Token) {
        (self.ahead, self.first) = (None, None);
        self.at = match self.tokenizer.pieces.get(token) {
            Piece::Bytes(bytes) => self.after(&self.at, bytes).unwrap_or_default().0,
            Piece::Special(_) => At::default(),
        };
    }

    fn stuck(&self) -> String {
        "no token goes on with the quote".to_owned()
    }
}

#[cfg(test)]
#[path = "quotes_tests.rs"]
mod tests;
