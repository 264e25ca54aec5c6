//! Measuring and capturing with the real binary and the built-in model, at the smallest size that covers everything.

use crate::command;

use std::path::Path;
use std::process::Output;

use command::command;

fn run(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().unwrap()
}

fn object(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn a_session_bench_restores_equal_bits_and_leaves_no_files() {
    let home = tempfile::tempdir().unwrap();
    let report_of = |context: u64| {
        let line = format!("--demo --device cpu --json bench sessions --context {context}");
        object(&run(home.path(), &line.split(' ').collect::<Vec<_>>()))
    };
    // The answers to so short a text quote it.
    assert_eq!(report_of(300)["equal_bits"], true);
    let report = report_of(1500);
    assert_eq!((report["bench"].as_str(), report["equal_bits"].as_bool()), (Some("sessions"), Some(true)));
    let tokens = report["tokens"].as_u64().unwrap();
    assert!((1_000..3_000).contains(&tokens), "{tokens}");
    assert!(report["state_bytes"].as_u64().unwrap() > 500 * tokens);
    for name in [
        "/resume_ms",
        "/resume_cold_ms",
        "/first_token_ms",
        "/all_rows/gb_per_s",
        "/all_rows_cold/ms",
        "/undo_ms",
        "/fork_ms",
        "/read_tokens_per_s",
    ] {
        let figure = report.pointer(name).and_then(serde_json::Value::as_f64);
        assert!(figure.is_some_and(|f| f > 0.0), "{name}: {figure:?}");
    }
    assert!(report["machine"]["host"].is_string() && report["machine"]["version"].is_string());
    let left: Vec<_> = std::fs::read_dir(home.path().join("data")).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("bench-")), "{left:?}");
}

#[test]
fn documents_are_captured_in_samples_that_fit() {
    let home = tempfile::tempdir().unwrap();
    let docs = home.path().join("docs");
    std::fs::create_dir(&docs).unwrap();
    std::fs::write(docs.join("a.txt"), "Anna wrote a letter to Tom on 3 May.\n".repeat(40)).unwrap();
    std::fs::write(docs.join("b.txt"), "The keys of the north gate are with Marta.\n").unwrap();
    let line = "--demo --device cpu --json --max-tokens 24 draft capture --docs docs --out samples --length 320";
    let arguments: Vec<&str> = line.split(' ').collect();
    let report = object(&run(home.path(), &arguments));
    let samples = report["samples"].as_u64().unwrap();
    assert!(samples >= 3, "a long document becomes several: {report}");
    assert_eq!(report["layers"], serde_json::json!([1, 4, 6]));
    let mut tokens = 0;
    for n in 1..=samples {
        let bytes = std::fs::read(home.path().join(format!("samples/sample-{n:06}.safetensors"))).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let rows = file.tensor("input_ids").unwrap().shape()[0];
        assert!(rows <= 320, "{rows}");
        let mask = file.tensor("loss_mask").unwrap();
        let written: i64 = mask.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap())).sum();
        assert!((1..=24).contains(&written), "{written}");
        assert_eq!(file.tensor("aux_hidden_state").unwrap().shape(), [1, rows, 768]);
        tokens += rows as u64;
    }
    assert_eq!(report["tokens"], tokens);
    // A second run into the same folder would give two samples one number.
    let again = run(home.path(), &arguments);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stdout).contains("holds samples already"));
}

#[test]
#[cfg(not(target_arch = "x86_64"))]
#[ignore = "the emulated GPU is x86-64 code: tests/cuda_emulated.rs is left out on this machine"]
fn the_gpu_backend_runs_on_the_emulated_device() {}
