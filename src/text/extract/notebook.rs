//! Cells of a Jupyter notebook: text as it is, code and its printed results in fences.

use serde_json::Value;

use crate::text::encoding;

/// Text of a file; of one that is no notebook, the file itself.
pub(super) fn text(bytes: Vec<u8>) -> String {
    let source = encoding::decode(bytes, true).map(|decoded| decoded.text).unwrap_or_default();
    let Ok(notebook) = serde_json::from_str::<Value>(&source) else { return source };
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
    let plain = output.pointer("/data/text~1plain");
    error().unwrap_or_else(|| joined(plain.or_else(|| output.get("text"))))
}

/// Text that may be a list of lines.
fn joined(value: Option<&Value>) -> String {
    match value {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(lines)) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}
