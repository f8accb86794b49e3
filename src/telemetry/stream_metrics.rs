//! Metrics of streams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, gauge, histogram};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::catalog::{
    ACKS, COALESCED, PROPAGATION, REQUESTS, RESPONSE_BYTES, RESPONSES, STREAMS, STREAMS_ENDED,
};

/// Metrics of one open stream. Counters are looked up once: a look-up by labels costs more than counting.
#[derive(Debug)]
pub struct StreamGauge {
    transport: &'static str,
    of_types: SmallVec<[(&'static str, Arc<TypeCounters>); 1]>,
}

impl StreamGauge {
    pub fn open(transport: &'static str) -> Self {
        gauge!(STREAMS, "transport" => transport).increment(1.0);
        Self { transport, of_types: SmallVec::new() }
    }

    /// Counts a response that the transport took. `waited` is the time since its newest change arrived,
    /// `coalesced` the number of overtaken changes.
    pub fn said(&mut self, kind: &'static str, bytes: usize, waited: Option<Duration>, coalesced: u32) {
        let counters = self.of_type(kind);
        counters.responses.increment(1);
        counters.response_bytes.increment(bytes as u64);
        if let Some(waited) = waited {
            counters.propagation.record(waited);
        }
        if coalesced > 0 {
            counters.coalesced.increment(coalesced.into());
        }
    }

    /// Counts a request; `took` is the time between a response and its ACK.
    pub fn heard(&mut self, kind: &'static str, result: RequestResult, took: Option<Duration>) {
        let counters = self.of_type(kind);
        counters.requests[result as usize].increment(1);
        if let Some(took) = took {
            counters.acks.record(took);
        }
    }

    pub fn ended(&self, code: &'static str) {
        counter!(STREAMS_ENDED, "transport" => self.transport, "code" => code).increment(1);
    }

    fn of_type(&mut self, kind: &'static str) -> &TypeCounters {
        let at = self.of_types.iter().position(|(other, _)| *other == kind).unwrap_or_else(|| {
            self.of_types.push((kind, TypeCounters::of(kind, self.transport)));
            self.of_types.len() - 1
        });
        &self.of_types[at].1
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestResult {
    /// Answers no response.
    Subscribe,
    Ack,
    Nack,
    /// Answers an older response.
    Stale,
}

impl RequestResult {
    const LABELS: [&'static str; 4] = ["subscribe", "ack", "nack", "stale"];
}

#[derive(Debug)]
struct TypeCounters {
    responses: Counter,
    response_bytes: Counter,
    propagation: Histogram,
    /// Of all transports.
    coalesced: Counter,
    acks: Histogram,
    requests: [Counter; 4],
}

impl TypeCounters {
    /// All streams of a type and transport share them.
    fn of(kind: &'static str, transport: &'static str) -> Arc<Self> {
        static ALL: Mutex<BTreeMap<(&str, &str), Arc<TypeCounters>>> = Mutex::new(BTreeMap::new());
        let requests =
            |result| counter!(REQUESTS, "type" => kind, "transport" => transport, "result" => result);
        let make = || {
            Arc::new(Self {
                responses: counter!(RESPONSES, "type" => kind, "transport" => transport),
                response_bytes: counter!(RESPONSE_BYTES, "type" => kind, "transport" => transport),
                propagation: histogram!(PROPAGATION, "type" => kind, "transport" => transport),
                coalesced: counter!(COALESCED, "type" => kind),
                acks: histogram!(ACKS, "type" => kind, "transport" => transport),
                requests: RequestResult::LABELS.map(requests),
            })
        };
        Arc::clone(ALL.lock().entry((kind, transport)).or_insert_with(make))
    }
}

impl Drop for StreamGauge {
    fn drop(&mut self) {
        gauge!(STREAMS, "transport" => self.transport).decrement(1.0);
    }
}
