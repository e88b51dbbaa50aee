//! For people who operate the server: liveness, readiness, metrics.

use crate::App;
use atelier_runtime::{Health, Status};
use axum::{
    Json as Reply,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use utoipa::ToSchema;

/// The process is alive.
#[derive(Serialize, ToSchema)]
pub(super) struct Liveness {
    status: &'static str,
    service: &'static str,
    version: &'static str,
}

/// Check whether the process is alive
#[utoipa::path(get, path = "/health", tag = "operations", security(()),
    responses((status = 200, description = "The process is alive", body = Liveness)))]
pub(super) async fn health() -> Reply<Liveness> {
    Reply(Liveness { status: "ok", service: "atelier", version: env!("CARGO_PKG_VERSION") })
}

/// Check whether this node may take requests
///
/// It may while it is healthy or degraded: without the object store or the memory index, most
/// requests still succeed.
#[utoipa::path(get, path = "/ready", tag = "operations", security(()), responses(
    (status = 200, description = "The node may take requests", body = Health),
    (status = 503, description = "A part is unhealthy; the body says which and why", body = Health),
))]
pub(super) async fn ready(State(app): State<App>) -> impl IntoResponse {
    let health = app.health.report().await;
    let status = match health.status {
        Status::Healthy | Status::Degraded => StatusCode::OK,
        Status::Unhealthy => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Reply(health))
}

/// Metrics for Prometheus.
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    tokio::join!(app.spaces.update_gauges(), app.health.update_gauges());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
