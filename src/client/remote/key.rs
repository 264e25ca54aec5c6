//! The key of a server: sent, and never shown.

use std::path::Path;

/// Shortest key that is removed from server texts: shorter ones are ordinary words.
const LEAST: usize = 6;
const MOST_FILE_BYTES: u64 = 64 << 10;

#[derive(Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// A key of visible ASCII characters, without the white space around it.
    /// Fails with a phrase about the fault. It does not contain the key.
    pub fn new(text: &str) -> Result<Key, &'static str> {
        let text = text.trim();
        match text {
            "" => Err("it is empty"),
            text if !text.bytes().all(|b| b.is_ascii_graphic()) => Err("it holds characters that no key has"),
            text => Ok(Key(text.to_owned())),
        }
    }

    /// Fails with a phrase: the file cannot be read, or holds no key.
    pub fn read(file: &Path) -> Result<Key, String> {
        use std::io::Read as _;
        let mut text = String::new();
        let opened = std::fs::File::open(file).map_err(|e| e.to_string())?;
        opened.take(MOST_FILE_BYTES).read_to_string(&mut text).map_err(|e| e.to_string())?;
        Key::new(&text).map_err(str::to_owned)
    }

    pub(super) fn bearer(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// Removes the key from a text, in case a server repeats it.
    pub(super) fn without(&self, text: &str) -> String {
        if self.0.len() < LEAST { text.to_owned() } else { text.replace(&self.0, "(key)") }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sent_and_never_printed() {
        let key = Key::new(" sk-verysecret\n").unwrap();
        assert_eq!(key.bearer(), "Bearer sk-verysecret");
        assert!(!format!("{key:?}").contains("secret"));
        assert_eq!(key.without("Incorrect key sk-verysecret."), "Incorrect key (key).");
    }

    #[test]
    fn what_cannot_be_a_header_is_no_key() {
        assert_eq!(Key::new("  "), Err("it is empty"));
        assert!(Key::new("a\nb").is_err());
        assert!(Key::new("schlüssel").is_err());
    }
}
