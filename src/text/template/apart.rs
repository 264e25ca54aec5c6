//! Rendering in a process of its own. What a template makes is limited where it is written, not while it is put together: its
//! strings grow in the memory of whoever runs it. So one that is not known is run in a child (this program again, as `__render`)
//! with a limit on its memory; what takes more ends the child, and is an error here.
//!
//! A child answers one rendering after the other: a number of bytes and so many of JSON come in, a sign, a number of bytes and so
//! many of text go out. One that refused or failed is not asked again; one that is not asked any more finds the end of its input.

use std::ffi::OsString;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Asked, Parts, Template, limits};
use crate::text::{TextError, child, untrusted};

/// First argument of the child.
pub const CHILD: &str = "__render";
/// Address space of the child.
const MEMORY_BYTES: u64 = 2 << 30;
/// The child gives up by itself before that.
const PATIENCE: Duration = limits::PATIENCE.saturating_add(Duration::from_secs(10));
/// Children that wait for the next rendering.
const IDLE: usize = 4;
/// Longest reason of a refusal.
const REASON_BYTES: u64 = 64 << 10;

/// Before a text, and before the reason for none.
const TEXT: u8 = b'+';
const REFUSED: u8 = b'-';

/// Where a template is run.
pub(super) struct Apart {
    program: Vec<OsString>,
    parts: Vec<u8>,
    idle: Mutex<Vec<Running>>,
}

/// A child. It ends with this.
struct Running {
    process: Child,
    /// What it is to be told first.
    unsent: Vec<u8>,
    /// None while it renders, or once it is gone.
    pipes: Option<Pipes>,
}

struct Pipes {
    to: Box<dyn Write + Send>,
    from: Box<dyn Read + Send>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, or is to.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What came of a rendering.
enum Outcome {
    Text(String),
    Refused(String),
    /// The child has ended.
    Ended(Option<ExitStatus>),
}

impl Apart {
    /// `program` and first arguments accept [`CHILD`]. The first child begins now, while a model is loaded: the first answer would wait for it.
    pub(super) fn new(program: &[OsString], parts: &Parts) -> Result<Apart, TextError> {
        let parts = serde_json::to_vec(parts).map_err(|e| TextError::Template(e.to_string()))?;
        let apart = Apart { program: program.to_vec(), parts, idle: Mutex::default() };
        // One that does not begin is told by whoever renders.
        apart.idle().extend(apart.begin());
        Ok(apart)
    }

    /// As [`Template::render_until`].
    pub(super) fn render(&self, asked: &Asked, stop: &dyn Fn() -> bool) -> Result<String, TextError> {
        let question = serde_json::to_vec(asked).map_err(|e| TextError::Template(e.to_string()))?;
        let most = limits::output(asked.bytes) as u64;
        let waiting = self.idle().pop();
        let outcome = match waiting {
            None => self.begin()?.render(question, most, stop)?,
            // It may have been ended while it waited, by somebody else.
            Some(running) => match running.render(question.clone(), most, stop)? {
                (Outcome::Ended(_), _) => self.begin()?.render(question, most, stop)?,
                done => done,
            },
        };
        match outcome {
            (Outcome::Text(text), running) => {
                let mut idle = self.idle();
                if idle.len() < IDLE {
                    idle.push(running);
                }
                Ok(text)
            }
            (Outcome::Refused(why), _) => Err(TextError::Template(why)),
            (Outcome::Ended(status), _) => Err(TextError::Template(match status.and_then(|s| s.signal()) {
                // Memory or a stack beyond the limits aborts it.
                Some(_) => format!(
                    "rendering this conversation takes more than {} GiB of memory or too deep a stack; take \
                     tokenizer_config.json and chat_template.jinja from the model's own folder",
                    MEMORY_BYTES >> 30
                ),
                None => "the process that renders it ended".to_owned(),
            })),
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Running>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) -> Result<Running, TextError> {
        let failed = |why: String| TextError::Template(format!("it cannot be run: {why}"));
        let (program, arguments) = self.program.split_first().ok_or_else(|| failed("there is no program".into()))?;
        let mut command = Command::new(program);
        command.args(arguments).arg(CHILD).env("RUST_BACKTRACE", "0").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|e| failed(format!("the child did not start ({e})")))?;
        let pipes = process.stdin.take().zip(process.stdout.take());
        let pipes = pipes.map(|(to, from)| Pipes { to: Box::new(to), from: Box::new(BufReader::new(from)) });
        Ok(Running { process, unsent: framed(&self.parts), pipes })
    }
}

impl Running {
    fn render(
        mut self,
        question: Vec<u8>,
        most: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(Outcome, Running), TextError> {
        let Some(mut pipes) = self.pipes.take() else { return Ok((Outcome::Ended(None), self)) };
        let mut sent = std::mem::take(&mut self.unsent);
        sent.extend(framed(&question));
        let exchange = move || -> io::Result<(u8, Vec<u8>, Pipes)> {
            pipes.to.write_all(&sent)?;
            let mut sign = [0];
            pipes.from.read_exact(&mut sign)?;
            let text = receive(&mut pipes.from, most.max(REASON_BYTES))?.ok_or(io::ErrorKind::UnexpectedEof)?;
            Ok((sign[0], text, pipes))
        };
        match untrusted::run(PATIENCE, stop, exchange) {
            Ok(Ok((sign, text, pipes))) => {
                self.pipes = Some(pipes);
                let text = String::from_utf8_lossy(&text).into_owned();
                Ok((if sign == TEXT { Outcome::Text(text) } else { Outcome::Refused(text) }, self))
            }
            Ok(Err(e)) => {
                tracing::debug!("a template's child: {e}");
                // Its end of the pipes is closed: it has ended, or does so now.
                let status = self.process.wait().ok();
                Ok((Outcome::Ended(status), self))
            }
            Err(untrusted::GaveUp::Stopped) => Err(TextError::Stopped),
            Err(e) => Err(TextError::Template(e.to_string())),
        }
    }
}

/// Behind their number.
fn framed(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// `None` at the end.
fn receive(from: &mut impl Read, most: u64) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 8];
    match from.read_exact(&mut length) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        done => done?,
    }
    let length = u64::from_le_bytes(length);
    if length > most {
        return Err(io::Error::other(format!("{length} bytes where at most {most} are expected")));
    }
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(Some(bytes))
}

/// In the child: renders until the input ends. What is made goes to `out`, all of it at once.
///
/// # Errors
/// Why it cannot, in one line for standard error.
pub fn child(out: fn(&[u8]) -> io::Result<()>) -> Result<(), String> {
    child::confine_memory(MEMORY_BYTES)?;
    let mut from = io::stdin().lock();
    let mut next = || receive(&mut from, u64::MAX).map_err(|e| e.to_string());
    let Some(parts) = next()? else { return Ok(()) };
    let parts: Parts = serde_json::from_slice(&parts).map_err(|e| e.to_string())?;
    let template = Template::compiled(&parts).map_err(told);
    while let Some(question) = next()? {
        let asked: Asked = serde_json::from_slice(&question).map_err(|e| e.to_string())?;
        let rendered = template.as_ref().map_err(String::clone);
        let rendered = rendered.and_then(|t| t.render_here(asked, &|| false).map_err(told));
        let (sign, mut text) = match rendered {
            Ok(text) => (TEXT, text),
            Err(why) => (REFUSED, why),
        };
        if sign == REFUSED {
            text.truncate(text.floor_char_boundary(REASON_BYTES as usize));
        }
        out(&[&[sign], framed(text.as_bytes()).as_slice()].concat()).map_err(|e| e.to_string())?;
    }
    Ok(())
}

/// What a template says itself; the rest is added where it is shown.
pub(super) fn told(e: TextError) -> String {
    match e {
        TextError::Template(why) => why,
        e => e.to_string(),
    }
}
