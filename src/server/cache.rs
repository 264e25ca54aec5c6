//! The store of requests as a cache: damage in it never keeps a request from its answer.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::now_s;
use crate::store::{Access, Limits, RealDisk, Store, StoreError};

/// Opens the store of requests. A damaged one is moved aside and a new one takes its place, with a notice for the
/// user.
///
/// # Errors
/// The folder is not ours, the disk fails, or the damaged store cannot be moved.
pub fn open_cache(folder: &Path, limits: &Limits) -> Result<(Arc<Store>, Option<String>), StoreError> {
    let open = || Store::open(folder, Arc::new(RealDisk), limits.clone()).map(Arc::new);
    let why = match open() {
        Ok(store) => match (store.access(), store.damage().filter(|why| why.contains("is damaged"))) {
            (_, Some(why)) => why,
            (Access::ReadOnly { why }, None) if store.is_broken() => why.clone(),
            _ => return Ok((store, None)),
        },
        Err(e) if e.is_full() || !is_ours(folder) => return Err(e),
        Err(e) => e.to_string(),
    };
    let place = set_aside(folder)?;
    let moved = format!(
        "Kept state of requests was damaged ({why}) and is now in {}; answers go on without it.",
        place.display()
    );
    Ok((open()?, Some(moved)))
}

fn is_ours(folder: &Path) -> bool {
    ["sala.db", "sala-chat.id"].iter().any(|name| folder.join(name).symlink_metadata().is_ok())
}

/// Moves a damaged store of requests aside; returns its new place.
fn set_aside(folder: &Path) -> Result<PathBuf, StoreError> {
    let name = |n: u32| {
        let mut name = folder.as_os_str().to_owned();
        name.push(format!(".damaged-{}{}", now_s(), if n == 1 { String::new() } else { format!("-{n}") }));
        PathBuf::from(name)
    };
    let place = (1..).map(name).find(|place| place.symlink_metadata().is_err()).unwrap_or_else(|| name(0));
    std::fs::rename(folder, &place).map_err(StoreError::io("move aside", folder))?;
    Ok(place)
}

pub(super) struct Cache {
    store: Arc<Store>,
    failed: AtomicBool,
}

impl Cache {
    pub(super) fn new(store: Arc<Store>) -> Cache {
        Cache { store, failed: AtomicBool::new(false) }
    }

    pub(super) fn usable(&self) -> Option<&Store> {
        (!self.is_damaged()).then_some(&*self.store)
    }

    pub(super) fn is_damaged(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Handles a failed lookup: a damaged store is moved aside and stays unused until the next start.
    pub(super) fn failed(&self, e: &StoreError) {
        if e.damage().is_none() {
            tracing::warn!("kept state of requests cannot be looked up: {e}");
            return;
        }
        if self.failed.swap(true, Ordering::Relaxed) {
            return;
        }
        match set_aside(self.store.root()) {
            Ok(place) => tracing::warn!(
                "kept state of requests is damaged ({e}): it was moved to {}; answers go on, and nothing is kept until the \
                 next start",
                place.display()
            ),
            Err(io) => tracing::warn!("kept state of requests is damaged ({e}) and cannot be moved aside: {io}"),
        }
    }
}
