//! Where things are kept. Folders are made with mode 0700 when first needed, never earlier.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use super::{Exit, Failure};
use crate::core::places;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dirs {
    pub config: PathBuf,
    /// `sala.db`, `segments/`.
    pub data: PathBuf,
    pub state: PathBuf,
    pub runtime: PathBuf,
}

impl Dirs {
    /// Without `data_dir` the usual folders. Themes and presets are next to a named settings file.
    pub fn new(data_dir: Option<&Path>, config_file: Option<&Path>) -> Result<Dirs, Failure> {
        let project = directories::ProjectDirs::from("", "", "sala-chat");
        let mut dirs = match (data_dir, project) {
            (Some(dir), project) => {
                let data = std::path::absolute(dir)?;
                let config = project.map_or_else(|| data.clone(), |project| project.config_dir().to_owned());
                Dirs { config, state: data.join(places::STATE), runtime: data.join(places::LOCKS), data }
            }
            (None, Some(project)) => {
                let data = project.data_dir().to_owned();
                let state = project.state_dir().unwrap_or(project.data_local_dir()).to_owned();
                let runtime = project.runtime_dir().map_or_else(|| data.join(places::LOCKS), Path::to_owned);
                Dirs { config: project.config_dir().to_owned(), data, state, runtime }
            }
            (None, None) => {
                let failure = Failure::new(Exit::Failure, "no home folder (HOME is not set)");
                return Err(failure.hint("Name a folder: --data-dir DIR"));
            }
        };
        let named = config_file.map(std::path::absolute).transpose()?;
        if let Some(folder) = named.as_deref().and_then(Path::parent) {
            dirs.config = folder.to_owned();
        }
        Ok(dirs)
    }

    pub fn presets(&self) -> PathBuf {
        self.config.join(places::PRESETS)
    }

    pub fn themes(&self) -> PathBuf {
        self.config.join(places::THEMES)
    }

    pub fn kept_weights(&self) -> PathBuf {
        self.data.join(places::WEIGHTS)
    }
}

pub fn make_private(dir: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_dir_moves_everything_that_is_written() {
        let dirs = Dirs::new(Some(Path::new("/tmp/x")), None).unwrap();
        for dir in [&dirs.data, &dirs.state, &dirs.runtime] {
            assert!(dir.starts_with("/tmp/x"));
        }
        assert_ne!(dirs.data, dirs.state);
    }

    #[test]
    fn themes_and_presets_are_next_to_the_settings_file() {
        let dirs = Dirs::new(Some(Path::new("/tmp/x")), Some(Path::new("/tmp/y/my.toml"))).unwrap();
        assert_eq!((dirs.themes(), dirs.presets()), ("/tmp/y/themes".into(), "/tmp/y/presets".into()));
        assert_eq!(dirs.data, Path::new("/tmp/x"));
        let here = Dirs::new(None, Some(Path::new("my.toml"))).unwrap();
        assert_eq!(here.themes(), std::env::current_dir().unwrap().join("themes"));
    }
}
