//! Models and draft heads that were downloaded: found in the hub's cache folder, without the network.

use std::path::PathBuf;

use super::hub::{self, CachedRepo, Kind};
use super::{Exit, Failure};
use crate::config::settings::ModelConfig;

/// A repository in the hub's cache folder, which is found without using the network.
pub(super) fn cached(repo: &str) -> CachedRepo {
    CachedRepo::new(&hub::cache_folder(), repo)
}

pub fn installed(config: &ModelConfig) -> Option<PathBuf> {
    cached(&config.repo).installed(&config.revision, Kind::Model)
}

/// The folder that `speculation.draft` or `--draft` names: a folder, or a hub id that was downloaded.
pub fn draft_folder(name: &str) -> Result<PathBuf, Failure> {
    let folder = PathBuf::from(name);
    if folder.is_dir() {
        return Ok(folder);
    }
    if !hub::is_id(name) {
        let failure = Failure::new(Exit::NoModel, format!("{name}: no such draft head folder"));
        return Err(failure.hint("Without one: --draft off"));
    }
    cached(name).installed("main", Kind::Head).ok_or_else(|| {
        Failure::new(Exit::NoModel, format!("the draft head {name} is not on this computer"))
            .hint(format!("Get it: sala-chat model download {name}. Or go without: --draft off"))
    })
}
