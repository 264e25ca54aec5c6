//! The program's own sources, for tests that read them.

use std::path::Path;

/// Every source below a folder of this repository: its path from there, and its text; in the order of the paths. The rooms of
/// both crates lie below `src` here.
pub fn below(folder: &str) -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for place in [root.join(folder), root.join("sala").join(folder)].iter().filter(|place| place.is_dir()) {
        walk(place, place, &mut found);
    }
    found.sort();
    found
}

fn walk(root: &Path, folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(root, &path, found);
        } else if path.extension().is_some_and(|e| ["rs", "cu", "cuh", "h", "cpp"].iter().any(|of| e == *of)) {
            let inside = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.push((inside, std::fs::read_to_string(&path).unwrap()));
        }
    }
}
