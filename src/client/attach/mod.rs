//! One loaded model for several terminals: the engine of `sala-chat serve`, over a local socket that carries
//! [`crate::engine::protocol`] itself. `wire` encodes commands and events, `multiplexer` gives each user its own command
//! numbers and sequences, `host` and `connection` are the ends of the socket, `place` locates a server.
//!
//! Only the user who runs the server reaches the socket. A terminal that hangs or leaves costs the others nothing. A
//! terminal writes the state of its own conversations; the server reads it from the terminal's files.

mod connection;
mod host;
mod multiplexer;
mod place;
mod wire;

use serde::{Deserialize, Serialize};

pub use connection::{Way, spawn};
pub use host::{Host, Opener, open_host};
pub use multiplexer::{Multiplexer, Share};
pub use place::{Link, Place, find, look, park};

use crate::engine::protocol::{DraftChoice, EngineOptions, is_folder};

const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// The options that decide which model an engine loads, and how: names and values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loads(Vec<(String, String)>);

impl From<&EngineOptions> for Loads {
    fn from(o: &EngineOptions) -> Loads {
        // The same folder by another path is the same model.
        let whole = |name: &str| match std::fs::canonicalize(name) {
            Ok(path) if path.is_dir() => path.display().to_string(),
            Ok(_) | Err(_) => name.to_owned(),
        };
        let draft = match &o.draft {
            DraftChoice::Auto => "auto".to_owned(),
            DraftChoice::Off => "off".to_owned(),
            DraftChoice::Folder(folder) => whole(&folder.display().to_string()),
        };
        let word = |value: serde_json::Result<String>| value.unwrap_or_default().trim_matches('"').to_owned();
        let values = [
            ("model", if is_folder(&o.model) { whole(&o.model) } else { o.model.clone() }),
            ("device", word(serde_json::to_string(&o.device))),
            ("gpu", o.gpu.to_string()),
            ("context", o.context.map_or_else(|| "auto".to_owned(), |n| n.to_string())),
            ("weights", word(serde_json::to_string(&o.weights))),
            ("prefill", o.prefill.name().to_owned()),
            ("draft", draft),
        ];
        Loads(values.map(|(name, value)| (name.to_owned(), value)).to_vec())
    }
}

impl Loads {
    /// The wanted and the running model, if they differ: `model demo, not synthetic:tiny`. A part that the user did
    /// not set matches any.
    pub fn difference(&self, running: &Loads) -> Option<String> {
        let open = Loads::from(&EngineOptions::default());
        let mut all = self.0.iter().zip(&open.0).zip(&running.0);
        all.find_map(|(((what, own), (_, any)), (_, its))| {
            let differs = own != its && (own != any || what == "model");
            differs.then(|| format!("{what} {its}, not {own}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::protocol::{DeviceChoice, Precision};

    #[test]
    fn what_differs_is_named_and_the_same_folder_by_another_way_does_not() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("model");
        std::fs::create_dir(&there).unwrap();
        let loads = |model: &str| Loads::from(&EngineOptions { model: model.into(), ..EngineOptions::default() });
        let (plain, odd) = (there.display().to_string(), dir.path().join("model/../model/"));
        assert_eq!(loads(&plain).difference(&loads(&odd.display().to_string())), None);
        assert_eq!(loads("demo").difference(&loads("synthetic:tiny")).unwrap(), "model synthetic:tiny, not demo");
        let cpu = EngineOptions { device: DeviceChoice::Cpu, ..EngineOptions::default() };
        assert_eq!(loads("demo").difference(&Loads::from(&cpu)), None, "auto is whatever runs");
        assert_eq!(Loads::from(&cpu).difference(&loads("demo")).unwrap(), "device auto, not cpu");
        let short = Loads::from(&EngineOptions { context: Some(4096), ..EngineOptions::default() });
        assert_eq!(short.difference(&loads("demo")).unwrap(), "context auto, not 4096");
        assert_eq!(loads("demo").difference(&short), None);
        let fp8 = Loads::from(&EngineOptions { prefill: Precision::Fp8, ..EngineOptions::default() });
        assert_eq!(fp8.difference(&loads("demo")).unwrap(), "prefill bf16, not fp8");
    }
}
