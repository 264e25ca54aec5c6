//! The verb of each request. [`crate::config::commands`] lists the requests; a new one needs its verb here.

use super::Attendance;
use super::shelf::Wish;
use super::verb::{Baton, Running, verb};
use crate::config::commands::{
    BranchTarget, Execute, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction,
};
use crate::config::settings::ThinkMode;
use crate::core::transcript::MessageId;
use crate::engine::protocol::SpecMode;
use crate::runtime::protocol::Request;

pub(super) struct Dispatch<'a>(pub &'a Baton);

impl Execute for Dispatch<'_> {
    type Done = Running;

    fn ask(&mut self, text: String) -> Running {
        verb(self.0, async move |v| v.ask(text).await)
    }

    fn ask_for_several(&mut self, text: String, count: u64) -> Running {
        verb(self.0, async move |v| v.ask_for_several(text, count).await)
    }

    fn stop(&mut self) -> Running {
        verb(self.0, async move |v| {
            v.quitting |= v.attendance == Attendance::Absent;
            Ok(())
        })
    }

    /// The loop answers open questions; this one is no longer open.
    fn choose(&mut self, _question: u64, _key: char) -> Running {
        verb(self.0, async |_| Ok(()))
    }

    fn choose_files(&mut self, _question: u64, _files: Vec<usize>) -> Running {
        verb(self.0, async |_| Ok(()))
    }

    fn switch(&mut self, serial: u64) -> Running {
        verb(self.0, async move |v| v.switch(serial).await)
    }

    fn leave_queued(&mut self, request: Box<Request>) -> Running {
        request.execute(self)
    }

    fn there(&mut self, serial: u64, request: Option<Box<Request>>) -> Running {
        verb(self.0, async move |v| {
            v.there(serial, request);
            Ok(())
        })
    }

    fn remember(&mut self, text: String) -> Running {
        verb(self.0, async move |v| {
            v.remember_prompt(&text);
            Ok(())
        })
    }

    fn keep_draft(&mut self, serial: u64, text: String) -> Running {
        verb(self.0, async move |v| {
            v.keep_draft(serial, text);
            Ok(())
        })
    }

    fn edit_done(&mut self, message: MessageId, text: String) -> Running {
        verb(self.0, async move |v| v.edit_done(message, text).await)
    }

    fn quit(&mut self) -> Running {
        verb(self.0, async move |v| {
            v.quitting = true;
            Ok(())
        })
    }

    fn load(&mut self, paths: Vec<String>, options: LoadOptions) -> Running {
        verb(self.0, async move |v| v.load(&paths, &options).await)
    }

    fn docs(&mut self) -> Running {
        verb(self.0, async move |v| v.docs())
    }

    fn unload(&mut self, name: String) -> Running {
        verb(self.0, async move |v| v.unload(&name).await)
    }

    fn open(&mut self, name: String) -> Running {
        verb(self.0, async move |v| v.open_document(&name))
    }

    fn library(&mut self, action: LibraryAction) -> Running {
        verb(self.0, async move |v| v.library(action).await)
    }

    fn new_session(&mut self, name: Option<String>) -> Running {
        verb(self.0, async move |v| v.new_session(name))
    }

    fn resume(&mut self, name: String) -> Running {
        verb(self.0, async move |v| v.resume(&name).await)
    }

    fn sessions(&mut self) -> Running {
        verb(self.0, async move |v| v.list_sessions())
    }

    fn rename(&mut self, name: String) -> Running {
        verb(self.0, async move |v| v.rename(&name))
    }

    fn title(&mut self, text: String) -> Running {
        verb(self.0, async move |v| v.title(&text))
    }

    fn delete(&mut self, name: Option<String>) -> Running {
        verb(self.0, async move |v| v.delete(name.as_deref()).await)
    }

    fn search(&mut self, text: String) -> Running {
        verb(self.0, async move |v| v.search(&text).await)
    }

    fn export(
        &mut self,
        path: String,
        format: Option<ExportFormat>,
        tree: bool,
        with_state: bool,
        force: bool,
    ) -> Running {
        verb(self.0, async move |v| v.export(&path, format, tree, with_state, force).await)
    }

    fn import(&mut self, path: String) -> Running {
        verb(self.0, async move |v| v.import(&path).await)
    }

    fn save(&mut self) -> Running {
        verb(self.0, async move |v| v.save_report())
    }

    fn timeline(&mut self) -> Running {
        verb(self.0, async move |v| v.timeline())
    }

    fn undo(&mut self, count: u64) -> Running {
        verb(self.0, async move |v| v.undo(count).await)
    }

    fn redo(&mut self, count: u64) -> Running {
        verb(self.0, async move |v| v.redo(count).await)
    }

    fn regen(&mut self, at: Option<u64>, count: u64, temperature: Option<f32>, seed: Option<u64>) -> Running {
        verb(self.0, async move |v| v.regen(at, count, temperature, seed).await)
    }

    fn edit_open(&mut self, at: Option<u64>) -> Running {
        verb(self.0, async move |v| v.edit_open(at))
    }

    fn go_on(&mut self, text: Option<String>) -> Running {
        verb(self.0, async move |v| v.go_on(text.unwrap_or_default()).await)
    }

    fn fork(&mut self, at: Option<u64>, name: Option<String>) -> Running {
        verb(self.0, async move |v| v.fork(at, name).await)
    }

    fn fork_from(&mut self, message: MessageId) -> Running {
        verb(self.0, async move |v| v.fork_from(message).await)
    }

    fn branch(&mut self, target: BranchTarget) -> Running {
        verb(self.0, async move |v| v.branch(target).await)
    }

    fn mark(&mut self, name: String) -> Running {
        verb(self.0, async move |v| v.mark(&name))
    }

    fn goto(&mut self, target: GotoTarget) -> Running {
        verb(self.0, async move |v| v.goto(target).await)
    }

    fn aside(&mut self, question: String) -> Running {
        verb(self.0, async move |v| v.aside(&question).await)
    }

    fn stop_aside(&mut self) -> Running {
        verb(self.0, async move |v| {
            v.stop_aside();
            Ok(())
        })
    }

    fn ask_all(&mut self, question: String, library: Option<String>, read: bool) -> Running {
        verb(self.0, async move |v| v.ask_all(Wish { question, library, read, tried: false }).await)
    }

    fn when(&mut self, question: String) -> Running {
        verb(self.0, async move |v| v.when(question).await)
    }

    fn open_asked(&mut self, row: usize) -> Running {
        verb(self.0, async move |v| v.open_asked(row).await)
    }

    fn compact(&mut self, instruction: Option<String>) -> Running {
        verb(self.0, async move |v| v.compact(instruction.as_deref()).await)
    }

    fn look(&mut self, at: Option<u64>, passage: Option<u64>) -> Running {
        verb(self.0, async move |v| v.look(at, passage))
    }

    fn look_sentence(&mut self, at: Option<u64>, sentence: u64) -> Running {
        verb(self.0, async move |v| v.look_at_sentence(at, sentence))
    }

    fn quotes(&mut self, at: Option<u64>) -> Running {
        verb(self.0, async move |v| v.quotes_page(at))
    }

    fn map(&mut self) -> Running {
        verb(self.0, async move |v| v.map())
    }

    fn why(&mut self, at: Option<u64>, count: Option<u64>) -> Running {
        verb(self.0, async move |v| v.why(at, count).await)
    }

    fn stats(&mut self) -> Running {
        verb(self.0, async move |v| v.stats())
    }

    fn context(&mut self) -> Running {
        verb(self.0, async move |v| v.context_page())
    }

    fn doctor(&mut self) -> Running {
        verb(self.0, async move |v| v.doctor())
    }

    fn set(&mut self, change: Option<(String, String)>) -> Running {
        verb(self.0, async move |v| v.set(change))
    }

    fn preset(&mut self, action: PresetAction) -> Running {
        verb(self.0, async move |v| v.preset(action))
    }

    fn system(&mut self, text: Option<String>) -> Running {
        verb(self.0, async move |v| v.system_text(text).await)
    }

    fn system_edit(&mut self) -> Running {
        verb(self.0, async move |v| v.system_edit())
    }

    fn think(&mut self, mode: ThinkMode) -> Running {
        verb(self.0, async move |v| v.think(mode))
    }

    fn spec(&mut self, mode: Option<SpecMode>) -> Running {
        verb(self.0, async move |v| v.spec(mode))
    }
}
