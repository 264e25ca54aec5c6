//! `/when`: asks one question on top of kept states along a long document, to find where the answer changes. Nothing
//! is saved.

use std::sync::Arc;
use std::time::Instant;

use super::ask_all::Ready;
use super::sources::Item;
use super::verb::Work;
use super::{Activity, Branch, Done, Fan, Grown, Path, Rendered, RuntimeError, State, Verb, grouped, refused};
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
    /// The answer, or why there is none; `None` before its end, and for a partial one.
    answer: Option<Result<String, String>>,
}

struct When {
    question: String,
    document: String,
    lines: u64,
    places: Vec<Place>,
    started: Instant,
}

impl Verb {
    pub async fn when(&mut self, question: String) -> Done {
        if question.trim().is_empty() {
            return refused("/when QUESTION asks along the longest document of this conversation.");
        }
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
        let (document, lines) = document.map_or((String::new(), 0), |d| (d.name, d.lines));
        self.activity(Activity::Busy { what: format!("asking at {} places", places.len()) });
        let mut fan = When { question, document, lines, places, started: Instant::now() };
        self.fan_out(&mut fan, Work::Branches).await?;
        self.report_meters();
        if fan.answered().next().is_none() {
            self.unstopped()?;
        }
        self.page(&format!("When: {}", fan.question), fan.page())
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
                answer: None,
            })
        };
        Ok(chosen.filter_map(place).collect())
    }
}

fn lost() -> RuntimeError {
    RuntimeError::Refused("The state along this document is not kept. /load it again in a new session.".into())
}

impl When {
    fn answered(&self) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(|p| matches!(p.answer, Some(Ok(_))))
    }

    /// One line for each answer: the lines up to which the first answer holds, and from which each other one holds.
    fn page(&self) -> String {
        // First and last line at which each answer was given.
        let mut answers: Vec<(u64, u64, String)> = Vec::new();
        for (place, answer) in self.places.iter().filter_map(|p| Some((p, p.answer.as_ref()?))) {
            let answer = match answer {
                Err(why) => format!("({why})"),
                Ok(text) => format!("\"{}\"", text.split_whitespace().collect::<Vec<_>>().join(" ")),
            };
            match answers.last_mut() {
                Some((_, last, same)) if *same == answer => *last = place.line,
                _ => answers.push((place.line, place.line, answer)),
            }
        }
        let row = |(at, (first, last, answer)): (usize, &(u64, u64, String))| match at {
            0 => format!("    up to line {}: {answer}\n", grouped(*last)),
            _ => format!("    from line {}: {answer}\n", grouped(*first)),
        };
        let mut text: String = answers.iter().enumerate().map(row).collect();
        if self.places.len() == 1 {
            text.push_str(
                "\nOne state is kept along it: there is no other to compare with. sessions.checkpoint_every says after how many \
                 tokens one is kept of what is read from then on.\n",
            );
        }
        let (done, of, seconds) = (self.answered().count(), self.places.len(), self.started.elapsed().as_secs_f64());
        let lines: Vec<String> = self.answered().map(|p| grouped(p.line)).collect();
        let places = match lines.as_slice() {
            [] => counted(self.lines, "line"),
            [one] => format!("line {one} of {}", grouped(self.lines)),
            [many @ .., last] => format!("lines {} and {last} of {}", many.join(", "), grouped(self.lines)),
        };
        format!("{text}\nAsked after {done} of {of} kept states of {} ({places}), in {seconds:.1} s.\n", self.document)
    }
}

impl Fan for When {
    fn prepare(&mut self, runtime: &mut State, which: usize) -> Done<Option<Branch>> {
        let Some(place) = self.places.get(which) else { return Ok(None) };
        runtime.question_after(&place.path, &place.rendered, runtime.greedy()).map(Some)
    }

    fn ended(&mut self, runtime: &mut State, which: usize, grown: Done<Grown>) {
        let Some(place) = self.places.get_mut(which) else { return };
        place.answer = match grown.map(|grown| grown.stats) {
            Ok(stats) if stats.end.as_ref().is_some_and(|end| end.ended != Ended::Cancelled) => {
                let begin = Begin::after_prompt(&place.rendered.text);
                Some(Ok(runtime.engine.decoded(begin, &stats.generated).answer))
            }
            Ok(_) | Err(RuntimeError::Stopped) => None,
            Err(e) => Some(Err(e.to_string())),
        };
        let (done, of) = (self.answered().count(), self.places.len());
        runtime.working(Activity::Busy { what: format!("{done} of {of} places asked") });
    }
}
