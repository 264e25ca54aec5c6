//! Memory of this machine, and of the control group (a container) of this process.

use std::path::Path;

/// `None` where the system does not report it.
pub(super) fn free_bytes() -> Option<u64> {
    let machine = of_line("/proc/meminfo", "MemAvailable:")?;
    Some(left_of_group(Path::new("/sys/fs/cgroup")).map_or(machine, |group| group.min(machine)))
}

pub(super) fn total_bytes() -> Option<u64> {
    of_line("/proc/meminfo", "MemTotal:")
}

pub(super) fn own_bytes() -> Option<u64> {
    of_line("/proc/self/status", "VmRSS:")
}

/// Bytes that a group may still allocate; `None` where it has no limit. Its page cache counts as free, because the
/// kernel reclaims it: reading weights takes nothing away.
fn left_of_group(group: &Path) -> Option<u64> {
    let number = |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let (most, now) = (number("memory.max")?, number("memory.current")?);
    let stat = std::fs::read_to_string(group.join("memory.stat")).unwrap_or_default();
    let of_files = |key: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|n| n.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    let back = of_files("inactive_file") + of_files("active_file");
    Some(most.saturating_sub(now.saturating_sub(back)))
}

fn of_line(file: &str, key: &str) -> Option<u64> {
    in_text(&std::fs::read_to_string(file).ok()?, key)
}

fn in_text(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(in_text("MemTotal:  24 kB\nMemAvailable:    1234 kB\n", "MemAvailable:"), Some(1234 << 10));
        assert_eq!(in_text("MemTotal:  24 kB\n", "MemAvailable:"), None);
        assert!(total_bytes() >= free_bytes() && own_bytes() > Some(0));
    }

    #[test]
    fn files_that_a_group_has_read_take_nothing_away() {
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(group.path().join(name), text).unwrap();
        assert_eq!(left_of_group(group.path()), None);
        write("memory.current", "23000\n");
        write("memory.max", "max\n");
        assert_eq!(left_of_group(group.path()), None, "no limit");
        write("memory.max", "24000\n");
        assert_eq!(left_of_group(group.path()), Some(1_000));
        write("memory.stat", "anon 5000\nfile 17500\ninactive_file 17000\nactive_file 500\n");
        assert_eq!(left_of_group(group.path()), Some(18_500));
    }
}
