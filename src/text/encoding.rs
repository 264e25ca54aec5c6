//! Bytes of a file to text: byte order marks, UTF-8, UTF-16, older encodings by a guess; other bytes are not text.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, ISO_2022_JP, UTF_8, UTF_16BE, UTF_16LE};

/// Bytes examined to detect UTF-16 without a mark.
const SNIFF_BYTES: usize = 4096;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decoded {
    /// Without a byte order mark.
    pub text: String,
    /// Name of the encoding if it had to be guessed.
    pub guessed: Option<&'static str>,
}

/// A byte that text does not contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} at byte {offset}", if *byte == 0 { "NUL".to_owned() } else { format!("control byte 0x{byte:02X}") })]
pub struct NotText {
    pub byte: u8,
    pub offset: usize,
}

/// Reads bytes as text. With `force`, bytes that are not text are read as Latin-1.
pub fn decode(bytes: Vec<u8>, force: bool) -> Result<Decoded, NotText> {
    let sure = |text: String| Ok(Decoded { text, guessed: None });
    if let Some((encoding, mark)) = Encoding::for_bom(&bytes) {
        let (text, broken) = encoding.decode_without_bom_handling(bytes.get(mark..).unwrap_or(&[]));
        if !broken && !text.contains('\0') {
            return sure(text.into_owned());
        }
        let is_error = |c: &char| matches!(*c, '\0' | char::REPLACEMENT_CHARACTER);
        let (errors, all) = (text.chars().filter(is_error).count(), text.chars().count());
        if encoding != UTF_8 && errors < all.min(2 + all / 200) {
            let name = if encoding == UTF_16LE { "UTF-16LE with errors" } else { "UTF-16BE with errors" };
            return Ok(Decoded { text: text.replace('\0', "\u{FFFD}"), guessed: Some(name) });
        }
    } else if let Some(encoding) = utf16_without_mark(&bytes) {
        let (text, broken) = encoding.decode_without_bom_handling(&bytes);
        let is_control = |c: &char| c.is_control() && !c.is_whitespace() && *c != '\u{1b}';
        if !broken && text.chars().filter(is_control).count() * 200 <= text.len() {
            return Ok(Decoded { text: text.into_owned(), guessed: Some(encoding.name()) });
        }
    }
    let latin1 = |bytes: &[u8]| {
        let text = encoding_rs::mem::decode_latin1(bytes).into_owned();
        Ok(Decoded { text, guessed: Some("Latin-1") })
    };
    if let Some(offset) = bytes.iter().position(|b| *b == 0) {
        return if force { latin1(&bytes) } else { Err(NotText { byte: 0, offset }) };
    }
    // Of seven bits, so valid UTF-8 by chance.
    if bytes.contains(&0x1B)
        && bytes.is_ascii()
        && let Some(decoded) = iso_2022(&bytes)
    {
        return Ok(decoded);
    }
    let bytes = match String::from_utf8(bytes) {
        Ok(text) => return sure(text),
        Err(e) => e.into_bytes(),
    };
    // Binary data is full of control bytes; text in an older encoding has next to none.
    let is_control = |b: &u8| *b < 0x20 && !matches!(b, b'\t' | b'\n' | b'\r' | 0x0C | 0x1B) || *b == 0x7F;
    let controls = bytes.iter().filter(|b| is_control(b)).count();
    if controls * 200 > bytes.len() {
        let (offset, byte) = bytes.iter().copied().enumerate().find(|(_, b)| is_control(b)).unwrap_or((0, 0));
        return if force { latin1(&bytes) } else { Err(NotText { byte, offset }) };
    }
    let marked = bytes.strip_prefix(b"\xEF\xBB\xBF");
    if marked.is_some() || mostly_utf8(&bytes) {
        let text = String::from_utf8_lossy(marked.unwrap_or(&bytes)).into_owned();
        return Ok(Decoded { text, guessed: Some("UTF-8 with errors") });
    }
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(&bytes, true);
    let encoding = detector.guess(None, Utf8Detection::Deny);
    let (text, _) = encoding.decode_without_bom_handling(&bytes);
    Ok(Decoded { text: text.into_owned(), guessed: Some(encoding.name()) })
}

/// Text that switches alphabets by escapes. Only Japanese is decoded.
fn iso_2022(bytes: &[u8]) -> Option<Decoded> {
    const JAPANESE: &[&[u8]] = &[b"\x1b$B", b"\x1b$@", b"\x1b(J", b"\x1b(I"];
    const WIDE: &[&[u8]] = &[b"\x1b$)A", b"\x1b$)C", b"\x1b$)G", b"\x1b$@", b"\x1b$B"];
    let has = |escapes: &[&[u8]]| escapes.iter().any(|escape| bytes.windows(escape.len()).any(|at| at == *escape));
    if has(JAPANESE) {
        let (text, _) = ISO_2022_JP.decode_without_bom_handling(bytes);
        // It may be cut in one place.
        if text.matches(char::REPLACEMENT_CHARACTER).count() <= 1 {
            return Some(Decoded { text: text.into_owned(), guessed: Some("ISO-2022-JP") });
        }
    }
    has(WIDE).then(|| Decoded { text: String::from_utf8_lossy(bytes).into_owned(), guessed: Some("ASCII") })
}

/// Multi-byte characters are rare in other encodings: a text with many more of them than errors is damaged UTF-8.
fn mostly_utf8(bytes: &[u8]) -> bool {
    let (mut whole, mut broken, mut left) = (0, 0, bytes.len());
    for chunk in bytes.utf8_chunks() {
        whole += chunk.valid().chars().filter(|c| !c.is_ascii()).count();
        let invalid = chunk.invalid();
        left -= chunk.valid().len() + invalid.len();
        // The end of the text may be inside a character. A single byte there is one of many encodings.
        let is_cut = left == 0 && std::str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
        broken += usize::from(!(invalid.is_empty() || is_cut && whole + invalid.len() > 1));
    }
    whole >= 2 * broken
}

/// Without a byte order mark the order shows in the higher bytes: most are zero, as of Western text, or they are of few
/// alphabets and some are zero, as of spaces and digits, or all are of Chinese and some of the lower ones are no text.
fn utf16_without_mark(bytes: &[u8]) -> Option<&'static Encoding> {
    let head = bytes.get(..bytes.len().min(SNIFF_BYTES))?;
    if head.len() < 8 || !bytes.len().is_multiple_of(2) {
        return None;
    }
    let is_usual =
        |high: &u8| matches!(high, 0..=6 | 9..=0x10 | 0x17 | 0x1E..=0x27 | 0x30 | 0x4E..=0x9F | 0xAC..=0xDF | 0xFF);
    // Texts of bytes with zeros between them.
    let is_list = std::str::from_utf8(head).map_or_else(|e| e.error_len().is_none(), |_| true)
        && head.iter().all(|b| *b >= b' ' || matches!(b, 0 | b'\t' | b'\n' | b'\r'));
    let half = |from: usize, of: &dyn Fn(&u8) -> bool| head.iter().skip(from).step_by(2).filter(|b| of(b)).count();
    let is_text = |first: usize| {
        let (zeros, others) = (half(first, &|b| *b == 0), half(1 - first, &|b| *b == 0));
        let is_western = zeros * 20 > head.len() * 7 && others == 0;
        let is_chinese = half(first, &|b| matches!(b, 0x30 | 0x4E..=0x9F | 0xFF)) == head.len() / 2
            && half(1 - first, &|b| *b < b' ' && !matches!(b, b'\t' | b'\n' | 0x0C | b'\r' | 0x1B)) > 0;
        is_western || !is_list && (is_chinese || zeros > 0 && half(first, &is_usual) * 40 > head.len() * 19)
    };
    match (is_text(0), is_text(1)) {
        (false, true) => Some(UTF_16LE),
        (true, false) => Some(UTF_16BE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        decode(bytes.to_vec(), false).unwrap().text
    }

    #[test]
    fn marks_and_utf16_are_read() {
        assert_eq!(text(b"\xEF\xBB\xBFhi"), "hi");
        assert_eq!(text(b"\xFF\xFEh\0\xFC\0"), "hü");
        assert_eq!(text(b"\xFE\xFF\0h\0i"), "hi");
        let bare: Vec<u8> = "hello there\n".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(decode(bare, false).unwrap(), Decoded { text: "hello there\n".into(), guessed: Some("UTF-16LE") });
    }

    #[test]
    fn utf16_without_a_mark_is_read_in_many_alphabets() {
        for text in [
            "Привет, мир. 12\n",
            "Καλημέρα, κόσμε 7",
            "שלום עולם 1",
            "日本語の文章です。\n灯台",
            "안녕하세요 세계 3",
            "plain text\n",
            "Tiếng Việt là ngôn ngữ của người Việt. 5",
            "a → b → c ≤ d\n",
            "\u{1b}[31mred\u{1b}[0m and more of it\n",
            "a bell after more than two hundred characters: \u{7}, which older programs ring at the end of what they print, so \
             that someone who looks at another window hears that they are done, as does everyone in the next room",
        ] {
            for (bytes, name) in [
                (text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<u8>>(), "UTF-16LE"),
                (text.encode_utf16().flat_map(u16::to_be_bytes).collect(), "UTF-16BE"),
            ] {
                assert_eq!(decode(bytes, false).unwrap(), Decoded { text: text.into(), guessed: Some(name) });
            }
        }
        // Records of four bytes, numbers of two.
        for other in [
            &b"abc\0def\n"[..],
            b"abc\0",
            b"a/b\0",
            b"\x01\0\x02\0",
            b"\x01\x04\0\0",
            b"ab\0\0",
            "straße\0ort\0".as_bytes(),
        ] {
            assert_eq!(decode(other.repeat(10), false).unwrap_err().byte, 0, "{other:?}");
        }
    }

    #[test]
    fn a_mark_outweighs_an_error() {
        let whole: Vec<u8> = "\u{feff}Grüße an alle".encode_utf16().flat_map(u16::to_le_bytes).collect();
        let (odd, cut) = ([&whole[..], b"x"].concat(), whole[..whole.len() - 1].to_vec());
        let (nul, half) = ([&whole[..], b"\0\0"].concat(), [&whole[..], b"\0\xD8", b"x\0"].concat());
        for bytes in [odd, cut, nul, half] {
            let read = decode(bytes.clone(), false).unwrap();
            assert!(read.text.starts_with("Grüße an all") && read.text.contains('\u{fffd}'), "{read:?}");
            assert_eq!(read.guessed, Some("UTF-16LE with errors"), "{bytes:?}");
        }
        // UTF-32.
        assert!(decode(b"\xFF\xFE\0\0a\0\0\0b\0\0\0".to_vec(), false).is_err());
    }

    #[test]
    fn chinese_in_utf16_needs_no_mark_and_no_spaces() {
        for text in ["你好世界", "灯塔是一种建在海边的高塔，晚上发光"] {
            let bytes: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
            assert_eq!(decode(bytes, false).unwrap(), Decoded { text: text.into(), guessed: Some("UTF-16LE") });
        }
    }

    #[test]
    fn a_text_that_is_cut_inside_a_character_is_utf8() {
        for (whole, cut) in [("Short note 😀", 1), ("5 € pro Stü", 1), ("a €", 1)] {
            let bytes = &whole.as_bytes()[..whole.len() - cut];
            let read = decode(bytes.to_vec(), false).unwrap();
            assert_eq!(read.guessed, Some("UTF-8 with errors"), "{}", read.text);
            assert!(read.text.ends_with('\u{fffd}'), "{}", read.text);
        }
        let (latin1, _, _) = encoding_rs::WINDOWS_1252.encode("Un café");
        assert_eq!(text(&latin1), "Un café");
    }

    #[test]
    fn older_encodings_are_guessed() {
        let (bytes, _, _) = encoding_rs::WINDOWS_1252.encode("Größe und Länge, café, naïve — schön");
        assert_eq!(text(&bytes), "Größe und Länge, café, naïve — schön");
        let (bytes, _, _) = encoding_rs::GBK.encode("模型在自己的机器上运行，文档不会离开。这是一个测试文件。");
        assert_eq!(text(&bytes), "模型在自己的机器上运行，文档不会离开。这是一个测试文件。");
        let (bytes, _, _) = encoding_rs::SHIFT_JIS.encode("これは日本語の文章です。テストのために書きました。");
        assert_eq!(text(&bytes), "これは日本語の文章です。テストのために書きました。");
    }

    #[test]
    fn japanese_that_switches_by_escapes_is_recognised() {
        let read = |bytes: &[u8]| decode(bytes.to_vec(), false).unwrap();
        let japanese = read(b"a \x1b$BEtBf$O3$$r>H$i$9\x1b(B b\n");
        assert_eq!((japanese.text.as_str(), japanese.guessed), ("a 灯台は海を照らす b\n", Some("ISO-2022-JP")));
        // Colours of a terminal, and a price after an escape.
        for plain in ["\x1b[31mred\x1b[0m", "\x1b$", "cost: $B and $)C"] {
            assert_eq!(read(plain.as_bytes()), Decoded { text: plain.into(), guessed: None });
        }
    }

    #[test]
    fn alphabets_in_ascii_are_named_as_unclear() {
        let read = |bytes: &[u8]| decode(bytes.to_vec(), false).unwrap();
        for coded in [&b"\x1b$)C\x0e5n4k\x0f tower"[..], b"\x1b$BEtBf\nBfEt\n!!\nBf"] {
            let text = String::from_utf8(coded.to_vec()).unwrap();
            assert_eq!(read(coded), Decoded { text: text.clone(), guessed: Some("ASCII") }, "{text}");
        }
        // Cut within a character, or before the escape back.
        assert_eq!(read(b"\x1b$BEtB").guessed, Some("ISO-2022-JP"));
        let open = read(b"\x1b$BEtBf$O$H$F$b9b$$");
        assert!(open.text.starts_with("灯台はとても高い") && open.guessed == Some("ISO-2022-JP"), "{open:?}");
        assert_eq!(read(b"\x1b[1mbold\x1b[0m"), Decoded { text: "\x1b[1mbold\x1b[0m".into(), guessed: None });
    }

    #[test]
    fn a_damaged_text_stays_utf8() {
        let read = |bytes: &[u8]| decode(bytes.to_vec(), false).unwrap();
        let damaged = ["The café. The code is größe-77. ".as_bytes(), b"\xff\n"].concat();
        assert_eq!(read(&damaged).text, "The café. The code is größe-77. \u{fffd}\n");
        assert_eq!(read(&damaged).guessed, Some("UTF-8 with errors"));
        assert_eq!(read(b"\xEF\xBB\xBFplain \xff").text, "plain \u{fffd}");
        for text in ["Привет, мир", "これは日本語の文章です"] {
            let cut = text.as_bytes().split_last().unwrap().1;
            let whole = text.chars().count() - 1;
            assert_eq!(read(cut).text, text.chars().take(whole).chain(['\u{fffd}']).collect::<String>());
        }
    }

    #[test]
    fn binary_data_is_named_by_its_first_odd_byte() {
        assert_eq!(decode(b"abc\0def".to_vec(), false), Err(NotText { byte: 0, offset: 3 }));
        assert_eq!(decode(b"abc\0def".to_vec(), true).unwrap().text, "abc\0def");
        let noise: Vec<u8> = (1..=255u8).cycle().take(4000).collect();
        assert_eq!(decode(noise, false), Err(NotText { byte: 1, offset: 0 }));
    }
}
