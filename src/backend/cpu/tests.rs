//! The guarantees of the CPU backend that whole-model tests cannot see.
