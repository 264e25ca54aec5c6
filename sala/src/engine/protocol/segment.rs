//! The name of a state: a pure function of all its inputs.

use super::Token;

/// Tokens per hash call: BLAKE3 hashes many blocks in parallel, and a call for each token takes longer than its bytes.
const TOGETHER: usize = 4096;

/// Name of the segment that adds `prompt` tokens, read by prefill, and `completion` tokens, produced by decode, after
/// the segment `parent`: BLAKE3 over all inputs of the state at its end. So it names the whole path, and rows of that
/// name include the rows of all tokens before them. The same tokens split otherwise give other last bits in the state,
/// so they have another name.
pub fn segment_name(fingerprint: &str, parent: Option<&[u8; 32]>, prompt: &[Token], completion: &[Token]) -> [u8; 32] {
    let mut hash = blake3::Hasher::new_derive_key("sala-chat segment 1");
    hash.update(&(fingerprint.len() as u64).to_le_bytes());
    hash.update(fingerprint.as_bytes());
    match parent {
        None => hash.update(&[0]),
        Some(id) => hash.update(&[1]).update(id),
    };
    let mut bytes = [[0u8; 4]; TOGETHER];
    for tokens in [prompt, completion] {
        hash.update(&(tokens.len() as u64).to_le_bytes());
        for some in tokens.chunks(TOGETHER) {
            let bytes = &mut bytes[..some.len()];
            bytes.iter_mut().zip(some).for_each(|(four, token)| *four = token.to_le_bytes());
            hash.update(bytes.as_flattened());
        }
    }
    *hash.finalize().as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_by_one(fingerprint: &str, parent: Option<&[u8; 32]>, prompt: &[Token], completion: &[Token]) -> [u8; 32] {
        let mut all = (fingerprint.len() as u64).to_le_bytes().to_vec();
        all.extend_from_slice(fingerprint.as_bytes());
        all.push(u8::from(parent.is_some()));
        all.extend(parent.into_iter().flatten());
        for tokens in [prompt, completion] {
            all.extend((tokens.len() as u64).to_le_bytes());
            tokens.iter().for_each(|token| all.extend(token.to_le_bytes()));
        }
        blake3::derive_key("sala-chat segment 1", &all)
    }

    #[test]
    fn how_many_tokens_are_hashed_together_changes_no_name() {
        let token = |i: usize| (i as Token).wrapping_mul(0x9e37_79b9);
        let tokens: Vec<Token> = (0..3 * TOGETHER).map(token).collect();
        for prompt in [0, 1, TOGETHER - 1, TOGETHER, TOGETHER + 1, 2 * TOGETHER + 7] {
            // A short one after a long one: no bytes of the long one may remain in the buffer.
            for completion in [0, 1, 300, TOGETHER] {
                let (prompt, completion) = (&tokens[..prompt], &tokens[tokens.len() - completion..]);
                for parent in [None, Some(&[7; 32])] {
                    let name = segment_name("model", parent, prompt, completion);
                    assert_eq!(name, one_by_one("model", parent, prompt, completion), "{}", prompt.len());
                }
            }
        }
    }
}
