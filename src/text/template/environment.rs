//! The template engine as Hugging Face configures Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

use super::{limits, methods, python, source};

/// Name of the template in its environment.
pub(super) const NAME: &str = "chat";

/// Compiles a template, with the functions and filters that Hugging Face adds.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_recursion_limit(limits::RECURSION);
    environment.set_unknown_method_callback(methods::method);
    environment.set_formatter(python::format);
    environment.add_filter("tojson", python::json);
    environment.add_filter("length", python::length);
    environment.add_filter("count", python::length);
    environment.add_filter("default", python::default);
    environment.add_filter("d", python::default);
    environment.add_filter("trim", python::trim);
    environment.add_filter("replace", python::replace);
    environment.add_function(source::PERCENT, python::percent);
    environment.add_filter("string", |v: Value| python::str(&v));
    environment.add_filter("indent", limits::indent);
    environment.add_filter("format", limits::format);
    environment.add_function("raise_exception", |text: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, text))
    });
    environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
    environment.add_template_owned(NAME, source::rewritten(source))?;
    Ok(environment)
}

pub(super) fn explain(error: &Error) -> String {
    // An error of the writer is the source of the engine's error.
    let written = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure);
    let own = || error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let what = written.map_or_else(own, ToString::to_string);
    let what = if what.starts_with("value of type") { format!("a {what}") } else { what };
    match error.line() {
        Some(line) => format!("{what} (line {line})"),
        None => what,
    }
}
