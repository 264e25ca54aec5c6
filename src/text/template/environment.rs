//! What the template engine is told, and what it says.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

use super::{limits, python};

/// What the one template of an environment is called.
pub(super) const NAME: &str = "chat";

/// The compiled template, with everything that Hugging Face gives one.
pub(super) fn environment(source: String) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_recursion_limit(limits::RECURSION);
    environment.set_unknown_method_callback(python::method);
    environment.set_formatter(python::format);
    environment.add_filter("tojson", python::json);
    environment.add_filter("string", |v: Value| python::str(&v));
    environment.add_filter("indent", limits::indent);
    environment.add_filter("format", limits::format);
    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
    environment.add_template_owned(NAME, source)?;
    Ok(environment)
}

/// One line about a template error.
pub(super) fn explain(error: &Error) -> String {
    // What ended the writing of the output is behind the engine's own error.
    let written = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure);
    let own = || error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let what = written.map_or_else(own, ToString::to_string);
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}

/// `{% generation %}` only marks text for training; it renders what is inside.
pub(super) fn without_generation_tags(source: &str) -> String {
    if !source.contains("generation") {
        return source.to_owned();
    }
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let Some(end) = tag.find("%}") else { break };
        let (tag, after) = tag.split_at(end + 2);
        let word = tag.trim_start_matches("{%").trim_end_matches("%}").trim_matches(['-', '+']).trim();
        match word {
            "generation" => out.push_str(&tag.replacen("generation", "if true", 1)),
            "endgeneration" => out.push_str(&tag.replacen("endgeneration", "endif", 1)),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}
