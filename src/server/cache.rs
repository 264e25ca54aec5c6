//! The store of requests as a cache: damage in it never keeps a request from its answer.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::now_s;
use crate::store::{Store, StoreError};

/// Moves a damaged store of requests aside; returns its new place.
///
/// # Errors
/// The system cannot rename the folder.
pub fn set_aside(folder: &Path) -> io::Result<PathBuf> {
    let mut name = folder.as_os_str().to_owned();
    name.push(format!(".damaged-{}", now_s()));
    std::fs::rename(folder, &name)?;
    Ok(PathBuf::from(name))
}

#[derive(Debug)]
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
