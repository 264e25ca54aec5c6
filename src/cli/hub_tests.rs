use std::cell::Cell;
use std::collections::BTreeMap;

use super::http_tests::{COMMIT, Fault, download, hub, serve};
use super::*;

/// The git id of a file that holds `{}`.
const EMPTY: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";

/// A weight file of so many bytes, with one tensor `w`.
pub(super) fn weights(len: usize) -> Vec<u8> {
    tensor("w", len)
}

fn tensor(name: &str, len: usize) -> Vec<u8> {
    let header = |n: usize| format!(r#"{{"{name}":{{"dtype":"U8","shape":[{n}],"data_offsets":[0,{n}]}}}}"#);
    // The numbers' own length counts.
    let data = (0..len).rev().find(|n| 8 + header(*n).len() + n == len).expect("a length that a header can name");
    let mut bytes = (header(data).len() as u64).to_le_bytes().to_vec();
    bytes.extend(header(data).bytes());
    bytes.extend((0..data).map(|i| (i % 251) as u8));
    bytes
}

#[test]
fn a_download_ends_in_the_layout_of_the_cache_and_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "owner/name");
    let server = serve(1000);
    assert_eq!(repo.installed("main", Kind::Model), None);
    let (folder, (seen, _)) = download(&repo, &server);
    let folder = folder.unwrap();
    assert!(folder.ends_with(format!("models--owner--name/snapshots/{COMMIT}")));
    assert_eq!(repo.installed("main", Kind::Model).as_ref(), Some(&folder));
    assert_eq!(repo.installed(COMMIT, Kind::Model).as_ref(), Some(&folder));
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), server.weights());
    assert_eq!(hub(&server).snapshot("main").unwrap().licence.as_deref(), Some("apache-2.0"));
    assert!(seen.windows(2).all(|w| w[0].done <= w[1].done));
    assert_eq!(seen.last().unwrap().done, 1002);
    assert!(
        verify(&folder, BTreeMap::new(), &[], &mut |_, _| {})
            .unwrap()
            .iter()
            .all(|(_, verdict)| *verdict == Verdict::Verified("ok"))
    );

    fs::write(folder.join("model.safetensors"), b"damaged").unwrap();
    let wrong = |folder: &Path| -> Vec<String> {
        let rows = verify(folder, BTreeMap::new(), &[], &mut |_, _| {}).unwrap();
        rows.into_iter().filter(|(_, v)| matches!(v, Verdict::Wrong(_))).map(|(n, _)| n).collect()
    };
    assert_eq!(wrong(&folder), ["model.safetensors"]);
    assert!(!complete(&folder, Kind::Model));
    // A settings file is known by its git id; in a folder of the user's own nothing is.
    fs::write(folder.join("config.json"), b"[]").unwrap();
    assert_eq!(wrong(&folder), ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]);
    let own = dir.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("config.json"), b"{}").unwrap();
    assert_eq!(
        verify(&own, BTreeMap::new(), &[], &mut |_, _| {}).unwrap(),
        [("config.json".to_owned(), check::UNPUBLISHED)]
    );
    // What the hub says now is known of a plain copy too: one file is right, one is another, one is not there.
    let file = |path: &str, bytes: u64, blob: &str| HubFile { path: path.into(), bytes, blob: blob.into() };
    fs::write(own.join("tokenizer.json"), "[]").unwrap();
    fs::write(own.join("tokenizer_config.json"), "{} ").unwrap();
    let published = ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"]
        .map(|name| file(name, 2, EMPTY));
    let rows = verify(&own, BTreeMap::new(), &published, &mut |_, _| {}).unwrap();
    let words: Vec<_> = rows.iter().map(|(name, verdict)| (name.as_str(), verdict.words())).collect();
    let other = ("tokenizer.json", "content does not match its published hash");
    let longer = ("tokenizer_config.json", "3 bytes, published are 2");
    assert_eq!(words, [("config.json", "ok"), ("model.safetensors", "missing"), other, longer]);
}

#[test]
fn an_interrupted_download_continues_where_it_stopped() {
    const BYTES: u64 = 5 << 20;
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "o/n");
    let server = serve(BYTES as usize);
    let snapshot = hub(&server).snapshot("main").unwrap();
    // The settings files, and a part of the weights.
    server.fail(&[Fault::Short(usize::MAX), Fault::Short(2 << 20), Fault::Status(403)]);
    let stopped = repo.download(&hub(&server), "main", &snapshot, &|_| {}, &mut |_| {});
    assert!(matches!(stopped, Err(HubError::Refused(_))));
    assert_eq!(repo.installed("main", Kind::Model), None);
    let missing = repo.missing_bytes(&snapshot);
    assert!(missing > 0 && missing <= BYTES - (2 << 20), "{missing}");
    let (folder, (seen, _)) = download(&repo, &server);
    assert_eq!(fs::read(folder.unwrap().join("model.safetensors")).unwrap(), server.weights());
    assert_eq!(seen[0].done, BYTES + 2 - missing);
    let ranges = server.for_weights();
    assert!(ranges.len() == 3 && ranges[2].contains(&format!("Some(({}, {BYTES}))", BYTES - missing)), "{ranges:?}");
}

#[test]
fn network_errors_are_tried_again_and_damage_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "o/n");
    let server = serve(100);
    server.fail(&[Fault::Status(500); 3]);
    let (result, (seen, _)) = download(&repo, &server);
    assert!(result.is_ok());
    assert_eq!(seen.iter().filter(|p| p.trouble.is_some()).count(), 3);

    let repo = CachedRepo::new(dir.path(), "o/other");
    server.fail(&[Fault::Status(500); TRIES as usize]);
    let (result, (seen, _)) = download(&repo, &server);
    assert!(matches!(result, Err(HubError::Network(_))) && seen.len() < 9);
    server.fail(&[Fault::Short(usize::MAX), Fault::Lie]);
    assert!(matches!(download(&repo, &server).0, Err(HubError::Damaged(_))));
    assert_eq!(repo.installed("main", Kind::Model), None);
    assert!(download(&repo, &server).0.is_ok());
}

#[test]
fn only_useful_files_with_harmless_paths_are_wanted() {
    for path in
        ["config.json", "model-00001-of-00004.safetensors", "chat_template.jinja", "LICENSE", "draft/config.json"]
    {
        assert!(wanted(path), "{path}");
    }
    for path in ["../x.json", "/etc/x.json", "modeling.py", "pytorch_model.bin", "a/../../x.json"] {
        assert!(!wanted(path), "{path}");
    }
}

#[test]
fn files_in_folders_of_their_own_are_looked_at_too() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("assets")).unwrap();
    fs::write(dir.path().join("assets/README.md"), "words").unwrap();
    let file = |path: &str, bytes| HubFile { path: path.into(), bytes, blob: String::new() };
    let published = [file("assets/README.md", 5), file("assets/LICENSE", 3), file("onnx/config.json", 2)];
    let rows = verify(dir.path(), BTreeMap::new(), &published, &mut |_, _| {}).unwrap();
    let missing = || Verdict::Wrong("missing".to_owned());
    let expected = [
        ("assets/LICENSE".to_owned(), missing()),
        ("assets/README.md".to_owned(), check::UNPUBLISHED),
        ("onnx/config.json".to_owned(), missing()),
    ];
    assert_eq!(rows, expected);
    fs::write(dir.path().join("assets/README.md"), "more words").unwrap();
    let rows = verify(dir.path(), BTreeMap::new(), &published[..1], &mut |_, _| {}).unwrap();
    assert_eq!(rows[0].1, Verdict::Wrong("10 bytes, published are 5".to_owned()));
}

#[test]
fn a_folder_is_complete_only_with_every_file_whole() {
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).unwrap();
    let index = |text: &str| put("model.safetensors.index.json", text.as_bytes());
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        put(name, b"{}");
    }
    let is = || complete(dir.path(), Kind::Model);
    assert!(!is(), "no weights");
    put("model.safetensors", &weights(500));
    assert!(is());
    put("model.safetensors", &weights(500)[..499]);
    assert!(!is(), "a byte short");
    put("model.safetensors", &[0xff; 500]);
    assert!(!is(), "a header of no sane length");
    put("model.safetensors", &weights(500));
    index("{}");
    assert!(!is(), "an index that names nothing");
    index("{");
    assert!(!is(), "a torn index");
    index(r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#);
    put("one.safetensors", &tensor("a", 400));
    assert!(!is(), "a shard is missing");
    put("two.safetensors", &tensor("b", 400)[..200]);
    assert!(!is(), "a shard is short");
    put("two.safetensors", &tensor("b", 400));
    assert!(is());
    index(r#"{"weight_map": {"a": "../one.safetensors"}}"#);
    assert!(!is(), "a shard elsewhere");
    index(r#"{"weight_map": {"a": "one.safetensors"}}"#);
    fs::remove_file(dir.path().join("tokenizer_config.json")).unwrap();
    assert!(!is() && complete(dir.path(), Kind::Head));
}

#[test]
fn revisions_and_commits_are_no_paths_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "o/n");
    let server = serve(100);
    let hub = hub(&server);
    for revision in ["..", "../../x", "/etc/passwd", ""] {
        let snapshot = hub.snapshot("main").unwrap();
        let result = repo.download(&hub, revision, &snapshot, &|_| {}, &mut |_| {});
        assert!(matches!(result, Err(HubError::Refused(_))), "{revision}");
        assert_eq!(repo.installed(revision, Kind::Model), None);
    }
    let snapshot = Snapshot { commit: "../../../x".into(), ..hub.snapshot("main").unwrap() };
    let result = repo.download(&hub, "main", &snapshot, &|_| {}, &mut |_| {});
    assert!(matches!(result, Err(HubError::Refused(_))));
    assert!(!dir.path().join("x").exists() && !repo.folder().join("snapshots").exists());
}

#[test]
fn two_downloads_at_once_wait_for_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "o/n");
    fs::create_dir_all(repo.folder()).unwrap();
    let lock = repo.folder().join("sala-download.lock");
    let held = OpenOptions::new().create(true).write(true).truncate(false).open(lock).unwrap();
    FileExt::lock(&held).unwrap();
    let server = serve(100);
    let hub = hub(&server);
    let waited = Cell::new(0);
    let wait = |_| {
        let requests = server.seen.lock().unwrap();
        assert!(!requests.iter().any(|r| r.contains("/resolve/")), "nothing is read meanwhile");
        waited.set(waited.get() + 1);
        if waited.get() == 3 {
            // Not by closing it: a child that another test forks just then holds the file until it is replaced.
            FileExt::unlock(&held).unwrap();
        }
    };
    let snapshot = hub.snapshot("main").unwrap();
    let mut reported = String::new();
    let mut report = |p: &Progress| reported.push_str(p.trouble.as_ref().map_or("", |t| &t.0));
    repo.download(&hub, "main", &snapshot, &wait, &mut report).unwrap();
    assert!(waited.get() == 3 && reported.contains("another download"), "{reported}");
}
