//! How a scripted engine, which has no likelihoods, gets to the end of a grammar.

/// Bytes that end a part of a text.
const CLOSING: [u8; 5] = [b'"', b'<', b'}', b']', b'>'];

/// The allowed token up to and with `most` that leads to the end soonest: one that ends the text; a byte that closes something,
/// each in its turn since some are text in some places; a digit; the shortest. White space last: it may repeat for ever.
/// `None`: no token is allowed.
pub fn next(
    allows: &mut dyn FnMut(u32) -> bool,
    spell: &dyn Fn(u32) -> String,
    most: u32,
    stop: &[u32],
    accepted: usize,
) -> Option<u32> {
    if let Some(end) = stop.iter().find(|end| allows(**end)) {
        return Some(*end);
    }
    let rank = |text: &[u8]| match text {
        [one] if CLOSING.contains(one) => {
            let at = CLOSING.iter().position(|c| c == one).unwrap_or(0);
            (at + accepted) % CLOSING.len()
        }
        [b'0'..=b'9'] => CLOSING.len(),
        text if text.iter().all(u8::is_ascii_whitespace) => CLOSING.len() + 2,
        _ => CLOSING.len() + 1,
    };
    let cost = |token: u32| {
        let text = spell(token);
        (rank(text.as_bytes()), text.len(), token)
    };
    (0..=most).filter(|t| !stop.contains(t) && allows(*t)).map(cost).min().map(|(.., token)| token)
}
