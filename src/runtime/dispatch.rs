//! Each request and what the runtime does for it. The list of requests is in [`crate::config::commands`]; a new one needs its verb here.

use super::shelf::Wish;
use super::{Attendance, Done, RuntimeError, State};
use crate::config::commands::{
    BranchTarget, Execute, ExportFormat, GotoTarget, LibraryAction, LoadOptions, PresetAction,
};
use crate::config::settings::ThinkMode;
use crate::core::transcript::MessageId;
use crate::engine::protocol::SpecMode;
use crate::runtime::protocol::Request;

/// Carries requests out on a conversation.
pub(super) struct Dispatch<'a>(pub &'a mut State);

impl Execute for Dispatch<'_> {
    type Done = Result<(), RuntimeError>;

    fn ask(&mut self, text: String) -> Done {
        self.0.ask(text)
    }

    fn ask_for_several(&mut self, text: String, count: u64) -> Done {
        self.0.ask_for_several(text, count)
    }

    fn stop(&mut self) -> Done {
        self.0.quitting |= self.0.attendance == Attendance::Absent;
        Ok(())
    }

    /// The question is gone: whoever asked it took the answer while it waited.
    fn choose(&mut self, _question: u64, _key: char) -> Done {
        Ok(())
    }

    fn choose_files(&mut self, _question: u64, _files: Vec<usize>) -> Done {
        Ok(())
    }

    fn switch(&mut self, serial: u64) -> Done {
        self.0.switch(serial)
    }

    fn leave_queued(&mut self, request: Box<Request>) -> Done {
        request.execute(self)
    }

    fn there(&mut self, serial: u64, request: Option<Box<Request>>) -> Done {
        self.0.there(serial, request);
        Ok(())
    }

    fn remember(&mut self, text: String) -> Done {
        self.0.remember_prompt(&text);
        Ok(())
    }

    fn keep_draft(&mut self, serial: u64, text: String) -> Done {
        self.0.keep_draft(serial, text);
        Ok(())
    }

    fn edit_done(&mut self, message: MessageId, text: String) -> Done {
        self.0.edit_done(message, text)
    }

    fn quit(&mut self) -> Done {
        self.0.quitting = true;
        Ok(())
    }

    fn load(&mut self, paths: Vec<String>, options: LoadOptions) -> Done {
        self.0.load(&paths, &options)
    }

    fn docs(&mut self) -> Done {
        self.0.docs()
    }

    fn unload(&mut self, name: String) -> Done {
        self.0.unload(&name)
    }

    fn open(&mut self, name: String) -> Done {
        self.0.open_document(&name)
    }

    fn library(&mut self, action: LibraryAction) -> Done {
        self.0.library(action)
    }

    fn new_session(&mut self, name: Option<String>) -> Done {
        self.0.new_session(name)
    }

    fn resume(&mut self, name: String) -> Done {
        self.0.resume(&name)
    }

    fn sessions(&mut self) -> Done {
        self.0.list_sessions()
    }

    fn rename(&mut self, name: String) -> Done {
        self.0.rename(&name)
    }

    fn title(&mut self, text: String) -> Done {
        self.0.title(&text)
    }

    fn delete(&mut self, name: Option<String>) -> Done {
        self.0.delete(name.as_deref())
    }

    fn search(&mut self, text: String) -> Done {
        self.0.search(&text)
    }

    fn export(
        &mut self,
        path: String,
        format: Option<ExportFormat>,
        tree: bool,
        with_state: bool,
        force: bool,
    ) -> Done {
        self.0.export(&path, format, tree, with_state, force)
    }

    fn import(&mut self, path: String) -> Done {
        self.0.import(&path)
    }

    fn save(&mut self) -> Done {
        self.0.save_report()
    }

    fn timeline(&mut self) -> Done {
        self.0.timeline()
    }

    fn undo(&mut self, count: u64) -> Done {
        self.0.undo(count)
    }

    fn redo(&mut self, count: u64) -> Done {
        self.0.redo(count)
    }

    fn regen(&mut self, at: Option<u64>, count: u64, temperature: Option<f32>, seed: Option<u64>) -> Done {
        self.0.regen(at, count, temperature, seed)
    }

    fn edit_open(&mut self, at: Option<u64>) -> Done {
        self.0.edit_open(at)
    }

    fn go_on(&mut self, text: Option<String>) -> Done {
        self.0.go_on(text.as_deref().unwrap_or(""))
    }

    fn fork(&mut self, at: Option<u64>, name: Option<String>) -> Done {
        self.0.fork(at, name)
    }

    fn fork_from(&mut self, message: MessageId) -> Done {
        self.0.fork_from(message)
    }

    fn branch(&mut self, target: BranchTarget) -> Done {
        self.0.branch(target)
    }

    fn mark(&mut self, name: String) -> Done {
        self.0.mark(&name)
    }

    fn goto(&mut self, target: GotoTarget) -> Done {
        self.0.goto(target)
    }

    fn aside(&mut self, question: String) -> Done {
        self.0.aside(&question)
    }

    fn stop_aside(&mut self) -> Done {
        self.0.stop_aside();
        Ok(())
    }

    fn ask_all(&mut self, question: String, library: Option<String>, read: bool) -> Done {
        self.0.ask_all(Wish { question, library, read, tried: false })
    }

    fn when(&mut self, question: String) -> Done {
        self.0.when(&question)
    }

    fn open_asked(&mut self, row: usize) -> Done {
        self.0.open_asked(row)
    }

    fn compact(&mut self, instruction: Option<String>) -> Done {
        self.0.compact(instruction.as_deref())
    }

    fn look(&mut self, at: Option<u64>, passage: Option<u64>) -> Done {
        self.0.look(at, passage)
    }

    fn look_sentence(&mut self, at: Option<u64>, sentence: u64) -> Done {
        self.0.look_at_sentence(at, sentence)
    }

    fn map(&mut self) -> Done {
        self.0.map()
    }

    fn why(&mut self, at: Option<u64>, count: Option<u64>) -> Done {
        self.0.why(at, count)
    }

    fn stats(&mut self) -> Done {
        self.0.stats()
    }

    fn context(&mut self) -> Done {
        self.0.context_page()
    }

    fn doctor(&mut self) -> Done {
        self.0.doctor()
    }

    fn set(&mut self, change: Option<(String, String)>) -> Done {
        self.0.set(change)
    }

    fn preset(&mut self, action: PresetAction) -> Done {
        self.0.preset(action)
    }

    fn system(&mut self, text: Option<String>) -> Done {
        self.0.system_text(text)
    }

    fn system_edit(&mut self) -> Done {
        self.0.system_edit()
    }

    fn think(&mut self, mode: ThinkMode) -> Done {
        self.0.think(mode)
    }

    fn spec(&mut self, mode: Option<SpecMode>) -> Done {
        self.0.spec(mode)
    }
}
