//! Arrays that grow by pages and may share them: forks keep one copy of the common part. A write to a shared page
//! copies it first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Default)]
pub(super) struct Account(Arc<AtomicU64>);

impl Account {
    pub(super) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn charge(&self, bytes: usize) -> Charge {
        self.0.fetch_add(bytes as u64, Ordering::Relaxed);
        Charge { account: self.clone(), bytes: bytes as u64 }
    }
}

pub(super) struct Charge {
    account: Account,
    bytes: u64,
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct Page {
    values: Vec<f32>,
    charge: Charge,
}

impl Clone for Page {
    fn clone(&self) -> Page {
        let charge = self.charge.account.charge(self.values.len() * 4);
        Page { values: self.values.clone(), charge }
    }
}

pub(super) struct Pages {
    size: usize,
    pages: Vec<Arc<Page>>,
    account: Account,
}

impl Pages {
    pub(super) fn new(size: usize, account: &Account) -> Pages {
        Pages { size, pages: Vec::new(), account: account.clone() }
    }

    fn needed(&self, values: usize) -> usize {
        values.div_ceil(self.size)
    }

    pub(super) fn wants(&self, values: usize) -> usize {
        self.needed(values).saturating_sub(self.pages.len()) * self.size * 4
    }

    pub(super) fn grow(&mut self, values: usize) {
        while self.pages.len() < self.needed(values) {
            // The system provides zero pages and backs them on first use.
            let page = Page { values: vec![0.0; self.size], charge: self.account.charge(self.size * 4) };
            self.pages.push(Arc::new(page));
        }
    }

    /// `len` values from `at` on must be in one page.
    #[inline]
    pub(super) fn at(&self, at: usize, len: usize) -> &[f32] {
        &self.pages[at / self.size].values[at % self.size..][..len]
    }

    pub(super) fn at_mut(&mut self, at: usize, len: usize) -> &mut [f32] {
        &mut Arc::make_mut(&mut self.pages[at / self.size]).values[at % self.size..][..len]
    }

    pub(super) fn panels(&self, len: usize) -> impl Iterator<Item = &[f32]> {
        self.pages.iter().flat_map(move |page| page.values.chunks_exact(len))
    }

    pub(super) fn share(&mut self, from: &Pages, values: usize) {
        self.pages.clear();
        self.pages.extend(from.pages.iter().take(self.needed(values)).cloned());
    }

    /// Values from `keep` on are dead: drops the first shared page there and all later ones.
    pub(super) fn own(&mut self, keep: usize) {
        let first = self.needed(keep);
        let shared = self.pages.iter().skip(first).position(|page| Arc::strong_count(page) > 1);
        if let Some(at) = shared {
            self.pages.truncate(first + at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_costs_nothing_until_it_is_written_to() {
        let account = Account::default();
        let mut one = Pages::new(64, &account);
        assert_eq!(one.wants(130), 3 * 256);
        one.grow(130);
        assert_eq!((account.bytes(), one.wants(192), one.wants(193)), (3 * 256, 0, 256));
        one.at_mut(70, 2).copy_from_slice(&[1.0, 2.0]);
        let mut two = Pages::new(64, &account);
        two.share(&one, 100);
        assert_eq!((account.bytes(), two.at(70, 2)), (3 * 256, &[1.0, 2.0][..]));
        two.at_mut(71, 1)[0] = 5.0;
        assert_eq!((account.bytes(), one.at(70, 2), two.at(70, 2)), (4 * 256, &[1.0, 2.0][..], &[1.0, 5.0][..]));
        // Pages after the cut may be dropped, pages before it stay.
        two.share(&one, 130);
        two.own(64);
        assert_eq!((two.wants(130), two.at(0, 1)), (2 * 256, &[0.0][..]));
        drop(one);
        assert_eq!(account.bytes(), 256);
        drop(two);
        assert_eq!(account.bytes(), 0);
    }
}
