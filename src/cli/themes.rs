//! Theme files on the disk: finding them by name, reading them, listing them. And those of code.

use std::path::{Path, PathBuf};

use syntect::highlighting::Theme as CodeTheme;

use crate::config::settings::CODE_THEMES;
use crate::core::{files, plain_words};
use crate::text::near::nearest;
use crate::tui::options::{ThemeName, UiConfig};
use crate::tui::palette::Palette;
use crate::tui::view::highlight;

const THEME_BYTES: u64 = 1 << 20;
const LISTED: usize = 200;

#[derive(Clone, Debug, Default)]
pub struct Themes {
    pub folder: Option<PathBuf>,
    pub home: Option<PathBuf>,
    pub light: bool,
}

impl Themes {
    pub fn of(config: &UiConfig) -> Themes {
        Themes { folder: config.themes_dir.clone(), home: config.home.clone(), light: config.light }
    }

    pub fn theme(&self, name: &str) -> Result<Palette, String> {
        if let Some(theme) = ThemeName::from_word(name) {
            return Ok(Palette::built_in(theme, self.light));
        }
        match self.file(name, "toml") {
            Some(path) => read(name, &path),
            None => {
                let names = self.names();
                let known = || ThemeName::WORDS.iter().copied().chain(names.iter().map(String::as_str));
                Err(format!("no theme {name}{}", self.hint(name, known(), "toml")))
            }
        }
    }

    pub fn code(&self, name: &str) -> Result<CodeTheme, String> {
        if let Some(theme) = highlight::embedded(name) {
            return Ok(theme);
        }
        let Some(path) = self.file(name, "tmTheme") else {
            let hint = self.hint(name, CODE_THEMES.iter().copied(), "tmTheme");
            return Err(format!("no code theme {name}{hint}"));
        };
        let wrong = |e: &dyn std::fmt::Display| format!("{}: not a code theme: {e}", path.display());
        let bytes = files::read(&path, THEME_BYTES).map_err(|e| wrong(&e))?;
        highlight::parse(&bytes).map_err(|e| wrong(&e))
    }

    pub fn names(&self) -> Vec<String> {
        let mut names = self.folder.as_deref().map(|folder| files::stems(folder, "toml")).unwrap_or_default();
        // The names of built-in themes are taken.
        names.retain(|name| !name.starts_with('.') && ThemeName::from_word(name).is_none());
        names.truncate(LISTED);
        names
    }

    /// The file that a name means: a path, or a file of the folder; `None` if there is no such file there.
    fn file(&self, name: &str, extension: &str) -> Option<PathBuf> {
        let is_path = name.contains('/') || Path::new(name).extension().is_some_and(|e| e == extension);
        let path = match is_path {
            true => files::below_home(name, self.home.as_deref()),
            false => self.folder.as_ref()?.join(format!("{name}.{extension}")),
        };
        // A broken link counts as a file, so that reading it names the cause.
        path.symlink_metadata().is_ok().then_some(path)
    }

    fn hint<'a>(&self, name: &str, known: impl Iterator<Item = &'a str> + Clone, extension: &str) -> String {
        let folder =
            self.folder.as_ref().map_or(String::new(), |f| format!("; files NAME.{extension} go to {}", f.display()));
        match nearest(name, known.clone()) {
            Some(near) => format!(": did you mean {near}?"),
            None => format!(": there are {}{folder}", known.collect::<Vec<_>>().join(", ")),
        }
    }
}

fn read(name: &str, path: &Path) -> Result<Palette, String> {
    let shown = path.display().to_string();
    let text = files::read_text(path, THEME_BYTES).map_err(|e| format!("{shown}: {}", plain_words(&e)))?;
    Palette::read(name, &shown, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn themes_are_found_by_name_and_by_path() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        put("sea.toml", "[colours]\nyou = \"blue\"\n");
        put("broken.toml", "[colours]\nyuo = \"blue\"\n");
        put("dark.toml", "[colours]\nyou = \"blue\"\n");
        put("notes.txt", "");
        put("small.tmTheme", include_str!("../../tests/data/small.tmTheme"));
        put("bad.tmTheme", "no plist");
        let themes = Themes { folder: Some(dir.path().into()), home: Some(dir.path().into()), light: true };
        assert_eq!(themes.theme("sea").unwrap().name, "sea");
        assert_eq!(themes.theme("~/sea.toml").unwrap().name, "~/sea.toml");
        assert_eq!(themes.theme("auto").unwrap(), Palette::built_in(ThemeName::Auto, true));
        assert_eq!(themes.theme("dark").unwrap(), Palette::built_in(ThemeName::Dark, true));
        assert!(
            themes.theme("broken").unwrap_err().contains("broken.toml, line 2: unknown role yuo: did you mean you?")
        );
        assert_eq!(themes.theme("see").unwrap_err(), "no theme see: did you mean sea?");
        let none = themes.theme("xyzzyx").unwrap_err();
        assert!(none.contains("auto, dark, light, plain, broken, sea; files NAME.toml go to"), "{none}");
        std::os::unix::fs::symlink("nowhere", dir.path().join("gone.toml")).unwrap();
        let gone = themes.theme("gone").unwrap_err();
        assert!(gone.ends_with("gone.toml: not found"), "{gone}");
        std::fs::remove_file(dir.path().join("gone.toml")).unwrap();
        assert_eq!(themes.names(), ["broken", "sea"]);
        assert!(themes.code("small").is_ok() && themes.code("nord").is_ok());
        assert!(themes.code("nrod").unwrap_err().contains("did you mean nord?"));
        let bad = themes.code("bad").unwrap_err();
        assert!(bad.contains("bad.tmTheme: not a code theme") && !bad.contains('\n'), "{bad}");
        assert!(Themes::default().theme("sea").is_err());
    }
}
