//! Access control: programs on this machine or with the key may send requests; web pages only if they are allowed.
//!
//! A page in a browser can send requests to any address. It names itself in `Origin`, which programs do not send; and
//! a page with a domain that resolves to this machine sends the domain as `Host`. Both are refused; a configured key is
//! required. Without a key, a connection of another user of this machine is refused ([`Owner`]).

use super::{Refusal, Result, listed};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use tokio::net::TcpStream;

/// The key that a client must send. Only its hash is stored.
#[derive(Clone, Debug)]
pub struct Key(blake3::Hash);

impl Key {
    pub fn new(text: &str) -> Key {
        Key(blake3::hash(text.trim().as_bytes()))
    }

    fn opens(&self, shown: &str) -> bool {
        // A comparison of hashes leaks no timing about the key.
        blake3::hash(shown.as_bytes()) == self.0
    }
}

/// The host in `HOST[:PORT]`; `None` for any other form.
fn host_of(authority: &str) -> Option<&str> {
    let (host, after) = match authority.strip_prefix('[') {
        Some(inner) => inner.split_once(']').filter(|(host, _)| host.parse::<Ipv6Addr>().is_ok())?,
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match after.strip_prefix(':') {
        // A parsed number may have a sign, a port may not.
        Some(port) => (port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok()).then_some(host),
        None => after.is_empty().then_some(host),
    }
}

pub(super) fn allowed_page(allowed: &str, headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let named = origin.to_str().ok()?;
    let is_named = |one: &str| one == "*" || one.trim_end_matches('/').eq_ignore_ascii_case(named);
    listed(allowed).any(is_named).then(|| origin.clone())
}

pub(super) fn preflight(page: &HeaderValue, requested: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    open_to(page.clone(), headers);
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST, DELETE"));
    let wanted = requested.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.unwrap_or(HeaderValue::from_static("content-type")));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    response
}

pub(super) fn open_to(page: HeaderValue, headers: &mut HeaderMap) {
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, page);
    headers.insert(header::VARY, HeaderValue::from_static("origin"));
    let own = HeaderValue::from_static("request-id, x-request-id, x-sala-ignored, mcp-session-id");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, own);
}

pub(super) fn other_user() -> Refusal {
    let message = "without a key this server answers only programs of the user who started it: set serve.key_file (or start \
                   it with --key-file FILE) and send the key";
    Refusal::new(403, "other_user", message)
}

pub(super) fn check(key: Option<&Key>, from_allowed_page: bool, uri: &Uri, headers: &HeaderMap) -> Result<()> {
    let refuse = |status, code, message: &str| Err(Refusal::new(status, code, message));
    let from_page = headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site != "none" && site != "same-origin");
    if from_page && !from_allowed_page {
        let message = "requests from web pages are not answered, unless serve.allowed_origins names the page";
        return refuse(403, "origin_not_allowed", message);
    }
    // With several hosts, a proxy might read another one than this server.
    if headers.get_all(header::HOST).iter().count() > 1 {
        return refuse(400, "invalid_host", "there must be one Host header, not several");
    }
    let Some(key) = key else {
        let named = match (uri.authority(), headers.get(header::HOST)) {
            (Some(authority), _) => Some(authority.as_str()),
            (None, Some(host)) => host.to_str().ok(),
            (None, None) => return refuse(400, "invalid_host", "a Host header is needed"),
        };
        // No page can have made these names resolve to this machine.
        let is_own = |ip: IpAddr| ip.is_loopback();
        let own = |host: &str| host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(is_own);
        if named.and_then(host_of).is_some_and(own) {
            return Ok(());
        }
        let message = "the Host header must be localhost or a loopback address, with nothing but a port behind it";
        return refuse(403, "host_not_allowed", message);
    };
    let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let bearer = bearer.and_then(|v| v.split_once(' ')).filter(|(how, _)| how.eq_ignore_ascii_case("bearer"));
    // A client may send another server's key along with the right one.
    let shown = [bearer.map(|(_, key)| key.trim()), headers.get("x-api-key").and_then(|v| v.to_str().ok())];
    match shown.iter().flatten().map(|shown| key.opens(shown)).max() {
        Some(true) => Ok(()),
        Some(false) => refuse(401, "invalid_api_key", "this is not the server's key"),
        None => {
            let message = "a key is needed: send it as Authorization: Bearer KEY (or x-api-key: KEY)";
            refuse(401, "missing_api_key", message)
        }
    }
}

/// The user of the process at the other end of a local connection.
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
pub(super) fn owner_of(stream: &TcpStream) -> Owner {
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
    // A socket without a row belongs to a process that has ended, or to another machine.
    if found == Some(me) { Owner::Same } else { Owner::Other }
}

fn user(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    const ENDING: [&str; 2] = ["06", "07"];
    let (local, remote) = (forms(local), forms(remote));
    table.lines().skip(1).find_map(|row| {
        let mut columns = row.split_whitespace().skip(1);
        let (here, there, state) = (columns.next()?, columns.next()?, columns.next()?);
        // A row of a closing or closed socket has lost its owner.
        let same = local.iter().any(|form| form == here) && remote.iter().any(|form| form == there);
        let user = columns.nth(3)?.parse().ok()?;
        (same && !ENDING.contains(&state)).then_some(user)
    })
}

/// An address in the table: words of 32 bits in the machine's byte order, and a port; IPv4 also in the form of IPv6.
fn forms(address: SocketAddr) -> Vec<String> {
    let six = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let hex = |bytes: &[u8]| -> String {
        bytes.as_chunks().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word))).collect()
    };
    let four = six.to_ipv4_mapped().map(|ip| hex(&ip.octets()));
    four.into_iter().chain([hex(&six.octets())]).map(|ip| format!("{ip}:{:04X}", address.port())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::HeaderName;

    fn status(key: Option<&Key>, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        check(key, false, &Uri::from_static("/v1/models"), &map).map_or_else(|r| r.status, |()| 200)
    }

    #[test]
    fn a_page_is_refused_and_a_program_is_not() {
        for host in ["localhost", "localhost:8181", "127.0.0.1:1", "[::1]:8181", "LocalHost:2"] {
            assert_eq!(status(None, &[("host", host)]), 200, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "evil.example:8181", "10.0.0.1", "", "::1"] {
            assert_eq!(status(None, &[("host", host)]), 403, "{host}");
        }
        assert_eq!(status(None, &[]), 400);
        assert_eq!(status(None, &[("host", "localhost"), ("origin", "null")]), 403);
        assert_eq!(status(None, &[("host", "localhost"), ("origin", "http://localhost:8181")]), 403);
        assert_eq!(status(None, &[("host", "localhost"), ("sec-fetch-site", "cross-site")]), 403);
    }

    #[test]
    fn only_a_port_follows_the_host() {
        let after = ["127.0.0.1:80@evil.com", "localhost:evil.com", "[::1]evil.com", "127.0.0.1:99999999"];
        let odd = [
            "localhost:+80",
            "localhost:80:80",
            "localhost:-1",
            "localhost:8 0",
            "[::1",
            "[::1]:",
            "[::1]]",
            "[localhost]",
        ];
        for host in after.into_iter().chain(odd) {
            assert_eq!(status(None, &[("host", host)]), 403, "{host}");
        }
        for host in ["127.0.0.1:65535", "127.8.8.8", "[::1]", "[::1]:0"] {
            assert_eq!(status(None, &[("host", host)]), 200, "{host}");
        }
        // A request with the host in its first line.
        let at = |uri: &'static str| {
            check(None, false, &Uri::from_static(uri), &HeaderMap::new()).map_or_else(|r| r.status, |()| 200)
        };
        assert_eq!(at("http://127.0.0.1:8181/v1/models"), 200);
        assert_eq!(at("http://localhost@evil.example/v1/models"), 403);
        assert_eq!(at("http://127.0.0.1:99999999/v1/models"), 403);
    }

    #[test]
    fn a_key_is_shown_in_either_header_and_does_not_excuse_a_page() {
        let key = Key::new("secret\n");
        let host = ("host", "10.0.0.1:8181");
        assert_eq!(status(Some(&key), &[host]), 401);
        assert_eq!(status(Some(&key), &[host, ("authorization", "Bearer wrong")]), 401);
        assert_eq!(status(Some(&key), &[host, ("authorization", "Basic secret")]), 401);
        assert_eq!(status(Some(&key), &[host, ("authorization", "bearer secret")]), 200);
        assert_eq!(status(Some(&key), &[host, ("x-api-key", "secret")]), 200);
        let both = |bearer: &str, own: &str| status(Some(&key), &[host, ("authorization", bearer), ("x-api-key", own)]);
        assert_eq!(
            (both("Bearer old", "secret"), both("Bearer secret", "old"), both("Bearer old", "old")),
            (200, 200, 401)
        );
        assert_eq!(status(Some(&key), &[host, ("x-api-key", "secret"), ("origin", "https://a.b")]), 403);
        assert!(!format!("{key:?}").contains("secret"));
    }

    #[cfg(target_endian = "little")]
    const HEAD: &str =
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

    #[cfg(target_endian = "little")]
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

    #[cfg(target_endian = "little")]
    #[test]
    fn both_versions_of_addresses_are_found_and_one_may_hold_the_other() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        assert_eq!(forms(at("[::1]:45764")), ["00000000000000000000000001000000:B2C4"]);
        let four = ["0100007F:480F", "0000000000000000FFFF00000100007F:480F"];
        assert_eq!(forms(at("127.0.0.1:18447")), four);
        assert_eq!(forms(at("[::ffff:127.0.0.1]:18447")), four);
        for odd in ["", "  0: 0100007F", "  0: 01:1 zz00007F:1 01", "  0: 0100007F:480F 0100007F:480F 01 0:0 0:0 0 x"] {
            assert_eq!(user(&format!("{HEAD}{odd}\n"), at("127.0.0.1:18447"), at("127.0.0.1:18447")), None, "{odd}");
        }
    }
}
