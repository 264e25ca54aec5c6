//! Connections: accepting, limits of time and number, the table of paths, and orderly shutdown.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::body::BODY_BYTES;
use super::context::{self, Context};
use super::guests::{Guest, Guests};
use super::ids::fresh_id;
use super::owner::{self, Owner};
use super::paced::{HEAD_BYTES, HEAD_LINES, Paced, head_too_large};
use super::refusal::{Family, Refusal};
use super::{MCP, Mounted, Phase, Shared, auth, chat, completions, files, messages, plain, responses};

/// Open connections. One more evicts the oldest connection that has sent no request; without such a one, the new one
/// gets an error.
const CONNECTIONS: usize = 512;
/// At shutdown, how long a request in transit may take to arrive.
const COMING: Duration = Duration::from_secs(2);
/// At a forced stop, how long running answers have to send their last event.
const BREAKING_OFF: Duration = Duration::from_secs(1);
/// How long, and for how many bytes, the server reads on after a refusal: a client that still sends into a closed
/// connection loses the response.
const HEARD_OUT: Duration = Duration::from_secs(3);
const HEARD_BYTES: usize = 2 * BODY_BYTES;
/// Deadline for a request's head, also for the next one on the same connection.
const HEAD: Duration = Duration::from_secs(30);
const RENDERERS: usize = 4;
/// Pause after a failed accept, for example with too many open files.
const PAUSE: Duration = Duration::from_millis(100);

type Handlers = MethodRouter<Arc<Shared>>;

const ROUTES: [(&str, fn() -> Handlers); 20] = [
    ("/health", || get(plain::health)),
    ("/metrics", || get(plain::metrics)),
    ("/park", || post(plain::park)),
    ("/unpark", || post(plain::unpark)),
    ("/v1/models", || get(plain::models)),
    ("/v1/models/{id}", || get(plain::model_route)),
    ("/v1/files", || get(files::list)),
    ("/v1/files/{id}", || get(files::one)),
    ("/tokenizer_info", || get(plain::tokenizer_info)),
    ("/tokenize", || post(plain::tokenize)),
    ("/detokenize", || post(plain::detokenize)),
    ("/v1/chat/completions", || post(chat::completions)),
    ("/v1/completions", || post(completions::completions)),
    ("/v1/responses", || post(responses::responses)),
    ("/v1/responses/{id}/input_items", || get(responses::named::input_items)),
    ("/v1/responses/input_tokens", || post(responses::input_tokens)),
    ("/v1/responses/compact", || post(responses::compact)),
    ("/v1/responses/{id}", || get(responses::named::get).delete(responses::named::delete)),
    ("/v1/messages", || post(messages::messages)),
    ("/v1/messages/count_tokens", || post(messages::count_tokens)),
];

fn label(path: &str) -> &'static str {
    let matches = |route: &str| match route.split_once('{') {
        None => path == route,
        Some((before, name)) => {
            let after = name.split_once('}').map_or("", |(_, after)| after);
            path.len() > before.len() + after.len() && path.starts_with(before) && path.ends_with(after)
        }
    };
    ROUTES.iter().map(|(route, _)| *route).chain([MCP]).find(|route| matches(route)).unwrap_or("other")
}

pub(super) fn serve(shared: &Arc<Shared>, listener: TcpListener, mcp: Option<Mounted>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(RENDERERS).build()?;
    let served = runtime.block_on(accept(Arc::clone(shared), listener, mcp));
    runtime.shutdown_background();
    served
}

fn router(shared: &Arc<Shared>, mcp: Option<Router>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, (path, handlers)| router.route(path, handlers()));
    mcp.into_iter()
        .fold(routes, |routes, mcp| routes.nest_service(MCP, mcp))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(from_fn_with_state(Arc::clone(shared), admit))
        .with_state(Arc::clone(shared))
}

async fn unknown(method: Method, uri: Uri) -> Refusal {
    Refusal::new(404, "unknown_url", format!("{method} {} is not known here", uri.path()))
}

async fn wrong_method(method: Method, uri: Uri) -> Refusal {
    Refusal::new(405, "method_not_allowed", format!("{} does not take {method}", uri.path()))
}

fn head_bytes(request: &Request) -> usize {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    path + request.headers().iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let family = Family::of(path);
    let label = label(path);
    let guest = request.extensions().get::<Arc<Guest>>().cloned().unwrap_or_default();
    guest.has_request.store(true, Ordering::Relaxed);
    // The health check needs no key, but passes all other checks.
    let key = shared.key.as_ref();
    let page = auth::allowed_page(&shared.rules.allowed_origins, request.headers());
    if let (Some(page), true) = (&page, request.method() == Method::OPTIONS) {
        return auth::preflight(page, request.headers());
    }
    let admitted = match auth::check(key, page.is_some(), request.uri(), request.headers()) {
        _ if head_bytes(&request) > HEAD_BYTES => Err(head_too_large()),
        Err(refusal) if refusal.status == 401 && path == "/health" => Ok(()),
        other => other,
    };
    let admitted = admitted.and_then(|()| match guest.owner {
        Owner::Other => Err(auth::other_user()),
        Owner::Unknown if label == MCP => Err(context::key_required()),
        Owner::HasKey | Owner::Same | Owner::Unknown => Ok(()),
    });
    let context = Arc::new(Context::new(shared.rules.refuse_unknown, guest.owner));
    let request = request.map(|body| Guest::asking(&guest, body));
    let mut response = match admitted {
        Ok(()) => Arc::clone(&context).scope(next.run(request)).await,
        Err(refusal) => {
            drop(request);
            refusal.into_response()
        }
    };
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        response = refusal.respond(family);
    }
    shared.metrics.request(label, response.status().as_u16());
    let left_out = context.left_out();
    for name in left_out.iter().filter(|name| shared.metrics.ignored(name)) {
        tracing::warn!("{label}: {name:?} is not known and was ignored (serve.unknown_fields)");
    }
    let headers = response.headers_mut();
    if let Some(page) = page {
        auth::open_to(page, headers);
    }
    let id = HeaderValue::from_str(&fresh_id("req_")).ok();
    for (name, value) in
        [("x-sala-ignored", context::header(&left_out)), ("request-id", id.clone()), ("x-request-id", id)]
    {
        value.and_then(|value| headers.insert(name, value));
    }
    response.map(|body| Guest::answering(&guest, body))
}

async fn reached(phase: &mut watch::Receiver<Phase>, at: Phase) {
    // The sender outlives the connections, so the error cannot occur.
    let _ = phase.wait_for(|p| *p >= at).await.map(drop);
}

async fn accept(shared: Arc<Shared>, listener: TcpListener, mcp: Option<Mounted>) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let (mcp, end) = mcp.map(|mcp| (mcp.router, mcp.end)).unzip();
    let router = router(&shared, mcp);
    let mut phase = shared.phase.subscribe();
    let mut open = JoinSet::new();
    let mut guests = Guests::default();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if guests.have_room(CONNECTIONS) => {
                    let owner = if shared.key.is_some() { Owner::HasKey } else { owner::of(&stream) };
                    let guest = guests.enter(owner);
                    let router = router.clone().layer(Extension(Arc::clone(&guest)));
                    open.spawn(connection(Arc::clone(&shared), stream, router, guest));
                }
                Ok((stream, _)) => turn_away(&stream),
                Err(e) => {
                    tracing::warn!("a connection was not accepted: {e}");
                    tokio::time::sleep(PAUSE).await;
                }
            },
            Some(_) = open.join_next() => {}
            () = reached(&mut phase, Phase::Ending) => break,
        }
    }
    drop(listener);
    end.into_iter().for_each(|end| end());
    loop {
        tokio::select! {
            ended = open.join_next() => if ended.is_none() { return Ok(()) },
            () = reached(&mut phase, Phase::Stopping) => {
                let ended = async { while open.join_next().await.is_some() {} };
                let _ = tokio::time::timeout(BREAKING_OFF, ended).await;
                open.shutdown().await;
                return Ok(());
            }
        }
    }
}

/// Answers a connection beyond the limit, if the socket takes the bytes without blocking.
fn turn_away(stream: &TcpStream) {
    let whole = Refusal::new(503, "too_many_connections", "too many connections").whole();
    let _ = stream.try_write(whole.as_bytes());
}

struct Counted(Arc<Shared>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connection(shared: Arc<Shared>, stream: TcpStream, router: Router, guest: Arc<Guest>) {
    shared.metrics.connections.fetch_add(1, Ordering::Relaxed);
    let mut phase = shared.phase.subscribe();
    let _counted = Counted(Arc::clone(&shared));
    // Stream events must not wait for a full packet.
    let _ = stream.set_nodelay(true);
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    let service = TowerToHyperService::new(router);
    let mut connection = builder.serve_connection(TokioIo::new(Paced::new(stream)), service);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = guest.leave.notified() => return,
        () = reached(&mut phase, Phase::Ending) => {
            Pin::new(&mut connection).graceful_shutdown();
            tokio::select! {
                ended = &mut connection => ended,
                () = nothing_came(&guest) => return,
            }
        }
    };
    if let Err(e) = &ended {
        tracing::debug!("a connection ended: {e}");
    }
    // After an unreadable head, the client may still be sending as well.
    if guest.cut_short.load(Ordering::Relaxed) || ended.is_err_and(|e| e.is_parse()) {
        let stream = connection.into_parts().io.into_inner().stream;
        tokio::select! {
            () = hear_out(&stream) => {}
            () = reached(&mut phase, Phase::Ending) => {}
        }
    }
}

/// At shutdown, completes when the time for a request in transit has run out; never completes once the request has
/// arrived.
async fn nothing_came(guest: &Guest) {
    tokio::time::sleep(COMING).await;
    if guest.answered.load(Ordering::Relaxed) {
        std::future::pending::<()>().await;
    }
}

/// Discards the bytes that a client still sends.
async fn hear_out(stream: &TcpStream) {
    let (mut buffer, mut left) = (vec![0; HEAD_BYTES], HEARD_BYTES);
    let heard = async {
        while left > 0 && stream.readable().await.is_ok() {
            match stream.try_read(&mut buffer) {
                Ok(0) => return,
                Ok(n) => left = left.saturating_sub(n),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(HEARD_OUT, heard).await;
}
