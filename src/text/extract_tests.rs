use std::io::{Cursor, Write};

use super::*;

/// A PDF with a page for each pair of resources and content. Fonts are objects 3 (Helvetica) and 4 (STSong, no ToUnicode).
fn pdf(pages: &[(&str, &str)], more: &[&str]) -> Vec<u8> {
    let kids: Vec<String> = (0..pages.len()).map(|i| format!("{} 0 R", 6 + 2 * i)).collect();
    let mut objects = vec![
        "<< /Type /Catalog /Pages 2 0 R >>".to_owned(),
        format!("<< /Type /Pages /Kids [{}] /Count {} >>", kids.join(" "), pages.len()),
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding << /Differences [65 /eacute /fi /Euro] >> >>".into(),
        "<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /GBK-EUC-H /DescendantFonts [5 0 R] >>".into(),
        "<< /Type /Font /Subtype /CIDFontType0 /BaseFont /STSong-Light /DW 1000 /CIDSystemInfo << /Registry (Adobe) \
         /Ordering (GB1) /Supplement 2 >> /FontDescriptor << /Type /FontDescriptor /FontName /STSong-Light /Flags 4 >> >>"
            .into(),
    ];
    for (i, (page, content)) in pages.iter().enumerate() {
        objects.push(format!(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {} 0 R {page} >>",
            7 + 2 * i
        ));
        objects.push(format!("<< /Length {} >>\nstream\n{content}\nendstream", content.len()));
    }
    objects.extend(more.iter().map(|object| object.to_string()));
    let mut file = b"%PDF-1.4\n".to_vec();
    let mut offsets = Vec::new();
    for (i, object) in objects.iter().enumerate() {
        offsets.push(file.len());
        file.extend(format!("{} 0 obj\n{object}\nendobj\n", i + 1).into_bytes());
    }
    let start = file.len();
    file.extend(format!("xref\n0 {}\n0000000000 65535 f \n", objects.len() + 1).into_bytes());
    offsets.iter().for_each(|offset| file.extend(format!("{offset:010} 00000 n \n").into_bytes()));
    let trailer = format!("trailer << /Size {} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n", objects.len() + 1);
    file.extend(trailer.into_bytes());
    file
}

const FONTS: &str = "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >>";

fn texts(file: Vec<u8>) -> Vec<String> {
    pdf::pages(file).unwrap().into_iter().map(|page| page.text.trim_end().to_owned()).collect()
}

fn line(content: &str) -> String {
    texts(pdf(&[(FONTS, &format!("BT /F1 12 Tf 14 TL 72 720 Td {content} ET"))], &[])).remove(0)
}

#[test]
fn every_way_of_showing_text_is_read() {
    assert_eq!(
        line("(one) Tj (two) ' 1 2 (three four) \" T* [(fi) -30 (ve) -400 (six)] TJ"),
        "one\ntwo\nthree four\nfive six"
    );
    assert_eq!(line("(caf\\101 \\102ne \\1035) Tj"), "café fine €5");
    assert_eq!(line("(twice) Tj 0 0 Td 0.3 0 Td (twice) Tj"), "twice");
    assert_eq!(line("3 Tr (under a scan) Tj"), "under a scan");
    assert_eq!(line("/F2 12 Tf <C4E3BAC3> Tj /F1 12 Tf ( after) Tj"), "你好 after");
    assert_eq!(line("1 0 0 1 72 600 Tm (a) Tj 1 0 0 1 110 600 Tm (b) Tj 1 0 0 1 72 560 Tm (c) Tj"), "a b\n\nc");
}

#[test]
fn a_bad_page_leaves_the_others() {
    let good = "BT /F1 12 Tf 72 720 Td (good) Tj ET";
    for (page, content) in [
        ("", good),
        ("/Resources << >>", good),
        (FONTS, "BT (no font) Tj ET"),
        (FONTS, "/Missing Do /Missing gs 1 0 cm BT /F1 12 Tf 72 720 Td (words) Tj ET"),
        ("/Resources 99 0 R /Annots [98 0 R]", good),
        (FONTS, "BT /F1 12 Tf << ( [ ET"),
        (FONTS, ""),
    ] {
        let read = texts(pdf(&[(FONTS, good), (page, content), (FONTS, good)], &[]));
        assert_eq!((read.len(), read[0].as_str(), read[2].as_str()), (3, "good", "good"), "{page} {content}: {read:?}");
    }
    assert_eq!(texts(pdf(&[(FONTS, "/Missing Do BT /F1 12 Tf 9 9 Td (words) Tj ET")], &[])), ["words"]);
}

/// Three pages, of which the second has another object for its content.
fn with_content(object: &[u8]) -> Vec<Page> {
    let (good, blank) = ("BT /F1 12 Tf 72 720 Td (good) Tj ET", "@".repeat(object.len()));
    let mut file = pdf(&[(FONTS, good), (FONTS, &blank), (FONTS, good)], &[]);
    let at = file.windows(blank.len()).position(|part| part == blank.as_bytes()).unwrap();
    let start = file[..at].windows(2).rposition(|part| part == b"<<").unwrap();
    file[start..at + blank.len() + "\nendstream".len()].fill(b' ');
    file[start..start + object.len()].copy_from_slice(object);
    pdf::pages(file).unwrap()
}

fn stream(filter: &str, content: &[u8]) -> Vec<u8> {
    let head = format!("<< /Length {} {filter} >>\nstream\n", content.len());
    [head.as_bytes(), content, b"\nendstream"].concat()
}

#[test]
fn a_damaged_page_is_no_scan_and_a_part_of_one_is_no_page() {
    let lines: Vec<String> =
        (0..60).map(|i| format!("BT /F1 12 Tf 72 {} Td (Line {i}.) Tj ET", 720 - i * 10)).collect();
    let mut zip = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    zip.write_all(lines.join(" ").as_bytes()).unwrap();
    let whole = zip.finish().unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 0xFF;
    let flate = |bytes: &[u8]| stream("/Filter /FlateDecode", bytes);
    let (all, part, none) = ((false, false), (false, true), (true, false));
    for (content, is) in [
        (flate(&whole), all),
        (stream("", b"BT /F1 12 Tf 72 720 Td (no end) Tj"), all),
        (stream("", b""), all),
        (flate(&whole[..whole.len() * 2 / 3]), part),
        (flate(&flipped), part),
        (stream("", b"BT /F1 12 Tf 72 720 Td (seen) Tj (not (closed) Tj ET"), part),
        (flate(b"\x78\x9cgarbage garbage"), none),
        (stream("/Filter /FooDecode", b"abc"), none),
        (stream("/Filter /JBIG2Decode", b"abc"), none),
        (stream("", b"BT /F1 12 Tf 72 720 Td (not (closed) Tj ET"), none),
        (b"42".to_vec(), none),
        (b"<< /Length 3 >>\nstream\nabc".to_vec(), none),
        (b"[77 0 R]".to_vec(), none),
    ] {
        let pages = with_content(&content);
        let shown = String::from_utf8_lossy(&content);
        assert_eq!((pages[1].failed, pages[1].cut), is, "{shown}: {pages:?}");
        assert!([&pages[0], &pages[2]].iter().all(|page| page.text == "good\n" && !page.cut), "{shown}: {pages:?}");
    }
}

#[test]
fn a_page_that_is_none_keeps_its_number() {
    let page = |text: &str| format!("BT /F1 12 Tf 72 720 Td ({text}) Tj ET");
    let (one, two, three) = (page("one"), page("two"), page("three"));
    let good = String::from_utf8(pdf(&[(FONTS, &one), (FONTS, &two), (FONTS, &three)], &["null"])).unwrap();
    let read = |file: String| -> Vec<(String, bool)> {
        let pages = pdf::pages(file.into_bytes()).unwrap();
        pages.into_iter().map(|page| (page.text.trim_end().to_owned(), page.failed)).collect()
    };
    let pages = |second: &str| vec![("one".into(), false), (second.into(), second.is_empty()), ("three".into(), false)];
    for kid in ["4 9 R", "2 0 R", "null ", "6 0 R", "42   ", "<<>> "] {
        let file = good.replacen("[6 0 R 8 0 R 10 0 R]", &format!("[6 0 R {kid} 10 0 R]"), 1);
        let read = read(file);
        assert_eq!((read.len(), &read[0].0[..], &read[2].0[..]), (3, "one", "three"), "{kid}: {read:?}");
        assert_eq!(read[1].1, kid != "<<>> ", "{kid}: {read:?}");
    }
    for count in ["/Count 1", "/Count 9"] {
        assert_eq!(read(good.replacen("/Count 3", count, 1)), pages("two"));
    }
}

#[test]
fn a_code_that_its_table_lacks_is_counted_as_lost() {
    let read = |encoding: &str, codes: &str| {
        let font = format!(
            "<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /{encoding} /DescendantFonts [5 0 R] >>"
        );
        let page = "/Resources << /Font << /F1 3 0 R /F2 8 0 R >> >>";
        let content = format!("BT /F2 12 Tf 72 720 Td <{codes}> Tj /F1 12 Tf ( after) Tj ET");
        let page = pdf::pages(pdf(&[(page, &content)], &[&font])).unwrap().remove(0);
        (page.text.trim_end().to_owned(), page.partial)
    };
    assert_eq!(read("UniGB-UTF16-H", "4F60597D"), ("你好 after".to_owned(), false));
    assert_eq!(read("GBK2K-H", "C4E3BAC3"), ("你好 after".to_owned(), false));
    assert!(read("UniGB-UTF16-H", "4F600E01").1);
    assert!(read("GBK2K-H", "C4E395328236").1);
}

#[test]
fn every_form_of_unicode_is_decoded() {
    let font = |encoding: &str| {
        format!(
            "<< /Type /Font /Subtype /Type0 /BaseFont /STSong-Light /Encoding /{encoding} /DescendantFonts [5 0 R] >>"
        )
    };
    for (encoding, codes) in [
        ("UniGB-UTF16-H", "4F60D840DC000041"),
        ("UniGB-UTF16-V", "4F60D840DC000041"),
        ("UniGB-UTF8-H", "E4BDA0F0A0808041"),
        ("UniGB-UTF32-H", "00004F600002000000000041"),
    ] {
        let content = format!("BT /F2 12 Tf 72 720 Td <{codes}> Tj ET");
        let file = pdf(&[("/Resources << /Font << /F2 8 0 R >> >>", &content)], &[&font(encoding)]);
        let page = pdf::pages(file).unwrap().remove(0);
        assert_eq!((page.text.replace('\n', "").as_str(), page.partial), ("你𠀀A", false), "{encoding}");
    }
    let kanji = pdf(
        &[("/Resources << /Font << /F2 8 0 R >> >>", "BT /F2 12 Tf <706F53F0> Tj ET")],
        &[&font("UniJIS2004-UTF16-H")],
    );
    assert_eq!(texts(String::from_utf8(kanji).unwrap().replace("(GB1)", "(Japan1)").into_bytes()), ["灯台"]);
}

#[test]
fn pages_beyond_the_end_of_a_cut_file_are_counted() {
    let good = String::from_utf8(pdf(&[(FONTS, "BT /F1 12 Tf 72 720 Td (one) Tj ET")], &[])).unwrap();
    let with = |length: usize| {
        let head =
            format!("%PDF-1.4\n99 0 obj << /Linearized 1 /L {length} /H [ 6 1 ] /O 6 /E 9 /N 3 /T 4 >> endobj\n");
        pdf::pages(good.replacen("%PDF-1.4\n", &head, 1).into_bytes()).unwrap()
    };
    let failed: Vec<bool> = with(9999).iter().map(|page| page.failed).collect();
    assert_eq!(failed, [false, true, true]);
    // It was changed afterwards.
    assert_eq!(with(100).len(), 1);
}

#[test]
fn text_without_an_operand_of_its_operator_marks_the_page() {
    let content = "BT /F1 12 Tf 14 TL 72 720 Td (one) Tj (two) \" (three) ' ET";
    let pages = pdf::pages(pdf(&[(FONTS, content)], &[])).unwrap();
    assert_eq!((pages[0].text.as_str(), pages[0].cut), ("one\nthree\n", true));
}

#[test]
fn damaged_tables_tails_and_heads_are_looked_past() {
    let good = pdf(&[(FONTS, "BT /F1 12 Tf 72 720 Td (found) Tj ET")], &[]);
    let text = String::from_utf8(good.clone()).unwrap();
    for damaged in [
        text.replace("%%EOF\n", ""),
        text.replace("startxref\n", "startxref\n9"),
        text.replace("00000 n", "00007 x"),
        text.replace("0000000", "0000011"),
        text.replace("xref\n0 ", "xref\n3 "),
        text[..text.find("xref\n").unwrap()].to_owned(),
        format!("{text}{}", "\0".repeat(3000)),
        format!("HTTP/1.1 200 OK\r\nContent-Type: application/pdf\r\n\r\n{text}"),
        format!("\u{feff}\r\n{text}"),
    ] {
        assert_eq!(texts(damaged.clone().into_bytes()), ["found"], "{damaged}");
    }
}

#[test]
fn values_of_forms_and_notes_are_text() {
    let page = format!("{FONTS} /Annots [8 0 R 9 0 R 10 0 R 12 0 R 13 0 R 14 0 R 16 0 R]");
    let more = [
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (City) /V (K\\366ln) >>",
        "<< /Type /Annot /Subtype /Widget /T (Agreed) /FT /Btn /V /Yes >>",
        "<< /Type /Annot /Subtype /Widget /Parent 11 0 R >>",
        "<< /FT /Ch /T (Country) /V [<FEFF00D60073> (x)] >>",
        "<< /Type /Annot /Subtype /Text /Contents (A note.) >>",
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (Children) /V (2) >>",
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (Shown) /V (once) /Rect [72 600 172 620] /AP << /N 15 0 R >> >>",
        "<< /Type /XObject /Subtype /Form /BBox [0 0 100 20] /Resources << /Font << /F1 4 0 R >> >> /Length 34 >>\nstream\n\
            BT /F1 12 Tf 2 2 Td (once) Tj ET  \nendstream",
        "<< /Type /Annot /Subtype /Text /Contents (form) >>",
    ];
    let read = texts(pdf(&[(&page, "BT /F1 12 Tf 72 720 Td (Form of 2024) Tj ET")], &more));
    let expected = "Form of 2024\n\nonce\nCity: Köln\nAgreed: Yes\nCountry: Ös, x\nA note.\nChildren: 2\nform";
    assert_eq!(read, [expected]);
}

#[test]
fn replaced_glyphs_and_words_from_right_to_left_are_read() {
    let replaced = "BT /F1 12 Tf 72 720 Td (o) Tj /Span << /ActualText (ffi) >> BDC (XY) Tj EMC (ce) Tj ET";
    assert_eq!(texts(pdf(&[(FONTS, replaced)], &[])), ["office"]);
    let table = "begincmap 1 begincodespacerange <00> <FF> endcodespacerange \
        2 beginbfrange <61> <7A> <05D0> <20> <5A> <0020> endbfrange endcmap";
    let hebrew = [
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding /ToUnicode 9 0 R >>".to_owned(),
        format!("<< /Length {} >>\nstream\n{table}\nendstream", table.len()),
    ];
    let more: Vec<&str> = hebrew.iter().map(String::as_str).collect();
    let page = "/Resources << /Font << /F1 8 0 R >> >>";
    // As they stand on the page, and one by one from right to left.
    for content in ["(ABC cba 12 fed) Tj", "120 0 Td (d) Tj -6.7 0 Td (e) Tj -3.4 0 Td (f) Tj"] {
        let read = texts(pdf(&[(page, &format!("BT /F1 12 Tf 72 720 Td {content} ET"))], &more));
        assert_eq!(
            read,
            [if content.starts_with('(') {
                "ABC \u{5d3}\u{5d4}\u{5d5} 12 \u{5d0}\u{5d1}\u{5d2}"
            } else {
                "\u{5d3}\u{5d4}\u{5d5}"
            }]
        );
    }
}

#[test]
fn narrow_letters_and_wide_columns_stay_as_they_are() {
    let letters = |text: &str| text.chars().map(|c| format!("({c}) Tj ")).collect::<String>();
    let narrow = format!("BT /F1 12 Tf 50 Tz 72 720 Td {} ET", letters("will all"));
    assert_eq!(texts(pdf(&[(FONTS, &narrow)], &[])), ["will all"]);
    let columns = "BT /F1 10 Tf 72 720 Td [(1)-2000(0)-2000(1)] TJ ET";
    assert_eq!(texts(pdf(&[(FONTS, columns)], &[])), ["1 0 1"]);
}

#[test]
fn a_format_is_recognised_by_content_then_by_extension() {
    for (extension, head, kind) in [
        ("", "%PDF-1.7", Some(Kind::Pdf)),
        ("txt", "\u{feff}\r\n %PDF-1.7", Some(Kind::Pdf)),
        ("pdf", "HTTP/1.1 200 OK\r\n\r\n%PDF-1.7", Some(Kind::Pdf)),
        ("rs", "const HEAD: &str = \"%PDF-\";", None),
        ("docx", "PK\x03\x04", Some(Kind::Archive)),
        ("", "PK\x03\x04....mimetypeapplication/epub+zip", Some(Kind::Archive)),
        ("zip", "PK\x03\x04", None),
        ("docx", "not a zip file", None),
        ("pdf", "PK\x03\x04", Some(Kind::Archive)),
        ("pdf", "no head", Some(Kind::Pdf)),
        ("doc", "<html><p>", Some(Kind::Html)),
        ("xls", "<!doctype html>", Some(Kind::Html)),
        ("htm", "text", Some(Kind::Html)),
        ("", " <!DOCTYPE HTML>", Some(Kind::Html)),
        ("php", "<html>", None),
        ("ipynb", "{", Some(Kind::Notebook)),
        ("eml", "From: a", Some(Kind::Mail)),
        ("md", "# text", None),
    ] {
        assert_eq!(Kind::of(extension, head.as_bytes()), kind, "{extension}: {head}");
    }
}

#[test]
fn html_keeps_headings_lists_tables_and_no_script() {
    let page = "<!doctype html><html><head><meta charset=utf-8><title>T &amp; t</title><style>p { x: y }</style>\
        <script>if (a < b) { alert('</p>') }</script></head><body><h1>One\n  <em>two</em></h1><p>a&nbsp;b &lt;c&gt;<br>d\
        <ul><li><p>x</p><li>y<ul><li>z</ul></ul><table><tr><th>k<th>v<tr><td><p>1</p><td>2</table>\
        <pre>  keep\n    this</pre><svg><metadata>no</metadata></svg><noscript>no</noscript><img alt='a ship'> end";
    let text = html::page(page.as_bytes().to_vec()).text;
    assert_eq!(
        text,
        "T & t\n\n# One two\n\na\u{a0}b <c>\nd\n\n- x\n\n- y\n\n- z\n\nk | v\n1 | 2\n\n  keep\n    this\n\na ship end\n"
    );
    let empty = html::page(b"<html><p>t<table><tr><td>a<td>b<tr><td><td>c<tr><td><td><td>d</table>".to_vec()).text;
    assert_eq!(empty, "t\n\na | b\n | c\n |  | d\n");
    let old = html::page(b"<html><meta charset=\"windows-1251\"><p>\xcf\xf0\xe8\xe2\xe5\xf2".to_vec()).text;
    assert_eq!(old, "Привет\n");
    let closed =
        html::text("<?xml version='1.0'?><html><head><title/><script src='x'/></head><p>shown</p>", html::Form::Xhtml);
    assert_eq!(closed, "shown\n");
}

fn archive(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, text) in parts {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(text.as_bytes()).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn word_open_document_and_epub_files_are_text_and_headings() {
    let document = r#"<?xml version="1.0"?><w:document xmlns:w="w"><w:body>
        <w:p><w:pPr><w:pStyle w:val="berschrift2"/><w:tabs><w:tab w:val="left"/></w:tabs></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>
        <w:p><w:r><w:t xml:space="preserve">one &amp; </w:t></w:r><w:del><w:r><w:delText>gone</w:delText></w:r></w:del>
        <w:r><w:t>two&#33;</w:t><w:tab/><w:t>x</w:t><w:instrText> PAGE </w:instrText></w:r></w:p>
        <w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p></w:tc></w:tr>
        <w:tr><w:tc><w:p><w:r><w:t>c</w:t></w:r></w:p></w:tc></w:tr></w:tbl></w:body></w:document>"#;
    let styles =
        r#"<w:styles><w:style w:styleId="berschrift2"><w:pPr><w:outlineLvl w:val="1"/></w:pPr></w:style></w:styles>"#;
    let notes = "<w:footnotes><w:footnote><w:p><w:r><w:t>a note</w:t></w:r></w:p></w:footnote></w:footnotes>";
    let docx = [("word/document.xml", document), ("word/styles.xml", styles), ("word/footnotes.xml", notes)];
    assert_eq!(
        office::text(archive(&docx)).unwrap(),
        "## Head\n\none & two!\tx\na | b\nc\n\n[word/footnotes.xml]\na note\n"
    );

    let content = "<office:text><text:tracked-changes><text:p>gone</text:p></text:tracked-changes>
        <text:h text:outline-level=\"1\">Head</text:h><text:p>one<text:s/>two<text:line-break/>three</text:p>
        <text:list><text:list-item><text:p>item</text:p></text:list-item></text:list>
        <table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>
        </table:table-cell></table:table-row></office:text>";
    assert_eq!(
        office::text(archive(&[("content.xml", content)])).unwrap(),
        "# Head\n\none two\nthree\n- item\na | b\n"
    );

    let epub = [
        (
            "META-INF/container.xml",
            "<container><rootfiles><rootfile full-path='OPS/book.opf'/></rootfiles></container>",
        ),
        (
            "OPS/book.opf",
            "<package><manifest><item id='b' href='two.xhtml'/><item id='a' href='text/one%20a.xhtml'/><item id='c' href='no'/>\
             </manifest><spine><itemref idref='a'/><itemref idref='b'/><itemref idref='c'/></spine></package>",
        ),
        ("OPS/text/one a.xhtml", "<html><body><h1>First</h1></body></html>"),
        ("OPS/two.xhtml", "<html><body><p>Second</p></body></html>"),
    ];
    assert_eq!(office::text(archive(&epub)).unwrap(), "# First\n\nSecond\n\n[no is missing in the book]\n");
    assert!(office::text(archive(&[("ppt/slides/slide1.xml", "")])).unwrap_err().contains("no text document"));
    assert!(office::text(b"PK\x03\x04 and no more".to_vec()).unwrap_err().contains("damaged"));
    let huge = "x".repeat(257 << 20);
    assert!(office::text(archive(&[("content.xml", &huge)])).unwrap_err().contains("larger than 256 MiB"));
}

fn mail_text(mail: &[u8]) -> String {
    mail::text(mail.to_vec(), 0).unwrap().text
}

#[test]
fn notebooks_and_mails_are_read_without_their_wrapping() {
    let notebook = r##"{"metadata":{"language_info":{"name":"python"}},"cells":[
        {"cell_type":"markdown","source":["# Title\n","text"]},
        {"cell_type":"code","source":"print(1)","outputs":[{"output_type":"stream","text":["1\n"]},
         {"data":{"text/plain":"2","image/png":"AAAA"}},{"ename":"ValueError","evalue":"no"}]}]}"##;
    assert_eq!(
        notebook::text(notebook.as_bytes().to_vec()),
        "# Title\ntext\n\n```python\nprint(1)\n```\n\n```\n1\n```\n\n```\n2\n```\n\n```\nValueError: no\n```\n"
    );
    assert_eq!(notebook::text(b"no notebook".to_vec()), "no notebook");
    let mail = "From: =?utf-8?q?J=C3=BCrgen?= <j@example.org>\r\nTo: a@example.org, B <b@example.org>\r\nSubject: Hi\r\n there\r\n\
        MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary=x\r\n\r\n--x\r\nContent-Type: text/html; charset=iso-8859-1\r\n\
        Content-Transfer-Encoding: quoted-printable\r\n\r\n<p>Gr=FC=DFe</p><script>no</script>\r\n--x\r\n\
        Content-Type: image/png\r\nContent-Disposition: attachment; filename=\"a.png\"\r\n\r\nAAAA\r\n--x--\r\n";
    assert_eq!(
        mail_text(mail.as_bytes()),
        "From: Jürgen <j@example.org>\nTo: a@example.org, B <b@example.org>\nSubject: Hi there\n\nGrüße\n\n[attachment: a.png]"
    );
}

#[test]
fn a_mail_that_is_cut_off_keeps_its_text_and_other_mails_are_named() {
    let head = "Subject: t\r\nContent-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\nContent-Type: text/plain";
    let cut = format!("{head}\r\n\r\nthe beginning of");
    assert_eq!(mail_text(cut.as_bytes()), "Subject: t\n\nthe beginning of\n");
    let coded = format!("{head}\r\nContent-Transfer-Encoding: base64\r\n\r\naGVsbG8gd29ybGQ=");
    assert_eq!(mail_text(coded.as_bytes()), "Subject: t\n\nhello world\n");
    let plain = b"Content-Type: text/plain; boundary=B\r\n\r\nplain text\r\n";
    assert_eq!(mail_text(plain), "\nplain text\n");
    assert_eq!(mail_text(b"\r\nno head\r\n").trim(), "no head");
    let inner = "Content-Type: message/rfc822\r\n\r\nSubject: Minutes\r\n\r\nWe met.";
    let data = "Content-Type: application/octet-stream\r\n\r\nx";
    let forwarded = format!("{head}\r\n\r\nSee below.\r\n--B\r\n{inner}\r\n--B\r\n{data}\r\n--B--\r\n");
    let text = mail_text(forwarded.as_bytes());
    let inner = "[attachment: Minutes]\nSubject: Minutes\n\nWe met.\n";
    assert_eq!(text, format!("Subject: t\n\nSee below.\n\n{inner}\n[attachment: without a name]"));
}

#[test]
fn what_of_an_archive_cannot_be_read_is_named_and_the_rest_is_text() {
    let container = "<container><rootfiles><rootfile full-path='b/p.opf'/></rootfiles></container>";
    let item = |id: &str| format!("<item id='{id}' href='{id}.xhtml'/><itemref idref='{id}'/>");
    let book = |chapters: [(&str, &str); 2]| {
        let package = format!("<package>{}{}</package>", item("one"), item("two"));
        let [one, two] = chapters;
        archive(&[("META-INF/container.xml", container), ("b/p.opf", &package), one, two])
    };
    let sealed = "\u{1}\u{2}\u{3}\u{4}\0\u{5}".repeat(20);
    let text = office::text(book([("b/one.xhtml", "<p>Begin</p>"), ("b/two.xhtml", &sealed)])).unwrap();
    assert_eq!(text, "Begin\n\n[b/two.xhtml in it is not text, or encrypted]\n");
    let refused = office::text(book([("b/one.xhtml", &sealed), ("b/two.xhtml", &sealed)])).unwrap_err();
    assert_eq!(refused, "no chapter of the book can be read: it is damaged or encrypted");

    let numbered = "<w:document><w:body><w:p><w:r><w:t>Moved</w:t></w:r></w:p></w:body></w:document>";
    let relations = |main: &str| format!("<r><Relationship Type='x/officeDocument' Target='{main}'/></r>");
    for (main, named) in
        [("word/document2.xml", "word/document2.xml"), ("a\\B.xml", "/A/b.xml"), ("a/b.xml", "a/b.xml")]
    {
        let parts = [("_rels/.rels", &*relations(named)), ("word/documentTemplate.xml", ""), (main, numbered)];
        assert_eq!(office::text(archive(&parts)).unwrap(), "Moved\n", "{main}");
    }
    let other = numbered.replace("Moved", "Other");
    let parts = [("word/documentTemplate.xml", ""), ("word/document2.xml", &other), ("word/document.xml", numbered)];
    assert_eq!(office::text(archive(&parts)).unwrap(), "Moved\n\n[word/document2.xml]\nOther\n");
    let parts = [("word/document.xml", numbered), ("word/styles.xml", ""), ("word/footnotes.xml", "\0")];
    let text = office::text(archive(&parts)).unwrap();
    let named = "[word/footnotes.xml]\n[word/footnotes.xml in it is not text, or encrypted]";
    assert_eq!(text, format!("Moved\n\n{named}\n"));
    let sheet = [("_rels/.rels", &*relations("xl/workbook.xml")), ("xl/workbook.xml", "<v>0</v>")];
    assert!(office::text(archive(&sheet)).unwrap_err().contains("no text document"));
    let spaces = "<o><text:p>a<text:s text:c='3'/>b<text:s text:c='999999999'/>c</text:p></o>";
    let text = office::text(archive(&[("content.xml", spaces)])).unwrap();
    assert!(text.starts_with("a   b ") && text.len() < 300, "{text}");
}

#[test]
fn a_pdf_without_a_head_is_read_and_what_is_none_is_named() {
    let text = String::from_utf8(pdf(&[(FONTS, "BT /F1 12 Tf 72 720 Td (found) Tj ET")], &[])).unwrap();
    for head in ["%pdf-1.4\n", "%!PS-Adobe-3.0 PDF-1.4\n", "", &("x".repeat(3000) + "\n")] {
        assert_eq!(texts(text.replacen("%PDF-1.4\n", head, 1).into_bytes()), ["found"], "{head}");
    }
    assert_eq!(pdf::pages(b"hello".to_vec()).unwrap_err(), "it is no PDF");
}

#[test]
fn a_page_declares_its_encoding_in_meta_alone() {
    for page in [
        "<script charset=iso-8859-1></script><meta charset=utf-8><p>caf\u{e9} 灯塔",
        "<meta name=x content='charset=gbk'><p>caf\u{e9} 灯塔",
        "<form accept-charset=iso-8859-1><p>caf\u{e9} 灯塔",
        "<title>charset=gbk</title><!-- <meta charset=gbk> --><p>caf\u{e9} 灯塔",
    ] {
        let text = html::page(page.as_bytes().to_vec()).text;
        assert!(text.ends_with("caf\u{e9} 灯塔\n"), "{page}: {text}");
    }
    let meta = b"<meta http-equiv=content-type content='text/html; charset=gbk'><p>\xb5\xc6";
    assert_eq!(html::page(meta.to_vec()).text, "灯\n");
    assert_eq!(html::page(b"<?xml version='1.0' encoding='gbk'?><p>\xb5\xc6</p>".to_vec()).text, "灯\n");
}

#[test]
fn sections_and_what_has_no_end_keep_their_text() {
    let xhtml = "<?xml version='1.0'?><html><p><![CDATA[a < b > c]]> x</p><script/><p>after</p></html>";
    assert_eq!(html::text(xhtml, html::Form::Xhtml), "a < b > c x\n\nafter\n");
    for open in ["<svg><path>", "<svg><svg></svg>", "<object>", "<template>"] {
        assert_eq!(html::text(&format!("<p>a</p>{open}<p>b</p>"), html::Form::Html), "a\n\nb\n", "{open}");
    }
}

#[test]
fn moved_text_is_read_once_and_fractions_and_readings_are_kept_apart() {
    let run = |text: &str| format!("<w:r><w:t>{text}</w:t></w:r>");
    let word = format!(
        "<w:document><w:p><w:moveFrom>{0}</w:moveFrom></w:p><w:p><w:moveTo>{0}</w:moveTo></w:p><w:p><m:f><m:num><m:r><m:t>1</m:t>\
         </m:r></m:num><m:den><m:r><m:t>2</m:t></m:r></m:den></m:f></w:p><w:p><w:ruby><w:rt>{1}</w:rt><w:rubyBase>{2}</w:rubyBase>\
         </w:ruby>{1}</w:p></w:document>",
        run("moved"),
        run("かん"),
        run("漢")
    );
    assert_eq!(office::text(archive(&[("word/document.xml", &word)])).unwrap(), "moved\n\n1/2\n\n漢(かん)かん\n");
}

#[test]
fn mail_of_unclear_encoding_and_mail_with_a_blank_part_is_read() {
    let part = |kind: &str, text: &str| format!("--C\r\nContent-Type: text/{kind}\r\n\r\n{text}\r\n");
    let head = "Subject: h\r\nContent-Type: multipart/alternative; boundary=C\r\n\r\n";
    let blank = format!("{head}{}{}--C--\r\n", part("plain", "\r\n"), part("html", "<p>only here</p>"));
    assert_eq!(mail_text(blank.as_bytes()), "Subject: h\n\nonly here\n");
    let latin = b"Subject: Gr\xfc\xdfe\r\n\r\nraw 8bit Gr\xfc\xdfe\r\n";
    let read = mail::text(latin.to_vec(), 0).unwrap();
    assert_eq!((read.text.as_str(), read.guessed), ("Subject: Grüße\n\nraw 8bit Grüße\n", Some("windows-1252")));
    let (gbk, _, _) = encoding_rs::GBK.encode("灯塔在海边，晚上很亮，为船只指引方向。");
    for charset in ["", "; charset=x-none"] {
        let mail = [format!("Subject: x\r\nContent-Type: text/plain{charset}\r\n\r\n").as_bytes(), &gbk].concat();
        let read = mail::text(mail, 0).unwrap();
        assert_eq!(
            (read.text.lines().last(), read.guessed),
            (Some("灯塔在海边，晚上很亮，为船只指引方向。"), Some("GBK"))
        );
    }
    for subject in ["=?utf-8?Q?a=E7=81?=\r\n =?utf-8?Q?=AF?= =?utf-8?Q?b?=", "=?utf-8?B?YeeB?= =?utf-8?B?r2I=?="] {
        assert_eq!(mail_text(format!("Subject: {subject}\r\n\r\nx").as_bytes()), "Subject: a灯b\n\nx\n");
    }
    assert_eq!(mail_text(b"just text\n\nand more: of it\n"), "just text\n\nand more: of it\n");
}

#[test]
fn notebooks_as_python_writes_them_and_other_forms_of_results_are_read() {
    let notebook = r#"{"metadata":{"x":NaN,"y":[-Infinity]},"cells":[{"cell_type":"markdown","source":"NaN \"half \ud83d, \ud83d\ude00"},
        {"cell_type":"code","source":"f","outputs":[{"data":{"text/html":"<b>page</b>"}},{"data":{"text/markdown":["**m**"]}}]}]}"#;
    let text = notebook::text(notebook.as_bytes().to_vec());
    assert_eq!(text, "NaN \"half \u{fffd}, 😀\n\n```\nf\n```\n\n```\npage\n```\n\n```\n**m**\n```\n");
    let container = "<container><rootfiles><rootfile full-path='p.opf'/></rootfiles></container>";
    let package = "<package><item id='a' href='a.xhtml'/><itemref idref='a'/></package>";
    let empty = office::text(archive(&[("META-INF/container.xml", container), ("p.opf", package)])).unwrap_err();
    assert!(empty.starts_with("no chapter of the book can be read"), "{empty}");
}

#[test]
fn a_notebook_shows_an_object_in_its_richest_form() {
    let shown = |data: &str| {
        let cells = format!("{{\"cells\":[{{\"cell_type\":\"code\",\"outputs\":[{{\"data\":{data}}}]}}]}}");
        notebook::text(cells.into_bytes())
    };
    for (data, text) in [
        (r#"{"text/plain":"<a.b.Markdown object>","text/markdown":"**m**","text/html":"<p>h</p>"}"#, "**m**"),
        (r#"{"text/plain":"<a.b.Styler at 0x7f3a>","text/html":"<p>h</p>"}"#, "h"),
        (r#"{"text/plain":"<a.b.JSON object>","application/json":{"k":1}}"#, r#"{"k":1}"#),
        (r#"{"text/plain":"<a.b.C at 0x7f3a>","image/png":"AAAA"}"#, "<a.b.C at 0x7f3a>"),
        (r#"{"text/plain":"2 at 0x7f","text/html":"<p>h</p>"}"#, "2 at 0x7f"),
    ] {
        assert_eq!(shown(data), format!("```\n{text}\n```\n"), "{data}");
    }
}

#[test]
fn every_kind_of_text_in_a_mail_is_read_and_mails_within_it() {
    for kind in ["text/markdown", "text/calendar; method=REQUEST", "text", "text/x-new; charset=utf-8", "???"] {
        let text = mail_text(format!("Subject: x\r\nContent-Type: {kind}\r\n\r\nthe words\r\n").as_bytes());
        assert_eq!(text, "Subject: x\n\nthe words\n", "{kind}");
    }
    let part = |head: &str, text: &str| format!("--B\r\n{head}\r\n\r\n{text}\r\n");
    let mixed = |kind: &str, parts: &str| {
        format!("Subject: t\r\nContent-Type: multipart/{kind}; boundary=B\r\n\r\n{parts}--B--\r\n")
    };
    let attached = "Content-Type: text/x-a\r\nContent-Disposition: attachment; filename=n.txt";
    let parts = [
        part(attached, "far"),
        part("Content-Type: text/css", "p {}"),
        part("Content-Type: message/delivery-status", "near"),
    ];
    let text = mail_text(mixed("report", &parts.concat()).as_bytes());
    assert_eq!(text, "Subject: t\n\nnear\n\n[attachment: n.txt]\n[attachment: without a name]");
    let parts = "--B\r\n\r\nSubject: one\r\n\r\nfirst\r\n--B\r\n\r\nSubject: two\r\n\r\nsecond\r\n";
    let text = mail_text(mixed("digest", parts).as_bytes());
    let [one, two] = ["[attachment: one]\nSubject: one\n\nfirst\n", "[attachment: two]\nSubject: two\n\nsecond\n"];
    assert_eq!(text, format!("Subject: t\n\n{one}\n{two}"));
    let nested = "Content-Type: message/rfc822\r\n\r\n".repeat(200);
    assert!(mail_text(format!("{nested}Subject: deep\r\n\r\ntext").as_bytes()).len() < 1000);
}

#[test]
fn a_page_keeps_formulas_readings_pictures_of_text_and_numbers_of_lists() {
    let inner = "<mfrac><mn>1</mn><mrow><mn>2</mn></mrow></mfrac>";
    for (page, text) in [
        (
            format!("<math><mfrac><mrow><mi>a</mi>{inner}</mrow><mi>b</mi></mfrac><annotation>x</annotation></math>"),
            "a1/2/b",
        ),
        ("<ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>に".into(), "東(とう)京(きょう)に"),
        ("<ruby>漢<rp>（</rp><rt>かん</rt><rp>）</rp></ruby>字".into(), "漢(かん)字"),
        ("<svg><style>no</style><text>one</text><text>two</text></svg>".into(), "one\ntwo"),
        ("<div><template shadowrootmode=open><p>shown</p></template><template>no</template></div>".into(), "shown"),
        ("<ol start=5><li>a<ul><li>b</ul><li>c<li value=9>d</ol><li>e".into(), "5. a\n\n- b\n\n6. c\n9. d\n\n- e"),
    ] {
        assert_eq!(html::text(&page, html::Form::Html), format!("{text}\n"), "{page}");
    }
}

#[test]
fn other_parts_of_a_word_file_are_read_or_named() {
    let paragraph = |text: &str| format!("<w:p><w:r><w:t>{text}</w:t></w:r></w:p>");
    let chart = "<c:chart><c:strCache><c:pt><c:v>A</c:v></c:pt><c:pt><c:v>B</c:v></c:pt></c:strCache><c:numCache><c:v>1</c:v>\
        </c:numCache></c:chart>";
    let parts = [
        ("word/document.xml", &*paragraph("main")),
        ("Word\\header1.xml", &paragraph("head")),
        ("word/comments.xml", &paragraph("remark")),
        ("word/glossary/document.xml", &paragraph("block")),
        ("word/afchunk.htm", "<p>page</p>"),
        ("word/afchunk.mht", "Content-Type: text/html\n\n<p>saved</p>"),
        ("word/charts/chart1.xml", chart),
        ("word/diagrams/data1.xml", "<dgm:pt><dgm:t><a:p><a:r><a:t>box</a:t></a:r></a:p></dgm:t></dgm:pt>"),
        ("word/damaged.xml", "<w:p><w:r><w:t>part</w:t></w:r></w:p><!-- "),
        ("word/embeddings/a.xlsx", "PK\0"),
        ("word/settings.xml", "<w:settings/>"),
        ("word/media/image1.png", "\0"),
    ];
    let text = office::text(archive(&parts)).unwrap();
    let expected = "main\n\n[Word\\header1.xml]\nhead\n\n[word/comments.xml]\nremark\n\n[word/afchunk.htm]\npage\n\n\
        [word/afchunk.mht]\nsaved\n\n[word/charts/chart1.xml]\nA | B\n1\n\n[word/diagrams/data1.xml]\nbox\n\n";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("part\n[its XML is damaged") && text.contains("a.xlsx in it is not text"), "{text}");
    assert!(!text.contains("settings") && !text.contains("png"), "{text}");
}

#[test]
fn signs_choices_and_earlier_formats_of_word_are_read_as_they_look() {
    let symbol = |font: &str, code: &str| format!("<w:sym w:font='{font}' w:char='{code}'/>");
    let [known, letter, other] = [symbol("Symbol", "F0B3"), symbol("Symbol", "F061"), symbol("Wingdings", "F0FE")];
    for (xml, text) in [
        (format!("<w:r>{known}{letter}<w:ptab/>{other}</w:r>"), "≥α\t\u{fffd}[Wingdings F0FE]"),
        ("<m:rad><m:deg><m:t>3</m:t></m:deg><m:e><m:t>8</m:t></m:e></m:rad>".into(), "3√(8)"),
        ("<m:nary><m:naryPr><m:chr m:val='∑'/></m:naryPr><m:e><m:t>x</m:t></m:e></m:nary>".into(), "∑x"),
        ("<m:nary><m:naryPr/><m:e><m:t>x</m:t></m:e></m:nary>".into(), "∫x"),
        (
            "<w:ddList><w:result w:val='1'/><w:listEntry w:val='red'/><w:listEntry w:val='blue'/></w:ddList>".into(),
            "blue",
        ),
        ("<w:ddList><w:listEntry w:val='red'/><w:listEntry w:val='blue'/></w:ddList>".into(), "red"),
        ("<w:pPr><w:pPrChange><w:numPr/></w:pPrChange></w:pPr><w:r><w:t>plain</w:t></w:r>".into(), "plain"),
    ] {
        let document = archive(&[("word/document.xml", &format!("<w:document><w:p>{xml}</w:p></w:document>"))]);
        assert_eq!(office::text(document).unwrap(), format!("{text}\n"), "{xml}");
    }
}

#[test]
fn headers_and_formulas_of_open_document_are_read() {
    let content = "<o><text:p>so <draw:object xlink:href='./Object 1'/> holds</text:p></o>";
    let styles = "<style:header><text:p>head</text:p></style:header>";
    let formula =
        "<math><semantics><mfrac><mi>a</mi><mi>b</mi></mfrac><annotation>{a} over {b}</annotation></semantics></math>";
    let parts = [("content.xml", content), ("styles.xml", styles), ("Object 1/content.xml", formula)];
    let text = office::text(archive(&parts)).unwrap();
    assert_eq!(text, "so [./Object 1] holds\n\n[styles.xml]\nhead\n\n[Object 1/content.xml]\na/b\n");
}

#[test]
fn a_chapter_is_found_by_every_form_of_its_name() {
    let container = "<container><rootfiles><rootfile full-path='b/p.opf'/></rootfiles></container>";
    for (href, name) in [
        ("a%20b.xhtml", "b/a b.xhtml"),
        ("a%20b.xhtml", "b/a%20b.xhtml"),
        ("A.xhtml", "b/a.xhtml"),
        ("/b/a.xhtml", "b/a.xhtml"),
        ("t\\a.xhtml", "b/t/a.xhtml"),
        ("t/a.xhtml#x", "b\\t\\a.xhtml"),
        ("a.svg", "b/a.svg"),
    ] {
        let package = format!("<package><item id='a' href='{href}'/><itemref idref='a'/></package>");
        let book =
            [("META-INF/container.xml", container), ("b/p.opf", &package), (name, "<svg><text>found</text></svg>")];
        assert_eq!(office::text(archive(&book)).unwrap(), "found\n", "{href}: {name}");
    }
}
