//! Compares the table with the sources of the kernels and with `kernels/README.md`.

use std::collections::HashMap;
use std::path::PathBuf;

use super::TABLE;
use crate::backend::cuda::images::IMAGES;

pub(super) struct Row {
    /// File of `kernels/`.
    pub(super) source: &'static str,
    pub(super) symbols: &'static [&'static str],
    /// C type and name.
    pub(super) params: &'static [(&'static str, &'static str)],
    pub(super) threads: u32,
    pub(super) shared: &'static str,
}

fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().copied().flatten()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("kernels")
}

/// A kernel as a `.cu` file declares it.
#[derive(Debug, PartialEq)]
struct Declared {
    /// First argument of `KERNEL`, where it is a number.
    threads: Option<u32>,
    /// C type and name.
    params: Vec<(String, String)>,
    shared: bool,
}

/// The text up to the parenthesis that closes the one just opened, and the rest.
fn enclosed(text: &str) -> (&str, &str) {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return (&text[..at], &text[at + 1..]);
        }
    }
    panic!("parentheses do not close: {text}");
}

/// One parameter: `const bf16* k` or `const bf16 *k`.
fn parameter(text: &str) -> (String, String) {
    let text = text.trim();
    let at = text.rfind(|c: char| !c.is_alphanumeric() && c != '_').unwrap();
    let c = text[..=at].split_whitespace().collect::<Vec<_>>().join(" ").replace(" *", "*");
    (c, text[at + 1..].to_owned())
}

/// Kernels of a source; a parameter list may be one macro of the same file or of a header.
fn declared(source: &str, headers: &str) -> HashMap<String, Declared> {
    let (source, headers) = (source.replace("\\\n", " "), headers.replace("\\\n", " "));
    let code: String = source.lines().map(|l| l.split("//").next().unwrap()).collect::<Vec<_>>().join("\n");
    let defines: HashMap<&str, &str> = headers
        .lines()
        .chain(code.lines())
        .filter_map(|l| l.strip_prefix("#define "))
        .filter_map(|l| l.split_once(char::is_whitespace))
        .collect();
    let mut found = HashMap::new();
    for (at, _) in code.match_indices("KERNEL(") {
        let (bounds, rest) = enclosed(&code[at + "KERNEL(".len()..]);
        let (name, rest) = rest.split_once('(').unwrap();
        let (params, rest) = enclosed(rest);
        let params = defines.get(params.trim()).copied().unwrap_or(params);
        let body = &rest[..rest.find("KERNEL(").unwrap_or(rest.len())];
        let kernel = Declared {
            threads: bounds.split(',').next().unwrap().trim().parse().ok(),
            params: params.split(',').map(parameter).collect(),
            shared: body.contains("SHARED_BYTES("),
        };
        assert!(found.insert(name.trim().to_owned(), kernel).is_none(), "{name} is declared twice");
    }
    found
}

#[test]
fn the_table_is_what_the_sources_declare() {
    let mut sources: HashMap<String, HashMap<String, Declared>> = HashMap::new();
    let headers = std::fs::read_to_string(folder().join("skinny.cuh")).unwrap();
    for file in std::fs::read_dir(folder()).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|e| e == "cu") {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            sources.insert(name, declared(&std::fs::read_to_string(&path).unwrap(), &headers));
        }
    }
    let mut images: Vec<String> = IMAGES.iter().map(|i| format!("{}.cu", i.name)).collect();
    images.sort();
    let mut files: Vec<String> = sources.keys().cloned().collect();
    files.sort();
    assert_eq!(images, files, "embedded images and files of kernels/");
    for row in rows() {
        let kernels = sources.get_mut(row.source).unwrap_or_else(|| panic!("no kernels/{}", row.source));
        for symbol in row.symbols {
            let kernel =
                kernels.remove(*symbol).unwrap_or_else(|| panic!("{symbol} is not in {}, or twice here", row.source));
            let params: Vec<(String, String)> =
                row.params.iter().map(|(c, name)| ((*c).to_owned(), (*name).to_owned())).collect();
            assert_eq!(params, kernel.params, "parameters of {symbol}");
            if let Some(threads) = kernel.threads {
                assert_eq!(row.threads, threads, "threads of {symbol}");
            }
            // The templates of these hold their kernels' shared memory.
            if !row.source.starts_with("skinny") && !row.source.starts_with("gemm") {
                assert_eq!(row.shared != "0", kernel.shared, "dynamic shared memory of {symbol}");
            }
        }
    }
    let missing: Vec<&String> = sources.values().flat_map(HashMap::keys).collect();
    assert!(missing.is_empty(), "kernels without a row: {missing:?}");
}

/// Whether the README names a kernel: in full, or by a pattern such as `skinny_add_*`.
fn is_named(readme: &str, symbol: &str) -> bool {
    let mut names = readme.split('`').skip(1).step_by(2);
    names.any(|name| name == symbol || name.strip_suffix('*').is_some_and(|begin| symbol.starts_with(begin)))
}

#[test]
fn the_readme_names_every_kernel_and_stays_short() {
    let readme = std::fs::read_to_string(folder().join("README.md")).unwrap();
    assert!(readme.len() < 15_000, "{} bytes", readme.len());
    let missing: Vec<&str> = rows().flat_map(|row| row.symbols).copied().filter(|s| !is_named(&readme, s)).collect();
    assert!(missing.is_empty(), "kernels/README.md has no row for {missing:?}");
}

#[test]
fn declarations_are_read_with_their_macros() {
    let source = "#define ARGS void *dst, \\\n  u32 n // both\nKERNEL(64, 1) a(ARGS) { SHARED_BYTES(x); }\n\
                  KERNEL((N + 1) * 32, 1)\nb(const float* x, u64 n) {}\n";
    let found = declared(source, "");
    let param = |c: &str, name: &str| (c.to_owned(), name.to_owned());
    assert_eq!(
        found["a"],
        Declared { threads: Some(64), params: vec![param("void*", "dst"), param("u32", "n")], shared: true }
    );
    assert_eq!(
        found["b"],
        Declared { threads: None, params: vec![param("const float*", "x"), param("u64", "n")], shared: false }
    );
}

/// The value of `NAME = 123` in a source.
fn number(file: &str, name: &str) -> usize {
    let source = std::fs::read_to_string(folder().join(file)).unwrap();
    let assigned = format!("{name} = ");
    let found = source.match_indices(&assigned).find(|(at, _)| {
        let before = source[..*at].chars().next_back().unwrap_or(' ');
        !before.is_alphanumeric() && before != '_'
    });
    let (at, _) = found.unwrap_or_else(|| panic!("{file} has no {name}"));
    let digits = source[at + assigned.len()..].chars().take_while(char::is_ascii_digit);
    digits.collect::<String>().parse().unwrap()
}

#[test]
fn numbers_that_kernels_know_too_are_theirs() {
    use crate::backend::cuda::{joined, limits, tensors};
    for (file, name, host) in [
        ("common.cuh", "HEAD", tensors::HEAD),
        ("common.cuh", "BLOCK", limits::BLOCK),
        ("common.cuh", "GROUP", limits::GROUP),
        ("common.cuh", "MAX_VERIFY", crate::backend::MAX_VERIFY_ROWS),
        ("top_logits.cu", "BEST", crate::backend::TOP_LOGITS),
        ("common.cuh", "SUMMED", super::SUMMED),
        ("attention.cuh", "KEY_TILE", joined::KEY_TILE),
        ("sparse_scores_hopper.cu", "ROWS", super::SCORED_ROWS),
        ("packed.cuh", "UNIT_COLUMNS", crate::backend::forms::UNIT_COLUMNS),
    ] {
        assert_eq!(number(file, name), host, "{name} of {file}");
    }
}
