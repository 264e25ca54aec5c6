//! Folders of models: found, verified, packed.

use std::path::Path;

use super::{Home, err, out};

#[test]
fn a_missing_model_is_code_3_with_advice() {
    let home = Home::new();
    for arguments in [&["model", "path"][..], &["model", "verify"]] {
        let output = home.command(arguments).env("HF_HOME", home.path("hf")).output().unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert!(err(&output).contains("sala-chat model download"), "{}", err(&output));
        // The built-in model has no folder.
        assert!(!err(&output).contains("--demo") && err(&output).contains("--model FOLDER"), "{}", err(&output));
    }
    std::fs::create_dir(home.path("empty")).unwrap();
    let empty = home.run(&["--model", home.path("empty").to_str().unwrap(), "-p", "hi"]);
    assert_eq!(empty.status.code(), Some(3));
    assert!(
        err(&empty).contains("empty is not a checkpoint: config.json is not in it. --model demo"),
        "{}",
        err(&empty)
    );
    let offline = home.command(&["model", "download"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    assert_eq!(offline.status.code(), Some(3));
    assert!(err(&offline).contains("HF_HUB_OFFLINE") && err(&offline).contains("by hand"), "{}", err(&offline));
}

#[test]
fn a_missing_folder_and_a_bad_hub_id_are_reported() {
    let home = Home::new();
    for action in ["path", "verify"] {
        let output = home.run(&["--demo", "model", action]);
        assert_eq!(output.status.code(), Some(1), "{action}");
        assert!(err(&output).contains("the built-in model has no folder"), "{}", err(&output));
    }
    for id in ["foo", "../etc/x", "a/.b"] {
        let output = home.run(&["model", "download", id]);
        assert_eq!(output.status.code(), Some(2), "{id}");
        assert!(err(&output).ends_with(&format!("{id} is not a hub id. Write OWNER/NAME\n")), "{}", err(&output));
    }
}

#[test]
fn an_installed_model_is_found_and_verified() {
    let home = Home::new();
    let repo = "hf/hub/models--openbmb--MiniCPM-SALA";
    let commit = "0123456789abcdef0123456789abcdef01234567";
    home.write(&format!("{repo}/refs/main"), commit);
    // Weights of no tensors: the length of the header, and the header.
    let weights = "\u{2}\0\0\0\0\0\0\0{}";
    let settings = ["config.json", "tokenizer.json", "tokenizer_config.json"].map(|name| (name, "{}"));
    for (name, content) in settings.into_iter().chain([("model.safetensors", weights)]) {
        home.write(&format!("{repo}/snapshots/{commit}/{name}"), content);
    }
    let run = |arguments: &[&str]| home.command(arguments).env("HF_HOME", home.path("hf")).output().unwrap();
    let path = run(&["model", "path"]);
    assert!(out(&path).trim().ends_with(&format!("snapshots/{commit}")), "{}", err(&path));
    assert!(run(&["model", "verify"]).status.success());
    home.write(&format!("{repo}/snapshots/{commit}/config.json"), "{");
    let damaged = run(&["model", "verify"]);
    assert!(out(&damaged).contains("config.json: EOF") && damaged.status.code() == Some(3), "{}", err(&damaged));
}

#[test]
fn a_folder_is_packed_whole_and_a_stopped_run_starts_again() {
    let home = Home::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/tiny-mixed");
    for name in ["config.json", "model.safetensors"] {
        home.write(&format!("model/{name}"), std::fs::read(fixture.join(name)).unwrap());
    }
    home.write("model/tokenizer.json", "{}");
    home.write("model/eagle3/config.json", "a head");
    home.write("model/eagle3/model.safetensors", "its weights");
    let pack = |to: &str, into: &str| home.run(&["model", "quantize", "model", "--to", to, "-o", into, "--json"]);
    let made = pack("8bit", "packed");
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let object: serde_json::Value = serde_json::from_str(out(&made)).unwrap();
    assert_eq!(object["weights"], "8-bit");
    let parts = object["parts"].as_array().unwrap();
    assert!(parts.iter().any(|p| p["part"] == "embedding") && parts.iter().any(|p| p["part"] == "layer 0"));
    let worst = parts.iter().map(|p| p["squared_error"].as_f64().unwrap()).fold(0.0, f64::max);
    assert!(worst > 1e-6 && worst < 1e-3, "{worst}");
    let read = |name: &str| std::fs::read(home.path(name)).unwrap();
    assert_eq!(read("packed/tokenizer.json"), b"{}");
    assert_eq!(read("packed/eagle3/config.json"), b"a head");
    assert_eq!(read("packed/eagle3/model.safetensors"), b"its weights");
    let config: serde_json::Value = serde_json::from_slice(&read("packed/config.json")).unwrap();
    assert_eq!(config["quantization_config"]["format"], "8-bit");
    assert!(!home.path("packed/model.safetensors").exists());

    // A run that was killed: the index is written last, a part is missing, another is torn.
    let names = ["part-001.safetensors", "part-002.safetensors", "model.safetensors.index.json"];
    let files = names.map(|name| format!("packed/{name}"));
    let whole = files.each_ref().map(|name| read(name));
    for name in &files {
        std::fs::remove_file(home.path(name)).unwrap();
    }
    home.write(&files[1], "torn");
    let again = home.run(&["model", "quantize", "model", "--to", "8bit", "-o", "packed"]);
    assert_eq!(again.status.code(), Some(0), "{}", err(&again));
    assert!(out(&again).contains("Use it: sala-chat --model packed"), "{}", out(&again));
    assert!(files.each_ref().map(|name| read(name)) == whole, "the same bytes");
    let again = pack("8bit", "packed");
    assert_eq!(again.status.code(), Some(0), "{}", err(&again));
    let object: serde_json::Value = serde_json::from_str(out(&again)).unwrap();
    assert_eq!((&object["weights"], &object["parts"]), (&"8-bit".into(), &serde_json::json!([])), "nothing is packed");

    let packed_otherwise = "packed holds this model as 8-bit weights";
    let file = "model/config.json is a file; the packed weights go to a folder";
    let refused = [
        ("4bit", "packed", packed_otherwise),
        ("8bit", "model", "-o is the folder itself"),
        ("8bit", "model/config.json", file),
    ];
    for (to, into, why) in refused {
        let refused = pack(to, into);
        assert_eq!(refused.status.code(), Some(2), "{}", err(&refused));
        assert!(out(&refused).contains(why), "{}", out(&refused));
    }
    // One of a version that did not say what it packed, and somebody else's.
    let mut config = config;
    config["quantization_config"].as_object_mut().unwrap().remove("weights");
    for (content, why) in [(config.to_string(), "or this one packed otherwise"), ("{}".into(), "holds another model")] {
        home.write("packed/config.json", content);
        let refused = pack("4bit", "packed");
        assert!(refused.status.code() == Some(2) && out(&refused).contains(why), "{}", out(&refused));
    }
    // Somebody's own files stay what they are.
    home.write("mine/tokenizer.json", "my own notes");
    let refused = pack("4bit", "mine");
    assert!(refused.status.code() == Some(2) && out(&refused).contains("mine holds other files"), "{}", out(&refused));
    assert_eq!(read("mine/tokenizer.json"), b"my own notes");
    let random = home.run(&["model", "quantize", "synthetic:tiny", "--to", "8bit", "-o", "x"]);
    assert!(err(&random).contains("random weights change at every start"), "{}", err(&random));
    let missing = home.run(&["model", "quantize", "nowhere", "--to", "8bit", "-o", "x"]);
    assert_eq!(missing.status.code(), Some(3), "{}", err(&missing));
}

#[test]
fn the_built_in_model_in_a_folder_answers_as_the_built_in_model() {
    let home = Home::new();
    let made = home.run(&["model", "quantize", "demo", "--to", "8bit", "-o", "packed"]);
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let question = "What is sala-chat?";
    let answer = |model: &str| {
        let output = home.run(&["--device", "cpu", "--model", model, "-p", question, "--no-save"]);
        assert_eq!(output.status.code(), Some(0), "{}", err(&output));
        out(&output).to_owned()
    };
    assert_eq!(answer("packed"), answer("demo"));
    let looked_at = home.run(&["--model", "packed", "doctor"]);
    let (begin, end) = ("every tensor as config.json asks. sala-chat (8-bit): ", " matrices kept as published (int8)");
    assert!(out(&looked_at).contains(begin) && out(&looked_at).contains(end), "{}", out(&looked_at));
    // What is lost from here on is measured against these weights.
    assert!(!out(&made).contains("packed before"), "{}", out(&made));
    let again = home.run(&["model", "quantize", "packed", "--to", "4bit", "-o", "again"]);
    assert!(out(&again).contains(" % (of weights packed before: sala-chat (8-bit)). Use it: "), "{again:?}");
    // It drafts, too.
    let object = home.run(&["--device", "cpu", "--model", "packed", "-p", question, "--no-save", "--json"]);
    let object: serde_json::Value = serde_json::from_str(out(&object)).unwrap();
    assert!(object["speculation"]["eagle_rounds"].as_u64() > Some(0), "{object}");
    let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(home.path("packed/config.json")).unwrap());
    assert_eq!(mode & 0o400, 0o400);
    let others = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(home.path("packed/tokenizer.json")).unwrap());
    assert_eq!(mode & 0o044, others & 0o044, "read by whoever may read the other files");
}

#[test]
fn weights_are_packed_by_text_that_is_one() {
    let home = Home::new();
    home.write("empty.txt", "");
    home.write("short.txt", "Anna has the keys.");
    home.write("picture.txt", [0x89, b'P', b'N', b'G', 0, 0, 0xff, 0xfe, 0, 1, 2, 3].repeat(2_000));
    let pack = |text: &str, into: &str| {
        let calibrate = format!("--calibrate={text}");
        home.run(&["--device", "cpu", "model", "quantize", "demo", "--to", "4bit", &calibrate, "-o", into, "--json"])
    };
    for (text, why) in [
        ("empty.txt", "empty"),
        ("short.txt", "too short for calibration"),
        ("picture.txt", "picture.txt"),
        ("no", "no"),
    ] {
        let refused = pack(text, "packed");
        assert!(refused.status.code().is_some_and(|code| code != 0 && code != 101), "{text}: {}", err(&refused));
        let stderr = format!("{}{}", out(&refused), err(&refused));
        assert!(stderr.contains(why) && stderr.trim_end().lines().count() == 1, "{text}: {stderr}");
        assert!(!home.path("packed").exists(), "{text}");
    }
    let line = |i: usize| {
        format!("On day {i} Anna counted {} boats in the harbour and wrote {} letters.\n", i * 7 % 31, i * 5 % 13)
    };
    home.write("log.txt", (0..100).map(line).collect::<String>());
    let made = pack("log.txt", "packed");
    assert_eq!(made.status.code(), Some(0), "{}", err(&made));
    let stderr: serde_json::Value = serde_json::from_str(out(&made)).unwrap();
    let parts = stderr["parts"].as_array().unwrap();
    for part in &parts[1..] {
        let error = |key: &str| part[key].as_f64().unwrap();
        assert!(error("output_error") <= error("output_error_uncalibrated"), "{part}");
    }
    assert!(parts[0]["output_error"].is_null(), "a table is only looked up: {}", parts[0]);
    let config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(home.path("packed/config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["calibrated"], true);
    assert!(!home.path("packed/calibration.safetensors").exists());

    // Everything is there: nothing is read again. Another text would make another folder.
    let again = pack("log.txt", "packed");
    assert!(again.status.code() == Some(0) && !err(&again).contains("calibrating"), "{}", err(&again));
    assert_eq!(home.run(&["model", "verify", "--model", "packed"]).status.code(), Some(0));
    home.write("log.txt", (1..101).map(line).collect::<String>());
    let other = pack("log.txt", "packed");
    let why = "packed holds this model packed with another calibration";
    assert!(other.status.code() == Some(2) && out(&other).contains(why), "{}", out(&other));
    assert!(out(&other).contains("-o FOLDER"), "{}", out(&other));
    let output = home.run(&["--device", "cpu", "--model", "packed", "-p", "Hello"]);
    assert_eq!(output.status.code(), Some(0), "{}", err(&output));
}
