//! For people who operate the server: liveness, readiness, metrics.

use crate::App;
use atelier_runtime::{Health, Part, Status};
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

/// Check whether the database answers
#[utoipa::path(get, path = "/ready", tag = "operations", security(()), responses(
    (status = 200, description = "The server is ready", body = Health),
    (status = 503, description = "A part does not answer; the body says which", body = Health),
))]
pub(super) async fn ready(State(app): State<App>) -> impl IntoResponse {
    let health = Health::of(vec![Part::of_store(&app.store).await]);
    let status = if health.status == Status::Healthy {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    (status, Reply(health))
}

/// Metrics for Prometheus.
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    app.spaces.update_gauges().await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
