//! PDF files, which a process of the program's own reads.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use sala_chat::engine::protocol::Cancel;
use sala_chat::text::sources::{Gathered, SourceError, SourceOptions, gather};

use super::{Home, command, err};

/// A PDF with one line of text per page.
fn pdf(pages: &[&str]) -> Vec<u8> {
    let kids: Vec<String> = (0..pages.len()).map(|i| format!("{} 0 R", 4 + 2 * i)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>".to_owned(),
    ];
    for (i, text) in pages.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R /Resources << /Font << /F1 3 0 R >> >> >>",
            5 + 2 * i
        ));
        let stream = format!("BT /F1 24 Tf 72 720 Td ({text}) Tj ET");
        objects.push(format!("<< /Length {} >>\nstream\n{stream}\nendstream", stream.len()));
    }
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (i, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend(format!("{} 0 obj\n{object}\nendobj\n", i + 1).into_bytes());
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).into_bytes());
    for offset in offsets {
        file.extend(format!("{offset:010} 00000 n \n").into_bytes());
    }
    file.extend(
        format!("trailer << /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1).into_bytes(),
    );
    file
}

fn read_pdf(path: &Path, pages: Option<(u32, u32)>) -> Result<Gathered, SourceError> {
    let options = SourceOptions {
        base: path.parent().unwrap().to_owned(),
        max_file_bytes: 1 << 30,
        follow_symlinks: false,
        converters: BTreeMap::new(),
        force: false,
        not_text: "",
        partly: false,
        pages,
        reader: vec![OsString::from(command::PROGRAM)],
        convert_time: Duration::from_secs(60),
    };
    gather(&[path.to_str().unwrap().to_owned()], &options, &Cancel::default())
}

#[test]
fn pdf_files_are_read_in_a_child_process() {
    let home = Home::new();
    let file = home.write("two.pdf", pdf(&["The first page", "The code is 4711"]));
    let text = |pages| read_pdf(&file, pages).unwrap().documents[0].text.clone();
    assert!(text(None).contains("The first page") && text(None).contains("The code is 4711"), "{}", text(None));
    assert!(!text(Some((2, 2))).contains("first") && text(Some((2, 2))).contains("4711"));
    let file = home.write("scan.pdf", pdf(&["", "", ""]));
    let scan = read_pdf(&file, None).unwrap_err().to_string();
    assert_eq!(scan, format!("{}: 3 pages, no text layer (probably scanned). Nothing was loaded.", file.display()));
    for broken in [&b"%PDF-1.4 and nothing else"[..], &pdf(&["x"])[..200]] {
        let file = home.write("broken.pdf", broken);
        let error = read_pdf(&file, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{}: ", file.display())) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn losses_of_a_document_are_printed_without_a_terminal_too() {
    let home = Home::new();
    // The string of page 2 has no end.
    home.write("lossy.pdf", pdf(&["The first page", "The (second page"]));
    home.write("page.html", "<!doctype html><p>One page</p>");
    let says = |file: &str| {
        let output = home.run(&["-p", "hi", "--demo", "--no-save", "--max-tokens", "1", "-f", file]);
        err(&output).to_owned()
    };
    let lost = says("lossy.pdf");
    assert!(lost.contains("lossy.pdf: page 2 could not be read"), "{lost}");
    let page = says("page.html");
    assert!(!page.contains("read as HTML"), "{page}");
}
