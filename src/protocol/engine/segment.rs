//! The name of a state: a pure function of everything that it depends on.

use super::Token;

/// Name of the segment that adds `prompt` tokens, read by prefill, and `completion` tokens, which came from decode, behind the segment
/// called `parent`: BLAKE3 over everything that the state at its end depends on. So it names the whole path, and whoever has
/// rows of that name has the rows of all tokens below them, too. The same tokens the other way round leave other last bits in the state: they have
/// another name.
pub fn segment_name(fingerprint: &str, parent: Option<&[u8; 32]>, prompt: &[Token], completion: &[Token]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_derive_key("sala-chat segment 1");
    hash.update(&(fingerprint.len() as u64).to_le_bytes());
    hash.update(fingerprint.as_bytes());
    match parent {
        None => hash.update(&[0]),
        Some(id) => hash.update(&[1]).update(id),
    };
    for tokens in [prompt, completion] {
        hash.update(&(tokens.len() as u64).to_le_bytes());
        for token in tokens {
            hash.update(&token.to_le_bytes());
        }
    }
    *hash.finalize().as_bytes()
}
