//! The desk's loop: one request after the other, with an eye on the request channel while something runs.

use std::time::{Duration, Instant};

use crossbeam_channel::{after, never, select};

use super::dispatch::Dispatch;
use super::link::EngineState;
use super::{Answer, Asked, Attendance, DeskError, Done, Opening, State};
use crate::commands::WhileBusy;
use crate::protocol::desk::{Activity, Choice, Level, Notice, Request};
use crate::protocol::engine::{Cancel, EngineEvent, EngineFault};
use crate::session::{SaveEvent, StoreError};

/// Typed prompts handed to the input's history.
const PROMPTS: usize = 2_000;

/// What the desk woke up for.
pub(super) enum Event {
    Request(Request),
    Engine(EngineEvent),
    Save(SaveEvent),
    Tick,
}

impl State {
    /// Runs until [`Request::Quit`] or until the interface is gone.
    pub(super) fn run(mut self) {
        for note in self.store.notes().to_vec() {
            self.note(Level::Warn, note);
        }
        if let crate::session::Access::ReadOnly { why } = self.store.access().clone() {
            self.saving(crate::protocol::desk::SaveState::NotSaved(why));
        }
        match self.store.prompts(PROMPTS) {
            Ok(prompts) => self.tell(Notice::Prompts(prompts.into_iter().rev().collect())),
            Err(e) => self.note(Level::Warn, e.to_string()),
        }
        self.activity(Activity::Starting { what: "loading the model".into() });
        if let Err(e) = self.first_session() {
            self.failed(&e);
        }
        while !self.quitting {
            if self.resume_pending && self.queue.is_empty() && self.model().is_some() {
                self.cancel = Cancel::default();
                if let Err(e) = self.finish_resume() {
                    self.failed(&e);
                }
                self.idle();
                continue;
            }
            let request = match self.queue.pop_front() {
                Some(r) => r,
                None => match self.next(None) {
                    Event::Request(r) => r,
                    Event::Engine(e) => {
                        self.on_idle_engine(e);
                        continue;
                    }
                    Event::Save(e) => {
                        self.on_save(e);
                        continue;
                    }
                    Event::Tick => continue,
                },
            };
            self.cancel = Cancel::default();
            if let Err(e) = self.handle(request) {
                self.failed(&e);
            }
            self.idle();
        }
        self.finish();
    }

    fn first_session(&mut self) -> Done {
        match std::mem::take(&mut self.opening) {
            Opening::New => self.start_new(None),
            Opening::Named(name) => self.start_new(Some(name)),
            Opening::Resume(name) => match self.resume(&name) {
                Ok(()) => Ok(()),
                Err(e) => {
                    // Whoever asked for a session must not type into another one without a word.
                    self.start_new(None)?;
                    Err(e)
                }
            },
        }
    }

    /// Says that nothing runs. While the model is being loaded that is said instead.
    pub(super) fn idle(&mut self) {
        match &self.link.state {
            EngineState::Starting => self.activity(Activity::Starting { what: "loading the model".into() }),
            EngineState::Ready(_) | EngineState::Down { .. } => self.activity(Activity::Idle),
        }
    }

    pub(super) fn failed(&mut self, e: &DeskError) {
        if self.attendance == Attendance::Absent {
            self.tell(Notice::Fatal { error: e.to_string(), code: e.exit_code() });
            self.quitting = true;
            return;
        }
        match e {
            DeskError::Stopped => {}
            DeskError::Store(StoreError::NoSession { name }) => {
                let why = self.no_session(name);
                self.note(Level::Warn, why);
            }
            DeskError::Engine(_)
            | DeskError::RowsLost(_)
            | DeskError::Failed(_)
            | DeskError::Store(_)
            | DeskError::Text(_) => self.note(Level::Error, e.to_string()),
            DeskError::Refused(_) | DeskError::TooLong(_) => self.note(Level::Warn, e.to_string()),
        }
    }

    /// Waits for whatever comes first.
    pub(super) fn next(&mut self, until: Option<Instant>) -> Event {
        let tick = until.map_or_else(never, |d| after(d.saturating_duration_since(Instant::now())));
        select! {
            recv(self.requests) -> r => Event::Request(r.unwrap_or(Request::Quit)),
            recv(self.link.events) -> e => match e {
                Ok(e) => Event::Engine(e),
                Err(_) => Event::Engine(EngineEvent::Failed {
                    id: 0,
                    fault: EngineFault::Fatal {
                        why: "The engine ended unexpectedly. Text is safe; start sala-chat again and /resume last."
                            .into(),
                        code: 1,
                    },
                }),
            },
            recv(self.saves) -> e => match e {
                Ok(e) => Event::Save(e),
                Err(_) => Event::Tick,
            },
            recv(tick) -> _ => Event::Tick,
        }
    }

    /// Serves a request that came while something runs.
    pub(super) fn on_busy_request(&mut self, request: Request) {
        match request {
            Request::Stop if self.attendance == Attendance::Present => {
                self.cancel.cancel();
                self.activity(Activity::Stopping);
            }
            // Nobody types it in a hurry there: it is for the end of what was asked before.
            Request::Quit if self.attendance == Attendance::Absent => self.queue.push_back(Request::Quit),
            // Without anybody to go on, stopping is ending.
            Request::Stop | Request::Quit => {
                self.cancel.cancel();
                self.quitting = true;
                if let Some(asked) = &mut self.asked {
                    asked.answer.get_or_insert(Answer::Key('\x1b'));
                }
            }
            Request::Choose { question, key } => {
                if let Some(asked) = self.asked.as_mut().filter(|a| a.id == question) {
                    asked.answer.get_or_insert(Answer::Key(key));
                }
            }
            Request::ChooseFiles { question, files } => {
                if let Some(asked) = self.asked.as_mut().filter(|a| a.id == question) {
                    asked.answer.get_or_insert(Answer::Files(files));
                }
            }
            r if r.while_busy() == WhileBusy::Runs => {
                if let Err(e) = self.handle(r) {
                    self.failed(&e);
                }
            }
            r => self.queue.push_back(r),
        }
    }

    /// Waits until the model is loaded.
    pub(super) fn need_engine(&mut self) -> Done {
        loop {
            match &self.link.state {
                EngineState::Ready(_) => {
                    let resuming = std::mem::take(&mut self.resume_pending);
                    // Whoever asks in a session whose state is lost is asked first whether to read it again. With nobody
                    // there to answer, the question's own prefill reads what is missing.
                    if resuming && self.attendance == Attendance::Present {
                        return self.finish_resume();
                    }
                    return Ok(());
                }
                EngineState::Down { why, code } => {
                    return Err(EngineFault::Fatal { why: why.clone(), code: *code }.into());
                }
                EngineState::Starting => {}
            }
            if self.cancel.is_cancelled() {
                return Err(DeskError::Stopped);
            }
            match self.next(None) {
                Event::Request(r) => self.on_busy_request(r),
                Event::Engine(e) => self.on_idle_engine(e),
                Event::Save(e) => self.on_save(e),
                Event::Tick => {}
            }
        }
    }

    /// An engine event outside any job.
    pub(super) fn on_idle_engine(&mut self, event: EngineEvent) {
        match event {
            EngineEvent::Ready(info) => {
                self.meters.context_limit = info.context_limit;
                self.meters.model = info.clone();
                self.link.state = EngineState::Ready(Box::new(info.clone()));
                self.tell(Notice::Ready(info.clone()));
                for note in &info.notes {
                    if self.device_notes.is_news(note) {
                        self.note(Level::Warn, note.clone());
                    }
                }
                self.model_is_known();
                self.idle();
            }
            EngineEvent::Failed { fault, .. } => {
                self.engine_failed(&fault);
                let error = fault.to_string();
                if let EngineFault::Fatal { code, .. } = fault {
                    if self.attendance == Attendance::Absent {
                        self.tell(Notice::Fatal { error, code });
                        self.quitting = true;
                        return;
                    }
                    self.idle();
                }
                self.note(Level::Error, error);
            }
            EngineEvent::Loading { what, done } => {
                let what = if done > 0.0 { format!("{what} {:.0}%", done * 100.0) } else { what };
                self.activity(Activity::Starting { what });
            }
            // Late events of a job that was given up.
            EngineEvent::Restored { .. }
            | EngineEvent::Reading { .. }
            | EngineEvent::Tokens { .. }
            | EngineEvent::Done { .. } => {}
        }
    }

    /// Puts a question to the user and waits. The last choice is the one for "cancel".
    pub(super) fn ask_user(&mut self, text: String, choices: Vec<Choice>) -> char {
        let cancel = choices.last().map_or('\x1b', |c| c.key);
        if self.attendance == Attendance::Absent {
            return choices.first().map_or(cancel, |c| c.key);
        }
        let keys: Vec<char> = choices.iter().map(|c| c.key).collect();
        match self.answer_to(|id| Notice::Question { id, text, choices }) {
            Some(Answer::Key(key)) if keys.contains(&key) => key,
            Some(Answer::Key(_) | Answer::Files(_)) | None => cancel,
        }
    }

    /// Puts a question and waits for its answer; `None` when the user stops instead.
    pub(super) fn answer_to(&mut self, question: impl FnOnce(u64) -> Notice) -> Option<Answer> {
        self.next_question += 1;
        let id = self.next_question;
        let before = self.activity.clone();
        self.activity(Activity::Idle);
        self.tell(question(id));
        self.asked = Some(Asked { id, answer: None });
        let answer = loop {
            if let Some(answer) = self.asked.as_mut().and_then(|a| a.answer.take()) {
                break Some(answer);
            }
            match self.next(None) {
                Event::Request(Request::Stop) => break None,
                Event::Request(r) => self.on_busy_request(r),
                Event::Engine(e) => self.on_idle_engine(e),
                Event::Save(e) => self.on_save(e),
                Event::Tick => {}
            }
        };
        self.asked = None;
        self.activity(before);
        answer
    }

    /// A yes-or-no question: true for the first of two choices.
    pub(super) fn confirm(&mut self, text: String, yes: &str) -> bool {
        let choices =
            vec![Choice { key: '\n', label: yes.to_owned() }, Choice { key: '\x1b', label: "cancel".to_owned() }];
        self.ask_user(text, choices) == '\n'
    }

    /// Saves what is left and says goodbye.
    fn finish(mut self) {
        self.link.shutdown();
        self.activity(Activity::Busy { what: "saving".into() });
        let notices = self.notices.clone();
        let (farewell, unsaved) = self.close_all(Duration::from_secs(60));
        let _ = notices.send(Notice::Bye { farewell, unsaved });
    }

    /// One request, from the first word to the last.
    fn handle(&mut self, request: Request) -> Done {
        request.execute(&mut Dispatch(self))
    }
}
