//! Export of spans: by OTLP over gRPC, in batches, on a thread of the SDK. Its faults are counted, and logged with a limit.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use opentelemetry_otlp::SpanExporter as OtlpExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfig, BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, SpanData, SpanExporter,
};
use parking_lot::Mutex;

use super::environment;
use crate::telemetry::{self, LogThrottle};

/// Makes spans and exports them, as the environment says.
pub(super) fn provider(variable: impl Fn(&str) -> Option<String>) -> Result<SdkTracerProvider, String> {
    let exporter = OtlpExporter::builder().with_tonic().build().map_err(|error| error.to_string())?;
    let endpoint =
        environment::endpoint(&variable).map_or_else(String::new, |(_, uri)| environment::shown(&uri));
    tracing::info!(endpoint, "sending traces of changes to an OpenTelemetry collector");
    let exporter = ReportingExporter { exporter, endpoint, throttle: Mutex::default() };
    let mut resource = Resource::builder();
    let is_named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    if !is_named {
        resource = resource.with_service_name("deltafan");
    }
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches(&variable)).build();
    Ok(SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource.build()).build())
}

/// Sizes of the queue and of batches, and the time between these. The SDK makes room for the whole queue at once, and takes a delay of
/// zero for no delay.
fn batches(variable: impl Fn(&str) -> Option<String>) -> BatchConfig {
    let number = |name: &str, usual: u64, range: RangeInclusive<u64>| {
        let set = variable(name).and_then(|value| value.trim().parse().ok());
        set.unwrap_or(usual).clamp(*range.start(), *range.end())
    };
    let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", 2_048, 1..=65_536);
    let batch = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1..=queue);
    let delay = number("OTEL_BSP_SCHEDULE_DELAY", 5_000, 100..=600_000);
    BatchConfigBuilder::default()
        .with_max_queue_size(queue as usize)
        .with_max_export_batch_size(batch as usize)
        .with_scheduled_delay(Duration::from_millis(delay))
        .build()
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
