//! `/ask-all`: one question to every document of the library in parallel, each on top of its own kept state. Nothing
//! is saved; a fork can be opened at any answer.

mod kept;

use std::sync::Arc;
use std::time::Instant;

use super::executor::Written;
use super::fan_out::{Branch, Fan, Grown};
use super::path::Path;
use super::render::Rendered;
use super::segments;
use super::slot::Last;
use super::verb::Verb;
use super::{Attendance, Done, RuntimeError, State};
use crate::config::settings::SaveStates;
use crate::core::now_ms;
use crate::core::transcript::{DocumentInfo, Message, MessageMeta, Role, Sources};
use crate::engine::protocol::{Ended, Sampling, Token};
use crate::runtime::protocol::{Activity, FanOut, FanOutRow, Level, Notice};
use crate::store::DocumentRecord;
use crate::text::{Begin, StreamDecoder};
use kept::{Standing, is_file};

const THIS_QUESTION: &str = "This question";
/// Most reasons for no answer that are named after the table, which cuts them.
const SHOWN_REASONS: usize = 3;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Params {
    pub(super) question: String,
    /// Pattern of document names; `None` selects all.
    pub(super) library: Option<String>,
    /// Reads documents without kept state first.
    pub(super) read: bool,
    /// The missing documents were read as far as possible.
    pub(super) tried: bool,
}

pub(super) struct Ready {
    /// The messages before the document, the document, and the question.
    pub(super) messages: Vec<Message>,
    pub(super) rendered: Arc<Rendered>,
    pub(super) path: Path,
}

struct Being {
    record: DocumentRecord,
    row: FanOutRow,
    thinking: String,
    looked: Option<Sources>,
    ready: Option<Ready>,
    decoder: Option<StreamDecoder>,
    generated: Vec<Token>,
    /// Natural logarithm of the probability of each generated token.
    likely: Vec<f32>,
}

/// The table of answers; Enter opens one as a session.
pub(super) struct AskAll {
    question: String,
    sampling: Sampling,
    answers: Vec<Being>,
    changed: bool,
    started: Instant,
}

pub fn no_document(library: Option<&str>, attendance: Attendance) -> String {
    let which = library.map_or(String::new(), |glob| format!(" called {glob}"));
    let put = match attendance {
        Attendance::Present => "/load and /library add put them there.",
        Attendance::Absent => "sala-chat library add FILE puts one there.",
    };
    format!("There is no document{which} in the library. {put}")
}

impl Verb {
    pub(super) async fn ask_all(&mut self, question: String, library: Option<String>, read: bool) -> Done {
        let mut request = Params { question, library, read, tried: false };
        if request.question.trim().is_empty() {
            return Err(RuntimeError::Refused("/ask-all QUESTION asks every document of the library.".into()));
        }
        self.engine_ready().await?;
        self.keeps_state(match self.attendance {
            Attendance::Present => "/ask-all",
            Attendance::Absent => "ask-all",
        })?;
        let (mut kept, mut others) = self.library_documents_kept(&request).await?;
        let mut unread = Vec::new();
        // With `save_state` "never", reading would keep nothing.
        if request.read && !others.is_empty() && self.disk.policy != SaveStates::Never {
            let files = others.iter().filter_map(|(d, _)| d.document.path.clone()).filter(|p| is_file(p)).collect();
            unread = self.read_shelved(files).await?;
            request.tried = true;
            (kept, others) = self.library_documents_kept(&request).await?;
        }
        let others = others.into_iter().map(|(d, standing)| {
            let why = self.why_not(&request, &d, standing, &unread);
            (d, why)
        });
        let others = others.collect();
        self.ask_documents(request.question, kept, others).await
    }

    async fn library_documents_kept(
        &mut self,
        request: &Params,
    ) -> Done<(Vec<DocumentRecord>, Vec<(DocumentRecord, Standing)>)> {
        // Entry and state of a document that was just read may not be on disk yet.
        self.disk.wait_for_texts();
        self.states_saved().await;
        let (kept, others) = self.shelved(request.library.as_deref())?;
        if kept.is_empty() && others.is_empty() {
            return Err(RuntimeError::Refused(no_document(request.library.as_deref(), self.attendance)));
        }
        Ok((kept, others))
    }

    async fn ask_documents(
        &mut self,
        question: String,
        kept: Vec<DocumentRecord>,
        others: Vec<(DocumentRecord, String)>,
    ) -> Done {
        let being = |record: DocumentRecord, failed: Option<String>| Being {
            row: FanOutRow {
                document: record.document.name.clone(),
                tokens: record.document.tokens,
                failed,
                ..FanOutRow::default()
            },
            record,
            thinking: String::new(),
            looked: None,
            ready: None,
            decoder: None,
            generated: Vec::new(),
            likely: Vec::new(),
        };
        let mut answers: Vec<Being> = kept.into_iter().map(|d| being(d, None)).collect();
        let count = answers.len();
        answers.extend(others.into_iter().map(|(d, why)| being(d, Some(why))));
        // Answers for comparison are not sampled.
        let sampling = Sampling { temperature: 0.0, ..self.here.session.settings.for_answer(|| 0) };
        self.activity(Activity::Busy { what: format!("asking {count} documents") });
        let mut fan = AskAll { question, sampling, answers, changed: true, started: Instant::now() };
        fan.report(self, false);
        let slots = self.fan_out(&mut fan).await?;
        let released = self.release(slots);
        fan.report(self, true);
        self.report_meters();
        let (answered, of, seconds) = (fan.answered(), fan.answers.len(), fan.started.elapsed().as_secs_f64());
        let stopped = if self.here.slot.stopped() { "Stopped: " } else { "" };
        let reason = |b: &Being| b.row.failed.as_ref().map(|why| format!(" {}: {why}.", b.row.document));
        let reasons: String = fan.answers.iter().filter_map(reason).take(SHOWN_REASONS).collect();
        self.note(Level::Info, format!("{stopped}{answered} of {of} documents answered in {seconds:.1} s.{reasons}"));
        let serial = self.here.session.serial;
        self.tables.insert(serial, fan);
        released
    }

    /// Enter in the table: opens a new session that ends with this answer.
    pub(super) async fn open_row(&mut self, at: usize) -> Done {
        let serial = self.here.session.serial;
        let table = self.tables.remove(&serial);
        let done = self.open_answer(table.as_ref().and_then(|table| Some((table, table.answers.get(at)?)))).await;
        self.tables.extend(table.map(|table| (serial, table)));
        done
    }

    async fn open_answer(&mut self, answer: Option<(&AskAll, &Being)>) -> Done {
        let Some((table, answered)) = answer else {
            return Err(RuntimeError::Refused("That answer is gone. /ask-all asks again.".into()));
        };
        if answered.row.finish.is_none() {
            return Err(RuntimeError::Refused(format!("{} was not answered.", answered.row.document)));
        }
        let Ready { messages, .. } = self.question_to(&answered.record, &table.question)?;
        self.start_new(None)?;
        let mut parent = None;
        for mut message in messages {
            // The document gets a new id: another session may hold the original.
            message.id = self.disk.store.new_message_id(parent);
            (message.parent, message.created_ms) = (parent, now_ms());
            parent = Some(message.id);
            let document = message.meta.document.as_ref().is_some_and(|d| d.hash == answered.record.document.hash);
            let id = message.id;
            self.add_quietly(message)?;
            if document {
                self.point(id, answered.record.document.segment);
            }
        }
        let mut answer = self.draft(Role::Assistant, parent, answered.row.text.clone());
        answer.thinking = answered.thinking.clone();
        answer.meta = MessageMeta {
            finish: answered.row.finish,
            seed: table.sampling.seed_of_draws(),
            model: self.engine.model().map(|m| m.name.clone()),
            completion_tokens: answered.row.answer_tokens,
            looked: answered.looked.clone(),
            ..MessageMeta::default()
        };
        self.add_quietly(answer)?;
        self.show_session();
        self.note(
            Level::Info,
            format!("New session with {}. Its state is kept; ask on from this answer.", answered.row.document),
        );
        self.sync_quietly().await
    }
}

impl State {
    /// Refuses a command that needs kept state on a server.
    pub(super) fn keeps_state(&self, what: &str) -> Done {
        match self.engine.server() {
            None => Ok(()),
            Some(_) => Err(RuntimeError::Refused(format!("{what} needs kept state, and a server keeps none."))),
        }
    }

    /// Messages up to a kept document and a question; their rendering matches the kept state exactly.
    pub(super) fn question_to(&self, record: &DocumentRecord, question: &str) -> Done<Ready> {
        let segment = record.document.segment;
        let path = self.disk.stored_path(&segment)?;
        if path.head() != Some(segment) {
            return Err(RuntimeError::Refused("its kept state is gone".into()));
        }
        let mut candidates = Vec::new();
        if let Some(id) = self.disk.store.message_ending(&segment)? {
            // The text of a damaged message is not the text that was read.
            let whole = |path: &Vec<Message>| path.iter().all(|m| !m.meta.damaged);
            // A user turn without an answer has no boundary of its own in the state.
            let alone = |path: &Vec<Message>| path.iter().rev().skip(1).all(|m| m.role == Role::System);
            candidates.extend(Some(self.disk.store.path(id)?).filter(|path| whole(path) && alone(path)));
        }
        if let Some(text) = self.document_text(record, &path) {
            let d = &record.document;
            let mut document = self.draft(Role::Document, None, text);
            document.meta.document = Some(DocumentInfo {
                name: d.name.clone(),
                path: d.path.clone(),
                hash: d.hash.clone(),
                tokens: d.tokens,
                lines: d.lines,
                complete: true,
                once: false,
                update: None,
            });
            let system = self.default_system.clone().filter(|s| !s.trim().is_empty());
            let system = system.map(|text| self.draft(Role::System, None, text));
            candidates.extend(system.map(|s| vec![s, document.clone()]));
            candidates.push(vec![document]);
        }
        for mut messages in candidates {
            messages.push(self.draft(Role::User, None, question.to_owned()));
            let refs: Vec<&Message> = messages.iter().collect();
            let rendered = self.prompt(&refs, THIS_QUESTION)?;
            if path.unchanged(&rendered.text).segments().len() == path.segments().len() {
                return Ok(Ready { messages, rendered: Arc::new(rendered), path });
            }
        }
        Err(RuntimeError::Refused("its text cannot be restored from what is kept".into()))
    }

    /// The text of a document, decoded from its tokens.
    pub(super) fn document_text(&self, record: &DocumentRecord, path: &Path) -> Option<String> {
        let d = &record.document;
        segments::document_text(&self.engine.renderer, path, d.prefix, &d.name)
    }
}

impl AskAll {
    fn report(&self, runtime: &State, over: bool) {
        let rows = self.answers.iter().map(|b| b.row.clone()).collect();
        runtime.report(Notice::FanOut(FanOut { question: self.question.clone(), rows, over }));
    }

    fn answered(&self) -> usize {
        self.answers.iter().filter(|b| b.row.is_answered()).count()
    }

    fn answer(being: &mut Being, runtime: &State, grown: Grown) {
        let Some(end) = grown.stats.end else { return };
        if let Some(decoder) = &mut being.decoder {
            let rest = decoder.finish();
            being.row.text.push_str(&rest.answer);
            being.thinking.push_str(&rest.thinking);
        }
        if being.thinking.is_empty()
            && let Some((thinking, text)) = runtime.engine.unopened_thought(&being.row.text)
        {
            (being.thinking, being.row.text) = (thinking.to_owned(), text.to_owned());
        }
        being.row.finish = Some(end.ended.finish());
        being.row.answer_tokens = grown.stats.generated.len() as u64;
        being.generated = grown.stats.generated;
        let Some(ready) = being.ready.as_ref() else { return };
        let messages: Vec<&Message> = ready.messages.iter().collect();
        let looked = runtime.sources_after(&messages, &ready.rendered, (&end.looked_at, &[]), &grown.path);
        being.row.passages = looked.as_ref().map(|l| l.passages.clone()).unwrap_or_default();
        being.looked = looked;
        if end.ended != Ended::Cancelled {
            being.row.log_probability = Self::weigh(being, runtime);
        }
    }

    /// Mean log-probability of the answer's tokens, without thoughts.
    fn weigh(being: &Being, runtime: &State) -> Option<f64> {
        let begin = being.ready.as_ref().map(|r| Begin::after_prompt(&r.rendered.text))?;
        let until = runtime.thoughts_until(begin).ok().flatten();
        let thoughts = until.and_then(|t| being.generated.iter().position(|g| *g == t)).map_or(0, |at| at + 1);
        let known = being.likely.len() == being.generated.len();
        let scores = being.likely.get(thoughts..).filter(|scores| known && !scores.is_empty())?;
        Some(scores.iter().map(|s| f64::from(*s)).sum::<f64>() / scores.len() as f64)
    }

    fn say_how_far(&mut self, runtime: &mut State) {
        self.changed = true;
        let of = self.answers.iter().filter(|b| b.row.failed.is_none()).count();
        runtime.working(Activity::Busy { what: format!("{} of {of} documents answered", self.answered()) });
    }
}

impl Fan for AskAll {
    fn shown_again(&mut self, runtime: &mut State) {
        self.report(runtime, false);
    }

    fn count(&self) -> usize {
        self.answers.len()
    }

    fn prepare(&mut self, runtime: &mut State, which: usize) -> Done<Option<Branch>> {
        let Some(being) = self.answers.get_mut(which).filter(|b| b.row.failed.is_none()) else { return Ok(None) };
        let ready = runtime.question_to(&being.record, &self.question)?;
        let (mut branch, decoder) = runtime.question_after(&ready.path, &ready.rendered, self.sampling)?;
        if let Some(Last::Generate(request)) = &mut branch.last {
            // Requests the log-probability of each token itself, without alternatives.
            request.likely = Some(0);
        }
        being.decoder = Some(decoder);
        being.ready = Some(ready);
        Ok(Some(branch))
    }

    fn tokens(&mut self, _state: &mut State, which: usize, written: &Written<'_>) {
        let Some(being) = self.answers.get_mut(which) else { return };
        being.likely.extend(written.likely.iter().map(|likely| likely.log_prob));
        if let Some(decoder) = &mut being.decoder {
            let delta = decoder.push_all(written.tokens);
            being.row.text.push_str(&delta.answer);
            being.thinking.push_str(&delta.thinking);
            self.changed |= !delta.answer.is_empty();
        }
    }

    fn tick(&mut self, runtime: &mut State) {
        if std::mem::take(&mut self.changed) {
            self.report(runtime, false);
        }
    }

    fn ended(&mut self, runtime: &mut State, which: usize, grown: Done<Grown>) {
        let Some(being) = self.answers.get_mut(which) else { return };
        match grown {
            Ok(grown) => Self::answer(being, runtime, grown),
            Err(RuntimeError::Stopped) => {}
            Err(e) => being.row.failed = Some(e.to_string()),
        }
        (being.ready, being.decoder) = (None, None);
        self.say_how_far(runtime);
    }
}
