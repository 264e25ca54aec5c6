//! Limits of other cards, to run their code paths on this one.

use super::driver::DeviceInfo;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Card {
    pub name: &'static str,
    shared_limit: usize,
    multiprocessors: usize,
    overlap: bool,
    brings_tiles: bool,
}

pub const CARDS: &[Card] = &[
    Card { name: "sm_80", shared_limit: 163 << 10, multiprocessors: 108, overlap: false, brings_tiles: false },
    Card { name: "sm_86", shared_limit: 99 << 10, multiprocessors: 68, overlap: false, brings_tiles: false },
    Card { name: "sm_89", shared_limit: 99 << 10, multiprocessors: 76, overlap: false, brings_tiles: false },
    Card { name: "sm_120", shared_limit: 99 << 10, multiprocessors: 48, overlap: true, brings_tiles: true },
];

impl Card {
    /// # Errors
    /// The list of known names.
    pub fn named(name: &str) -> Result<Card, String> {
        CARDS.iter().find(|card| card.name == name).copied().ok_or_else(|| {
            let names: Vec<&str> = CARDS.iter().map(|card| card.name).collect();
            format!("one of {}", names.join(", "))
        })
    }

    pub(super) fn limit(self, info: &mut DeviceInfo) {
        info.shared_limit = info.shared_limit.min(self.shared_limit);
        info.multiprocessors = info.multiprocessors.min(self.multiprocessors);
        info.overlap &= self.overlap;
        info.brings_tiles &= self.brings_tiles;
        info.name = format!("{} with the limits of {}", info.name, self.name);
    }
}
