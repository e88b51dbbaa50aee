//! What surrounds the handlers: worker spaces, time limits, metrics.

use crate::{
    App,
    access::{CountedSpace, caller_and_project},
    auth::{Caller, has_credentials},
    error::Error,
};
use axum::{
    extract::{FromRequestParts, MatchedPath, Request, State},
    http::{Extensions, HeaderValue, Method, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use metrics::{counter, histogram};
use std::{sync::Arc, time::Instant};
use tracing::Instrument;

/// Runs the request in the worker space of the caller's own project, which is created if necessary.
/// The request waits its turn there, keeps the worker space alive, and ends when the worker space
/// is reset.
pub(crate) async fn in_worker_space(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    let (mut parts, body) = request.into_parts();
    let (caller, project) = caller_and_project(&mut parts, &app).await?;
    let label = format!("{} {}", parts.method, route(&parts.extensions));
    let (space, task) = app.spaces.begin(caller.user, project, &label).await?;
    parts.extensions.insert(Arc::new(caller));
    parts.extensions.insert(CountedSpace(space));
    Ok(task.run(next.run(Request::from_parts(parts, body))).await?)
}

/// Keeps the requests of a user within their limits.
pub(crate) async fn within_limits(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Result<Response, Error> {
    if !has_credentials(request.headers()) {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    // A token that is not valid is the handler's to refuse: not every route needs one.
    let caller = Caller::from_request_parts(&mut parts, &app).await.ok();
    let _running = caller.map(|caller| app.loads.begin_request(caller.user)).transpose()?;
    Ok(next.run(Request::from_parts(parts, body)).await)
}

fn route(extensions: &Extensions) -> &str {
    extensions.get::<MatchedPath>().map_or("(none)", MatchedPath::as_str)
}

/// The method as a metric label. Callers choose the method, so unusual ones share a label:
/// otherwise anybody could create metrics without end.
fn method_label(method: &Method) -> &'static str {
    const USUAL: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
    USUAL.into_iter().find(|usual| method.as_str() == *usual).unwrap_or("other")
}

/// Limits how long a request may take until its answer begins. Uploads are not limited this way:
/// they take as long as the sender's connection needs, and check its pace themselves.
pub(crate) async fn with_time_limit(
    State(app): State<App>,
    request: Request,
    next: Next,
) -> Response {
    // Twice the timeout: once for a slow body, once for our own work.
    let response = tokio::time::timeout(app.settings.request_timeout * 2, next.run(request)).await;
    response.unwrap_or_else(|_| Error::TookTooLong.into_response())
}

/// Measures and traces a request, and sets the headers that every answer has.
pub(crate) async fn measured(request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = method_label(request.method());
    let route = route(request.extensions()).to_owned();
    let span = tracing::info_span!("request", method, route, status = tracing::field::Empty);
    let mut response = next.run(request).instrument(span.clone()).await;
    span.record("status", response.status().as_u16());
    // Answers hold somebody's own data unless they say otherwise.
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.entry(header::X_CONTENT_TYPE_OPTIONS).or_insert(HeaderValue::from_static("nosniff"));
    let status = response.status().as_u16().to_string();
    counter!(
        "atelier_http_requests_total",
        "method" => method, "route" => route.clone(), "status" => status
    )
    .increment(1);
    histogram!("atelier_http_request_seconds", "method" => method, "route" => route)
        .record(start.elapsed().as_secs_f64());
    response
}
