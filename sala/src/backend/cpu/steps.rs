//! Steps on the CPU: a few numbers, and work that runs at once.

use super::Cpu;
use crate::backend::{Group, Place, Result, StepKey, Steps};
use crate::engine::protocol::Token;

impl Steps for Cpu {
    fn place(&self) -> Place {
        self.place
    }

    fn go_to(&mut self, place: Place) -> Result<()> {
        self.place = place;
        Ok(())
    }

    fn new_place(&mut self) -> Result<Place> {
        self.places += 1;
        self.place = Place { id: self.places, ..Place::default() };
        Ok(self.place)
    }

    #[cfg(any(test, feature = "emulated"))]
    fn seek(&mut self, position: usize) -> Result<()> {
        self.faults.alive()?;
        self.go_to(Place { position, pending: 0, ..self.place })
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
        self.place.pending = 0;
    }
}
