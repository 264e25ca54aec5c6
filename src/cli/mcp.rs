//! `sala-chat mcp`: documents of the library for agents, over the Model Context Protocol. `sala-chat serve` offers the
//! same at `/mcp`.
//!
//! | file | owns |
//! |---|---|
//! | `tools` | the protocol: tools, their arguments and results, resources |
//! | `answers` | results as text and as objects |
//! | `worker` | the runtime, which serves one request at a time |
//! | `library` | look-ups that need no model: documents, texts, quotes, sessions |

mod answers;
mod library;
mod tools;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use rmcp::transport::io::stdio_pipes;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::io::{AsyncBufReadExt, BufReader};

use super::args::SessionChoice;
use super::open::{self, Opened, no_thread};
use super::signals::Ending;
use super::{Context, Exit, Failure, engines};
use crate::client::attach::{self, Loads};
use crate::core::files::below_home;
use crate::runtime::{Attendance, Input};
use crate::server::Mounted;
use library::Library;
use tools::Tools;
pub(super) use worker::Worker;

/// A context for requests of agents: links inside a folder must not lead out of the allowed folders.
fn for_agents(context: &Context) -> Context {
    let mut context = Context { quiet: true, ..context.clone() };
    context.loaded.config.load.follow_symlinks = false;
    context
}

fn for_calls(context: &Context) -> Result<Opened, Failure> {
    open::runtime(context, &SessionChoice::New, true, Attendance::Absent, Input::Calls)
}

/// `sala-chat mcp`: serves one client on standard input and output until its end.
pub(super) fn run(context: &Context) -> Result<Exit, Failure> {
    context.note("sala-chat mcp waits for an agent on standard input; docs/serve.md says how to set one up");
    let roots = Roots::of(context)?;
    let context = for_agents(context);
    let opened = context.clone();
    let worker = Worker::new(move || for_calls(&opened));
    let tools = Tools::new(Arc::clone(&worker), Library::new(context), roots);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let ending = Ending::watch(move || drop(stop))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
    let served = runtime.block_on(async {
        tokio::select! {
            served = serve(tools) => served,
            _ = stopped => Ok(()),
        }
    });
    // Ends the calls that still run; the runtime then saves and ends.
    runtime.shutdown_background();
    let saved = worker.close();
    match ending.signal() {
        Some(signal) => Ok(Exit::Signal(signal)),
        None => served.and(saved).map(|()| Exit::Ok),
    }
}

async fn serve(tools: Tools) -> Result<(), Failure> {
    let failure = |e: String| Failure::new(Exit::Failure, format!("the client does not speak the protocol: {e}"));
    let (from, to) = stdio_pipes();
    let mut from = BufReader::new(from);
    if from.fill_buf().await?.is_empty() {
        // The client left before it began.
        return Ok(());
    }
    match tools.serve((from, to)).await {
        Ok(service) => service.waiting().await.map(drop).map_err(|e| failure(e.to_string())),
        // The library drops lines that are no messages.
        Err(ServerInitializeError::ConnectionClosed(_)) => {
            Err(failure("standard input ended without an initialize request".to_owned()))
        }
        Err(e) => Err(failure(e.to_string())),
    }
}

/// The same over HTTP for a server of this process, on the engine that it loaded.
pub(super) fn mounted(context: &Context, loads: Loads, has_key: bool) -> Result<(Mounted, Arc<Worker>), Failure> {
    let named = !context.config().mcp.roots.is_empty();
    // With a key, clients may be on other computers: they read only what was named.
    let roots = if has_key && !named { Roots::default() } else { Roots::of(context)? };
    let mut context = for_agents(context);
    context.loaded.config.engine.url = String::new();
    let (place, opened) = (engines::place(&context), context.clone());
    let worker = Worker::new(move || match attach::find(&place, &loads) {
        Ok(Some(_)) => for_calls(&opened),
        Ok(None) | Err(_) => {
            let why = "this server's model cannot be used: another server holds the data directory";
            Err(Failure::new(Exit::Failure, why))
        }
    });
    let tools = Tools::new(Arc::clone(&worker), Library::new(context), roots);
    // The server has checked host, origin and key.
    let config = StreamableHttpServerConfig::default().disable_allowed_hosts();
    let ended = config.cancellation_token.clone();
    let service = StreamableHttpService::new(move || Ok(tools.clone()), Arc::<LocalSessionManager>::default(), config);
    let router = axum::Router::new().fallback_service(service);
    Ok((Mounted { router, end: Box::new(move || ended.cancel()) }, worker))
}

/// The folders that `add_document` may read.
#[derive(Clone, Debug, Default)]
struct Roots(Vec<PathBuf>);

impl Roots {
    fn of(context: &Context) -> Result<Roots, Failure> {
        let named = context.config().mcp.roots.split(',').map(str::trim).filter(|root| !root.is_empty());
        let mut named: Vec<&str> = named.collect();
        if named.is_empty() {
            named.push(".");
        }
        let real = |root: &&str| {
            std::fs::canonicalize(below_home(root, std::env::home_dir().as_deref())).map_err(|e| {
                Failure::new(Exit::Usage, format!("mcp.roots: {root}: {e}")).hint("Name folders that exist")
            })
        };
        Ok(Roots(named.iter().map(real).collect::<Result<_, _>>()?))
    }

    fn allowed(&self, path: &str) -> Result<PathBuf, String> {
        let Some(base) = self.0.first() else {
            return Err("This server reads no files for agents: mcp.roots names no folder.".to_owned());
        };
        let shown: Vec<String> = self.0.iter().map(|root| root.display().to_string()).collect();
        let shown = shown.join(", ");
        let here = std::env::current_dir().unwrap_or_else(|_| base.clone());
        // Relative paths mean the working folder, else the first allowed folder.
        let found = [here.as_path(), base.as_path()].map(|from| std::fs::canonicalize(from.join(Path::new(path))));
        let [first, second] = found;
        match first.or(second) {
            Ok(real) if self.0.iter().any(|root| real.starts_with(root)) => Ok(real),
            Ok(_) => Err(format!("{path} is outside the folders that mcp.roots allows ({shown}).")),
            Err(_) => Err(format!("There is no file {path} below the folders that mcp.roots allows ({shown}).")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_and_dots_that_lead_out_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        for folder in [&inside, &outside] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("a.txt"), "text").unwrap();
        }
        std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
        std::os::unix::fs::symlink(inside.join("a.txt"), inside.join("b.txt")).unwrap();
        let roots = Roots(vec![inside.canonicalize().unwrap()]);
        let allowed = |path: &str| roots.allowed(path);
        assert_eq!(allowed("a.txt").unwrap(), inside.canonicalize().unwrap().join("a.txt"));
        assert_eq!(allowed("b.txt").unwrap(), allowed("a.txt").unwrap());
        for path in ["link/a.txt", "../out/a.txt", "link", "/etc", outside.join("a.txt").to_str().unwrap()] {
            assert!(allowed(path).unwrap_err().contains("mcp.roots"), "{path}");
        }
        assert!(allowed("none.txt").unwrap_err().contains("no file none.txt"));
        assert!(Roots::default().allowed("a.txt").unwrap_err().contains("names no folder"));
    }
}
