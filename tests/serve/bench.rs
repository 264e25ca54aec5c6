//! `sala-chat bench serve` with the built-in model.

use crate::command;

use serde_json::Value;

#[test]
fn a_server_and_the_engine_alone_are_given_the_same_work() {
    let home = tempfile::tempdir().unwrap();
    let arguments = ["--json", "--device", "cpu", "bench", "serve", "--sequences", "2", "--decode", "12"];
    let output = command::command(home.path(), &arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let row = &report["results"][0];
    assert_eq!((report["bench"].as_str(), row["clients"].as_u64()), (Some("serve"), Some(2)), "{report}");
    let served = &row["served"];
    assert_eq!(served["answers"], 6, "{row}");
    let engine = &row["engine"];
    for same in ["answers", "written", "read"] {
        assert!(served[same].as_u64().unwrap() > 0 && served[same] == engine[same], "{same}: {row}");
    }
    assert!(engine["tokens_per_s"].as_f64().unwrap() > 0.0 && engine["first_token_ms"].as_f64().unwrap() > 0.0);
    assert!(row["share"].as_f64().unwrap() > 0.0 && row["seen"]["cached"].as_u64().unwrap() > 0, "{row}");
    let left = std::fs::read_dir(home.path().join("data")).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().starts_with("bench-")), "{left:?}");
}
