//! Export of spans: OTLP over gRPC, in batches, on a thread of the SDK.
//!
//! Counts faults, and logs them with a limit; also spans without room in the queue, which the SDK would drop
//! silently.

use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use opentelemetry::Context;
use opentelemetry_otlp::{SpanExporter as OtlpExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfig, BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter,
    SpanProcessor,
};

use super::{collector_tls, otel_environment};
use crate::telemetry::{self, LogThrottle};

/// Makes and exports spans, as configured in the environment.
pub(super) fn provider(variable: impl Fn(&str) -> Option<String>) -> Result<SdkTracerProvider, String> {
    let uri = otel_environment::endpoint(&variable).map_or_else(String::new, |(_, uri)| uri);
    let mut exporter = OtlpExporter::builder().with_tonic();
    if otel_environment::is_secure(&uri) {
        exporter = exporter.with_channel(collector_tls::channel(&uri, &variable)?);
    }
    let exporter = exporter.build().map_err(|error| error.to_string())?;
    let endpoint = otel_environment::shown(&uri);
    tracing::info!(endpoint, "sending traces of changes to an OpenTelemetry collector");
    let queued = Arc::<AtomicUsize>::default();
    let exporter = ReportingExporter {
        exporter,
        endpoint,
        queued: Arc::clone(&queued),
        throttle: LogThrottle::default(),
    };
    let mut resource = Resource::builder();
    let is_named = variable("OTEL_SERVICE_NAME").is_some_and(|name| !name.is_empty())
        || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|all| all.contains("service.name="));
    if !is_named {
        resource = resource.with_service_name("deltafan");
    }
    let (batches, room) = batches(&variable);
    let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
    let processor = BoundedProcessor { processor, room, queued, throttle: LogThrottle::default() };
    Ok(SdkTracerProvider::builder().with_span_processor(processor).with_resource(resource.build()).build())
}

/// Sizes of queue and batches with their interval, and the size of the queue alone. The SDK allocates the
/// whole queue at once, and takes a delay of zero for none.
fn batches(variable: impl Fn(&str) -> Option<String>) -> (BatchConfig, usize) {
    let number = |name: &str, usual: u64, range: RangeInclusive<u64>| {
        let set = variable(name).and_then(|value| value.trim().parse().ok());
        set.unwrap_or(usual).clamp(*range.start(), *range.end())
    };
    let queue = number("OTEL_BSP_MAX_QUEUE_SIZE", 2_048, 1..=65_536);
    let batch = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", 512, 1..=queue);
    let delay = number("OTEL_BSP_SCHEDULE_DELAY", 5_000, 100..=600_000);
    let config = BatchConfigBuilder::default()
        .with_max_queue_size(queue as usize)
        .with_max_export_batch_size(batch as usize)
        .with_scheduled_delay(Duration::from_millis(delay))
        .build();
    (config, queue as usize)
}

/// Queue of the SDK with a count of its spans: without room, a span is dropped here.
#[derive(Debug)]
struct BoundedProcessor {
    processor: BatchSpanProcessor,
    room: usize,
    /// Spans handed over and not yet taken for export: at least as many as the SDK holds.
    queued: Arc<AtomicUsize>,
    throttle: LogThrottle,
}

impl SpanProcessor for BoundedProcessor {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        let room = self.room;
        let is_taken = |queued| (queued < room).then_some(queued + 1);
        if self.queued.fetch_update(Ordering::AcqRel, Ordering::Acquire, is_taken).is_ok() {
            self.processor.on_end(span);
            return;
        }
        telemetry::span_dropped();
        if let Some(suppressed) = self.throttle.say((), Instant::now()) {
            tracing::warn!(
                queued = room,
                suppressed,
                "spans are lost: the queue to the OpenTelemetry collector is full; set OTEL_TRACES_SAMPLER=traceidratio, or raise \
                 OTEL_BSP_MAX_QUEUE_SIZE if the collector is only late"
            );
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        let ended = self.processor.shutdown_with_timeout(timeout);
        let lost = self.queued.load(Ordering::Acquire);
        if lost > 0 {
            tracing::warn!(
                lost,
                "spans are lost: the OpenTelemetry collector did not take them before the end"
            );
        }
        ended
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}

#[derive(Debug)]
struct ReportingExporter {
    exporter: OtlpExporter,
    endpoint: String,
    queued: Arc<AtomicUsize>,
    throttle: LogThrottle,
}

impl SpanExporter for ReportingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        // The SDK has taken them out of its queue.
        self.queued.fetch_sub(spans, Ordering::AcqRel);
        let result = self.exporter.export(batch).await;
        telemetry::spans_exported(spans, result.is_ok());
        let endpoint = &*self.endpoint;
        match &result {
            Ok(()) => {
                if let Some(suppressed) = self.throttle.over(()) {
                    tracing::info!(endpoint, suppressed, "the OpenTelemetry collector takes traces again");
                }
            }
            Err(error) => {
                if let Some(suppressed) = self.throttle.say((), Instant::now()) {
                    tracing::warn!(
                        endpoint,
                        %error,
                        spans,
                        suppressed,
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

#[cfg(test)]
mod tests {
    use opentelemetry::trace::{Span as _, Tracer as _, TracerProvider as _};
    use parking_lot::Mutex;

    use super::*;

    /// Exporter that takes spans once it is allowed to.
    #[derive(Debug)]
    struct Gated {
        queued: Arc<AtomicUsize>,
        gate: Arc<Mutex<()>>,
        taken: Arc<AtomicUsize>,
    }

    impl SpanExporter for Gated {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.queued.fetch_sub(batch.len(), Ordering::AcqRel);
            drop(self.gate.lock());
            self.taken.fetch_add(batch.len(), Ordering::AcqRel);
            Ok(())
        }
    }

    #[test]
    fn each_span_is_exported_or_counted_as_dropped() {
        let (queued, gate, taken) =
            (Arc::<AtomicUsize>::default(), Arc::<Mutex<()>>::default(), Arc::<AtomicUsize>::default());
        let exporter =
            Gated { queued: Arc::clone(&queued), gate: Arc::clone(&gate), taken: Arc::clone(&taken) };
        let variable = |name: &str| match name {
            "OTEL_BSP_MAX_QUEUE_SIZE" => Some("8".to_owned()),
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE" => Some("2".to_owned()),
            _ => None,
        };
        let (batches, room) = batches(variable);
        let processor = BatchSpanProcessor::builder(exporter).with_batch_config(batches).build();
        let processor = BoundedProcessor { processor, room, queued, throttle: LogThrottle::default() };
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let dropped = metrics::with_local_recorder(&recorder, || {
            let provider = SdkTracerProvider::builder().with_span_processor(processor).build();
            let tracer = provider.tracer("test");
            let closed = gate.lock();
            for _ in 0..100 {
                tracer.start("span").end();
            }
            drop(closed);
            provider.shutdown().unwrap();
            100 - taken.load(Ordering::Acquire)
        });
        assert!(dropped >= 100 - 8 - 2, "{dropped}");
        let counted = format!("deltafan_trace_spans_total{{result=\"dropped\"}} {dropped}\n");
        let text = recorder.handle().render();
        assert!(text.contains(&counted), "{counted} is not in\n{text}");
    }
}
