//! The user of the process at the other end of a local connection.

use std::net::{IpAddr, SocketAddr};

use tokio::net::TcpStream;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Owner {
    /// The client sends the server's key, or the owner does not matter.
    #[default]
    HasKey,
    /// The user who runs this server.
    Same,
    Other,
    /// The system does not report the owner.
    Unknown,
}

/// Looks the socket up in the system's table of sockets.
pub(super) fn of(stream: &TcpStream) -> Owner {
    let (Ok(theirs), Ok(ours)) = (stream.peer_addr(), stream.local_addr()) else { return Owner::Unknown };
    // The owner of `/proc/self` is this process's effective user.
    let Ok(me) = std::fs::metadata("/proc/self").map(|meta| std::os::unix::fs::MetadataExt::uid(&meta)) else {
        return Owner::Unknown;
    };
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    if tables.iter().all(Result::is_err) {
        return Owner::Unknown;
    }
    let found = tables.iter().flatten().find_map(|table| user(table, theirs, ours));
    match found {
        Some(user) if user == me => Owner::Same,
        // A socket without a row belongs to a process that has ended, or to another machine.
        Some(_) | None => Owner::Other,
    }
}

fn user(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    const ENDING: [&str; 2] = ["06", "07"];
    table.lines().skip(1).find_map(|row| {
        let mut columns = row.split_whitespace().skip(1);
        let (here, there) = (address(columns.next()?)?, address(columns.next()?)?);
        let state = columns.next()?;
        // A row of a closing or closed socket has lost its owner.
        let same = here == plain(local) && there == plain(remote) && !ENDING.contains(&state);
        let user = columns.nth(3)?.parse().ok()?;
        same.then_some(user)
    })
}

/// Converts an IPv4 address inside IPv6 to IPv4.
fn plain(address: SocketAddr) -> (IpAddr, u16) {
    (address.ip().to_canonical(), address.port())
}

/// `0100007F:1F90`: words of 32 bits in the machine's byte order, and a port.
fn address(text: &str) -> Option<(IpAddr, u16)> {
    let (ip, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| u32::from_str_radix(ip.get(at..at + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip = match ip.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(8)?, word(16)?, word(24)?];
            let bytes: [u8; 16] = words.concat().try_into().ok()?;
            IpAddr::from(bytes)
        }
        _ => return None,
    };
    Some((ip.to_canonical(), port))
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;

    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[test]
    fn the_row_of_the_other_end_names_its_user() {
        let table = format!(
            "{HEAD}   0: 0100007F:480F 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1\n   \
             1: 0100007F:480F 0100007F:B2C4 01 00000000:00000000 00:00000000 00000000     0        0 2 1\n   \
             2: 0100007F:B2C4 0100007F:480F 01 00000000:00000000 00:00000000 00000000  1007        0 3 1\n"
        );
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let (server, client) = (at("127.0.0.1:18447"), at("127.0.0.1:45764"));
        assert_eq!(user(&table, client, server), Some(1007));
        assert_eq!(user(&table, server, client), Some(0));
        assert_eq!(user(&table, at("127.0.0.1:45765"), server), None);
        // A closed socket has no owner.
        assert_eq!(user(&table.replace(" 01 ", " 06 "), client, server), None);
    }

    #[test]
    fn both_versions_of_addresses_are_read_and_one_may_hold_the_other() {
        let six = "00000000000000000000000001000000:B2C4";
        assert_eq!(address(six), Some(("::1".parse().unwrap(), 45764)));
        let four_in_six = "0000000000000000FFFF00000100007F:480F";
        assert_eq!(address(four_in_six), Some(("127.0.0.1".parse().unwrap(), 18447)));
        for odd in ["", "0100007F", "01:1", "zz00007F:1"] {
            assert_eq!(address(odd), None, "{odd}");
        }
    }
}
