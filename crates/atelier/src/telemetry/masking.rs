//! What is logged or traced can come from anywhere: an error may quote a configuration, a header or
//! the answer of a service. So keys are masked where it leaves the program.

use atelier_core::mask::masked;
use opentelemetry::{Array, KeyValue, StringValue, Value, trace::Status};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SpanData, SpanExporter},
};
use std::{
    borrow::Cow,
    io::{self, Write},
    time::Duration,
};
use tracing_subscriber::fmt::{MakeWriter, writer::BoxMakeWriter};

pub(super) struct MaskedLogs(pub(super) BoxMakeWriter);

impl<'w> MakeWriter<'w> for MaskedLogs {
    type Writer = MaskedWriter<<BoxMakeWriter as MakeWriter<'w>>::Writer>;

    fn make_writer(&'w self) -> Self::Writer {
        MaskedWriter(self.0.make_writer())
    }
}

/// Masks what is written. A subscriber writes every line at once.
pub(super) struct MaskedWriter<W>(W);

impl<W: Write> Write for MaskedWriter<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(masked(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[derive(Debug)]
pub(super) struct MaskedSpans<E>(pub(super) E);

impl<E: SpanExporter> SpanExporter for MaskedSpans<E> {
    fn export(&self, mut batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        for span in &mut batch {
            mask_attributes(&mut span.attributes);
            for event in &mut span.events.events {
                mask_cow(&mut event.name);
                mask_attributes(&mut event.attributes);
            }
            if let Status::Error { description } = &mut span.status {
                mask_cow(description);
            }
        }
        self.0.export(batch)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

fn mask_cow(text: &mut Cow<'static, str>) {
    if let Cow::Owned(masked) = masked(text) {
        *text = Cow::Owned(masked);
    }
}

fn mask_attributes(attributes: &mut [KeyValue]) {
    let mask = |text: &mut StringValue| *text = masked(text.as_str()).into_owned().into();
    for attribute in attributes {
        match &mut attribute.value {
            Value::String(text) => mask(text),
            Value::Array(Array::String(texts)) => texts.iter_mut().for_each(mask),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_masked_in_logs_and_the_line_stays_whole() {
        let mut written = Vec::new();
        let key = format!("sk-{}", "0123456789abcdefghij");
        let line =
            format!("{{\"message\":\"refused\",\"error\":\"token=f3a9c2d871 and {key}\"}}\n");
        assert_eq!(MaskedWriter(&mut written).write(line.as_bytes()).unwrap(), line.len());
        let expected =
            "{\"message\":\"refused\",\"error\":\"token=[masked: token] and [masked: API key]\"}\n";
        assert_eq!(String::from_utf8(written).unwrap(), expected);
    }

    #[test]
    fn keys_are_masked_in_attributes_of_spans() {
        let mut attributes = [
            KeyValue::new("url", "postgres://app:hunter2@db/app"),
            KeyValue::new("names", Value::Array(Array::String(vec!["password=hunter2".into()]))),
            KeyValue::new("status", 200),
        ];
        mask_attributes(&mut attributes);
        let expected = [
            KeyValue::new("url", "postgres://app:[masked: password]@db/app"),
            KeyValue::new(
                "names",
                Value::Array(Array::String(vec!["password=[masked: password]".into()])),
            ),
            KeyValue::new("status", 200),
        ];
        assert_eq!(attributes, expected);
    }
}
