//! A mail: its main headers, its text, and the names of its attachments.

use std::borrow::Cow;

use encoding_rs::UTF_8;
use fancy_regex::Regex;
use mail_parser::decoders::base64::base64_decode;
use mail_parser::decoders::quoted_printable::quoted_printable_decode;
use mail_parser::{Address, Encoding, MessageParser, MessagePart, MimeHeaders, PartType};

use super::html;
use crate::text::encoding::{self, Decoded};

/// An encoded word that ends without padding, and the start of another of its kind.
const WORDS: &str = r"(=\?[^?\s]+\?(?:[Qq]|([Bb]))\?)((?(2)(?:[^?=\s]{4})+|[^?\s]*[^?=\s]))\?=\s+\1";

/// Mails within mails that are read.
const MOST_NESTED: usize = 8;

/// The text, and the name of its encoding if it had to be guessed. A file without headers is text.
pub(super) fn text(bytes: Vec<u8>, depth: usize) -> Result<Decoded, String> {
    let at = |end: &[u8]| bytes.windows(end.len()).position(|part| part == end);
    let (head, body) = bytes.split_at(at(b"\n\n").into_iter().chain(at(b"\r\n\r\n")).min().unwrap_or(bytes.len()));
    let Decoded { text: mut head, mut guessed } = encoding::decode(head.to_vec(), true).unwrap_or_default();
    let is_header = |(name, _): (&str, &str)| !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
    if !head.starts_with("From ") && !head.split_once(':').is_some_and(is_header) {
        return Ok(encoding::decode(bytes, true).unwrap_or_default());
    }
    // A character may be split between two encoded words.
    let words = Regex::new(WORDS).map_err(|e| e.to_string())?;
    while let Ok(Cow::Owned(joined)) = words.try_replacen(&head, 0, "$1$3") {
        head = joined;
    }
    let parser = MessageParser::default();
    let whole = [head.as_bytes(), body].concat();
    // The parser drops a last part without an end, as of a mail that is cut off.
    let boundary = parser.parse_headers(&whole);
    let boundary = boundary.as_ref().and_then(|head| head.content_type()?.attribute("boundary"));
    let end = boundary.map_or(String::new(), |boundary| format!("--{boundary}--"));
    let whole = [&whole, &b"\n"[..], end.as_bytes()].concat();
    let mail = parser.parse(&whole).ok_or("it holds no mail")?;
    let mut out = String::new();
    let mut header = |name: &str, value: Option<String>| {
        if let Some(value) = value.filter(|value| !value.trim().is_empty()) {
            out.push_str(&format!("{name}: {}\n", value.split_whitespace().collect::<Vec<_>>().join(" ")));
        }
    };
    header("From", mail.from().map(addresses));
    header("To", mail.to().map(addresses));
    header("Cc", mail.cc().map(addresses));
    header("Date", mail.date().map(|date| date.to_rfc822()));
    header("Subject", mail.subject().map(str::to_owned));
    // The plain form of a page may be blank.
    let bodies = mail.text_bodies().enumerate().map(|(i, part)| [Some(part), mail.html_bodies().nth(i)]);
    for forms in bodies.chain(mail.attachments().filter(|part| is_text(part)).map(|part| [Some(part), None])) {
        let mut forms = forms.into_iter().flatten().map(|part| body_of(part, &whole));
        let Some(body) = forms.find(|body| !body.text.trim().is_empty()) else { continue };
        let text = body.text.replace("\r\n", "\n");
        let text = text.trim_end();
        guessed = guessed.or(body.guessed);
        out.push_str(&format!("\n{}\n", text.strip_suffix(&end).unwrap_or(text).trim_end()));
    }
    for attachment in mail.attachments().filter(|part| !is_text(part)) {
        let subject = attachment.message().and_then(|mail| mail.subject());
        let name = attachment.attachment_name().or(subject).unwrap_or("without a name");
        out.push_str(&format!("\n[attachment: {name}]"));
        if let Some(inner) = attachment.message().filter(|_| depth < MOST_NESTED) {
            let written = whole.get(attachment.offset_body as usize..attachment.offset_end as usize);
            let written = written.filter(|_| attachment.encoding == Encoding::None).unwrap_or(inner.raw_message());
            out.push_str(&format!("\n{}", text(written.to_vec(), depth + 1)?.text));
        }
    }
    Ok(Decoded { text: out, guessed })
}

/// Whether a part is text, also of a kind that is not known (RFC 2046, 4.1.4) or invalid (RFC 2045, 5.2), for a reader.
fn is_text(part: &MessagePart<'_>) -> bool {
    let attached = part.content_disposition().is_some_and(|disposition| disposition.is_attachment());
    let kind = part.content_type().and_then(|kind| Some((kind.ctype(), kind.subtype()?)));
    let is_other = matches!(kind, Some((_, "css" | "javascript" | "x-amp-html")));
    !attached && !is_other && !part.is_message() && kind.is_none_or(|(kind, _)| matches!(kind, "text" | "message"))
}

/// Text of a part. Where its charset is not known, as that of any file.
fn body_of(part: &MessagePart<'_>, mail: &[u8]) -> Decoded {
    let (text, is_page) = match &part.body {
        PartType::Html(text) => (text, true),
        PartType::Text(text) => (text, false),
        PartType::Binary(bytes) => return encoding::decode(bytes.to_vec(), true).unwrap_or_default(),
        _ => return Decoded::default(),
    };
    let charset =
        part.content_type().and_then(|kind| encoding_rs::Encoding::for_label(kind.attribute("charset")?.as_bytes()));
    let written = mail.get(part.offset_body as usize..part.offset_end as usize).unwrap_or_default();
    let bytes = match part.encoding {
        _ if charset.is_some_and(|of| of != UTF_8) || !text.contains(char::REPLACEMENT_CHARACTER) => None,
        Encoding::None => Some(written.to_vec()),
        Encoding::QuotedPrintable => quoted_printable_decode(written),
        Encoding::Base64 => base64_decode(written),
    };
    match (bytes, is_page) {
        (Some(bytes), true) => html::page(bytes),
        (Some(bytes), false) => encoding::decode(bytes, true).unwrap_or_default(),
        (None, true) => Decoded { text: html::text(text, html::Form::Html), guessed: None },
        (None, false) => Decoded { text: text.to_string(), guessed: None },
    }
}

fn addresses(address: &Address<'_>) -> String {
    let one = |address: &mail_parser::Addr<'_>| match (address.name(), address.address()) {
        (Some(name), Some(at)) => format!("{name} <{at}>"),
        (name, at) => name.or(at).unwrap_or_default().to_owned(),
    };
    address.iter().map(one).collect::<Vec<_>>().join(", ")
}
