//! The template engine as Hugging Face configures Jinja2.

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, StringInput, Value, ValueOrKwargs};
use minijinja::{Environment, Error, ErrorKind, State};

use super::limits::{check_format, check_width, refused};
use super::{methods, python, source};
use crate::text::TextError;

pub(super) const NAME: &str = "chat";
/// Depth of macro calls and recursive loops.
const RECURSION: usize = 200;
/// Bytes that indenting may add.
const INDENT_BYTES: usize = 64 << 20;

/// Compiles a template, with the functions and filters that Hugging Face adds.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, TextError> {
    let source = source::rewritten(source)?;
    let mut environment = Environment::new();
    environment.set_recursion_limit(RECURSION);
    environment.set_unknown_method_callback(methods::method);
    environment.set_formatter(python::format);
    environment.add_filter("tojson", python::json);
    environment.add_filter("length", python::length);
    environment.add_filter("count", python::length);
    environment.add_filter("default", python::default);
    environment.add_filter("d", python::default);
    environment.add_filter("trim", python::trim);
    environment.add_filter("replace", python::replace);
    environment.add_filter(source::PERCENT, python::percent);
    environment.add_filter("string", |v: Value| python::str(&v));
    environment.add_filter("indent", indent);
    environment.add_filter("format", format);
    environment.add_function("raise_exception", |text: String| Err::<Value, _>(refused(text)));
    environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let compiled = syntax.and_then(|syntax| {
        environment.set_syntax(syntax);
        environment.add_template_owned(NAME, source)
    });
    compiled.map(|()| environment).map_err(|e| failure(&e))
}

/// What the engine says, on one line.
pub(super) fn failure(error: &Error) -> TextError {
    // An error of the writer is the source of the engine's error.
    let written = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure);
    let own = || error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    let what = written.map_or_else(own, ToString::to_string);
    let what = error.line().map_or(what.clone(), |line| format!("{what} (line {line})"));
    let recursion = error.detail().is_some_and(|detail| detail.contains("recursion limit"));
    match error.kind() {
        ErrorKind::OutOfFuel | ErrorKind::WriteFailure => TextError::Exhausted(what),
        _ if recursion => TextError::Exhausted(what),
        _ => TextError::Template(what),
    }
}

fn indent(
    value: StringInput<'_>,
    width: Option<usize>,
    first: Option<bool>,
    blank: Option<bool>,
    kwargs: Kwargs,
) -> Result<Value, Error> {
    let columns = methods::either(width, &kwargs, "width")?.unwrap_or(4);
    check_width(columns)?;
    if value.as_str().matches('\n').count().saturating_mul(columns) > INDENT_BYTES {
        return Err(refused("indenting would add more than 64 MB"));
    }
    minijinja::filters::indent(value, width, first, blank, kwargs)
}

fn format(state: &mut State, format: &Value, args: Rest<ValueOrKwargs>) -> Result<Value, Error> {
    check_format(format.as_str().unwrap_or(""))?;
    minijinja::filters::format(state, format, args)
}
