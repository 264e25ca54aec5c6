//! The connection: requests, retries before an answer begins, and the words for failures. Only the configured address
//! receives the key: redirections are not followed. A cancelled request is dropped, with its connection, within one tick.

use std::future::Future;
use std::pin::pin;
use std::time::{Duration, Instant};

use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;

use super::chat::{Listed, is_too_long, models, words_of};
use super::{Key, Patience, RemoteOptions};
use crate::core::sanitize::sanitize_line;
use crate::engine::protocol::Cancel;

const TICK: Duration = Duration::from_millis(20);
const LIST_BYTES: usize = 4 << 20;
const MODELS: &str = "models";
const REFUSAL_BYTES: usize = 64 << 10;
const SHOWN_CHARACTERS: usize = 300;
const LONGEST_WAIT: Duration = Duration::from_secs(60);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    Stopped,
    /// The server refuses the request as it is: one line, and the server's own words unchanged.
    Refused {
        line: String,
        message: String,
    },
    TooLong(String),
    Failed(String),
}

pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    pub(super) shown: String,
    key: Option<Key>,
    pub(super) patience: Patience,
}

/// The endpoint of an address. Without a path it is that of `/v1`.
/// Fails with one line: the fault of the address. It does not repeat a password.
pub fn address(text: &str) -> Result<Url, String> {
    let bad = |why: &str| format!("engine.url {why}. Write it as http://HOST:PORT/v1");
    if !text.contains("://") {
        // A password would be shown.
        let host =
            text.trim().split('/').next().filter(|host| !host.is_empty() && !host.contains(['@', '?', '#', ' ']));
        return Err(host.map_or_else(
            || bad("is no address"),
            |host| format!("engine.url does not begin with http:// or https://. Write it as http://{host}/v1"),
        ));
    }
    let mut url = Url::parse(text.trim()).map_err(|e| bad(&format!("is no address: {e}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(bad("is not one of http or https"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("holds a name or a password; a key goes into engine.key_env or engine.key_file"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("has a part behind ? or #"));
    }
    let path = match url.path().trim_end_matches('/') {
        "" => "/v1".to_owned(),
        path => path.trim_end_matches("/chat/completions").to_owned(),
    };
    url.set_path(&path);
    Ok(url)
}

pub fn in_the_open(url: &Url) -> bool {
    url.scheme() == "http" && !is_local(url)
}

fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

/// The result of `work`; `None` after `limit`, and [`Fault::Stopped`] after a cancel.
pub(super) async fn unless<F: Future>(cancel: &Cancel, limit: Duration, work: F) -> Result<Option<F::Output>, Fault> {
    let mut work = pin!(work);
    let until = Instant::now() + limit;
    loop {
        if cancel.is_cancelled() {
            return Err(Fault::Stopped);
        }
        let left = until.saturating_duration_since(Instant::now());
        match tokio::time::timeout(TICK.min(left), &mut work).await {
            Ok(done) => return Ok(Some(done)),
            Err(_) if left.is_zero() => return Ok(None),
            Err(_) => {}
        }
    }
}

impl Client {
    pub(super) fn new(options: &RemoteOptions) -> Result<Client, String> {
        let base = address(&options.url)?;
        let mut headers = HeaderMap::new();
        for mut value in options.key.iter().filter_map(|key| HeaderValue::from_str(&key.bearer()).ok()) {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        // An error means that a provider is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = reqwest::Client::builder()
            .default_headers(headers)
            .user_agent(concat!("sala-chat/", env!("CARGO_PKG_VERSION")))
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(options.patience.connect);
        // A proxy of the environment cannot reach this machine.
        let builder = if is_local(&base) { builder.no_proxy() } else { builder };
        let http = builder.build().map_err(|e| format!("no connections can be made: {}", cause(&e)))?;
        let shown = sanitize_line(base.as_str()).into_owned();
        Ok(Client { http, base, shown, key: options.key.clone(), patience: options.patience })
    }

    pub(super) fn exposed_key(&self) -> Option<String> {
        (self.key.is_some() && in_the_open(&self.base))
            .then(|| format!("The key goes to {} unencrypted: use https, or a tunnel.", self.shown))
    }

    fn at(&self, path: &str) -> Url {
        let mut url = self.base.clone();
        url.set_path(&format!("{}/{path}", self.base.path()));
        url
    }

    /// Makes a server's words fit to be shown: one line, without the key.
    pub(super) fn cleaned(&self, message: &str) -> String {
        let message = self.key.as_ref().map_or_else(|| message.to_owned(), |key| key.without(message));
        let line = sanitize_line(message.trim());
        match line.char_indices().nth(SHOWN_CHARACTERS) {
            Some((end, _)) => format!("{}…", line.get(..end).unwrap_or(&line)),
            None => line.into_owned(),
        }
    }

    pub(super) async fn models(&self, cancel: &Cancel) -> Result<Vec<Listed>, Fault> {
        let limit = self.patience.connect;
        let ask = async {
            let sent = self.http.get(self.at(MODELS)).send().await;
            let response = sent.map_err(|e| self.unreachable(&e))?;
            if !response.status().is_success() {
                return Err(self.refusal(response, MODELS, 1).await);
            }
            Ok(body(response, LIST_BYTES).await)
        };
        let bytes = match unless(cancel, limit, ask).await? {
            Some(answer) => answer?,
            None => return Err(Fault::Failed(format!("{} does not list its models in time.", self.shown))),
        };
        let list = serde_json::from_slice::<Value>(&bytes).ok();
        list.as_ref().and_then(models).ok_or_else(|| {
            Fault::Failed(format!("{} lists no models: is it the address of an OpenAI-style server?", self.shown))
        })
    }

    /// Sends a request until an answer begins. `waits` receives the status line.
    pub(super) async fn ask(
        &self,
        request: &Value,
        cancel: &Cancel,
        waits: &dyn Fn(String),
    ) -> Result<Response, Fault> {
        let body = request.to_string();
        let mut tried = 0;
        loop {
            tried += 1;
            waits(format!("waiting for {}", self.shown));
            let request = self.http.post(self.at("chat/completions"));
            let request = request.header(CONTENT_TYPE, "application/json").header(ACCEPT, "text/event-stream");
            let sent = unless(cancel, self.patience.first, request.body(body.clone()).send()).await?;
            let (fault, wait) = match sent {
                None => {
                    let seconds = self.patience.first.as_secs();
                    let line = format!("{} did not begin to answer within {seconds} s (engine.wait_s).", self.shown);
                    return Err(Fault::Failed(line));
                }
                Some(Err(e)) => (self.unreachable(&e), None),
                Some(Ok(response)) if response.status().is_success() => return Ok(response),
                Some(Ok(response)) => {
                    let status = response.status();
                    let passes = status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error();
                    let wait = retry_after(&response);
                    let read = unless(cancel, self.patience.connect, self.refusal(response, "chat/completions", tried));
                    let fault =
                        read.await?.unwrap_or_else(|| Fault::Failed(format!("{} failed ({status}).", self.shown)));
                    if !passes || matches!(fault, Fault::TooLong(_)) {
                        return Err(fault);
                    }
                    (fault, wait)
                }
            };
            let wait = wait.unwrap_or(self.patience.retry * 2u32.saturating_pow(tried - 1));
            if tried >= self.patience.tries || wait > LONGEST_WAIT {
                return Err(fault);
            }
            if let Fault::Failed(line) = &fault {
                let (seconds, tries) = (wait.as_secs_f64().ceil(), self.patience.tries);
                waits(format!("{line} Trying again in {seconds:.0} s ({tried} of {tries})"));
            }
            unless(cancel, wait, std::future::pending::<()>()).await?;
        }
    }

    fn unreachable(&self, error: &reqwest::Error) -> Fault {
        let cause = self.cleaned(&cause(error));
        Fault::Failed(match (error.is_connect(), error.is_timeout()) {
            (_, true) => format!("{} does not accept a connection in time. Is the server up?", self.shown),
            (true, _) => format!("Nothing answers at {}: {cause}. Is the server running?", self.shown),
            _ => format!("{} ended the connection before it answered: {cause}.", self.shown),
        })
    }

    async fn refusal(&self, response: Response, path: &str, tried: u32) -> Fault {
        let status = response.status();
        let to = response.headers().get("location").and_then(|to| to.to_str().ok());
        let to = self.cleaned(to.unwrap_or("another address"));
        let bytes = body(response, REFUSAL_BYTES).await;
        let text = String::from_utf8_lossy(&bytes);
        let message = match serde_json::from_str::<Value>(&text) {
            Ok(value) => words_of(&value).unwrap_or_default(),
            Err(_) => line_in(&text).to_owned(),
        };
        let (at, code) = (&self.shown, status.as_u16());
        let attempts = if tried == 1 { "asked once".to_owned() } else { format!("asked {tried} times") };
        let line = match code {
            401 if self.key.is_none() => format!("{at} requires a key (401): set engine.key_file or engine.key_env."),
            401 => format!("{at} rejects the key (401), which engine.key_file or engine.key_env names."),
            403 => format!("{at} does not allow it (403): the key has no right to this model."),
            // The caller that lists the models adds how to do without the list.
            404 if path == MODELS => format!("{at} has no {path} (404). The address ends in /v1."),
            404 => format!("{at} has no {path}, or not this model (404): check the address and engine.model."),
            413 => format!("{at} rejects a conversation of this length (413). Make it shorter, or start a new one."),
            400 | 422 => format!("{at} refuses the request ({code})."),
            429 => format!("{at} is busy (429), {attempts}."),
            300..=399 => format!("{at} redirects to {to} ({code}); give that address with --engine."),
            500..=599 => format!("{at} failed ({code}), {attempts}."),
            _ => format!("{at} answers with status {code}."),
        };
        let words = self.cleaned(&message);
        let line = if words.is_empty() { line } else { format!("{line} It says: {words}") };
        match code {
            400 | 422 => Fault::Refused { line, message },
            413 => Fault::TooLong(line),
            500..=599 if is_too_long(&message) => Fault::TooLong(line),
            _ => Fault::Failed(line),
        }
    }
}

/// The first text of a page, which is its title, or the first line of other text.
pub(super) fn line_in(text: &str) -> &str {
    let is_page = text.trim_start().starts_with('<');
    let pieces = text.split(if is_page { '<' } else { '\n' });
    let texts = pieces.map(|piece| piece.split_once('>').filter(|_| is_page).map_or(piece, |(_, text)| text));
    texts.map(str::trim).find(|text| !text.is_empty()).unwrap_or("")
}

pub(super) fn sentence(line: &str) -> String {
    if line.ends_with(['.', '?', '!', '…']) { line.to_owned() } else { format!("{line}.") }
}

/// The line that a user reads; `None` after a stop.
pub(super) fn line_of(fault: Fault) -> Option<String> {
    match fault {
        Fault::Stopped => None,
        Fault::Refused { line, .. } | Fault::TooLong(line) | Fault::Failed(line) => Some(line),
    }
}

fn retry_after(response: &Response) -> Option<Duration> {
    let seconds: f64 = response.headers().get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Duration::try_from_secs_f64(seconds).ok()
}

pub(super) fn cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// At most `most` bytes of a body. Bytes before an error count.
async fn body(mut response: Response, most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        match response.chunk().await {
            Ok(Some(piece)) => bytes.extend_from_slice(piece.get(..piece.len().min(most - bytes.len())).unwrap_or(&[])),
            Ok(None) | Err(_) => break,
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_completed_or_refused() {
        let at = |text: &str| address(text).map(|u| u.to_string());
        assert_eq!(at("http://127.0.0.1:8000").unwrap(), "http://127.0.0.1:8000/v1");
        assert_eq!(at(" https://host/v1/ ").unwrap(), "https://host/v1");
        assert_eq!(at("http://host/api/v3/chat/completions").unwrap(), "http://host/api/v3");
        for odd in ["host:8000/v1", "127.0.0.1", "ftp://host/v1", "", "http://host/v1?key=1", "http://host/#x"] {
            assert!(at(odd).is_err(), "{odd}");
        }
        let error = at("localhost:99").unwrap_err();
        assert!(error.ends_with("Write it as http://localhost:99/v1"), "{error}");
        let error = at("me:hunter2@host").unwrap_err();
        assert!(!error.contains("hunter2"), "{error}");
        let error = at("http://me:hunter2@host/v1").unwrap_err();
        assert!(!error.contains("hunter2") && error.contains("engine.key_env"), "{error}");
    }

    #[test]
    fn this_machine_is_known() {
        let local = |text: &str| is_local(&address(text).unwrap());
        assert!(local("http://localhost:1") && local("http://127.0.0.9:1") && local("http://[::1]:1"));
        assert!(!local("http://10.0.0.1:1") && !local("https://example.org"));
    }
}
