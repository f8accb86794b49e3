//! Export of spans: by OTLP over gRPC, in batches, on a thread of the SDK. Its faults are counted, and logged with a limit.

use std::time::{Duration, Instant};

use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter};
use parking_lot::Mutex;

use super::environment;
use crate::telemetry::{self, LogThrottle};

/// Makes spans and exports them, as the environment says.
pub(super) fn provider(variable: impl Fn(&str) -> Option<String>) -> Result<SdkTracerProvider, String> {
    let exporter = OtlpExporter::builder().with_tonic().build().map_err(|error| error.to_string())?;
    let endpoint = environment::endpoint(&variable).unwrap_or_default();
    tracing::info!(endpoint, "sending traces of changes to an OpenTelemetry collector");
    let exporter = ReportingExporter { exporter, endpoint, throttle: Mutex::default() };
    let mut resource = Resource::builder();
    let is_named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    if !is_named {
        resource = resource.with_service_name("deltafan");
    }
    let processor = BatchSpanProcessor::builder(exporter).build();
    Ok(SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource.build()).build())
}

/// Exporter that tells of its faults.
#[derive(Debug)]
struct ReportingExporter {
    exporter: OtlpExporter,
    endpoint: String,
    throttle: Mutex<LogThrottle>,
}

impl SpanExporter for ReportingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let result = self.exporter.export(batch).await;
        telemetry::spans_exported(spans, result.is_ok());
        let endpoint = &*self.endpoint;
        match &result {
            Ok(()) => {
                if let Some(unsaid) = self.throttle.lock().over() {
                    tracing::info!(endpoint, unsaid, "the OpenTelemetry collector takes traces again");
                }
            }
            Err(error) => {
                if let Some(unsaid) = self.throttle.lock().say(Instant::now()) {
                    tracing::warn!(
                        endpoint,
                        %error,
                        spans,
                        unsaid,
                        "the OpenTelemetry collector does not take traces, which are lost; clients are served as before"
                    );
                }
            }
        }
        result
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
