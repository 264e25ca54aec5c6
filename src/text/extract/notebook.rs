//! Cells of a Jupyter notebook: text as it is, code and its printed results in fences.

use fancy_regex::{Captures, Regex};
use serde_json::Value;

use super::html;
use crate::text::{encoding, surrogates};

/// Text of a file; of one that is no notebook, the file itself.
pub(super) fn text(bytes: Vec<u8>) -> String {
    let source = encoding::decode(bytes, true).map(|decoded| decoded.text).unwrap_or_default();
    let parsed = serde_json::from_str::<Value>(&source).ok();
    let Some(notebook) = parsed.or_else(|| serde_json::from_str(&strict(&source)?).ok()) else { return source };
    // Format 3 has its cells in work sheets.
    let sheets = notebook["worksheets"].as_array().into_iter().flatten().filter_map(|sheet| sheet["cells"].as_array());
    let cells: Vec<&Value> = notebook["cells"].as_array().into_iter().chain(sheets).flatten().collect();
    if cells.is_empty() {
        return source;
    }
    let language = ["/metadata/language_info/name", "/metadata/kernelspec/language"];
    let language = language.iter().find_map(|at| notebook.pointer(at)?.as_str()).unwrap_or("");
    let mut blocks = Vec::new();
    for cell in cells {
        let source = joined(cell.get("source").or_else(|| cell.get("input")));
        match cell["cell_type"].as_str() {
            Some("code") => {
                blocks.push(fenced(language, &source));
                let outputs = cell["outputs"].as_array().into_iter().flatten();
                blocks.extend(outputs.map(|output| fenced("", &result(output))));
            }
            Some("heading") => {
                let level = usize::try_from(cell["level"].as_u64().unwrap_or(1)).unwrap_or(1).clamp(1, 6);
                blocks.push(format!("{} {source}", "#".repeat(level)));
            }
            _ => blocks.push(source),
        }
    }
    blocks.retain(|block| !block.trim().is_empty());
    blocks.join("\n\n") + "\n"
}

fn fenced(language: &str, code: &str) -> String {
    if code.trim().is_empty() { String::new() } else { format!("```{language}\n{}\n```", code.trim_end()) }
}

fn result(output: &Value) -> String {
    let error = || Some(format!("{}: {}", output["ename"].as_str()?, output["evalue"].as_str()?));
    let data = |kind: &str| joined(output.get("data").and_then(|data| data.get(kind)));
    let plain = data("text/plain");
    // Python's name of an object that has other forms: `<a.C object>`, `<a.C at 0x7f>`.
    let is_name = plain.starts_with('<') && (plain.ends_with(" object>") || plain.contains(" at 0x"));
    let (first, last) = if is_name { (String::new(), plain) } else { (plain, String::new()) };
    let page = html::text(&data("text/html"), html::Form::Html);
    let [markdown, latex, json] = ["text/markdown", "text/latex", "application/json"].map(data);
    let forms = [first, joined(output.get("text")), markdown, latex, page, json, last];
    error().or_else(|| forms.into_iter().find(|text| !text.trim().is_empty())).unwrap_or_default()
}

/// Text that may be a list of lines.
fn joined(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(lines)) => lines.iter().filter_map(Value::as_str).collect(),
        Some(value @ Value::Object(_)) => value.to_string(),
        _ => String::new(),
    }
}

/// What Python writes as JSON too: numbers that are none, and halves of surrogate pairs.
fn strict(source: &str) -> Option<String> {
    let numbers = Regex::new(r#"(?s)("(?:[^"\\]|\\.)*")|NaN|-?Infinity"#).ok()?;
    let kept = |found: &Captures<'_>| found.get(1).map_or("null", |kept| kept.as_str()).to_owned();
    Some(surrogates::mended(&numbers.replace_all(source, kept)).into_owned())
}
