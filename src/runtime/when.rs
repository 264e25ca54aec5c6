//! `/when`: asks one question on kept states along a document, to find where the answer changes. Saves nothing.

use std::sync::Arc;
use std::time::Instant;

use super::ask_all::Ready;
use super::sources::Item;
use super::verb::Work;
use super::{Activity, Done, Grown, Path, Rendered, RuntimeError, State, Verb, grouped, refused};
use crate::core::counted;
use crate::core::transcript::{DocumentInfo, Message, Role};
use crate::engine::protocol::Ended;
use crate::text::Begin;

const MOST_PLACES: usize = 32;

struct Place {
    path: Path,
    rendered: Arc<Rendered>,
    /// Last line of the document that the state has read.
    line: u64,
}

impl Verb {
    pub async fn when(&mut self, question: String) -> Done {
        self.engine_ready().await?;
        self.keeps_state("/when")?;
        // State of a document that was just read may not be on disk yet.
        self.states_saved().await;
        let path = self.here.tree.path();
        let tokens = |m: &&Message| m.meta.document.as_ref().map(|d| d.tokens);
        let Some(document) = path.into_iter().filter(|m| tokens(m).is_some()).max_by_key(tokens) else {
            return refused("There is no document in this conversation. /load PATH reads one.");
        };
        let last = self.draft(Role::User, Some(document.id), question.clone());
        let before = self.here.tree.path_to(Some(document.id));
        let messages: Vec<&Message> = before.into_iter().chain([&last]).collect();
        let rendered = self.prompt(&messages)?;
        let segment = self.here.ends.get(&document.id).ok_or_else(lost)?;
        let stored = self.disk.stored_path(segment)?.unchanged(&rendered.text);
        let places = self.places_in(&messages, &rendered, &stored)?;
        let document = document.meta.document.clone();
        self.ask_along(question, document, places).await
    }

    /// The same along a document of the library.
    pub async fn when_library(&mut self, document: String, question: String) -> Done {
        self.engine_ready().await?;
        self.keeps_state("when")?;
        self.states_saved().await;
        let records = self.disk.documents()?;
        let mut ready = records.iter().filter(|r| r.document.name == document).map(|r| self.question_to(r, &question));
        let Ready { messages, rendered, path } = ready.find(Result::is_ok).unwrap_or_else(|| Err(lost()))?;
        let document = messages.iter().find_map(|m| m.meta.document.clone());
        let places = self.places_in(&messages.iter().collect::<Vec<_>>(), &rendered, &path)?;
        self.ask_along(question, document, places).await
    }

    async fn ask_along(&mut self, question: String, document: Option<DocumentInfo>, places: Vec<Place>) -> Done {
        let (started, of) = (Instant::now(), places.len());
        self.activity(Activity::Busy { what: format!("asking at {}", counted(of as u64, "place")) });
        let branch = |place: &Place| self.question_after(&place.path, &place.rendered, self.greedy());
        let branches = places.iter().map(branch).collect();
        let grown = self.all_of(branches, Some("places asked"), Work::Branches).await?;
        self.report_meters();
        let answers: Vec<(&Place, Result<String, String>)> = places
            .iter()
            .zip(grown)
            .filter_map(|(place, grown)| Some((place, self.answer_at(place, grown?).transpose()?)))
            .collect();
        let done = answers.iter().filter(|(_, answer)| answer.is_ok()).count();
        if done == 0 {
            self.unstopped()?;
        }
        let mut page = changes(&answers);
        if of == 1 {
            page.push_str(
                "\nOne state is kept along it: there is no other to compare with. sessions.checkpoint_every says after how many \
                 tokens one is kept of what is read from then on.\n",
            );
        }
        let name = document.map_or(String::new(), |d| d.name);
        let (states, seconds) = (counted(of as u64, "kept state"), started.elapsed().as_secs_f64());
        page.push_str(&format!("\nAsked after {done} of {states} of {name}, in {seconds:.1} s.\n"));
        self.page(&format!("When: {question}"), page)
    }
}

impl State {
    /// The restorable states inside the document before the question that the messages end with.
    fn places_in(&self, messages: &[&Message], rendered: &Rendered, stored: &Path) -> Done<Vec<Place>> {
        let number = messages.len().saturating_sub(1) as u64;
        let items = self.engine.renderer.items(rendered, messages);
        let Item { range, line: first_line, .. } = items.into_iter().find(|i| i.number == number).ok_or_else(lost)?;
        let mut kept = Vec::new();
        for n in 1..=stored.segments().len() {
            let prefix = stored.prefix(n);
            let read = prefix.text_bytes();
            let Some(tip) = prefix.head().filter(|_| read > range.start) else { continue };
            if self.disk.restorable(&tip)?.is_some_and(|plan| plan.usable == n) {
                kept.push((prefix, read));
            }
        }
        if kept.is_empty() {
            return Err(lost());
        }
        let count = kept.len().min(MOST_PLACES);
        // The last state is that of the whole document.
        let chosen = (1..=count).map(|i| i * kept.len() / count - 1).filter_map(|i| kept.get(i));
        let place = |(path, read): &(Path, usize)| {
            // The text after the document follows directly on the part that was read.
            let rest = rendered.text.get((*read).max(range.end)..)?;
            let text = rendered.text.get(..*read)?;
            let upto = text.get(range.start..(*read).min(range.end))?;
            Some(Place {
                rendered: Arc::new(Rendered { text: format!("{text}{rest}"), cuts: Vec::new() }),
                line: first_line + upto.bytes().filter(|b| *b == b'\n').count() as u64,
                path: path.clone(),
            })
        };
        Ok(chosen.filter_map(place).collect())
    }

    /// `None` without an end, and for a partial answer.
    fn answer_at(&self, place: &Place, grown: Done<Grown>) -> Result<Option<String>, String> {
        match grown.map(|grown| grown.stats) {
            Ok(stats) if stats.end.as_ref().is_some_and(|end| end.ended != Ended::Cancelled) => {
                let begin = Begin::after_prompt(&place.rendered.text);
                Ok(Some(self.engine.decoded(begin, &stats.generated).answer))
            }
            Ok(_) | Err(RuntimeError::Stopped) => Ok(None),
            Err(e) => Err(e.to_string()),
        }
    }
}

fn lost() -> RuntimeError {
    RuntimeError::Refused("The state along this document is not kept. /load it again in a new session.".into())
}

/// One row for each answer: the line up to which the first answer holds, and from which each other one holds.
fn changes(answers: &[(&Place, Result<String, String>)]) -> String {
    let mut text = String::new();
    let shown = |answer: &Result<String, String>| match answer {
        Err(why) => format!("({why})"),
        Ok(text) => format!("\"{}\"", text.split_whitespace().collect::<Vec<_>>().join(" ")),
    };
    let rows: Vec<(u64, String)> = answers.iter().map(|(place, answer)| (place.line, shown(answer))).collect();
    for same in rows.chunk_by(|(_, before), (_, after)| before == after) {
        let ([(first, answer), ..], [.., (last, _)]) = (same, same) else { continue };
        text.push_str(&match text.is_empty() {
            true => format!("    up to line {}: {answer}\n", grouped(*last)),
            false => format!("    from line {}: {answer}\n", grouped(*first)),
        });
    }
    text
}
