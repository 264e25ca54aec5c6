//! Connections: accepting, limits of time and number, the table of paths, orderly shutdown.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderValue, Method, Uri};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, get, post};
use axum::{Extension, Router};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::ask::answers;
use super::auth;
use super::request::{self, BODY_BYTES, Context, Ends, REQUEST};
use super::{
    Family, MCP, Mounted, Owner, Phase, Refusal, Result, Shared, chat, completions, files, fresh_id, locked, messages,
    plain, responses,
};
use crate::config::settings::UnknownFields;

/// Open connections. One more waits until another ends; [`HEAD`] ends those without a request.
const CONNECTIONS: usize = 512;
/// At shutdown, how long a request in transit may take to arrive.
const COMING: Duration = Duration::from_secs(2);
/// At a forced stop, how long running answers have to send their last event.
const BREAKING_OFF: Duration = Duration::from_secs(1);
/// How long, and for how many bytes, the server reads on after a refusal: else a client that still sends loses it.
const HEARD_OUT: Duration = Duration::from_secs(3);
const HEARD_BYTES: u64 = 2 * BODY_BYTES as u64;
/// Deadline for a request's head, also for the next one on the same connection.
const HEAD: Duration = Duration::from_secs(30);
const HEAD_BYTES: usize = 64 << 10;
const HEAD_LINES: usize = 100;
/// A reader that takes nothing for this long counts as disconnected.
#[cfg(target_os = "linux")]
const STUCK: Duration = Duration::from_secs(60);
/// Threads that read and render requests; each may wait for the reader of a PDF.
const RENDERERS: usize = 8;
/// Pause after a failed accept, for example with too many open files.
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Default)]
struct Connection {
    owner: Owner,
    /// A second reference means: a request has arrived, and its response is incomplete.
    answering: Arc<()>,
    /// A response began before the end of its request.
    cut_short: AtomicBool,
}

pub(super) fn serve(shared: &Arc<Shared>, listener: TcpListener, mcp: Option<Mounted>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(RENDERERS).build()?;
    let served = runtime.block_on(accept(Arc::clone(shared), listener, mcp));
    runtime.shutdown_background();
    served
}

type Access = State<Arc<Shared>>;

fn router(shared: &Arc<Shared>, mcp: Option<Router>) -> Router {
    let routes = Router::new()
        .route("/health", get(plain::health))
        .route("/metrics", get(plain::metrics))
        .route("/park", post(|State(shared): Access| plain::parked(shared, true)))
        .route("/unpark", post(|State(shared): Access| plain::parked(shared, false)))
        .route("/v1/models", get(plain::models))
        .route("/v1/models/{id}", request::by_id(MethodFilter::GET, plain::model_named))
        .route("/v1/files", get(files::listed))
        .route("/v1/files/{id}", request::by_id(MethodFilter::GET, files::described))
        .route("/tokenizer_info", get(plain::tokenizer_info))
        .route("/tokenize", request::posted(plain::tokenize))
        .route("/detokenize", request::posted(plain::detokenize))
        .route("/v1/chat/completions", answers(chat::read))
        .route("/v1/completions", post(completions::completions))
        .route("/v1/responses", answers(responses::read))
        .route("/v1/responses/input_tokens", request::posted(responses::input_tokens))
        .route("/v1/responses/compact", post(responses::compact))
        .route("/v1/responses/{id}", request::by_id(MethodFilter::GET, responses::get))
        .route("/v1/responses/{id}", request::by_id(MethodFilter::DELETE, responses::delete))
        .route("/v1/messages", answers(messages::read))
        .route("/v1/messages/count_tokens", request::posted(messages::count_tokens));
    mcp.into_iter()
        .fold(routes, |routes, mcp| routes.nest_service(MCP, mcp))
        .fallback(|method: Method, uri: Uri| async move {
            Refusal::new(404, "unknown_url", format!("{method} {} is not known here", uri.path()))
        })
        .method_not_allowed_fallback(|method: Method, uri: Uri| async move {
            Refusal::new(405, "method_not_allowed", format!("{} does not take {method}", uri.path()))
        })
        .layer(from_fn_with_state(Arc::clone(shared), admit))
        .with_state(Arc::clone(shared))
}

/// The path of a request in the table, for counters.
fn label(request: &Request) -> &str {
    let is_mcp = request.uri().path().strip_prefix(MCP).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let matched = request.extensions().get::<MatchedPath>();
    if is_mcp { MCP } else { matched.map_or("other", MatchedPath::as_str) }
}

async fn admitted(shared: &Shared, request: Request, connection: &Connection, from_page: bool) -> Result<Request> {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let lines = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len());
    // The HTTP library may read up to twice the limit before it refuses a head.
    if path + lines.sum::<usize>() > HEAD_BYTES {
        let message = format!("the request's head is larger than {} KiB", HEAD_BYTES >> 10);
        return Err(Refusal::new(431, "headers_too_large", message));
    }
    match auth::check(shared.options.key.as_ref(), from_page, request.uri(), request.headers()) {
        // The health check needs no key, but passes all other checks.
        Err(refusal) if refusal.status == 401 && request.uri().path() == "/health" => {}
        other => other?,
    }
    match connection.owner {
        Owner::Other => return Err(auth::other_user()),
        Owner::Unknown if label(&request) == MCP => return Err(request::key_required()),
        Owner::HasKey | Owner::Same | Owner::Unknown => {}
    }
    let (head, mut body) = request.into_parts();
    let body = request::whole(&mut body).await?;
    Ok(Request::from_parts(head, body.into()))
}

async fn admit(State(shared): State<Arc<Shared>>, request: Request, next: Next) -> Response {
    let (family, label) = (Family::of(request.uri().path(), request.headers()), label(&request).to_owned());
    let connection = request.extensions().get::<Arc<Connection>>().cloned().unwrap_or_default();
    let page = auth::allowed_page(&shared.options.serve.allowed_origins, request.headers());
    if let (Some(page), true) = (&page, request.method() == Method::OPTIONS) {
        return auth::preflight(page, request.headers());
    }
    let context = Arc::new(Context {
        refuse_unknown: shared.options.serve.unknown_fields == UnknownFields::Refuse,
        owner: connection.owner,
        program: shared.options.program.clone(),
        ..Context::default()
    });
    let _ends = Ends(context.ended.clone());
    let has_body = !request.body().is_end_stream();
    let admitted = admitted(&shared, request, &connection, page.is_some()).await;
    connection.cut_short.fetch_or(has_body && admitted.is_err(), Ordering::Relaxed);
    let answering = Arc::clone(&connection.answering);
    let mut response = match admitted {
        Ok(request) => REQUEST.scope(Arc::clone(&context), next.run(request)).await,
        Err(refusal) => refusal.into_response(),
    };
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        response = refusal.respond(family);
    }
    let left_out: Vec<String> = locked(&context.left_out).iter().cloned().collect();
    for name in left_out.iter().filter(|name| shared.metrics.ignored(name)) {
        tracing::warn!("{label}: {name:?} is not known and was ignored (serve.unknown_fields)");
    }
    shared.metrics.request(label, response.status().as_u16());
    let headers = response.headers_mut();
    if let Some(page) = page {
        auth::open_to(page, headers);
    }
    let id = HeaderValue::from_str(&fresh_id("req_")).ok();
    let named =
        [("x-sala-ignored", request::left_out_header(&left_out)), ("request-id", id.clone()), ("x-request-id", id)];
    for (name, value) in named {
        value.and_then(|value| headers.insert(name, value));
    }
    // The body holds the mark until it is sent.
    response.map(|body| {
        Body::new(body.map_err(move |e| {
            let _ = &answering;
            e
        }))
    })
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
    let mut open: JoinSet<()> = JoinSet::new();
    loop {
        while open.try_join_next().is_some() {}
        shared.metrics.connections.store(open.len() as u64, Ordering::Relaxed);
        tokio::select! {
            accepted = listener.accept(), if open.len() < CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    let owner = if shared.options.key.is_some() { Owner::HasKey } else { auth::owner_of(&stream) };
                    let connection = Arc::new(Connection { owner, ..Connection::default() });
                    let router = router.clone().layer(Extension(Arc::clone(&connection)));
                    open.spawn(run(connection, stream, router, shared.phase.subscribe()));
                }
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
    let all_ended = async |open: &mut JoinSet<()>| while open.join_next().await.is_some() {};
    tokio::select! {
        () = all_ended(&mut open) => {}
        () = reached(&mut phase, Phase::Stopping) => {
            let _ = tokio::time::timeout(BREAKING_OFF, all_ended(&mut open)).await;
            open.shutdown().await;
        }
    }
    Ok(())
}

async fn run(connection: Arc<Connection>, stream: TcpStream, router: Router, mut phase: watch::Receiver<Phase>) {
    // Stream events must not wait for a full packet.
    let _ = stream.set_nodelay(true);
    #[cfg(target_os = "linux")]
    let _ = socket2::SockRef::from(&stream).set_tcp_user_timeout(Some(STUCK));
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(HEAD_BYTES).max_headers(HEAD_LINES);
    let service = TowerToHyperService::new(router);
    let mut http = builder.serve_connection(TokioIo::new(stream), service);
    let ended = tokio::select! {
        ended = &mut http => ended,
        () = reached(&mut phase, Phase::Ending) => {
            std::pin::Pin::new(&mut http).graceful_shutdown();
            let nothing_came = async {
                tokio::time::sleep(COMING).await;
                if Arc::strong_count(&connection.answering) > 1 {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                ended = &mut http => ended,
                () = nothing_came => return,
            }
        }
    };
    if let Err(e) = &ended {
        tracing::debug!("a connection ended: {e}");
    }
    // After an unreadable head, the client may still be sending as well.
    if connection.cut_short.load(Ordering::Relaxed) || ended.is_err_and(|e| e.is_parse()) {
        let mut rest = http.into_parts().io.into_inner().take(HEARD_BYTES);
        let mut nothing = tokio::io::sink();
        let heard_out = tokio::time::timeout(HEARD_OUT, tokio::io::copy(&mut rest, &mut nothing));
        tokio::select! {
            _ = heard_out => {}
            () = reached(&mut phase, Phase::Ending) => {}
        }
    }
}
