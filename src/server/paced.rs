//! The bytes of a connection: a reader must take some regularly, and an unreadable head gets an error in the server's
//! form.

use super::Refusal;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

pub(super) const HEAD_BYTES: usize = 64 << 10;
pub(super) const HEAD_LINES: usize = 100;
/// A reader that takes nothing for this long counts as disconnected.
const STUCK: Duration = Duration::from_secs(60);

pub(super) struct Paced {
    pub stream: TcpStream,
    /// Runs while nothing can be written.
    stuck: Option<Pin<Box<Sleep>>>,
}

impl Paced {
    pub(super) fn new(stream: TcpStream) -> Paced {
        Paced { stream, stuck: None }
    }

    fn paced<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.stuck = None;
            return polled;
        }
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + STUCK)));
        ready!(stuck.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

/// The refusal for a response that the HTTP library writes by itself after an unreadable head. The library's response
/// has no content type, and all others have one: there is no other sign. It has no body either.
fn unreadable(written: &[u8]) -> Option<Refusal> {
    written.strip_prefix(b"HTTP/1.")?;
    let head = std::str::from_utf8(written).ok().filter(|head| head.ends_with("\r\n\r\n"))?;
    if head.contains("\r\ncontent-type:") {
        return None;
    }
    match head.get(9..12)? {
        "400" => Some(Refusal::new(400, "invalid_http", "no HTTP request: its first line or a header cannot be read")),
        "414" => Some(Refusal::new(414, "url_too_long", "the path is too long; put what is long into the body")),
        "431" => Some(head_too_large()),
        _ => None,
    }
}

/// The HTTP library may read up to twice the limit before it reports a large head.
pub(super) fn head_too_large() -> Refusal {
    let message =
        format!("the request's head is larger than {} KiB, or of more than {HEAD_LINES} lines", HEAD_BYTES >> 10);
    Refusal::new(431, "headers_too_large", message)
}

impl AsyncRead for Paced {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Paced {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
        let polled = match unreadable(from) {
            None => Pin::new(&mut self.stream).poll_write(context, from),
            Some(refusal) => {
                let whole = refusal.whole();
                // This write ends the connection: the socket takes so few bytes at once, or the client is not reading.
                let all = |n| if n == whole.len() { Ok(from.len()) } else { Err(io::ErrorKind::WriteZero.into()) };
                Pin::new(&mut self.stream).poll_write(context, whole.as_bytes()).map(|written| written.and_then(all))
            }
        };
        self.paced(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_the_library_itself_are_recognized() {
        let code = |written: &str| unreadable(written.as_bytes()).map(|refusal| (refusal.status, refusal.code));
        let bare = |status: &str| format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        assert_eq!(code(&bare("400 Bad Request")), Some((400, "invalid_http")));
        assert_eq!(code(&bare("414 URI Too Long")), Some((414, "url_too_long")));
        assert_eq!(code(&bare("431 Request Header Fields Too Large")), Some((431, "headers_too_large")));
        assert_eq!(code(&bare("400 Bad Request").replace("1.1", "1.0")), Some((400, "invalid_http")));
        for other in ["200 OK", "404 Not Found", "500 Internal Server Error"] {
            assert_eq!(code(&bare(other)), None, "{other}");
        }
        assert_eq!(code(&Refusal::field("n", "must be a number").whole()), None);
        assert_eq!(code("HTTP/1.1 100 Continue\r\n\r\n"), None);
        for part in ["", "HTTP/1.", "HTTP/1.1 4", "{\"a\": 1}", "HTTP/1.1 400 Bad Request\r\n"] {
            assert_eq!(code(part), None, "{part}");
        }
    }
}
