//! Numbers for people.

/// `581,330`.
pub fn grouped(n: u64) -> String {
    if n < 1000 { n.to_string() } else { format!("{},{:03}", grouped(n / 1000), n % 1000) }
}

/// `27.9 GiB`, `210 MiB`, `4.7 MiB`, `3 KiB`, `0 B`; a started KiB counts.
pub fn bytes(n: u64) -> String {
    const KIB: f64 = 1024.0;
    const MIB: f64 = KIB * KIB;
    const GIB: f64 = MIB * KIB;
    match n as f64 {
        n if n < KIB => format!("{n:.0} B"),
        n if n < MIB => format!("{:.0} KiB", (n / KIB).ceil()),
        n if n < 10.0 * MIB => format!("{:.1} MiB", n / MIB),
        n if n < GIB => format!("{:.0} MiB", n / MIB),
        n => format!("{:.1} GiB", n / GIB),
    }
}

/// `1 page`, `1,204 pages`.
pub fn counted(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", grouped(n), if n == 1 { "" } else { "s" })
}

/// A part in percent, rounded down, so that only the whole is 100. 0 of 0 is 100.
pub fn percent(part: u64, whole: u64) -> u64 {
    if whole == 0 { 100 } else { (part.min(whole) as u128 * 100 / whole as u128) as u64 }
}

/// The prefix of a number that may be an estimate.
pub const fn about(estimated: bool) -> &'static str {
    if estimated { "~" } else { "" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        for (n, text) in [(0, "0"), (999, "999"), (1_000, "1,000"), (1_048_576, "1,048,576")] {
            assert_eq!(grouped(n), text);
        }
        for (n, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1025, "2 KiB"),
            (3 << 19, "1.5 MiB"),
            (210 << 20, "210 MiB"),
            (28 << 30, "28.0 GiB"),
            (2_400 << 20, "2.3 GiB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!((counted(1, "page"), counted(1_204, "page")), ("1 page".into(), "1,204 pages".into()));
    }
}
