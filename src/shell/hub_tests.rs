use std::cell::{Cell, RefCell};

use super::*;

/// A hub with two weight files; fails when told to.
struct Fake {
    weights: Vec<u8>,
    fail_next: Cell<u32>,
    lie: Cell<bool>,
    reads: RefCell<Vec<Range<u64>>>,
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

impl Fake {
    fn new(len: usize) -> Fake {
        let weights = (0..len).map(|i| (i % 251) as u8).collect();
        Fake { weights, fail_next: Cell::new(0), lie: Cell::new(false), reads: RefCell::default() }
    }

    fn content(&self, path: &str) -> &[u8] {
        match path {
            "model.safetensors" => &self.weights,
            _ => b"{}",
        }
    }
}

impl Hub for Fake {
    fn snapshot(&self, _: &str) -> Result<Snapshot, HubError> {
        let small = |path: &str| HubFile { path: path.into(), bytes: 2, blob: format!("id-{path}"), sha256: None };
        let hash = hex(&self.weights);
        let large = HubFile {
            path: "model.safetensors".into(),
            bytes: self.weights.len() as u64,
            blob: hash.clone(),
            sha256: Some(hash),
        };
        Ok(Snapshot { commit: "c0ffee".into(), files: vec![small("config.json"), small("tokenizer.json"), large] })
    }

    fn read(&self, _: &str, path: &str, range: Range<u64>) -> Result<Vec<u8>, HubError> {
        if self.fail_next.get() > 0 {
            self.fail_next.set(self.fail_next.get() - 1);
            return Err(HubError::Network("timeout".into()));
        }
        if path == "model.safetensors" {
            self.reads.borrow_mut().push(range.clone());
        }
        let mut bytes = self.content(path)[range.start as usize..range.end as usize].to_vec();
        if self.lie.get() && path == "model.safetensors" {
            bytes[0] ^= 1;
        }
        Ok(bytes)
    }
}

fn download(repo: &CachedRepo, hub: &Fake) -> (Result<PathBuf, HubError>, Vec<Progress>) {
    let mut seen = Vec::new();
    let snapshot = hub.snapshot("main").unwrap();
    let result = repo.download(hub, "main", &snapshot, &|_| {}, &mut |p| seen.push(p.clone()), &Cancel::default());
    (result, seen)
}

#[test]
fn a_download_ends_in_the_layout_of_the_cache_and_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "owner/name");
    let hub = Fake::new(1000);
    assert_eq!(repo.installed("main", Kind::Model), None);
    let (folder, seen) = download(&repo, &hub);
    let folder = folder.unwrap();
    assert!(folder.ends_with("models--owner--name/snapshots/c0ffee"));
    assert_eq!(repo.installed("main", Kind::Model).as_ref(), Some(&folder));
    assert_eq!(repo.installed("c0ffee", Kind::Model).as_ref(), Some(&folder));
    assert_eq!(fs::read(folder.join("model.safetensors")).unwrap(), hub.weights);
    assert!(seen.windows(2).all(|w| w[0].done <= w[1].done));
    assert_eq!(seen.last().unwrap().done, 1004);
    assert!(verify(&folder, &mut |_, _| {}).unwrap().iter().all(|(_, wrong)| wrong.is_none()));

    fs::write(folder.join("model.safetensors"), b"damaged").unwrap();
    let wrong: Vec<String> =
        verify(&folder, &mut |_, _| {}).unwrap().into_iter().filter_map(|(n, w)| w.map(|_| n)).collect();
    assert_eq!(wrong, ["model.safetensors"]);
}

#[test]
fn an_interrupted_download_goes_on_where_it_stopped() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "o/n");
    let hub = Fake::new(2 * RANGE_BYTES as usize + 5);
    let snapshot = hub.snapshot("main").unwrap();
    let cancel = Cancel::default();
    let mut stop = |p: &Progress| {
        if p.file == "model.safetensors" && p.file_done >= RANGE_BYTES {
            cancel.cancel();
        }
    };
    let stopped = repo.download(&hub, "main", &snapshot, &|_| {}, &mut stop, &cancel);
    assert!(matches!(stopped, Err(HubError::Stopped)));
    assert_eq!(repo.installed("main", Kind::Model), None);
    assert_eq!(repo.missing_bytes(&snapshot), RANGE_BYTES + 5);
    let (folder, seen) = download(&repo, &hub);
    assert_eq!(fs::read(folder.unwrap().join("model.safetensors")).unwrap(), hub.weights);
    assert_eq!(seen[0].done, RANGE_BYTES + 4);
    let starts: Vec<u64> = hub.reads.borrow().iter().map(|r| r.start).collect();
    assert_eq!(starts, [0, RANGE_BYTES, 2 * RANGE_BYTES]);
}

#[test]
fn network_errors_are_tried_again_and_damage_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let repo = CachedRepo::new(dir.path(), "o/n");
    let hub = Fake::new(100);
    hub.fail_next.set(3);
    let (result, seen) = download(&repo, &hub);
    assert!(result.is_ok());
    assert_eq!(seen.iter().filter(|p| p.trouble.is_some()).count(), 3);

    let repo = CachedRepo::new(dir.path(), "o/other");
    hub.fail_next.set(TRIES);
    assert!(matches!(download(&repo, &hub).0, Err(HubError::Network(_))));
    hub.fail_next.set(0);
    hub.lie.set(true);
    assert!(matches!(download(&repo, &hub).0, Err(HubError::Damaged(_))));
    assert_eq!(repo.installed("main", Kind::Model), None);
    hub.lie.set(false);
    assert!(download(&repo, &hub).0.is_ok());
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
