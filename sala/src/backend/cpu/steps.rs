//! Steps on the CPU: a few numbers, and work that runs at once.

use super::Cpu;
use crate::backend::{Group, Place, Result, StepKey, Steps};
use crate::engine::protocol::Token;

impl Steps for Cpu {
    fn place(&self) -> Place {
        Place { id: self.place, position: self.position, pending: self.pending, slot: 0 }
    }

    fn go_to(&mut self, place: Place) -> Result<()> {
        (self.place, self.position, self.pending) = (place.id, place.position, place.pending);
        Ok(())
    }

    fn new_place(&mut self) -> Result<Place> {
        self.places += 1;
        let place = Place { id: self.places, ..Place::default() };
        self.go_to(place)?;
        Ok(place)
    }

    fn seek(&mut self, position: usize) -> Result<()> {
        #[cfg(any(test, feature = "emulated"))]
        self.faults.alive()?;
        self.position = position;
        self.pending = 0;
        Ok(())
    }

    fn segment_at(&mut self, read: usize) {
        self.segment_read = read;
    }

    fn set_tokens(&mut self, tokens: &[Token]) -> Result<()> {
        self.tokens.clear();
        self.tokens.extend_from_slice(tokens);
        self.groups.clear();
        #[cfg(any(test, feature = "emulated"))]
        self.faults.strike(tokens)?;
        Ok(())
    }

    fn set_rows(&mut self, groups: &[Group], tokens: &[Token]) -> Result<()> {
        self.set_tokens(tokens)?;
        self.groups.extend_from_slice(groups);
        Ok(())
    }

    fn step(&mut self, _key: StepKey, body: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        body(self)
    }

    fn folded(&mut self) {
        self.pending = 0;
    }
}
