//! For those who run the server: alive, ready, measured.

use crate::App;
use atelier_runtime::{Health, Part, Status};
use axum::{
    Json as Reply,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
};
use serde::Serialize;
use std::time::Duration;
use utoipa::ToSchema;

#[derive(Serialize, ToSchema)]
pub(super) struct Alive {
    status: &'static str,
    service: &'static str,
    version: &'static str,
}

/// Whether the process is alive
#[utoipa::path(get, path = "/health", tag = "operations", security(()), responses((status = 200, body = Alive)))]
pub(super) async fn health() -> Reply<Alive> {
    Reply(Alive { status: "ok", service: "atelier", version: env!("CARGO_PKG_VERSION") })
}

/// Whether the database answers
#[utoipa::path(get, path = "/ready", tag = "operations", security(()), responses(
    (status = 200, body = Health),
    (status = 503, body = Health, description = "A part does not answer; the body says which"),
))]
pub(super) async fn ready(State(app): State<App>) -> impl IntoResponse {
    let ping = tokio::time::timeout(Duration::from_secs(2), app.store.ping()).await;
    let store = match ping {
        Ok(Ok(())) => Part::new("store", Status::Healthy, format!("{} answers", app.store.kind())),
        Ok(Err(error)) => {
            tracing::warn!(%error, "the store does not answer");
            Part::new("store", Status::Unhealthy, format!("{} refuses", app.store.kind()))
        }
        Err(_) => Part::new("store", Status::Unhealthy, format!("{} does not answer", app.store.kind())),
    };
    let health = Health::of(vec![store]);
    let status =
        if health.status == Status::Healthy { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Reply(health))
}

/// Figures for Prometheus.
pub(super) async fn metrics(State(app): State<App>) -> impl IntoResponse {
    app.spaces.measure().await;
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], app.metrics.render())
}
