//! Logs, and traces for those who collect them.

use crate::config::TelemetrySettings;
use anyhow::{Context, Result};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use std::io::IsTerminal;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, layer::SubscriberExt, util::SubscriberInitExt,
};

/// Sends what is left of the traces when dropped.
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.0
            && let Err(error) = provider.shutdown()
        {
            eprintln!("atelier: the last traces were not sent: {error}");
        }
    }
}

/// Logs go to standard error: readable on a terminal, JSON otherwise. `LOG_LEVEL` says how much.
pub(crate) fn start(settings: &TelemetrySettings) -> Result<Telemetry> {
    let level = std::env::var("LOG_LEVEL").unwrap_or_default().to_lowercase();
    let level = match level.as_str() {
        // The MCP library tells of every request at `info`, the index of its inner life at `warn`; who wants that
        // asks for `debug`.
        "" | "info" => "info,rmcp=warn,qdrant_edge=error",
        level => level,
    };
    let level = if level == "warning" { "warn" } else { level };
    // A single unknown word would be taken for the name of a module, and turn everything else off.
    let words = |level: &str| level.contains(['=', ',']) || level.parse::<LevelFilter>().is_ok();
    let filter = EnvFilter::try_new(level).ok().filter(|_| words(level));
    let filter = filter
        .with_context(|| format!("LOG_LEVEL={level} is not a level (error, warn, info, debug, trace)"))?;
    let logs = if std::io::stderr().is_terminal() {
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false).boxed()
    } else {
        tracing_subscriber::fmt::layer().with_writer(std::io::stderr).json().flatten_event(true).boxed()
    };
    let provider = settings.otlp_endpoint.as_deref().map(exporter).transpose()?;
    let traces = provider.as_ref().map(|provider| {
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("atelier"));
        // Our own spans only: libraries have a lot to say about themselves.
        layer.with_filter(EnvFilter::new("off,atelier=info,atelier_server=info,atelier_runtime=info"))
    });
    Registry::default().with(traces).with(logs.with_filter(filter)).init();
    Ok(Telemetry(provider))
}

fn exporter(endpoint: &str) -> Result<SdkTracerProvider> {
    let endpoint = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(&endpoint)
        .build()
        .with_context(|| format!("cannot send traces to {endpoint}"))?;
    let resource = Resource::builder().with_service_name("atelier").build();
    Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
}
