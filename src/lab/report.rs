//! The report of every bench: an object for `--json`. As text, each figure has a line with its name in the object, and
//! each row of results a column.

use std::time::Instant;

use clap::ValueEnum;
use serde_json::{Map, Value, json};

use crate::cli::args::BenchArgs;
use crate::cli::{Context, Exit, Failure, open};
use crate::core::printed;

pub(super) fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

pub(super) fn median(values: Vec<f64>) -> f64 {
    quantiles(values, [0.5])[0]
}

pub(super) fn quantiles<const N: usize>(mut values: Vec<f64>, at: [f64; N]) -> [f64; N] {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    at.map(|q| values.get(((values.len() as f64 * q) as usize).min(last)).copied().unwrap_or(0.0))
}

/// Prints the `figures` of a bench. Their `machine` has the `device` at least; facts that every bench reports are added.
pub(super) fn print(context: &Context, args: &BenchArgs, figures: Value) -> Result<Exit, Failure> {
    let facts = json!({
        "host": host(), "clocks": clocks(), "commit": args.commit,
        "version": env!("CARGO_PKG_VERSION"),
    });
    let bench = args.what.to_possible_value().map(|value| value.get_name().to_owned());
    let mut report = joined(json!({"bench": bench, "model": open::model(context)?.name}), figures);
    report["machine"] = joined(report["machine"].take(), facts);
    for row in report.get_mut("results").and_then(Value::as_array_mut).into_iter().flatten() {
        // Parts that did not run.
        row.as_object_mut().into_iter().for_each(|row| row.retain(|_, value| !value.is_null()));
    }
    context.result(|| report.clone(), || table(&report))
}

pub(super) fn joined(mut first: Value, second: Value) -> Value {
    if let (Value::Object(first), Value::Object(second)) = (&mut first, second) {
        first.extend(second);
    }
    first
}

/// Clocks, limits and driver as the driver's own tool prints them.
fn clocks() -> Option<String> {
    let fields = "name,driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,temperature.gpu";
    printed("nvidia-smi", &[&format!("--query-gpu={fields}"), "--format=csv"])
}

fn host() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = cpu.lines().find_map(|line| line.strip_prefix("model name"));
    let name = line.and_then(|line| line.split_once(": ")).map_or("CPU", |(_, name)| name);
    format!("{name}, {} threads", rayon::current_num_threads())
}

fn table(report: &Value) -> String {
    let machine = &report["machine"];
    let device = machine["gpu"].as_str().or(machine["device"].as_str()).unwrap_or_default();
    let mut out = format!("{} on {device}", report["model"].as_str().unwrap_or_default());
    let mut whole: Map<String, Value> = report.as_object().cloned().unwrap_or_default();
    whole.retain(|name, _| !["bench", "model", "machine"].contains(&name.as_str()));
    let rows = whole.shift_remove("results");
    let rows = rows.as_ref().and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for columns in [&[Value::Object(whole)][..], rows] {
        let columns: Vec<Vec<(String, String)>> = columns.iter().map(figures).collect();
        let mut names: Vec<&str> = Vec::new();
        for (name, _) in columns.iter().flatten() {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        for name in names {
            out.push_str(&format!("\n{name:<34}"));
            for column in &columns {
                let value = column.iter().find(|(other, _)| other == name).map_or("-", |(_, value)| value);
                out.push_str(&format!(" {value:>12}"));
            }
        }
    }
    out
}

fn figures(value: &Value) -> Vec<(String, String)> {
    fn add(name: &str, value: &Value, to: &mut Vec<(String, String)>) {
        let below = |key: &str| format!("{name} {key}").trim_start().to_owned();
        match value {
            Value::Null => {}
            Value::Object(fields) => fields.iter().for_each(|(key, value)| add(&below(key), value, to)),
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    // A list of figures has a number of rows or sequences for each entry.
                    let key = item.get("rows").or(item.get("sequences")).map_or(i.to_string(), Value::to_string);
                    add(&below(&key), item, to);
                }
            }
            Value::String(text) => to.push((name.to_owned(), text.clone())),
            Value::Number(number) if number.is_f64() => {
                to.push((name.to_owned(), short(number.as_f64().unwrap_or(f64::NAN))));
            }
            Value::Number(_) | Value::Bool(_) => to.push((name.to_owned(), value.to_string())),
        }
    }
    let mut out = Vec::new();
    add("", value, &mut out);
    out
}

fn short(value: f64) -> String {
    let whole_digits = if value == 0.0 { 4 } else { value.abs().log10().floor() as i32 + 1 };
    format!("{value:.*}", usize::try_from(4 - whole_digits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_figure_and_a_column_for_each_row() {
        let report = json!({
            "bench": "model", "model": "demo", "machine": {"device": "cpu"}, "fill": "read",
            "results": [
                {"context": 512, "ms": 1.23456, "verify": [{"rows": 4, "ms": 12345.6}]},
                {"context": 1024, "ms": 0.0, "same": true, "none": null},
            ],
        });
        let lines: Vec<String> =
            table(&report).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "demo on cpu",
            "fill read",
            "context 512 1024",
            "ms 1.235 0",
            "verify 4 rows 4 -",
            "verify 4 ms 12346 -",
            "same - true",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn samples_give_medians() {
        assert_eq!([median(vec![3.0, 1.0, 2.0]), median(Vec::new())], [2.0, 0.0]);
        assert_eq!(quantiles((0..100).map(f64::from).collect(), [0.5, 0.99]), [50.0, 99.0]);
    }
}
