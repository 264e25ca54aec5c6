//! Hostile files: segments, bundles, imports, databases, settings, presets and model folders, changed in many small ways. Nothing panics,
//! hangs, reserves memory by numbers it has read, or is kept without being what it should be.
//!
//! Each target runs for a bounded time, a second and a half in a usual run, and for some files however slow the machine is.
//! `SALA_FUZZ_SECONDS=N` gives each N seconds,
//! `SALA_FUZZ_SEED=N` repeats a run; the seed is printed with every failure.

use crate::store_support;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sala_chat::backend::cpu::Cpu;
use sala_chat::config::settings;
use sala_chat::core::SplitMix64;
use sala_chat::core::spec::ModelSpec;
use sala_chat::model::draft::{DraftHead, DraftOptions};
use sala_chat::model::{Checkpoint, DEMO_CONFIG, Model};
use sala_chat::runtime::protocol::{ExportFormat, ThinkMode};
use sala_chat::store::{Overwrite, RealDisk, Scope, SessionFilter, Store, StoreError, Watch};
use sala_chat::text::{Before, ChatMessage, ChatRole, RenderOptions, TextModel};
use store_support::*;

/// Numbers that parsers stumble over.
const EDGES: [u64; 10] = [0, 1, 0x7f, 0xff, 0xffff, 1 << 31, (1 << 32) - 1, i64::MAX as u64, u64::MAX - 7, u64::MAX];

/// A changed copy: flipped bits, edge numbers, pieces cut out, doubled, moved.
fn mutate(random: &mut SplitMix64, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        let end = (at + 1 + random.below(64)).min(bytes.len());
        match random.below(7) {
            0 | 1 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            2 => {
                let number = EDGES[random.below(EDGES.len())].to_le_bytes();
                let n = number.len().min(bytes.len() - at);
                bytes[at..at + n].copy_from_slice(&number[..n]);
            }
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            5 => bytes.truncate(at),
            _ => {
                // Replaces a decimal number of a text by another one.
                let digits = bytes.iter().skip(at).position(u8::is_ascii_digit).map(|i| at + i);
                if let Some(from) = digits {
                    let to = bytes[from..].iter().position(|b| !b.is_ascii_digit()).map_or(bytes.len(), |n| from + n);
                    let number = EDGES[random.below(EDGES.len())].to_string().into_bytes();
                    bytes.splice(from..to, number);
                }
            }
        }
    }
    bytes
}

/// Runs `target` over the seeds, and over changed copies of them until there were some of each and the time is over.
fn fuzz(name: &str, seeds: &[Vec<u8>], mut target: impl FnMut(&[u8])) {
    let seconds: f64 = std::env::var("SALA_FUZZ_SECONDS").map_or(1.5, |s| s.parse().unwrap());
    let seed: u64 = std::env::var("SALA_FUZZ_SEED").map_or(11, |s| s.parse().unwrap());
    let mut random = SplitMix64::new(seed);
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut runs, mut slowest) = (0u64, Duration::ZERO);
    while Instant::now() < until || runs < 4 * seeds.len() as u64 {
        let bytes = match runs as usize {
            n if n < seeds.len() => seeds[n].clone(),
            _ => {
                let which = random.below(seeds.len());
                mutate(&mut random, &seeds[which])
            }
        };
        let begun = Instant::now();
        let ran = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
        slowest = slowest.max(begun.elapsed());
        if let Err(panic) = ran {
            eprintln!("{name}: run {runs} of seed {seed} failed over {} bytes", bytes.len());
            std::panic::resume_unwind(panic);
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{name}: run {runs} of seed {seed} hangs");
        runs += 1;
    }
    println!("{name}: {runs} files, the slowest {:.0} ms", slowest.as_secs_f64() * 1e3);
}

fn one_line(e: &StoreError) {
    let text = e.to_string();
    assert!(!text.contains('\n') && !text.chars().any(|c| c == '\u{1b}'), "{text:?}");
}

fn chat(root: &Path) -> (Bench, Chat) {
    let bench = Bench::new(open(root, RealDisk));
    let (mut conversation, save) = Chat::begin(&bench.store, "talk");
    bench.save(save);
    bench.save(conversation.document(&bench.store, "a document of some words", 2));
    assert!(is_saved(&bench.save(conversation.turn(&bench.store, "question", "answer"))));
    (bench, conversation)
}

#[test]
fn segments() {
    let dir = tempfile::tempdir().unwrap();
    let (bench, conversation) = chat(dir.path());
    let last = conversation.segments.last().unwrap();
    let id = last.id();
    let file = |extension: &str| dir.path().join("segments").join(format!("{}.{extension}", id.hex()));
    let seeds = [fs::read(file("rows")).unwrap(), fs::read(file("end")).unwrap()];
    let wanted = image(last);
    // The root in the database is the attacker's as well: what a bundle brings has checksums that fit.
    let db = rusqlite::Connection::open(dir.path().join("sala.db")).unwrap();
    db.busy_timeout(Duration::from_secs(5)).unwrap();
    let mut n = 0u32;
    fuzz("segments", &seeds, |bytes| {
        n += 1;
        let extension = if n % 2 == 1 { "rows" } else { "end" };
        fs::write(file(extension), bytes).unwrap();
        // As long as the head says, if that is a number at all: then the root fits whatever is in it.
        let head = bytes.first_chunk::<8>().map_or(0, |l| u64::from_le_bytes(*l));
        let text = usize::try_from(head).ok().and_then(|h| bytes.get(8..8 + h.min(bytes.len())));
        let table = text.and_then(|t| serde_json::from_slice::<serde_json::Value>(t).ok());
        let table = table.and_then(|j| j["blake3"]["data_offsets"][1].as_u64()).unwrap_or(0);
        let end = 8u64.saturating_add(head).saturating_add(table).min(bytes.len() as u64) as usize;
        let root = *blake3::hash(&bytes[..end]).as_bytes();
        let set = format!("UPDATE segment SET {extension}_root = ?1, {extension}_bytes = ?2 WHERE id = ?3");
        db.execute(&set, rusqlite::params![root, bytes.len() as i64, id.0]).unwrap();
        let store = &bench.store;
        match extension {
            "rows" => match store.read_rows(&id) {
                Ok(found) if bytes == seeds[0] => assert!(same_rows(&found, &wanted.rows)),
                Ok(found) => assert!(found.tensors.iter().map(|t| t.data.len()).sum::<usize>() <= bytes.len()),
                Err(e) => one_line(&e),
            },
            _ => match store.read_end(&id) {
                Ok(found) => assert!(found.tensors.iter().map(|t| t.data.len()).sum::<usize>() <= bytes.len()),
                Err(e) => one_line(&e),
            },
        }
        store.plan_restore(&id).unwrap();
        if let Ok(opened) = store.open_path(&id, 0) {
            for rows in &opened.rows {
                for name in ["k.0", "v.0", "k1.0", "k2.0"] {
                    let _ = sala_chat::engine::protocol::RowSource::load(&**rows, name);
                }
            }
        }
    });
}

/// Imports into a fresh store now and then, so that it does not grow without end.
struct Importer {
    dir: tempfile::TempDir,
    file: PathBuf,
    store: Option<Store>,
    runs: u32,
    imported: u32,
}

impl Importer {
    fn new() -> Importer {
        let dir = tempfile::tempdir().unwrap();
        Importer { file: dir.path().join("hostile"), dir, store: None, runs: 0, imported: 0 }
    }

    fn import(&mut self, bytes: &[u8]) {
        if self.runs.is_multiple_of(64) {
            self.store = None;
            let root = self.dir.path().join("data");
            let _ = fs::remove_dir_all(&root);
            self.store = Some(open(&root, RealDisk));
        }
        self.runs += 1;
        let store = self.store.as_ref().unwrap();
        fs::write(&self.file, bytes).unwrap();
        match store.import(&self.file, &Watch::NONE) {
            Err(e) => one_line(&e),
            Ok(imported) => {
                self.imported += 1;
                for (id, name) in &imported.sessions {
                    assert!(!name.chars().any(char::is_control), "{name:?}");
                    let session = store.session(*id).unwrap();
                    assert!(!session.damaged);
                    if let Some(head) = session.head {
                        let path = store.path(head).unwrap();
                        assert!(path.iter().all(|m| !m.text.starts_with("[This message is damaged")));
                        if let Some((_, tip)) = store.tip_segment(head, MODEL).unwrap() {
                            let opened = store.open_path(&tip, 0).unwrap();
                            assert!(opened.plan.path.iter().all(|s| s.id.hex().len() == 64));
                        }
                    }
                    store.export(*id, ExportFormat::Markdown, Scope::Tree).unwrap();
                }
            }
        }
    }
}

#[test]
fn bundles() {
    let dir = tempfile::tempdir().unwrap();
    let (bench, conversation) = chat(&dir.path().join("data"));
    let file = dir.path().join("talk.sala");
    bench.store.export_bundle(conversation.session, MODEL, &file, Overwrite::No, &Watch::NONE).unwrap();
    let whole = fs::read(&file).unwrap();
    let mut importer = Importer::new();
    let mut n = 0u32;
    fuzz("bundles", &[whole], |bytes| {
        n += 1;
        let mut bytes = bytes.to_vec();
        // Half of them with a checksum that fits the manifest, as an attacker would ensure.
        let length = bytes.get(19..27).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()));
        if n.is_multiple_of(2)
            && let Some(end) =
                usize::try_from(length).ok().and_then(|l| l.checked_add(59)).filter(|e| *e <= bytes.len())
        {
            let hash = *blake3::hash(&bytes[59..end]).as_bytes();
            bytes[27..59].copy_from_slice(&hash);
        }
        importer.import(&bytes);
    });
    assert!(importer.imported > 0, "the whole one at least");
}

#[test]
fn imports() {
    let dir = tempfile::tempdir().unwrap();
    let (bench, conversation) = chat(&dir.path().join("data"));
    let ours = bench.store.export(conversation.session, ExportFormat::Json, Scope::Tree).unwrap();
    let chatgpt = r#"[{"title": "Trip", "current_node": "d", "mapping": {
        "d": {"parent": "c", "message": {"author": {"role": "assistant"}, "create_time": 4.5, "content": {"parts": ["Ferry."]}}},
        "root": {"parent": null, "message": null},
        "a": {"parent": "root", "message": {"author": {"role": "user"}, "content": {"parts": ["How?"]}}},
        "c": {"parent": "a", "message": {"author": {"role": "user"}, "content": {"parts": ["And?", {"image": 1}]}}}}}]"#;
    let webui = r#"[{"title": "Outer", "chat": {"title": "Soup", "history": {"currentId": "2", "messages": {
        "1": {"id": "1", "parentId": null, "role": "user", "content": "A recipe?", "timestamp": 1700000000},
        "2": {"id": "2", "parentId": "1", "role": "assistant", "content": "Boil water."}}}}},
        {"chat": {"title": "Old", "messages": [{"role": "user", "content": "Hi"}]}}]"#;
    let mut importer = Importer::new();
    fuzz("imports", &[ours.into_bytes(), chatgpt.into(), webui.into()], |bytes| importer.import(bytes));
    assert!(importer.imported > 2, "the whole ones at least");
}

#[test]
fn databases() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("data");
    let (bench, _) = chat(&root);
    assert!(bench.close());
    let (seed, mark) = (fs::read(root.join("sala.db")).unwrap(), fs::read(root.join("sala-chat.id")).unwrap());
    let at = dir.path().join("hostile");
    fuzz("databases", &[seed], |bytes| {
        let _ = fs::remove_dir_all(&at);
        fs::create_dir(&at).unwrap();
        fs::write(at.join("sala.db"), bytes).unwrap();
        fs::write(at.join("sala-chat.id"), &mark).unwrap();
        fs::write(at.join("thesis.tex"), "not ours").unwrap();
        match Store::open(&at, Arc::new(RealDisk), limits()) {
            Err(e) => one_line(&e),
            Ok(store) => {
                for session in store.sessions(SessionFilter::Live, 100).unwrap_or_default() {
                    if let Some(head) = session.head {
                        let _ = store.path(head);
                        if let Ok(Some((_, tip))) = store.tip_segment(head, MODEL) {
                            let _ = store.plan_restore(&tip);
                        }
                    }
                    let _ = store.tree(session.id, MODEL, 100);
                    let _ = store.export(session.id, ExportFormat::Json, Scope::Tree);
                    let _ = store.thin(session.id);
                }
                let _ = (
                    store.search("question", 10, &Watch::NONE),
                    store.documents(),
                    store.sizes(None),
                    store.prompts(10),
                );
                let _ = (store.check(), store.collect(), store.empty_trash(Some(0)));
            }
        }
        assert_eq!(fs::read(at.join("thesis.tex")).unwrap(), b"not ours");
    });
}

/// What the settings are allowed to be, whatever the file says.
fn in_range(config: &settings::Config) {
    for (name, value) in settings::page::values(config) {
        // Tables of the user's own words have no rows.
        if let Some(row) = settings::table::find(&name) {
            assert!(row.kind.accept(&value).is_ok(), "{name} = {value:?}");
        }
    }
}

#[test]
fn settings_files() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("config.toml");
    // The example has every key after a `#`.
    let every = include_str!("../../config.example.toml")
        .lines()
        .map(|l| l.strip_prefix("# ").unwrap_or(l))
        .collect::<Vec<_>>()
        .join("\n");
    let some = "[sampling]\ntemperature = 0.5\nseed = 7\n[ui]\ntheme = \"dark\"\n[load]\nmax_file_mib = 12\n\
                [load.converters]\npdf = \"pdftotext {in} -\"\n";
    let preset = "system = \"Be brief.\"\n[sampling]\ntemperature = 0.5\ntop_p = 0.9\n";
    let seeds = [every.into_bytes(), include_bytes!("../../config.example.toml").to_vec(), some.into(), preset.into()];
    let (mut loaded, mut edited) = (0, 0);
    let line = |e: &dyn std::fmt::Display| {
        let text = e.to_string();
        assert!(!text.contains('\n'), "{text:?}");
    };
    fuzz("settings", &seeds, |bytes| {
        fs::write(&file, bytes).unwrap();
        match settings::load(&file, &[], &[]) {
            Ok(found) => {
                loaded += 1;
                in_range(&found.config);
            }
            Err(e) => line(&e),
        }
        settings::examine(&file, &[]).1.iter().for_each(|e| line(e));
        let Ok(text) = std::str::from_utf8(bytes) else { return };
        // A changed file contains the requested value and is as valid as before.
        match settings::edit(std::path::Path::new("config.toml"), text, "sampling.temperature", "0.25") {
            Ok(changed) => {
                edited += 1;
                fs::write(&file, changed).unwrap();
                if let Ok(found) = settings::load(&file, &[], &[]) {
                    assert_eq!(found.config.sampling.temperature, 0.25);
                }
            }
            Err(e) => line(&e),
        }
        match settings::preset::Preset::parse(text) {
            Ok(preset) => assert_eq!(settings::preset::Preset::parse(&preset.text()).unwrap().text(), preset.text()),
            Err(e) => line(&e),
        }
    });
    assert!(loaded > 2 && edited > 2, "the whole ones at least: {loaded} loaded, {edited} edited");
}

/// A folder of the tiny model; one file of it is changed in each run.
struct ModelFolder {
    dir: tempfile::TempDir,
    /// Of the model that the draft head is for.
    spec: ModelSpec,
}

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
/// Seeds are distinguished by their first byte, which selects the file.
const FILES: [(&str, &str); 8] = [
    ("config.json", "tiny-mixed/config.json"),
    ("model.safetensors", "tiny-mixed/model.safetensors"),
    ("tokenizer.json", "../../assets/demo/tokenizer.json"),
    ("tokenizer_config.json", "../../assets/demo/tokenizer_config.json"),
    ("generation_config.json", "../../assets/demo/generation_config.json"),
    ("thesaurus.txt", "../../assets/demo/thesaurus.txt"),
    ("draft/config.json", "../../assets/demo/eagle3/config.json"),
    ("draft/model.safetensors", "../../assets/demo/eagle3/model.safetensors"),
];

impl ModelFolder {
    fn new() -> ModelFolder {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("draft")).unwrap();
        let folder = ModelFolder { dir, spec: ModelSpec::from_json(DEMO_CONFIG).unwrap() };
        FILES.iter().for_each(|(name, from)| folder.put(name, &fs::read(Path::new(FIXTURES).join(from)).unwrap()));
        folder
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.dir.path().join(name), bytes).unwrap();
    }

    /// As the program opens the part with this file; what was read is used.
    fn open(&self, file: &str) -> bool {
        let line = |e: &dyn std::fmt::Display| {
            let text = e.to_string();
            assert!(!text.contains('\n') && text.len() < 2_000, "{text:?}");
        };
        if file.starts_with("draft/") {
            let dir = self.dir.path().join("draft");
            let head = DraftHead::open(&mut Cpu::new(), &dir, &self.spec, &DraftOptions::default());
            head.as_ref().err().iter().for_each(|e| line(e));
            return head.is_ok();
        }
        if matches!(file, "config.json" | "model.safetensors") {
            let model = Checkpoint::open_dir(self.dir.path()).and_then(|c| Model::load(&mut Cpu::new(), &c, |_| {}));
            model.as_ref().err().iter().for_each(|e| line(e));
            return model.is_ok();
        }
        match TextModel::load(self.dir.path()) {
            Ok(text) => {
                let turns = [ChatMessage::new(ChatRole::User, "A question, <|im_end|> and \u{1F642}?")];
                let rendered = text.template.render(&turns, &RenderOptions::prompt(ThinkMode::On));
                rendered.as_ref().err().iter().for_each(|e| line(e));
                if let Ok(tokens) = text.tokenizer.encode_prompt(rendered.as_deref().unwrap_or("text")) {
                    let _ = text.tokenizer.spell(&tokens, Before::Edge);
                }
                true
            }
            Err(e) => {
                line(&e);
                false
            }
        }
    }
}

#[test]
fn model_folders() {
    let folder = ModelFolder::new();
    let seeds: Vec<Vec<u8>> = FILES
        .iter()
        .enumerate()
        .map(|(i, (_, from))| {
            let whole = fs::read(Path::new(FIXTURES).join(from)).unwrap();
            // Of weights only the head can be wrong; the numbers after it are restored below.
            let head = whole.first_chunk().map_or(0, |l| u64::from_le_bytes(*l)) as usize;
            let part = if from.ends_with(".safetensors") { &whole[..head + 8] } else { &whole[..] };
            [&[i as u8], part].concat()
        })
        .collect();
    assert!(FILES.iter().all(|(name, _)| folder.open(name)), "nothing is wrong to begin with");
    let mut opened = 0;
    fuzz("model folders", &seeds, |bytes| {
        let which = usize::from(bytes.first().copied().unwrap_or(0)) % FILES.len();
        let (name, from) = FILES[which];
        let whole = fs::read(Path::new(FIXTURES).join(from)).unwrap();
        let after = if name.ends_with(".safetensors") { &whole[seeds[which].len() - 1..] } else { &[] };
        folder.put(name, &[bytes.get(1..).unwrap_or(&[]), after].concat());
        opened += u32::from(folder.open(name));
        folder.put(name, &whole);
    });
    assert!(opened >= FILES.len() as u32 / 2, "{opened} whole ones were opened");
}
