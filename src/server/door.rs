//! Who may come in: programs on this machine or with the key, never a web page.
//!
//! A page in a browser can send requests to any address. It names itself in `Origin`, which programs do not send; and a page
//! whose own name was made to point here names that in `Host`. Both are refused; a key, where there is one, must be shown.

use std::net::IpAddr;

use axum::http::{HeaderMap, Uri, header};

use super::refusal::Refusal;

/// What a client has to show. Its text is nowhere told.
#[derive(Clone)]
pub struct Key(blake3::Hash);

impl Key {
    /// From its text, as in the key file.
    pub fn new(text: &str) -> Key {
        Key(blake3::hash(text.trim().as_bytes()))
    }

    fn opens(&self, shown: &str) -> bool {
        // Comparing hashes takes the same time wherever they differ.
        blake3::hash(shown.as_bytes()) == self.0
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key")
    }
}

/// The host in `HOST[:PORT]`.
fn host_of(authority: &str) -> &str {
    match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or(rest),
        None => authority.rsplit_once(':').map_or(authority, |(host, _)| host),
    }
}

/// Whether a name cannot have been made to point here by a page.
fn is_this_machine(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Lets a request in or says why not.
pub(super) fn let_in(key: Option<&Key>, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
    let forbidden = |code, message: &str| Err(Refusal::new(403, code, message));
    let from_page = headers.contains_key(header::ORIGIN)
        || headers.get("sec-fetch-site").is_some_and(|site| site != "none" && site != "same-origin");
    if from_page {
        return forbidden("origin_not_allowed", "requests from web pages are not answered");
    }
    // Whoever stands between might read another one than is read here.
    if headers.get_all(header::HOST).iter().count() > 1 {
        return Err(Refusal::new(400, "invalid_host", "there must be one Host header, not several"));
    }
    let Some(key) = key else {
        if uri.host().is_none() && !headers.contains_key(header::HOST) {
            return Err(Refusal::new(400, "invalid_host", "a Host header is needed"));
        }
        let named = headers.get(header::HOST).and_then(|h| h.to_str().ok());
        let host = uri.host().or(named.map(host_of)).unwrap_or_default();
        return match is_this_machine(host) {
            true => Ok(()),
            false => forbidden("host_not_allowed", "the Host header must be localhost or a loopback address"),
        };
    };
    let bearer = headers.get(header::AUTHORIZATION).and_then(|v| v.to_str().ok());
    let bearer = bearer.and_then(|v| v.split_once(' ')).filter(|(how, _)| how.eq_ignore_ascii_case("bearer"));
    let shown = bearer.map(|(_, key)| key.trim()).or_else(|| headers.get("x-api-key").and_then(|v| v.to_str().ok()));
    match shown {
        Some(shown) if key.opens(shown) => Ok(()),
        Some(_) => Err(Refusal::new(401, "invalid_api_key", "this is not the server's key")),
        None => Err(Refusal::new(
            401,
            "missing_api_key",
            "a key is needed: send it as Authorization: Bearer KEY (or x-api-key: KEY)",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::{HeaderName, HeaderValue};

    fn status(key: Option<&Key>, headers: &[(&'static str, &str)]) -> u16 {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        let_in(key, &Uri::from_static("/v1/models"), &map).map_or_else(|r| r.status, |()| 200)
    }

    #[test]
    fn a_page_never_comes_in_and_a_program_does() {
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
    fn a_key_is_shown_in_either_header_and_does_not_excuse_a_page() {
        let key = Key::new("secret\n");
        let host = ("host", "10.0.0.1:8181");
        assert_eq!(status(Some(&key), &[host]), 401);
        assert_eq!(status(Some(&key), &[host, ("authorization", "Bearer wrong")]), 401);
        assert_eq!(status(Some(&key), &[host, ("authorization", "Basic secret")]), 401);
        assert_eq!(status(Some(&key), &[host, ("authorization", "bearer secret")]), 200);
        assert_eq!(status(Some(&key), &[host, ("x-api-key", "secret")]), 200);
        assert_eq!(status(Some(&key), &[host, ("x-api-key", "secret"), ("origin", "https://a.b")]), 403);
        assert!(!format!("{key:?}").contains("secret"));
    }
}
