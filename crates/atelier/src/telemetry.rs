//! Logs and traces. Values that look like keys are masked in both.

mod masking;

use crate::config::TelemetrySettings;
use anyhow::{Context, Result};
use masking::{MaskedLogs, MaskedSpans};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::{Resource, trace::SdkTracerProvider};
use std::io::IsTerminal;
use tracing_appender::non_blocking::WorkerGuard;
use tracing_subscriber::{
    EnvFilter, Layer, Registry, filter::LevelFilter, fmt::writer::BoxMakeWriter,
    layer::SubscriberExt, util::SubscriberInitExt,
};

/// Sends the remaining traces when it is dropped.
pub(crate) struct Telemetry {
    traces: Option<SdkTracerProvider>,
    _logs: Option<WorkerGuard>,
}

impl Drop for Telemetry {
    fn drop(&mut self) {
        if let Some(provider) = &self.traces
            && let Err(error) = provider.shutdown()
        {
            eprintln!("atelier: cannot send the last traces: {error}");
        }
    }
}

/// Starts logging to standard error: as text on a terminal, otherwise as JSON. `LOG_LEVEL` sets the
/// level.
pub(crate) fn start(settings: &TelemetrySettings) -> Result<Telemetry> {
    begin(settings, BoxMakeWriter::new(std::io::stderr), None)
}

/// Starts logging for a program whose host may not read its standard error: writing never blocks,
/// and lines that do not fit into the buffer are lost.
pub(crate) fn start_for_host(settings: &TelemetrySettings) -> Result<Telemetry> {
    let (writer, guard) = tracing_appender::non_blocking(std::io::stderr());
    begin(settings, BoxMakeWriter::new(writer), Some(guard))
}

fn begin(
    settings: &TelemetrySettings,
    writer: BoxMakeWriter,
    guard: Option<WorkerGuard>,
) -> Result<Telemetry> {
    let level = std::env::var("LOG_LEVEL").unwrap_or_default().to_lowercase();
    let level = match level.as_str() {
        // These libraries log every request, every error of a caller or internal details. `debug`
        // shows them.
        "" | "info" => "info,rmcp=error,qdrant_edge=error,notify=error",
        level => level,
    };
    let level = if level == "warning" { "warn" } else { level };
    // A single unknown word would count as the name of a module and turn off everything else.
    let words = |level: &str| level.contains(['=', ',']) || level.parse::<LevelFilter>().is_ok();
    // async_openai logs responses of providers unchanged, and they may contain a key. rmcp logs
    // messages with the contents of files from `debug` on.
    let filter = EnvFilter::try_new(format!("rmcp=info,{level},async_openai=off"))
        .ok()
        .filter(|_| words(level));
    let filter = filter.with_context(|| {
        format!("LOG_LEVEL={level} is not a level (error, warn, info, debug, trace)")
    })?;
    let writer = MaskedLogs(writer);
    let logs = if std::io::stderr().is_terminal() {
        tracing_subscriber::fmt::layer().with_writer(writer).with_target(false).boxed()
    } else {
        tracing_subscriber::fmt::layer().with_writer(writer).json().flatten_event(true).boxed()
    };
    let provider = settings.otlp_endpoint.as_deref().map(exporter).transpose()?;
    let traces = provider.as_ref().map(|provider| {
        let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("atelier"));
        // Only our own spans, because libraries produce many.
        layer.with_filter(EnvFilter::new(
            "off,atelier=info,atelier_server=info,atelier_runtime=info",
        ))
    });
    Registry::default().with(traces).with(logs.with_filter(filter)).init();
    Ok(Telemetry { traces: provider, _logs: guard })
}

fn exporter(endpoint: &str) -> Result<SdkTracerProvider> {
    let endpoint = format!("{}/v1/traces", endpoint.trim_end_matches('/'));
    let exporter = SpanExporter::builder()
        .with_http()
        .with_endpoint(&endpoint)
        .build()
        .with_context(|| format!("cannot send traces to {endpoint}"))?;
    let resource = Resource::builder().with_service_name("atelier").build();
    Ok(SdkTracerProvider::builder()
        .with_batch_exporter(MaskedSpans(exporter))
        .with_resource(resource)
        .build())
}
