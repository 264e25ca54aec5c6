//! The hub over HTTP: huggingface.co, or the mirror that `HF_ENDPOINT` names.
//!
//! No length from a server sizes a buffer, a connection that stalls is given up, and the token is sent to the hub itself only.

use std::fs;
use std::io::Read;
use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

use hf_hub::{Repo, RepoType};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use ureq::config::RedirectAuthHeaders;
use ureq::http::Response;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::{HubError, HubFile, Snapshot, clean, is_commit, wanted};

const LISTING_BYTES: u64 = 32 << 20;

const CONNECT: Duration = Duration::from_secs(20);
/// The longest silence.
pub(super) const STALL: Duration = Duration::from_secs(30);

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

fn home() -> PathBuf {
    let user = || PathBuf::from(variable("HOME").unwrap_or_default()).join(".cache");
    let cache = || variable("XDG_CACHE_HOME").map_or_else(user, PathBuf::from);
    variable("HF_HOME").map_or_else(|| cache().join("huggingface"), PathBuf::from)
}

/// `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in the user's cache folder.
pub(in crate::cli) fn cache_folder() -> PathBuf {
    let named = variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE"));
    named.map_or_else(|| home().join("hub"), PathBuf::from)
}

/// `HF_TOKEN`, or the file that the hub's own tools write.
fn token() -> Option<String> {
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some() {
        return None;
    }
    let file = variable("HF_TOKEN_PATH").map_or_else(|| home().join("token"), PathBuf::from);
    let text = variable("HF_TOKEN").and_then(|t| t.into_string().ok()).or_else(|| fs::read_to_string(file).ok())?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

pub(in crate::cli) fn is_id(repo: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty() && !p.starts_with('.') && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    repo.split('/').count() == 2 && repo.split('/').all(part)
}

pub(in crate::cli) struct Hub {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    repo: String,
}

impl Hub {
    /// On the hub that `HF_ENDPOINT` names, else on huggingface.co.
    pub(in crate::cli) fn open(repo: &str) -> Result<Hub, HubError> {
        let endpoint = variable("HF_ENDPOINT").and_then(|v| v.into_string().ok());
        Hub::at(endpoint.as_deref().unwrap_or("https://huggingface.co"), repo, token(), STALL)
    }

    pub(in crate::cli) fn at(
        endpoint: &str,
        repo: &str,
        token: Option<String>,
        stall: Duration,
    ) -> Result<Hub, HubError> {
        if !is_id(repo) {
            return Err(HubError::Refused(format!("{} is not a hub id (owner/name)", clean(repo))));
        }
        if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
            return Err(HubError::Refused(format!("HF_ENDPOINT {}: not http or https", clean(endpoint))));
        }
        let agent = Agent::config_builder()
            .user_agent(concat!("sala-chat/", env!("CARGO_PKG_VERSION")))
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .http_status_as_error(false)
            .redirect_auth_headers(RedirectAuthHeaders::SameHost)
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(stall))
            .timeout_per_read(Some(stall))
            .build()
            .into();
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Hub { agent, endpoint, token, repo: repo.to_owned() })
    }

    pub(in crate::cli) fn snapshot(&self, revision: &str) -> Result<Snapshot, HubError> {
        let what = format!("{} at {}", self.repo, clean(revision));
        let repo = Repo::with_revision(self.repo.clone(), RepoType::Model, encoded(revision));
        let mut answer = self.get(&format!("{}/api/{}?blobs=true", self.endpoint, repo.api_url()), None, &what)?;
        let bytes = answer.body_mut().with_config().limit(LISTING_BYTES).read_to_vec().map_err(|e| network(&e))?;
        let info: Value = serde_json::from_slice(&bytes)
            .map_err(|e| HubError::Network(format!("{what}: an answer that cannot be read: {e}")))?;
        let commit = info["sha"].as_str().filter(|sha| is_commit(sha)).map(str::to_owned);
        let commit =
            commit.ok_or_else(|| HubError::Refused(format!("{}: the hub names no commit", clean(revision))))?;
        let licence = info["cardData"]["license"].as_str().map(clean);
        let files: Vec<HubFile> = info["siblings"].as_array().into_iter().flatten().filter_map(file).collect();
        let proper = |f: &HubFile| matches!(f.blob.len(), 40 | 64) && f.blob.bytes().all(|b| b.is_ascii_hexdigit());
        match files.iter().all(proper) {
            true => Ok(Snapshot { commit, files, licence }),
            false => Err(HubError::Refused("the hub names a file without a proper id".to_owned())),
        }
    }

    pub(in crate::cli) fn content(&self, commit: &str, file: &HubFile) -> Result<Vec<u8>, HubError> {
        let mut bytes = Vec::new();
        self.read(commit, &file.path, 0..file.bytes, &mut |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Hands over the bytes of a range as they arrive, and never more.
    pub(super) fn read(
        &self,
        commit: &str,
        path: &str,
        range: Range<u64>,
        take: &mut dyn FnMut(&[u8]) -> Result<(), HubError>,
    ) -> Result<(), HubError> {
        let url = format!("{}/{}/resolve/{}/{}", self.endpoint, self.repo, encoded(commit), encoded(path));
        let mut left = range.end - range.start;
        let mut body = self.get(&url, Some(range), path)?.into_body().into_reader().take(left);
        let mut buffer = vec![0; 256 << 10];
        while left > 0 {
            let failed = |why: String| HubError::Network(format!("{path}: {why}"));
            let read = body.read(&mut buffer).map_err(|e| failed(first_line(&e)))?;
            if read == 0 {
                return Err(failed(format!("the connection ended {left} bytes early")));
            }
            take(buffer.get(..read).unwrap_or_default())?;
            left -= read as u64;
        }
        Ok(())
    }

    fn get(&self, url: &str, range: Option<Range<u64>>, what: &str) -> Result<Response<Body>, HubError> {
        let mut request = self.agent.get(url);
        if let Some(token) = &self.token {
            request = request.header("Authorization", format!("Bearer {token}"));
        }
        if let Some(range) = &range {
            request = request.header("Range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        let answer = request.call().map_err(|e| network(&e))?;
        let header = |name| answer.headers().get(name).and_then(|v| v.to_str().ok());
        let failed = |why: &str| Err(HubError::Network(format!("{what}: {why}")));
        let refused = |why: &str| Err(HubError::Refused(format!("{what}: {why}")));
        let (whole, from, status) = (range.is_none(), range.map_or(0, |r| r.start), answer.status().as_u16());
        let starts_at = match (status, header("content-range")) {
            (206, Some(range)) => range.trim_start_matches("bytes ").split('-').next().and_then(|n| n.parse().ok()),
            (206, None) => Some(from),
            _ => Some(0),
        };
        match status {
            200 | 206 if starts_at == Some(from) => Ok(answer),
            200 | 206 => failed(&format!("other bytes than those from {from} on")),
            // About the repository itself. Without a token a private one looks like a missing one.
            404 | 410 if whole => Err(HubError::Unknown(what.to_owned())),
            401 if whole && self.token.is_none() => Err(HubError::Unknown(what.to_owned())),
            401 | 403 => refused(&format!(
                "the hub requires a login, or that you accept its terms first ({status}): open {}/{} in a browser, \
                 then set HF_TOKEN",
                clean(&self.endpoint),
                self.repo
            )),
            404 | 410 => refused(&format!("not on the hub ({status})")),
            429 | 503 => {
                let wait = header("retry-after").and_then(|v| v.trim().parse().ok());
                Err(HubError::Busy(wait.map(Duration::from_secs)))
            }
            416 | 500..600 => failed(&format!("status {status}")),
            _ => refused(&format!("the hub answers with status {status}")),
        }
    }
}

/// A wanted file of the listing. Large ones have an entry of their own with their hash and size.
fn file(entry: &Value) -> Option<HubFile> {
    let path = entry["rfilename"].as_str().filter(|path| wanted(path))?.to_owned();
    let large = &entry["lfs"];
    let bytes = large["size"].as_u64().or(entry["size"].as_u64()).unwrap_or(0);
    let blob = large["sha256"].as_str().or(large["oid"].as_str()).or(entry["blobId"].as_str()).unwrap_or_default();
    Some(HubFile { path, bytes, blob: blob.to_owned() })
}

/// For an address; separators stay.
fn encoded(text: &str) -> String {
    const OTHERS: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
    utf8_percent_encode(text, OTHERS).to_string()
}

fn first_line(error: &dyn std::fmt::Display) -> String {
    clean(error.to_string().lines().next().unwrap_or_default())
}

fn network(error: &ureq::Error) -> HubError {
    let kind = if matches!(error, ureq::Error::Timeout(_)) { "no answer in time" } else { "connection failed" };
    HubError::Network(format!("{kind}: {}", first_line(error)))
}
