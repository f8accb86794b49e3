//! Open traces, and their spans.

use std::collections::HashSet;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{Span as _, SpanBuilder, SpanContext, TraceContextExt as _, Tracer as _};
use opentelemetry::{Context, KeyValue};
use opentelemetry_sdk::trace::{SdkTracer, Span};

use crate::fleet::{Fleet, Spread, spread};
use crate::resource::Name;
use crate::telemetry::{self, TraceEnd};
use crate::upstream::{StoredChange, StoredState};
use crate::utc::WallClock;

const LONGEST: Duration = Duration::from_secs(60);
/// Characters of a version, and of a type without rules of its own.
const TEXT: usize = 100;

#[derive(Debug)]
pub(super) struct Follower {
    tracer: SdkTracer,
    open: Vec<OpenTrace>,
}

#[derive(Debug)]
struct OpenTrace {
    change: StoredChange,
    clock: WallClock,
    root: Span,
    /// When the last client was sent it, once each of them was.
    sent: Option<Instant>,
    spread: Spread,
}

fn clipped(text: &str) -> String {
    text.chars().take(TEXT).collect()
}

fn count(key: &'static str, number: usize) -> KeyValue {
    KeyValue::new(key, i64::try_from(number).unwrap_or(i64::MAX))
}

impl Follower {
    pub(super) const fn new(tracer: SdkTracer) -> Self {
        Self { tracer, open: Vec::new() }
    }

    pub(super) const fn is_following(&self) -> bool {
        !self.open.is_empty()
    }

    /// Begins a trace, if the sampler wants it. `group` is the rule of the node group.
    pub(super) fn begin(&mut self, change: StoredChange, group: Option<String>) {
        let (clock, (changed, removed)) = (WallClock::now(), names(&change));
        if changed + removed == 0 {
            // Only TTLs were renewed, or more of a set is known.
            return;
        }
        let StoredChange { type_url, arrived, stored, .. } = &change;
        // Empty if the control plane gives none.
        let version = change.stores.first().map_or("", |store| store.snapshot.system_version());
        let mut attributes = vec![
            KeyValue::new("deltafan.type", type_url.kind().short()),
            KeyValue::new("deltafan.type_url", clipped(type_url.as_str())),
            KeyValue::new("deltafan.version", clipped(version)),
            count("deltafan.resources.changed", changed),
            count("deltafan.resources.removed", removed),
        ];
        attributes.extend(group.map(|group| KeyValue::new("deltafan.group", group)));
        let builder = SpanBuilder::from_name("xds change")
            .with_start_time(clock.at(*arrived))
            .with_attributes(attributes);
        let root = self.tracer.build_with_context(builder, &Context::new());
        if !root.is_recording() {
            return telemetry::trace_ended(TraceEnd::Unsampled);
        }
        self.child(root.span_context(), "store", clock.at(*arrived), clock.at(*stored));
        self.open.push(OpenTrace { change, clock, root, sent: None, spread: Spread::default() });
    }

    /// Updates traces from the clients' progress, and ends finished ones.
    pub(super) fn look(&mut self, fleet: &Fleet, now: Instant) {
        let spreads = spread(fleet, self.open.iter().map(|trace| &trace.change));
        for (mut trace, spread) in std::mem::take(&mut self.open).into_iter().zip(spreads) {
            trace.spread = spread;
            self.note_sent(&mut trace);
            match trace.end_due(now) {
                Some(end) => self.end(trace, end, now),
                None => self.open.push(trace),
            }
        }
    }

    pub(super) fn end_all(&mut self, end: TraceEnd, now: Instant) {
        std::mem::take(&mut self.open).into_iter().for_each(|trace| self.end(trace, end, now));
    }

    /// Adds the span until the last client was sent the change.
    fn note_sent(&self, trace: &mut OpenTrace) {
        if trace.sent.is_none() && trace.spread.clients > 0 && trace.spread.is_sent() {
            let (stored, clock) = (trace.change.stored, trace.clock);
            let sent = trace.spread.last_sent.map_or(stored, |last| last.max(stored));
            self.child(trace.root.span_context(), "send", clock.at(stored), clock.at(sent));
            trace.sent = Some(sent);
        }
    }

    fn end(&self, mut trace: OpenTrace, end: TraceEnd, now: Instant) {
        let (spread, clock) = (trace.spread, trace.clock);
        let stored = trace.change.stored;
        let mut at = if end == TraceEnd::Complete { trace.sent.unwrap_or(stored) } else { now };
        if let Some(sent) = trace.sent.filter(|_| end == TraceEnd::Complete) {
            at = spread.last_answer.map_or(sent, |last| last.max(sent));
            self.child(trace.root.span_context(), "acknowledge", clock.at(sent), clock.at(at));
        }
        trace.root.set_attributes([
            KeyValue::new("deltafan.end", end.label()),
            count("deltafan.clients", spread.clients),
            count("deltafan.clients.sent", spread.sent),
            count("deltafan.clients.accepted", spread.accepted),
            count("deltafan.clients.rejected", spread.rejected),
        ]);
        trace.root.end_with_timestamp(clock.at(at));
        telemetry::trace_ended(end);
    }

    fn child(&self, parent: &SpanContext, name: &'static str, from: SystemTime, to: SystemTime) {
        let context = Context::new().with_remote_span_context(parent.clone());
        let builder = SpanBuilder::from_name(name).with_start_time(from);
        self.tracer.build_with_context(builder, &context).end_with_timestamp(to);
    }
}

/// Changed names with a resource, and names without one now.
fn names(change: &StoredChange) -> (usize, usize) {
    let all = change.stores.iter().flat_map(|store| store.snapshot.changed_after(change.since));
    // Stores of several parameter sets may share a name.
    let all: HashSet<(&Name, bool)> = all.collect();
    let changed = all.iter().filter(|(_, is_there)| *is_there).count();
    (changed, all.len() - changed)
}

impl OpenTrace {
    fn is_overtaken(&self) -> bool {
        let is_left = |store: &StoredState| {
            let newest = store.of.upgrade().map(|of| of.snapshot());
            newest
                .is_some_and(|newest| newest.has_last_changes(self.change.since, store.snapshot.generation()))
        };
        !self.change.stores.iter().any(is_left)
    }

    fn end_due(&self, now: Instant) -> Option<TraceEnd> {
        if self.spread.is_answered() {
            Some(TraceEnd::Complete)
        } else if self.is_overtaken() {
            Some(TraceEnd::Overtaken)
        } else {
            (now >= self.change.arrived + LONGEST).then_some(TraceEnd::TimedOut)
        }
    }
}
