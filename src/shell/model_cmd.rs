//! `sala-chat model path|verify|download`. The only part of the program that uses the network, and only when asked.

use std::io::{BufRead, IsTerminal};
use std::ops::Range;
use std::path::PathBuf;

use hf_hub::repository::RepoTreeEntry;
use hf_hub::{HFClient, HFClientSync, HFError};

use super::cli::ModelCommand;
use super::hub::{self, CachedRepo, Hub, HubError, HubFile, Kind, Snapshot, gigabytes};
use super::{Context, Exit, Failure, out};
use crate::protocol::engine::Cancel;
use crate::settings::{ModelConfig, ModelSource};
use crate::text::sanitize::Clean;

/// The folder of the downloaded model, if it is complete.
pub fn installed(config: &ModelConfig) -> Option<PathBuf> {
    cached(&config.repo).installed(&config.revision, Kind::Model)
}

/// What to say when the model is asked for and is not there.
pub fn not_installed(config: &ModelConfig) -> Failure {
    Failure::new(Exit::NoModel, format!("{} is not on this computer", config.repo))
        .hint("Get it: sala-chat model download. Or try the built-in model: --demo")
}

/// A repository in the hub's cache folder, which is found without using the network.
fn cached(repo: &str) -> CachedRepo {
    CachedRepo::new(&hf_hub::resolve_cache_dir(), repo)
}

/// The folder that `speculation.draft` or `--draft` names: a folder, or a hub id that was downloaded.
///
/// # Errors
/// Neither; the hint says how to get it.
pub fn draft_folder(name: &str) -> Result<PathBuf, Failure> {
    let folder = PathBuf::from(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    let is_id =
        name.split('/').count() == 2 && name.split('/').all(|part| !part.is_empty() && part != "." && part != "..");
    if !is_id {
        let failure = Failure::new(Exit::NoModel, format!("{name}: no such draft head folder"));
        return Err(failure.hint("Without one: --draft off"));
    }
    cached(name).installed("main", Kind::Head).ok_or_else(|| {
        Failure::new(Exit::NoModel, format!("the draft head {name} is not on this computer"))
            .hint(format!("Get it: sala-chat model download {name}. Or go without: --draft off"))
    })
}

/// Runs one of the actions.
pub(super) fn run(context: &Context, action: &ModelCommand) -> Result<Exit, Failure> {
    let config = &context.config().model;
    match action {
        ModelCommand::Path => {
            let folder = match context.config().model_source() {
                ModelSource::Demo => {
                    return Err(Failure::new(Exit::Failure, "the built-in model has no folder"));
                }
                ModelSource::Synthetic(_) => {
                    return Err(Failure::new(Exit::Failure, "a synthetic model has no folder"));
                }
                ModelSource::Path(path) => PathBuf::from(path),
                ModelSource::Auto => installed(config).ok_or_else(|| not_installed(config))?,
            };
            context.result(|| serde_json::json!({ "path": folder }), || folder.display().to_string())?;
        }
        ModelCommand::Verify => return verify(context),
        ModelCommand::Download { repo, yes } => {
            let mut config = config.clone();
            if let Some(repo) = repo {
                config.repo.clone_from(repo);
                config.revision = "main".to_owned();
            }
            download(context, &config, *yes)?;
        }
    }
    Ok(Exit::Ok)
}

fn verify(context: &Context) -> Result<Exit, Failure> {
    let config = &context.config().model;
    let folder = match context.config().model_source() {
        ModelSource::Path(path) => PathBuf::from(path),
        ModelSource::Auto | ModelSource::Demo | ModelSource::Synthetic(_) => {
            installed(config).ok_or_else(|| not_installed(config))?
        }
    };
    let rows = hub::verify(&folder, &mut |name, bytes| context.note(&format!("checking {name}, {}", gigabytes(bytes))))
        .map_err(|e| Failure::new(Exit::NoModel, format!("{}: {e}", folder.display())))?;
    let bad = rows.iter().filter(|(_, wrong)| wrong.is_some()).count();
    let complete = hub::complete(&folder, Kind::Model);
    context.result(
        || {
            let files: Vec<_> = rows.iter().map(|(n, w)| serde_json::json!({ "file": n, "problem": w })).collect();
            serde_json::json!({ "path": folder, "complete": complete, "files": files })
        },
        || {
            let lines: Vec<String> =
                rows.iter().map(|(n, w)| format!("{n}: {}", w.as_deref().unwrap_or("ok"))).collect();
            lines.join("\n")
        },
    )?;
    match (bad, complete) {
        (0, true) => Ok(Exit::Ok),
        (0, false) => Err(Failure::new(Exit::NoModel, format!("{}: files are missing", folder.display()))
            .hint("sala-chat model download fetches them")),
        (n, _) => Err(Failure::new(Exit::Failure, format!("{n} damaged file(s) in {}", folder.display()))
            .hint("Remove them, then: sala-chat model download")),
    }
}

fn download(context: &Context, config: &ModelConfig, yes: bool) -> Result<(), Failure> {
    if std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false" | "no")) {
        return Err(Failure::new(Exit::NoModel, "HF_HUB_OFFLINE is set, nothing is downloaded").hint(by_hand(config)));
    }
    let hub = RealHub::new(&config.repo).map_err(|e| explain(&e, config))?;
    let cached = cached(&config.repo);
    context.note(&format!("Asking huggingface.co for {} …", config.repo));
    let snapshot = hub.snapshot(&config.revision).map_err(|e| explain(&e, config))?;
    let (all, missing) = (snapshot.files.iter().map(|f| f.bytes).sum(), cached.missing_bytes(&snapshot));
    if missing > 0 && !yes {
        let question = format!(
            "{} at {}: {} files, {}, {} to fetch, into {}.\nIts licence is in the README of https://huggingface.co/{}. Download? [y/N] ",
            config.repo,
            snapshot.commit.get(..12).unwrap_or(&snapshot.commit),
            snapshot.files.len(),
            gigabytes(all),
            gigabytes(missing),
            cached.folder().display(),
            config.repo,
        );
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(format!("{} would be downloaded. Add --yes", gigabytes(missing))));
        }
        out::tell_part(&Clean::text(&question));
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(Failure::new(Exit::Stopped, "nothing was downloaded"));
        }
    }
    let shows = context.shows_progress();
    let mut last_file = String::new();
    let mut progress = |p: &hub::Progress| {
        if !shows {
            return;
        }
        if !last_file.is_empty() && last_file != p.file {
            out::tell(&Clean::line(""));
        }
        last_file.clone_from(&p.file);
        let state = match &p.trouble {
            Some((what, again)) => format!("{what}, trying again ({again})"),
            None => {
                let left = (p.total - p.done) as f64 / p.bytes_per_s.max(1.0);
                format!(
                    "{}/s, left about {}:{:02}",
                    gigabytes(p.bytes_per_s as u64),
                    left as u64 / 60,
                    left as u64 % 60
                )
            }
        };
        let said = format!(
            "{}: {} of {}; in all {} of {}, {state}",
            p.file,
            gigabytes(p.file_done),
            gigabytes(p.file_bytes),
            gigabytes(p.done),
            gigabytes(p.total)
        );
        out::progress(&Clean::line(&said));
    };
    let folder = cached
        .download(&hub, &config.revision, &snapshot, &std::thread::sleep, &mut progress, &Cancel::default())
        .map_err(|e| explain(&e, config));
    if shows {
        out::tell(&Clean::line(""));
    }
    let folder = folder?;
    context.result(
        || serde_json::json!({ "path": folder, "commit": snapshot.commit, "bytes": all }),
        || format!("Complete: {}", folder.display()),
    )
}

fn by_hand(config: &ModelConfig) -> String {
    format!(
        "To install by hand, put the files of https://huggingface.co/{} into a folder and type: sala-chat config set model.source FOLDER",
        config.repo
    )
}

fn explain(error: &HubError, config: &ModelConfig) -> Failure {
    let (exit, hint) = match error {
        HubError::Network(_) => (Exit::NoModel, format!("What was read is kept; try again. {}", by_hand(config))),
        HubError::Refused(_) => (Exit::NoModel, "See model.repo and model.revision in the settings".to_owned()),
        HubError::Damaged(_) => (Exit::NoModel, "Type the command again".to_owned()),
        HubError::Space { .. } | HubError::Disk { .. } => {
            (Exit::Disk, "Free space, or set HF_HOME to a folder on a larger disk".to_owned())
        }
        HubError::Stopped => (Exit::Stopped, "sala-chat model download".to_owned()),
    };
    Failure::new(exit, error.to_string()).hint(hint)
}

/// huggingface.co, or what `HF_ENDPOINT` names.
struct RealHub {
    client: HFClientSync,
    owner: String,
    name: String,
}

impl RealHub {
    fn new(repo: &str) -> Result<RealHub, HubError> {
        let client = HFClient::builder().user_agent(concat!("sala-chat/", env!("CARGO_PKG_VERSION"))).build();
        let client = client.map_err(|e| translate(&e))?;
        let client = HFClientSync::from_inner(client).map_err(|e| translate(&e))?;
        let (owner, name) =
            repo.split_once('/').ok_or_else(|| HubError::Refused(format!("{repo} is no hub id (owner/name)")))?;
        Ok(RealHub { client, owner: owner.to_owned(), name: name.to_owned() })
    }
}

impl Hub for RealHub {
    fn snapshot(&self, revision: &str) -> Result<Snapshot, HubError> {
        let repo = self.client.model(&self.owner, &self.name);
        let info = repo.info().revision(revision).send().map_err(|e| translate(&e))?;
        let commit = info.sha.ok_or_else(|| HubError::Refused(format!("{revision}: the hub names no commit")))?;
        let entries = repo.list_tree().revision(commit.clone()).recursive(true).send().map_err(|e| translate(&e))?;
        let files = entries.into_iter().filter_map(|entry| match entry {
            RepoTreeEntry::File { oid, size, path, lfs, .. } if hub::wanted(&path) => {
                let sha256 = lfs.and_then(|l| l.sha256);
                Some(HubFile { path, bytes: size, blob: sha256.clone().unwrap_or(oid), sha256 })
            }
            RepoTreeEntry::File { .. } | RepoTreeEntry::Directory { .. } => None,
        });
        let files: Vec<HubFile> = files.collect();
        if files.iter().any(|f| f.blob.is_empty() || !f.blob.bytes().all(|b| b.is_ascii_hexdigit())) {
            return Err(HubError::Refused("the hub names a file without a proper id".to_owned()));
        }
        Ok(Snapshot { commit, files })
    }

    fn read(&self, commit: &str, path: &str, range: Range<u64>) -> Result<Vec<u8>, HubError> {
        let repo = self.client.model(&self.owner, &self.name);
        let bytes = repo.download_file_to_bytes().filename(path).revision(commit).range(range).send();
        bytes.map(|b| b.to_vec()).map_err(|e| translate(&e))
    }
}

fn translate(error: &HFError) -> HubError {
    let text = error.to_string().lines().next().unwrap_or_default().to_owned();
    match error {
        HFError::RepoNotFound { .. }
        | HFError::RevisionNotFound { .. }
        | HFError::EntryNotFound { .. }
        | HFError::AuthRequired { .. }
        | HFError::Forbidden { .. }
        | HFError::InvalidParameter(_)
        | HFError::Url(_) => HubError::Refused(text),
        _ => HubError::Network(text),
    }
}
