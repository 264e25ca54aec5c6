//! `sala-chat model path|verify|download|quantize`. Only `download` and `verify --hub` use the network.

use std::path::PathBuf;

use super::args::ModelCommand;
use serde_json::{Value, json};

use super::hub::{self, CachedRepo, Hub, HubError, Kind, Snapshot, Verdict, installed};
use super::notices::ProgressLine;
use super::sessions_cmd::confirmed;
use super::{Context, Exit, Failure, quantize_cmd};
use crate::config::settings::{ModelConfig, ModelSource};
use crate::core::bytes;
use crate::core::sanitize::Clean;
use crate::model::format::Format;
use crate::model::quantize;
use crate::tui::status::duration;

const SETTINGS_BYTES: u64 = 4 << 20;

fn model_folder(context: &Context) -> Result<PathBuf, Failure> {
    let config = &context.config().model;
    match context.config().model_source() {
        ModelSource::Demo => Err(Failure::new(Exit::Failure, "the built-in model has no folder")),
        ModelSource::Synthetic(_) => Err(Failure::new(Exit::Failure, "a synthetic model has no folder")),
        ModelSource::Path(path) => Ok(PathBuf::from(path)),
        ModelSource::Auto => installed(config).ok_or_else(|| {
            Failure::new(Exit::NoModel, format!("{} is not on this computer", config.repo))
                .hint("Get it: sala-chat model download. Or name a folder that has it: --model FOLDER")
        }),
    }
}

pub(super) fn run(context: &Context, action: &ModelCommand) -> Result<Exit, Failure> {
    let config = &context.config().model;
    match action {
        ModelCommand::Path => {
            let folder = model_folder(context)?;
            context.result(|| json!({ "path": folder }), || folder.display().to_string())
        }
        ModelCommand::Verify { hub } => verify(context, *hub),
        ModelCommand::Quantize { folder, to, calibrate, output } => {
            quantize_cmd::run(context, folder, *to, calibrate.as_ref().map(|docs| docs.as_deref()), output)
        }
        ModelCommand::Download { repo, yes } => {
            let mut config = config.clone();
            if let Some(repo) = repo {
                if !hub::is_id(repo) {
                    return Err(Failure::new(Exit::Usage, format!("{repo} is not a hub id")).hint("Write OWNER/NAME"));
                }
                config.repo.clone_from(repo);
                config.revision = "main".to_owned();
            }
            download(context, &config, *yes)
        }
    }
}

fn verify(context: &Context, ask: bool) -> Result<Exit, Failure> {
    let config = &context.config().model;
    let folder = model_folder(context)?;
    let mut report = |name: &str, size: u64| context.note(&format!("checking {name}, {}", bytes(size)));
    let packed = quantize::check(&folder, &mut report);
    let is_packed = packed.is_some();
    if is_packed && ask {
        context.note("This folder was packed here: its files are compared with the checksums recorded then.");
    }
    let published = if ask && !is_packed { listing(context, config)?.1.files } else { Vec::new() };
    let rows = hub::verify(&folder, packed.unwrap_or_default(), &published, &mut report)
        .map_err(|e| Failure::new(Exit::NoModel, format!("{}: {e}", folder.display())))?;
    let at = folder.display();
    let named = |(name, verdict): &(String, Verdict)| {
        verdict.problem().map(|why| format!("{} in {at}: {why}", Clean::line(name)))
    };
    let bad: Vec<String> = rows.iter().filter_map(named).collect();
    let complete = hub::complete(&folder, Kind::Model);
    context.result(
        || {
            let file = |(name, v): &(String, Verdict)| {
                json!({ "file": name, "problem": v.problem(), "verified": matches!(v, Verdict::Verified(_)) })
            };
            let files: Value = rows.iter().map(file).collect();
            json!({ "path": folder, "complete": complete, "files": files })
        },
        || rows.iter().map(|(name, v)| format!("{name}: {}", v.words())).collect::<Vec<_>>().join("\n"),
    )?;
    if !ask && !is_packed && rows.iter().any(|(_, v)| matches!(v, Verdict::Unverified(_))) {
        context.note("sala-chat model verify --hub asks for the published hashes");
    }
    let text = match bad.first() {
        None if complete => return Ok(Exit::Ok),
        None => format!("{at}: files are missing"),
        Some(first) => first.clone(),
    };
    let hint = match is_packed {
        true => "Run its sala-chat model quantize into a new folder (-o FOLDER), or remove this one first",
        false if bad.is_empty() => "sala-chat model download fetches them",
        false => "Try again; if it fails again, remove what is damaged, then: sala-chat model download",
    };
    Err(Failure::new(Exit::NoModel, text).hint(hint))
}

fn listing(context: &Context, config: &ModelConfig) -> Result<(Hub, Snapshot), Failure> {
    context.note(&format!("Asking the hub for {} …", config.repo));
    let hub = Hub::open(&config.repo).map_err(|e| explain(&e, config, 0))?;
    let snapshot = hub.snapshot(&config.revision).map_err(|e| explain(&e, config, 0))?;
    Ok((hub, snapshot))
}

/// Refuses, before the first byte of weights, a format that cannot be read.
fn check_format(context: &Context, hub: &Hub, snapshot: &Snapshot) -> Result<(), Failure> {
    let read = |name: &str| -> Result<Option<Value>, Failure> {
        let file = snapshot.files.iter().find(|f| f.path == name && f.bytes <= SETTINGS_BYTES);
        let bytes = file.map(|file| hub.content(&snapshot.commit, file)).transpose();
        let bytes = bytes.map_err(|e| explain(&e, &context.config().model, 0))?;
        Ok(bytes.and_then(|bytes| serde_json::from_slice(&bytes).ok()))
    };
    let (quant_config, config) = (read("hf_quant_config.json")?, read("config.json")?);
    let Some(format) = config.and_then(|config| Format::declared(&config, quant_config.as_ref())) else {
        return Ok(());
    };
    if let Some(what) = format.refusal() {
        return Err(Failure::new(Exit::NoModel, format!("nothing was downloaded: this is {what}")));
    }
    context.note(&format!("This is {}.", format.described()));
    Ok(())
}

fn download(context: &Context, config: &ModelConfig, yes: bool) -> Result<Exit, Failure> {
    if std::env::var("HF_HUB_OFFLINE").is_ok_and(|v| !matches!(v.as_str(), "" | "0" | "false" | "no")) {
        return Err(Failure::new(Exit::NoModel, "HF_HUB_OFFLINE is set, nothing is downloaded").hint(by_hand(config)));
    }
    let cached = CachedRepo::of(&config.repo);
    let (hub, snapshot) = listing(context, config)?;
    let (all, missing) = (snapshot.files.iter().map(|f| f.bytes).sum(), cached.missing_bytes(&snapshot));
    if missing > 0 {
        check_format(context, &hub, &snapshot)?;
        let licence = match &snapshot.licence {
            Some(licence) => format!("Its licence: {licence}"),
            None => "Its card names no licence".to_owned(),
        };
        let question = format!(
            "{} at {}: {} files, {}, {} to fetch, into {}. {licence}; see https://huggingface.co/{}. Download?",
            config.repo,
            snapshot.commit.get(..12).unwrap_or(&snapshot.commit),
            snapshot.files.len(),
            bytes(all),
            bytes(missing),
            cached.folder().display(),
            config.repo,
        );
        if yes {
            context.note(&format!("{licence}."));
        } else if !confirmed(&question)? {
            return Err(Failure::new(Exit::Failure, "nothing was downloaded"));
        }
    }
    let mut line = ProgressLine::new(context.shows_progress());
    let mut progress = |p: &hub::Progress| {
        let state = match &p.trouble {
            Some((what, again)) => format!("{what}, trying again ({again})"),
            None => {
                let left = duration((p.total - p.done) as f64 / p.bytes_per_s.max(1.0));
                format!("{}/s, left about {left}", bytes(p.bytes_per_s as u64))
            }
        };
        line.text(&format!("{}: in all {} of {}, {state}", p.file, bytes(p.done), bytes(p.total)));
    };
    let folder = cached.download(&hub, &config.revision, &snapshot, &std::thread::sleep, &mut progress);
    line.clear();
    let folder = folder.map_err(|e| explain(&e, config, all - cached.missing_bytes(&snapshot).min(all)))?;
    let kind = if snapshot.files.iter().any(|f| f.path == "tokenizer.json") { Kind::Model } else { Kind::Head };
    if !hub::complete(&folder, kind) {
        let text = format!("{}: all files of the hub are here, and weights or settings are missing", folder.display());
        return Err(Failure::new(Exit::NoModel, text).hint("The repository itself is incomplete, or of another kind"));
    }
    context.result(
        || json!({ "path": folder, "commit": snapshot.commit, "bytes": all, "licence": snapshot.licence }),
        || format!("Complete: {}", folder.display()),
    )
}

fn by_hand(config: &ModelConfig) -> String {
    format!(
        "To install by hand, put the files of https://huggingface.co/{} into a folder and type: sala-chat config set model.source FOLDER",
        config.repo
    )
}

fn explain(error: &HubError, config: &ModelConfig, here: u64) -> Failure {
    let (exit, hint) = match error {
        HubError::Network(_) | HubError::Busy(_) => {
            let again = if here > 0 { "What was read is kept; try again" } else { "Try again" };
            (Exit::NoModel, format!("{again}. {}", by_hand(config)))
        }
        HubError::Unknown(_) => {
            let check = "Check OWNER/NAME (where none is typed, model.repo and model.revision in the settings)";
            (Exit::Usage, format!("{check}; a private one needs HF_TOKEN"))
        }
        HubError::Refused(_) => (Exit::NoModel, "See model.repo and model.revision in the settings".to_owned()),
        HubError::Damaged(_) => (Exit::NoModel, "Type the command again".to_owned()),
        HubError::Disk(_) => (Exit::Disk, "Free space, or set HF_HOME to a folder on a larger disk".to_owned()),
    };
    Failure::new(exit, error.to_string()).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_downloads_are_mentioned_only_where_there_are_some() {
        let line = |here| explain(&HubError::Network("timeout".into()), &ModelConfig::default(), here).hint.unwrap();
        assert!(line(1).starts_with("What was read is kept; try again. To install by hand"), "{}", line(1));
        assert!(line(0).starts_with("Try again. To install by hand"), "{}", line(0));
    }

    #[test]
    fn a_name_that_the_hub_does_not_know_is_a_wrong_name_and_not_a_missing_model() {
        let failure = explain(&HubError::Unknown("some/thing at main".into()), &ModelConfig::default(), 0);
        assert_eq!((failure.exit, failure.message.as_str()), (Exit::Usage, "the hub does not know some/thing at main"));
        assert!(failure.hint.is_some_and(|hint| hint.contains("OWNER/NAME") && hint.contains("HF_TOKEN")));
    }
}
