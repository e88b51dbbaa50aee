//! The server over HTTP: `POST /mcp` and `GET /health`.
//!
//! Two services of the SDK share one address. One keeps sessions, for hosts that use older protocol
//! revisions. The other answers every request independently, for hosts that use revision 2026-07-28
//! and for plain `curl`.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, HttpBody as _};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, ORIGIN, WWW_AUTHENTICATE,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::serve::ListenerExt;
use http_body_util::{BodyExt, Full, Limited};
use rmcp::ServerHandler;
use rmcp::model::ClientJsonRpcMessage;
use rmcp::transport::streamable_http_server::session::EventStore;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::handles::{HandleShares, LimitedListener};
use crate::hosts::{AllowedHosts, LOOPBACK};
use crate::jsonrpc;
use crate::server::{NAME, TOOL_VERSION};

/// How long open answers may take after the server was asked to stop.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

#[derive(Debug, Clone)]
pub struct Settings {
    /// Host names that requests may be addressed to.
    pub allowed_hosts: AllowedHosts,
    /// Web origins that may call the server, in addition to loopback origins.
    pub allowed_origins: Vec<String>,
    /// The bearer token that callers must send.
    pub token: Option<String>,
    /// The largest request, in bytes.
    pub max_body: usize,
    /// A session without activity ends after this time.
    pub session_idle: Duration,
}

/// Whether a server object lives for a session or for one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lifetime {
    Session,
    Request,
}

/// Serves until `stop` is cancelled. Then calls that are in progress may finish.
pub async fn serve<H: ServerHandler>(
    listener: TcpListener,
    make: impl Fn(Lifetime) -> H + Send + Sync + Clone + 'static,
    settings: Settings,
    stop: CancellationToken,
) -> std::io::Result<()> {
    // The SDK ends every stream when its token is cancelled, so it gets a token that is cancelled
    // after the calls.
    let streams = CancellationToken::new();
    let service = Arc::new(HttpService::new(make, settings, &streams));
    let calls = service.calls.clone();
    let router = router(service);
    // Without `TCP_NODELAY`, every event stream waits 40 ms for an acknowledgement.
    let listener = listener.tap_io(|stream| {
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
    });
    let listener = LimitedListener::new(listener, HandleShares::of_process().connections);
    let serving =
        axum::serve(listener, router).with_graceful_shutdown(stop.clone().cancelled_owned());
    let end_streams = async {
        stop.cancelled().await;
        calls.close();
        calls.wait().await;
        // Subscriptions and event streams do not end by themselves.
        streams.cancel();
    };
    let serving = async { tokio::join!(serving.into_future(), end_streams).0 };
    tokio::select! {
        served = serving => served,
        () = async { stop.cancelled().await; tokio::time::sleep(LAST_ANSWERS).await } => {
            tracing::warn!("stopped with requests unanswered");
            Ok(())
        }
    }
}

fn router<H: ServerHandler>(service: Arc<HttpService<H>>) -> Router {
    Router::new()
        .route("/mcp", any(handle::<H>))
        .route("/mcp/", any(handle::<H>))
        .route("/health", get(health))
        .with_state(service)
}

async fn health() -> impl IntoResponse {
    axum::Json(serde_json::json!({ "status": "ok", "service": NAME, "version": TOOL_VERSION }))
}

async fn handle<H: ServerHandler>(
    State(service): State<Arc<HttpService<H>>>,
    request: Request,
) -> Response {
    service.handle(request).await
}

pub(crate) struct HttpService<H> {
    sessions: StreamableHttpService<H, LocalSessionManager>,
    requests: StreamableHttpService<H, LocalSessionManager>,
    /// Tool calls whose answers are not completely sent yet.
    calls: TaskTracker,
    allowed_hosts: AllowedHosts,
    token: Option<String>,
    max_body: usize,
}

impl<H: ServerHandler> HttpService<H> {
    pub(crate) fn new(
        make: impl Fn(Lifetime) -> H + Send + Sync + Clone + 'static,
        settings: Settings,
        stop: &CancellationToken,
    ) -> Self {
        Self::with_replay(make, settings, stop, None)
    }

    /// Creates a service like `new`, which also keeps messages of sessions for hosts that lose
    /// their connection.
    pub(crate) fn with_replay(
        make: impl Fn(Lifetime) -> H + Send + Sync + Clone + 'static,
        settings: Settings,
        stop: &CancellationToken,
        replay: Option<Arc<dyn EventStore>>,
    ) -> Self {
        let config = config(&settings, stop);
        let make_service = |lifetime, config, replay: Option<Arc<dyn EventStore>>| {
            let make = make.clone();
            let sessions = LocalSessionManager::default();
            let mut sessions = match replay {
                Some(replay) => sessions.with_event_store(replay),
                None => sessions,
            };
            sessions.session_config.keep_alive = Some(settings.session_idle);
            StreamableHttpService::new(move || Ok(make(lifetime)), Arc::new(sessions), config)
        };
        Self {
            sessions: make_service(Lifetime::Session, config.clone(), replay),
            requests: make_service(
                Lifetime::Request,
                config.with_legacy_session_mode(false).with_json_response(true),
                None,
            ),
            calls: TaskTracker::new(),
            allowed_hosts: settings.allowed_hosts,
            token: settings.token,
            max_body: settings.max_body,
        }
    }

    pub(crate) async fn handle(&self, mut request: Request) -> Response {
        if !self.is_allowed(request.headers()) {
            let challenge = [(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))];
            return (StatusCode::UNAUTHORIZED, challenge, "A bearer token is needed")
                .into_response();
        }
        if let Some(host) = requested_host(request.uri(), request.headers()) {
            if let Err(reason) = self.allowed_hosts.check(&host) {
                return (StatusCode::FORBIDDEN, reason).into_response();
            }
            // A page that a Service serves may call that Service, whatever its name is.
            let origin = request.headers().get(ORIGIN).and_then(origin_host);
            if self.allowed_hosts.is_service(host.host()) && origin == Some(host) {
                request.headers_mut().remove(ORIGIN);
            }
        }
        let origin = request.headers().get(ORIGIN).cloned();
        let response = self.answer(request).await;
        if let (StatusCode::FORBIDDEN, Some(origin)) = (response.status(), origin) {
            tracing::info!(
                ?origin,
                "refused a request of this web origin; --allowed-origin or \
                 ATELIER_MCP_ALLOWED_ORIGINS allows it"
            );
        }
        response
    }

    async fn answer(&self, request: Request) -> Response {
        if request.method() != Method::POST {
            return self.sessions.handle(request).await.map(Body::new);
        }
        let (mut parts, body) = request.into_parts();
        let announced =
            parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        if announced.is_some_and(|length: usize| length > self.max_body) {
            return too_large();
        }
        let body = match received(body, self.max_body).await {
            Ok(body) => body,
            Err(response) => return response,
        };
        let streams = accepts(&parts.headers, "text/event-stream");
        if !streams
            && (accepts(&parts.headers, "application/json") || accepts(&parts.headers, "*/*"))
        {
            // The SDK requires both types in `Accept`. Callers that do not name both get plain
            // JSON.
            let both = HeaderValue::from_static("application/json, text/event-stream");
            parts.headers.insert(ACCEPT, both);
        }
        let in_session =
            parts.headers.contains_key("mcp-session-id") || (streams && opens_session(&body));
        let is_json =
            parts.headers.get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(JSON));
        let request = Request::from_parts(parts, Full::new(body.clone()));
        let service = if in_session { &self.sessions } else { &self.requests };
        // A call is counted until the last byte of its answer is sent.
        let call = is_method(&body, "tools/call").then(|| self.calls.token());
        let mut response = service.handle(request).await;
        // Watching the frames hides the size of the answer, so it is announced here.
        if let Some(size) = response.body().size_hint().exact() {
            response.headers_mut().insert(CONTENT_LENGTH, size.into());
        }
        let response = response.map(|answer| {
            Body::new(answer.map_frame(move |frame| {
                let _ = &call;
                frame
            }))
        });
        if is_json
            && matches!(
                response.status(),
                StatusCode::ACCEPTED | StatusCode::UNSUPPORTED_MEDIA_TYPE
            )
            && let Some(answer) = jsonrpc::answer_to_misread(&body)
        {
            return (StatusCode::BAD_REQUEST, axum::Json(answer)).into_response();
        }
        if is_json && response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            return unreadable(&body);
        }
        response
    }

    fn is_allowed(&self, headers: &HeaderMap) -> bool {
        let Some(token) = &self.token else { return true };
        let shown = headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let shown = shown.and_then(|value| value.split_once(' '));
        shown.is_some_and(|(scheme, shown)| {
            scheme.eq_ignore_ascii_case("bearer") && same(shown.trim().as_bytes(), token.as_bytes())
        })
    }
}

/// How long a request may pause while its body arrives.
const PATIENCE: Duration = Duration::from_secs(60);

async fn received(body: Body, limit: usize) -> Result<Bytes, Response> {
    let mut body = Limited::new(body, limit);
    let mut bytes = Vec::new();
    loop {
        match tokio::time::timeout(PATIENCE, body.frame()).await {
            Err(_) => {
                return Err(
                    (StatusCode::REQUEST_TIMEOUT, "The request arrived too slowly").into_response()
                );
            }
            Ok(None) => return Ok(bytes.into()),
            Ok(Some(Err(_))) => return Err(too_large()),
            Ok(Some(Ok(frame))) => {
                if let Ok(data) = frame.into_data() {
                    bytes.extend_from_slice(&data);
                }
            }
        }
    }
}

const JSON: &[u8] = b"application/json";

fn config(settings: &Settings, stop: &CancellationToken) -> StreamableHttpServerConfig {
    let origins = LOOPBACK.iter().map(|host| format!("http://{host}:*"));
    StreamableHttpServerConfig::default()
        .with_cancellation_token(stop.clone())
        .with_max_request_body_bytes(settings.max_body)
        .with_allowed_origins(origins.chain(settings.allowed_origins.iter().cloned()))
        .enforce_origin_validation()
        // `HttpService` checks the host, because the SDK compares with a fixed list.
        .disable_allowed_hosts()
}

/// The host that a request is addressed to. The SDK refuses a request if this is missing or invalid.
fn requested_host(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    match headers.get(HOST) {
        Some(host) => host.to_str().ok()?.parse().ok(),
        None => uri.authority().cloned(),
    }
}

/// The host of an `Origin` header with the scheme http.
fn origin_host(origin: &HeaderValue) -> Option<Authority> {
    origin.to_str().ok()?.strip_prefix("http://")?.parse().ok()
}

/// Whether the `Accept` header names a type. A missing header accepts every type.
fn accepts(headers: &HeaderMap, kind: &str) -> bool {
    match headers.get(ACCEPT) {
        None => kind == "*/*",
        Some(value) => value.to_str().is_ok_and(|value| value.contains(kind)),
    }
}

/// Whether the message is a handshake of an older protocol revision. Handshakes are short, so long
/// messages are not parsed.
fn opens_session(body: &Bytes) -> bool {
    body.len() < (64 << 10) && is_method(body, "initialize")
}

/// Whether the body is a JSON-RPC message with this method.
fn is_method(body: &Bytes, name: &str) -> bool {
    #[derive(serde::Deserialize)]
    struct Method<'a> {
        #[serde(borrow)]
        method: std::borrow::Cow<'a, str>,
    }
    serde_json::from_slice::<Method<'_>>(body).is_ok_and(|message| message.method == name)
}

/// Compares in constant time, so that the time does not reveal how many bytes were right.
fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}

fn too_large() -> Response {
    (StatusCode::PAYLOAD_TOO_LARGE, "The request is larger than this server accepts")
        .into_response()
}

fn unreadable(body: &Bytes) -> Response {
    let Err(problem) = serde_json::from_slice::<ClientJsonRpcMessage>(body) else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    match jsonrpc::answer(body, &problem) {
        Some(answer) => (StatusCode::BAD_REQUEST, axum::Json(answer)).into_response(),
        None => StatusCode::BAD_REQUEST.into_response(),
    }
}
