//! The folders that `add_document` may read.

use std::path::{Path, PathBuf};

use crate::cli::{Context, Failure};
use crate::core::Exit;
use crate::core::files::below_home;

#[derive(Clone, Debug, Default)]
pub(super) struct Roots(Vec<PathBuf>);

impl Roots {
    pub(super) fn of(context: &Context) -> Result<Roots, Failure> {
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

    pub(super) fn allowed(&self, path: &str) -> Result<PathBuf, String> {
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
