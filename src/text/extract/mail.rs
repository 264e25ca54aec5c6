//! A mail: its main headers, its text, and the names of its attachments.

use mail_parser::{Address, MessageParser, MimeHeaders, PartType};

use super::html;

pub(super) fn text(bytes: &[u8]) -> Result<String, String> {
    let parser = MessageParser::default();
    // The parser drops a last part without an end, as of a mail that is cut off.
    let head = parser.parse_headers(bytes);
    let boundary = head.as_ref().and_then(|head| head.content_type()?.attribute("boundary"));
    let end = boundary.map_or(String::new(), |boundary| format!("--{boundary}--"));
    let whole = [bytes, b"\n", end.as_bytes()].concat();
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
    for part in mail.text_bodies() {
        let text = match &part.body {
            PartType::Html(source) => html::text(source, html::Form::Html),
            PartType::Text(text) => text.replace("\r\n", "\n"),
            _ => continue,
        };
        let text = text.trim_end();
        out.push_str(&format!("\n{}\n", text.strip_suffix(&end).unwrap_or(text).trim_end()));
    }
    for attachment in mail.attachments() {
        let subject = attachment.message().and_then(|mail| mail.subject());
        let name = attachment.attachment_name().or(subject).unwrap_or("without a name");
        out.push_str(&format!("\n[attachment: {name}]"));
    }
    Ok(out)
}

fn addresses(address: &Address<'_>) -> String {
    let one = |address: &mail_parser::Addr<'_>| match (address.name(), address.address()) {
        (Some(name), Some(at)) => format!("{name} <{at}>"),
        (name, at) => name.or(at).unwrap_or_default().to_owned(),
    };
    address.iter().map(one).collect::<Vec<_>>().join(", ")
}
