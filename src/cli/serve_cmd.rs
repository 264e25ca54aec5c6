//! `sala-chat serve`: opens what the server needs, says where it listens, ends it in order. `bench serve` uses it too.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::args::ServeArgs;
use super::open::{self, no_thread};
use super::signals::{listen, park_at_signal};
use super::{Context, Exit, Failure, dirs, engines, mcp, out};
use crate::client::attach::{self, Host, Loads, Multiplexer};
use crate::core::sanitize::{Clean, shell_word};
use crate::core::{files, plain_words};
use crate::engine;
use crate::engine::protocol::EngineOptions;
use crate::runtime::{EngineChannels, Settings};
use crate::server::{Key, Options, ServeError, Server, Stop};
use crate::store::Scratch;
use crate::text::TextModel;

const KEY_BYTES: u64 = 4 << 10;
const KEY_LENGTH: std::ops::RangeInclusive<usize> = 16..=1024;

fn fresh_key() -> Result<String, Failure> {
    let mut random = [0u8; 32];
    let read = std::fs::File::open("/dev/urandom").and_then(|mut f| std::io::Read::read_exact(&mut f, &mut random));
    read.map_err(|e| Failure::new(Exit::Failure, format!("no random numbers for a key: {e}")))?;
    Ok(blake3::Hash::from_bytes(random).to_hex().to_string())
}

/// Reads the key from a file, or creates the file. True if it was created.
fn key_in(path: &Path) -> Result<(Key, bool), Failure> {
    let fail = |e: std::io::Error| Failure::new(Exit::Failure, format!("{}: {e}", path.display()));
    // Follows links: secrets are often handed over as one.
    match std::fs::metadata(path) {
        Ok(meta) => {
            let usage = |why: &str| Failure::new(Exit::Usage, format!("{}: {why}", path.display()));
            if !meta.is_file() {
                return Err(usage("not a regular file").hint("Name a file that holds a key, or a new one"));
            }
            let (least, most) = (KEY_LENGTH.start(), KEY_LENGTH.end());
            let no_key = || usage(&format!("a key is one word of {least} to {most} ASCII characters"));
            let bytes = files::read(path, KEY_BYTES).map_err(|e| match e.kind() {
                std::io::ErrorKind::FileTooLarge => no_key(),
                _ => fail(e),
            })?;
            let text = std::str::from_utf8(&bytes).map_err(|_| no_key())?.trim();
            if !KEY_LENGTH.contains(&text.len()) || !text.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(no_key());
            }
            // Checked after the form, so that no other file is made private by mistake.
            if meta.mode() & 0o077 != 0 {
                let private = format!("chmod 600 {}", shell_word(&path.to_string_lossy()));
                return Err(usage("others can read this key").hint(private));
            }
            Ok((Key::new(text), false))
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            if let Some(folder) = path.parent().filter(|f| !f.as_os_str().is_empty()) {
                dirs::make_private(folder).map_err(fail)?;
            }
            let key = fresh_key()?;
            files::create(path, format!("{key}\n").as_bytes()).map_err(fail)?;
            Ok((Key::new(&key), true))
        }
        Err(e) => Err(fail(e)),
    }
}

pub(super) fn malformed(text: &str) -> Option<String> {
    let address = text.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let is_port = address.map_or(text, |(_, port)| port).parse::<u16>().is_ok();
    let why = match address {
        Some(_) => "a port is a whole number from 0 to 65535 (ADDR:PORT is needed)",
        None => "ADDR:PORT is needed, as 127.0.0.1:8080",
    };
    (!is_port).then(|| why.to_owned())
}

/// The addresses that a text means, a port alone one of this machine; `from` is the option or the setting that it is of.
fn addresses(from: &str, text: &str) -> Result<Vec<SocketAddr>, Failure> {
    let wrong = |why: String| Failure::usage(format!("{from} {text}: {why}"));
    if let Some(why) = malformed(text) {
        return Err(wrong(why));
    }
    let port = text.parse().map(|port| vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))]);
    let found = port.or_else(|_| text.to_socket_addrs().map(Vec::from_iter)).map_err(|e| wrong(e.to_string()))?;
    if found.is_empty() { Err(wrong("no such address".into())) } else { Ok(found) }
}

/// SIGINT, SIGTERM and SIGHUP: the first lets running answers end, the second stops them, the third ends the process.
fn watch_signals(stop: Stop, multiplexer: Multiplexer) -> Result<(), Failure> {
    let mut count = 0;
    let each = move |signal| {
        if count >= 2 {
            std::process::exit(Exit::by_signal(signal).into());
        }
        stop.stop();
        if count == 1 {
            multiplexer.hurry();
        }
        count += 1;
        true
    };
    listen("signals", &[SIGINT, SIGTERM, SIGHUP], each)
        .map_err(|e| Failure::new(Exit::Failure, format!("no signal handlers: {e}")))
}

pub struct Serving {
    server: Server,
    listener: TcpListener,
    multiplexer: Multiplexer,
    engine: JoinHandle<()>,
    host: Option<Host>,
    mcp: Option<Arc<mcp::Worker>>,
    _scratch: Option<Scratch>,
}

impl Serving {
    /// Starts the engine and the server; requests are kept in the data directory if `saved`.
    pub fn begin(
        context: &Context,
        options: EngineOptions,
        listener: TcpListener,
        key: Option<Key>,
        saved: bool,
    ) -> Result<Serving, Failure> {
        let (text, stop) = open::text(&options.model)?;
        let config = context.config();
        let mut loaded = context.loaded.clone();
        loaded.recommend(&text.recommended);
        let address = listener.local_addr()?;
        let (store, scratch) = match saved {
            true => open::store_of_requests_or_new(context)?,
            false => open::scratch(context).map(|(store, dir)| (store, Some(dir)))?,
        };
        // Without one, no documents are offered.
        let library = open::store(context).ok();
        let loads = Loads::from(&options);
        // Agents' documents are kept in the library.
        let mounted = saved.then(|| mcp::mounted(context, loads.clone(), key.is_some())).transpose()?;
        let (mounted, mcp) = mounted.unzip();
        let engine = engine::spawn(options).map_err(no_thread)?;
        park_at_signal(engine.commands.clone()).map_err(no_thread)?;
        let (multiplexer, share) =
            Multiplexer::start(engine.commands, engine.events, config.serve.side_by_side).map_err(no_thread)?;
        let host = for_terminals(context, &address.to_string(), loads, &multiplexer, &text);
        let server = Server::start(Options {
            store,
            library,
            system: loaded.system.clone(),
            text,
            stop,
            engine: EngineChannels { commands: share.commands, events: share.events },
            settings: Settings::of(&loaded.config),
            piece: open::piece(context),
            serve: config.serve.clone(),
            key,
            mcp: mounted,
            program: crate::text::this_program(),
        })
        .map_err(no_thread)?;
        Ok(Serving { server, listener, multiplexer, engine: engine.thread, host, mcp, _scratch: scratch })
    }

    pub fn stop(&self) -> Stop {
        self.server.stop()
    }

    pub fn run(self) -> Result<(), Failure> {
        let served = self.server.serve(self.listener);
        self.mcp.iter().for_each(|mcp| drop(mcp.close()));
        // Ends after the terminals' running answers; its last event reports a panic.
        let _ = self.engine.join();
        if let Some(host) = self.host {
            host.close();
        }
        served.map_err(|e| match e {
            ServeError::Engine { why, exit } => Failure::of_chat(exit, &why),
            ServeError::Unsaved(_) => Failure::new(Exit::Disk, e.to_string()),
            ServeError::Io(_) | ServeError::Panicked => Failure::new(Exit::Failure, e.to_string()),
        })
    }
}

pub fn run(context: &Context, args: &ServeArgs) -> Result<Exit, Failure> {
    let set = &context.config().serve;
    let (from, listen) = args.listen.as_deref().map_or(("serve.listen", set.listen.as_str()), |it| ("--listen", it));
    let addresses = addresses(from, listen)?;
    let open_to_others = addresses.iter().any(|a| !a.ip().is_loopback());
    let key_file = args.key_file.clone().or_else(|| Some(PathBuf::from(&set.key_file)).filter(|f| *f != Path::new("")));
    let ours = || open_to_others.then(|| context.dirs.data.join(crate::core::places::SERVE_KEY));
    let key_file = key_file.or_else(ours);
    let options = open::engine_options(context)?;
    let name = open::checkpoint(context, &options.model)?.name().to_owned();
    let key = key_file.as_deref().map(key_in).transpose()?;
    let listener = TcpListener::bind(addresses.as_slice())
        .map_err(|e| Failure::new(Exit::Failure, format!("{listen}: {e}")).hint("Another port: --listen ADDR:PORT"))?;
    let address = listener.local_addr()?;
    let shown = key.as_ref().map(|(key, _)| key.clone());
    let serving = Serving::begin(context, options, listener, shown, !args.no_save)?;
    watch_signals(serving.stop(), serving.multiplexer.clone())?;
    let key = key.zip(key_file).map_or("No key is needed.".to_owned(), |((_, made), file)| {
        format!("The key is in {}{}.", file.display(), if made { " (made just now)" } else { "" })
    });
    out::line(&Clean::line(&format!("sala-chat serves {name} at http://{address}/v1. {key} Ctrl-C stops it.")))?;
    if open_to_others && !context.quiet {
        out::err_line(&Clean::line(
            "Every computer that reaches this address can use the model and read answers it names, if it has the key; nothing is encrypted on the way.",
        ));
    }
    serving.run().map(|()| Exit::Ok)
}

/// Lets terminals of the same data directory use this engine. Where that cannot be, programs still can.
fn for_terminals(
    context: &Context,
    address: &str,
    loads: Loads,
    multiplexer: &Multiplexer,
    text: &TextModel,
) -> Option<Host> {
    let place = engines::place(context);
    let tokenizer = text.tokenizer.clone();
    let why = match attach::open_host(&place, address, loads, multiplexer.clone(), tokenizer, engines::rows) {
        Ok(Some(host)) => return Some(host),
        Ok(None) => "another sala-chat serve of this data directory does that".to_owned(),
        Err(e) => plain_words(&e),
    };
    if !context.quiet {
        out::err_line(&Clean::line(&format!("Terminals cannot use this model: {why}.")));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_is_made_for_its_owner_alone_and_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("below/key");
        assert!(key_in(&path).unwrap().1);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.trim().len(), 64);
        assert!(!key_in(&path).unwrap().1);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(key_in(&path).unwrap_err().message.contains("others can read"));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        // Of a link, what it leads to counts.
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(!key_in(&link).unwrap().1);
        std::fs::write(&path, "short\n").unwrap();
        assert!(key_in(&path).unwrap_err().message.contains("16 to 1024"));
        // So is what is no text, and what is far too long.
        for bad in [b"\xFF\xFE a key of sixteen".to_vec(), vec![b'k'; 5000]] {
            std::fs::write(&path, bad).unwrap();
            let failure = key_in(&path).unwrap_err();
            assert!(failure.exit == Exit::Usage && failure.message.contains("16 to 1024"), "{}", failure.message);
        }
        // No file of the system is to be hidden because it was named here.
        std::fs::write(&path, "root:x:0:0:root:/root:/bin/sh\nsomebody:x:1:1::/:/bin/false\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let failure = key_in(&path).unwrap_err();
        assert!(failure.message.contains("16 to 1024") && failure.hint.is_none(), "{failure}");
    }
}
