//! The hub over HTTP: huggingface.co, or what `HF_ENDPOINT` names.
//!
//! Nothing that a server says sizes a buffer: bodies are taken piece by piece up to what was asked for, and a connection
//! that stalls or drips is given up. The token, where there is one, goes to the hub itself only.

use std::ops::Range;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use reqwest::header::{AUTHORIZATION, CONTENT_RANGE, LINK, RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use serde::Deserialize;

use super::{Hub, HubError, HubFile, Snapshot, clean, is_commit, wanted};

/// Longest answer that is no file.
const ANSWER_BYTES: u64 = 32 << 20;
/// Pages of a file list.
const PAGES: usize = 100;

/// How long the hub may take.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Patience {
    /// To answer a connection.
    pub(in crate::cli) connect: Duration,
    /// Between two pieces of a body.
    pub(in crate::cli) stall: Duration,
    /// Over which a body brings at least `least_bytes`.
    pub(in crate::cli) slow: Duration,
    /// See `slow`.
    pub(in crate::cli) least_bytes: u64,
}

impl Default for Patience {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Patience { connect: seconds(20), stall: seconds(30), slow: seconds(60), least_bytes: 64 << 10 }
    }
}

/// One repository of a hub.
pub(in crate::cli) struct Http {
    client: Client,
    runtime: tokio::runtime::Runtime,
    endpoint: Url,
    token: Option<String>,
    repo: String,
    patience: Patience,
}

/// Where hub tools keep what they fetched: `HF_HUB_CACHE`, else `hub` in `HF_HOME`, else in the user's cache folder.
pub(in crate::cli) fn cache_folder() -> PathBuf {
    match variable("HF_HUB_CACHE").or_else(|| variable("HUGGINGFACE_HUB_CACHE")) {
        Some(folder) => PathBuf::from(folder),
        None => home().join("hub"),
    }
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|v| !v.is_empty())
}

fn home() -> PathBuf {
    let cache = || variable("XDG_CACHE_HOME").map(PathBuf::from);
    let user = || PathBuf::from(variable("HOME").unwrap_or_default()).join(".cache");
    variable("HF_HOME").map_or_else(|| cache().unwrap_or_else(user).join("huggingface"), PathBuf::from)
}

/// The user's token for the hub: `HF_TOKEN`, or the file that the hub's own tools write.
fn token() -> Option<String> {
    if variable("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_some() {
        return None;
    }
    let file = variable("HF_TOKEN_PATH").map_or_else(|| home().join("token"), PathBuf::from);
    let text =
        variable("HF_TOKEN").and_then(|t| t.into_string().ok()).or_else(|| std::fs::read_to_string(file).ok())?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[derive(Deserialize)]
struct Info {
    sha: Option<String>,
    #[serde(rename = "cardData")]
    card: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    #[serde(default)]
    oid: String,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    #[serde(alias = "sha256")]
    oid: String,
    size: Option<u64>,
}

/// Whether it is an id of the hub, `owner/name`.
pub(in crate::cli) fn is_id(repo: &str) -> bool {
    let part = |p: &str| {
        !p.is_empty() && !p.starts_with('.') && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    repo.split('/').count() == 2 && repo.split('/').all(part)
}

impl Http {
    /// A repository of the hub that the environment names.
    ///
    /// # Errors
    /// No hub id, or no such endpoint.
    pub(in crate::cli) fn open(repo: &str) -> Result<Http, HubError> {
        let endpoint = variable("HF_ENDPOINT").and_then(|v| v.into_string().ok());
        Http::at(endpoint.as_deref().unwrap_or("https://huggingface.co"), repo, token(), Patience::default())
    }

    /// A repository of a hub.
    ///
    /// # Errors
    /// No hub id, or no such endpoint.
    pub(in crate::cli) fn at(
        endpoint: &str,
        repo: &str,
        token: Option<String>,
        patience: Patience,
    ) -> Result<Http, HubError> {
        if !is_id(repo) {
            return Err(HubError::Refused(format!("{} is no hub id (owner/name)", clean(repo))));
        }
        let bad = |e: &dyn std::fmt::Display| HubError::Refused(format!("HF_ENDPOINT {}: {e}", clean(endpoint)));
        let endpoint = Url::parse(&format!("{}/", endpoint.trim_end_matches('/'))).map_err(|e| bad(&e))?;
        if !matches!(endpoint.scheme(), "http" | "https") {
            return Err(bad(&"not http or https"));
        }
        let client = Client::builder()
            .user_agent(concat!("sala-chat/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(patience.connect)
            .read_timeout(patience.stall)
            .build()
            .map_err(|e| network(&e))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| HubError::Network(e.to_string()))?;
        Ok(Http { client, runtime, endpoint, token, repo: repo.to_owned(), patience })
    }

    /// An address on the hub, of parts that may hold any character.
    fn address(&self, parts: &[&str]) -> Result<Url, HubError> {
        let mut url = self.endpoint.clone();
        let whole = || HubError::Refused("the hub's address is no address of files".to_owned());
        let pieces = parts.iter().flat_map(|p| p.split('/'));
        url.path_segments_mut().map_err(|()| whole())?.pop_if_empty().extend(pieces);
        Ok(url)
    }

    async fn get(&self, url: Url, range: Option<Range<u64>>, what: &str) -> Result<Response, HubError> {
        let mut request = self.client.get(url.clone());
        if let Some(token) = self.token.as_ref().filter(|_| url.origin() == self.endpoint.origin()) {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(range) = &range {
            request = request.header(RANGE, format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
        }
        let answer = request.send().await.map_err(|e| network(&e))?;
        self.accepted(answer, range, what)
    }

    /// Whether an answer is what was asked for.
    fn accepted(&self, answer: Response, range: Option<Range<u64>>, what: &str) -> Result<Response, HubError> {
        let status = answer.status();
        let unknown = match status {
            StatusCode::NOT_FOUND | StatusCode::GONE => true,
            // Who is not logged in is not told that there is none.
            StatusCode::UNAUTHORIZED => self.token.is_none(),
            _ => false,
        };
        // Of the repository, not of a part of one of its files.
        if unknown && range.is_none() {
            return Err(HubError::Unknown(what.to_owned()));
        }
        let seconds = || answer.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse::<u64>().ok();
        match status {
            StatusCode::OK if range.as_ref().is_none_or(|r| r.start == 0) => Ok(answer),
            StatusCode::OK => Err(HubError::Network(format!("{what}: the hub sends it from the start only"))),
            StatusCode::PARTIAL_CONTENT => {
                let start = answer
                    .headers()
                    .get(CONTENT_RANGE)
                    .and_then(|v| v.to_str().ok())
                    .and_then(|v| v.trim().strip_prefix("bytes ")?.split('-').next()?.trim().parse::<u64>().ok());
                match (start, range) {
                    (Some(start), Some(range)) if start != range.start => {
                        Err(HubError::Network(format!("{what}: bytes from {start} instead of {}", range.start)))
                    }
                    _ => Ok(answer),
                }
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(HubError::Refused(format!(
                "{what}: the hub wants you to be logged in, or to accept its terms first ({}): open {} in a browser, then set \
                 HF_TOKEN",
                status.as_u16(),
                self.endpoint.join(&self.repo).map_or_else(|_| self.repo.clone(), |u| u.to_string())
            ))),
            StatusCode::NOT_FOUND | StatusCode::GONE => {
                Err(HubError::Refused(format!("{what}: not on the hub ({})", status.as_u16())))
            }
            StatusCode::RANGE_NOT_SATISFIABLE => {
                Err(HubError::Range { path: what.to_owned(), from: range.map_or(0, |r| r.start) })
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(HubError::Busy {
                what: format!("status {}", status.as_u16()),
                wait: seconds().map(Duration::from_secs),
            }),
            s if s.is_server_error() => Err(HubError::Network(format!("{what}: status {}", s.as_u16()))),
            s => Err(HubError::Refused(format!("{what}: the hub answers with status {}", s.as_u16()))),
        }
    }

    /// At most `most` bytes of a body. What came before an error counts; the rest is asked for again.
    async fn body(&self, mut answer: Response, most: u64) -> Result<Vec<u8>, HubError> {
        let mut bytes: Vec<u8> = Vec::new();
        let mut window = (Instant::now(), 0usize);
        while (bytes.len() as u64) < most {
            match answer.chunk().await {
                Ok(None) => break,
                Ok(Some(piece)) => {
                    let room = usize::try_from(most - bytes.len() as u64).unwrap_or(usize::MAX);
                    bytes.extend_from_slice(piece.get(..room.min(piece.len())).unwrap_or(&[]));
                }
                Err(_) if !bytes.is_empty() => break,
                Err(e) => return Err(network(&e)),
            }
            if window.0.elapsed() > self.patience.slow {
                if ((bytes.len() - window.1) as u64) < self.patience.least_bytes {
                    return Err(HubError::Network(format!(
                        "less than {} bytes in {} s",
                        self.patience.least_bytes,
                        self.patience.slow.as_secs_f32()
                    )));
                }
                window = (Instant::now(), bytes.len());
            }
        }
        Ok(bytes)
    }

    async fn json<T: serde::de::DeserializeOwned>(&self, url: Url, what: &str) -> Result<(T, Option<Url>), HubError> {
        let answer = self.get(url, None, what).await?;
        let next = answer.headers().get(LINK).and_then(|v| v.to_str().ok()).and_then(next_page);
        let next = next.and_then(|u| self.endpoint.join(&u).ok()).filter(|u| u.origin() == self.endpoint.origin());
        let bytes = self.body(answer, ANSWER_BYTES).await?;
        let parsed = serde_json::from_slice(&bytes);
        Ok((parsed.map_err(|e| HubError::Network(format!("{what}: an answer that cannot be read: {e}")))?, next))
    }

    async fn list(&self, revision: &str) -> Result<Snapshot, HubError> {
        let at = self.address(&["api", "models", &self.repo, "revision", revision])?;
        let (info, _): (Info, _) = self.json(at, &format!("{} at {}", self.repo, clean(revision))).await?;
        let commit = info.sha.filter(|sha| is_commit(sha));
        let commit =
            commit.ok_or_else(|| HubError::Refused(format!("{}: the hub names no commit", clean(revision))))?;
        let licence = info.card.as_ref().and_then(|c| c.get("license")).and_then(|l| l.as_str()).map(clean);
        let mut at = self.address(&["api", "models", &self.repo, "tree", &commit])?;
        at.set_query(Some("recursive=true"));
        let mut files = Vec::new();
        let mut next = Some(at);
        for _ in 0..PAGES {
            let Some(at) = next.take() else { break };
            let (entries, more): (Vec<Entry>, _) = self.json(at, &self.repo).await?;
            files.extend(entries.into_iter().filter(|e| e.kind == "file" && wanted(&e.path)).map(file));
            next = more;
        }
        let proper = |f: &HubFile| matches!(f.blob.len(), 40 | 64) && f.blob.bytes().all(|b| b.is_ascii_hexdigit());
        if !files.iter().all(proper) {
            return Err(HubError::Refused("the hub names a file without a proper id".to_owned()));
        }
        Ok(Snapshot { commit, files, licence })
    }
}

fn file(entry: Entry) -> HubFile {
    let (bytes, sha256) = match entry.lfs {
        Some(large) => (large.size.unwrap_or(entry.size), Some(large.oid)),
        None => (entry.size, None),
    };
    HubFile { path: entry.path, bytes, blob: sha256.clone().unwrap_or(entry.oid), sha256 }
}

/// The address in `<…>; rel="next"`.
fn next_page(link: &str) -> Option<String> {
    let next = link.split(',').find(|l| l.contains("rel=\"next\""))?;
    Some(next.trim().strip_prefix('<')?.split('>').next()?.to_owned())
}

fn network(error: &reqwest::Error) -> HubError {
    // The first line of the innermost cause: the others repeat the address.
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let kind = if error.is_timeout() { "no answer in time" } else { "connection failed" };
    HubError::Network(format!("{kind}: {}", clean(cause.to_string().lines().next().unwrap_or_default())))
}

impl Hub for Http {
    fn snapshot(&self, revision: &str) -> Result<Snapshot, HubError> {
        self.runtime.block_on(self.list(revision))
    }

    fn read(&self, commit: &str, path: &str, range: Range<u64>) -> Result<Vec<u8>, HubError> {
        let url = self.address(&[&self.repo, "resolve", commit, path])?;
        let most = range.end - range.start;
        self.runtime.block_on(async { self.body(self.get(url, Some(range), path).await?, most).await })
    }
}

#[cfg(test)]
#[path = "http_tests.rs"]
mod tests;
