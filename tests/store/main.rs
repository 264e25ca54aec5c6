//! The store: sessions, states, library, damage, imports and exports.

#[macro_use]
#[path = "../store_support/real_disk.rs"]
mod real_disk;

mod basics;
mod damage;
mod directory;
mod exchange;
mod hostile;
mod imports;
mod measure;
mod rescue;
#[path = "../store_support/mod.rs"]
mod store_support;
mod trash;
mod uses;
mod versions;
