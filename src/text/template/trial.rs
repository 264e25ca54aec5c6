//! Whether a template of a model folder can be run at all. Its instructions are counted, but not what they make: one that doubles
//! a string sixty times fills the memory with a hundred of them. So each that is not known is tried in a child process first
//! (`sala-chat __template`), with the conversations that [`Template::new`] and [`Template::check_question`] render.

use std::ffi::OsString;

use super::apart::{Apart, told};
use super::{Parts, Template, is_released, limits};
use crate::text::TextError;
use crate::text::trial::Trial;

/// First argument of the child.
pub const CHILD: &str = "__template";
const TRIAL: Trial = Trial {
    child: CHILD,
    doing: "rendering a few words",
    advice: "take tokenizer_config.json and chat_template.jinja from the model's own folder",
    memory_bytes: 2 << 30,
    time: limits::PATIENCE,
};

impl Template {
    /// As [`Template::from_config`] for files of a model folder: what is not known is tried first, and run apart. `program` and first
    /// arguments accept [`CHILD`] and [`super::RENDER_CHILD`]; normally it is this program.
    ///
    /// # Errors
    /// As there; it leaves the question out; or it takes too much time or memory.
    pub fn from_folder(
        program: &[OsString],
        config: &[u8],
        chat_template: Option<&[u8]>,
    ) -> Result<Template, TextError> {
        let parts = Parts::read(config, chat_template)?;
        if is_released(&parts.source) {
            return parts.template();
        }
        let text = serde_json::to_string(&parts).map_err(|e| TextError::Template(e.to_string()))?;
        match TRIAL.tried(program, text) {
            Ok(None) => {}
            Ok(Some(refused)) => return Err(TextError::Template(refused)),
            Err(why) => return Err(TextError::Template(format!("it cannot be tried: {why}"))),
        }
        // What it does may depend on what is said, and on how much.
        let apart = Some(Apart::new(program, &parts)?);
        Ok(Template { apart, ..Template::compiled(&parts)? }.with_switch())
    }
}

/// In the child: renders the first conversations, and returns a verdict for standard output.
///
/// # Errors
/// Why it cannot be tried, in one line for standard error.
pub fn child() -> Result<Vec<u8>, String> {
    TRIAL.child(|text| {
        let parts: Parts = serde_json::from_slice(text).map_err(|e| e.to_string())?;
        Ok(parts.template().and_then(|template| template.check_question()).err().map(told))
    })
}
