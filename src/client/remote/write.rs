//! Writes a server's text as tokens of the code: thoughts between their marks, then the answer.
//!
//! The tokens equal those of the next question's prompt, so that the live path stays a prefix of the conversation:
//! thoughts and answer without the white space around them.

use super::codec::Codec;
use crate::engine::protocol::Token;
use crate::text::TextError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Start,
    Thought,
    Answer,
}

#[derive(Debug)]
pub(super) struct Writer<'c> {
    codec: &'c Codec,
    place: Place,
    held: String,
}

impl<'c> Writer<'c> {
    pub(super) fn new(codec: &'c Codec, in_thought: bool) -> Writer<'c> {
        let place = if in_thought { Place::Thought } else { Place::Start };
        Writer { codec, place, held: String::new() }
    }

    /// Appends to the thoughts, then to the answer.
    pub(super) fn push(&mut self, thinking: &str, text: &str) -> Result<Vec<Token>, TextError> {
        let mut tokens = Vec::new();
        self.thought(thinking, &mut tokens)?;
        self.answer(text, &mut tokens)?;
        Ok(tokens)
    }

    fn encode(&self, text: &str, tokens: &mut Vec<Token>) -> Result<(), TextError> {
        if !text.is_empty() {
            tokens.extend(self.codec.tokenizer.encode_plain(text)?);
        }
        Ok(())
    }

    fn thought(&mut self, text: &str, tokens: &mut Vec<Token>) -> Result<(), TextError> {
        let mut text = text;
        match self.place {
            // A server may think again in the middle of an answer: the transcript keeps all thoughts together.
            Place::Start | Place::Answer => {
                text = text.trim_start();
                if text.is_empty() {
                    return Ok(());
                }
                tokens.push(self.codec.marks.think);
                self.encode("\n", tokens)?;
                self.place = Place::Thought;
            }
            Place::Thought => {}
        }
        let whole = std::mem::take(&mut self.held) + text;
        let solid = whole.trim_end();
        self.encode(solid, tokens)?;
        self.held = whole.get(solid.len()..).unwrap_or("").to_owned();
        Ok(())
    }

    fn answer(&mut self, text: &str, tokens: &mut Vec<Token>) -> Result<(), TextError> {
        let mut text = text;
        if self.place == Place::Thought {
            text = text.trim_start();
        }
        if text.is_empty() {
            return Ok(());
        }
        if self.place == Place::Thought {
            self.held.clear();
            self.encode("\n", tokens)?;
            tokens.push(self.codec.marks.thought);
            self.encode("\n\n", tokens)?;
        }
        self.place = Place::Answer;
        self.encode(text, tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::super::codec::text_model;
    use super::*;
    use crate::text::{Begin, Specials, StreamDecoder};

    fn written(in_thought: bool, pieces: &[(&str, &str)]) -> (String, String, String) {
        let text = text_model().unwrap();
        let codec = Codec::new(text.tokenizer.clone()).unwrap();
        let mut writer = Writer::new(&codec, in_thought);
        let tokens: Vec<Token> = pieces.iter().flat_map(|(t, a)| writer.push(t, a).unwrap()).collect();
        let begin = if in_thought { Begin::Thought } else { Begin::Answer };
        let mut decoder = StreamDecoder::new(text.tokenizer.clone(), begin);
        let (mut all, last) = (decoder.push_all(&tokens), decoder.finish());
        all.thinking += &last.thinking;
        all.answer += &last.answer;
        (text.tokenizer.decode(&tokens, Specials::Show), all.thinking, all.answer)
    }

    #[test]
    fn thoughts_are_put_between_their_marks() {
        let (raw, thinking, answer) = written(false, &[("\n Hm", ""), (", so.\n", ""), ("\n", " \n"), ("", "\nYes.")]);
        assert_eq!(raw, "<think>\nHm, so.\n</think>\n\nYes.");
        assert_eq!((thinking.as_str(), answer.as_str()), ("Hm, so.", "Yes."));
    }

    #[test]
    fn thoughts_in_the_middle_of_an_answer_are_thoughts() {
        let (_, thinking, answer) = written(false, &[("a", "b "), ("c", ""), ("", "d")]);
        assert_eq!((thinking.as_str(), answer.as_str()), ("ac", "b d"));
    }

    #[test]
    fn an_answer_alone_stays_as_it_is() {
        let (raw, thinking, answer) = written(false, &[("", " a"), ("", "\n<|im_end|> grün 🙂\n")]);
        assert_eq!(raw, " a\n<|im_end|> grün 🙂\n");
        assert_eq!((thinking.as_str(), answer.as_str()), ("", raw.as_str()));
    }

    #[test]
    fn thoughts_that_a_server_leaves_in_the_text_are_still_recognised() {
        let (_, thinking, answer) = written(false, &[("", "<thi"), ("", "nk>a"), ("", "</think>"), ("", "b")]);
        assert_eq!((thinking.as_str(), answer.as_str()), ("a", "b"));
    }

    #[test]
    fn an_answer_that_was_stopped_inside_a_thought_continues() {
        let (raw, thinking, answer) = written(true, &[(" more", ""), ("", "Yes")]);
        assert_eq!(raw, " more\n</think>\n\nYes");
        assert_eq!((thinking.as_str(), answer.as_str()), ("more", "Yes"));
    }
}
