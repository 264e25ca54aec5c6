//! The template engine as Hugging Face configures Jinja2.

use minijinja::functions::{dict, namespace};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Rest, Tuple, Value};
use minijinja::{Environment, Error, ErrorKind, State};
use minijinja_contrib::filters::{filesizeformat, striptags};
use minijinja_contrib::globals::{cycler, joiner};

use super::limits::refused;
use super::{filters, methods, python, source};
use crate::text::TextError;

pub(super) const NAME: &str = "chat";
/// Depth of macro calls and recursive loops.
const RECURSION: usize = 200;

/// Compiles a template, with the functions, filters and tests of Hugging Face and Jinja2 that differ from the engine's.
pub(super) fn environment(source: &str) -> Result<Environment<'static>, TextError> {
    let mut environment = Environment::new();
    environment.set_recursion_limit(RECURSION);
    environment.set_unknown_method_callback(methods::method);
    environment.set_formatter(python::format);
    environment.add_filter("tojson", python::json);
    environment.add_filter("string", |value: Value| python::str(&value));
    environment.add_filter(source::PERCENT, python::percent);
    environment.add_filter("default", filters::default);
    environment.add_filter("d", filters::default);
    environment.add_filter("trim", filters::trim);
    environment.add_filter("int", filters::int);
    environment.add_filter("float", filters::float);
    environment.add_filter("indent", filters::indent);
    environment.add_filter("truncate", filters::truncate);
    environment.add_filter("wordcount", filters::wordcount);
    environment.add_filter("center", |state: &State, text: &str, args: Rest<Value>| {
        methods::padded(state, text, "center", &args)
    });
    environment.add_filter("filesizeformat", filesizeformat);
    environment.add_filter("striptags", striptags);
    environment.add_filter("format", python::formatted);
    environment.add_filter(python::PRINTF, minijinja::filters::format);
    environment.add_filter("dictsort", filters::dictsort);
    environment.add_test("sequence", filters::is_sequence);
    environment.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    environment.add_test("callable", |value: &Value| value.kind() == minijinja::value::ValueKind::Plain);
    // What a macro has of further arguments, which the engine refuses: none.
    environment.add_global("varargs", Tuple::from(Vec::new()));
    environment.add_global("kwargs", minijinja::context! {});
    environment.add_function("raise_exception", |text: String| Err::<Value, _>(refused(text)));
    environment.add_function("strftime_now", |format: String| jiff::Zoned::now().strftime(&format).to_string());
    environment
        .add_function("namespace", |values: Option<Value>, names: Kwargs| namespace(Some(dict(values, names)?.into())));
    environment.add_function("cycler", |items: Rest<Value>| cycler(items.0));
    environment.add_function("joiner", |sign: Option<Value>| joiner(Some(sign.unwrap_or_else(|| Value::from(", ")))));
    let source = source::rewritten(source)?;
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    let compiled = syntax.and_then(|syntax| {
        environment.set_syntax(syntax);
        environment.add_template_owned(NAME, source)
    });
    compiled.map(|()| environment).map_err(|e| failure(&e))
}

pub(super) fn failure(error: &Error) -> TextError {
    // An error of the writer is the source of the engine's error.
    let written = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::WriteFailure);
    let own = || match (error.kind(), error.detail()) {
        (ErrorKind::OutOfFuel, _) => "it takes too many steps".to_owned(),
        (kind, detail) => detail.map_or_else(|| kind.to_string(), str::to_owned),
    };
    let what = written.map_or_else(own, ToString::to_string);
    let what = error.line().map_or(what.clone(), |line| format!("{what} (line {line})"));
    let exhausted = matches!(error.kind(), ErrorKind::OutOfFuel | ErrorKind::WriteFailure)
        || error.detail().is_some_and(|detail| detail.contains("recursion limit"));
    if exhausted { TextError::Exhausted(what) } else { TextError::Template(what) }
}
