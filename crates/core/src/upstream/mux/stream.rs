//! State of an open stream: requests to send, and the pace of renewals.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use super::super::Settings;
use super::super::backoff::pace;
use super::super::sotw::SotwStream;
use super::acks::{Ack, Refusals};
use crate::resource::TypeUrl;

#[derive(Debug)]
pub(super) struct Stream {
    /// Time at which it is to be opened anew.
    pub(super) renews_at: Option<Instant>,
    pub(super) opened: Instant,
    pub(super) is_answered: bool,
    /// Transfer time that did not count as silence, and whether a transfer is under way.
    pub(super) transferred: Duration,
    pub(super) transfer_goes_on: bool,
    pub(super) node_sent: bool,
    pub(super) acks: VecDeque<Ack>,
    pub(super) ack_bytes: usize,
    pub(super) acks_in_a_row: u32,
    /// Types whose subscription is being sent, in flush order (R-Up-06).
    pub(super) due: BTreeSet<TypeUrl>,
    pub(super) next_tick: Option<Instant>,
    /// Present in SotW.
    pub(super) sotw: Option<SotwStream>,
    /// NACKs that wait, in SotW.
    refusals: Refusals,
    pub(super) reports: Reports,
}

/// Limit on the renewals of a stream, as each asks for everything anew.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RenewalPace {
    /// Whether the closed stream was to be renewed. A lost stream is no renewal, so that an
    /// unstable link does not delay later renewals.
    pub(super) is_renewal: bool,
    renewed: Option<Instant>,
    /// Number of renewals in quick succession.
    soon: u32,
}

impl RenewalPace {
    const CALM: Duration = Duration::from_secs(120);

    /// Notes that the stream was opened, for any reason.
    pub(super) fn opened(&mut self, now: Instant) {
        let is_soon = self.renewed.is_some_and(|last| now.saturating_duration_since(last) < Self::CALM);
        self.soon = if is_soon { self.soon } else { 0 };
        if std::mem::take(&mut self.is_renewal) {
            self.soon = self.soon.saturating_add(1);
            self.renewed = Some(now);
        }
    }

    /// Least lifetime of a stream opened now: 1 s, 2 s, 4 s, …, 64 s. After two minutes without a
    /// renewal it is 1 s again.
    pub(super) fn least(self) -> Duration {
        pace(self.soon)
    }
}

/// Reports on one stream.
#[derive(Debug, Default)]
pub(super) struct Reports {
    /// Nonces of the newest responses by type, if accepted.
    nonces: BTreeMap<TypeUrl, String>,
    /// Types that were reported since the hold began.
    pub(super) sent: BTreeSet<TypeUrl>,
}

impl Reports {
    /// Notes the nonce of the newest response of a type; `None` if it was rejected or has no nonce.
    pub(super) fn note(&mut self, type_url: &TypeUrl, nonce: Option<&str>) {
        match nonce {
            Some(nonce) => drop(self.nonces.insert(type_url.clone(), nonce.to_owned())),
            None => drop(self.nonces.remove(type_url)),
        }
    }

    /// Takes the next type to report, with the nonce of its newest response.
    pub(super) fn take(&mut self, held: &BTreeSet<TypeUrl>) -> Option<(TypeUrl, String)> {
        let (type_url, nonce) = self.next(held)?;
        let (type_url, nonce) = (type_url.clone(), nonce.clone());
        self.sent.insert(type_url.clone());
        Some((type_url, nonce))
    }

    /// Next of these held types to report.
    pub(super) fn next<'a>(&'a self, held: &'a BTreeSet<TypeUrl>) -> Option<(&'a TypeUrl, &'a String)> {
        let mut unsent = held.iter().filter(|type_url| !self.sent.contains(*type_url));
        unsent.find_map(|type_url| Some((type_url, self.nonces.get(type_url)?)))
    }
}

impl Stream {
    pub(super) fn new(speaks_sotw: bool, now: Instant) -> Self {
        Self {
            renews_at: None,
            opened: now,
            is_answered: false,
            transferred: Duration::ZERO,
            transfer_goes_on: false,
            node_sent: false,
            acks: VecDeque::new(),
            ack_bytes: 0,
            acks_in_a_row: 0,
            due: BTreeSet::new(),
            next_tick: None,
            sotw: speaks_sotw.then(SotwStream::default),
            refusals: Refusals::default(),
            reports: Reports::default(),
        }
    }

    /// Queues the ACK or NACK of the newest response of a type.
    pub(super) fn owe(&mut self, ack: Ack, now: Instant) {
        let ack = if self.sotw.is_some() { self.refusals.admit(ack, now) } else { Some(ack) };
        self.push(ack);
    }

    fn push(&mut self, acks: impl IntoIterator<Item = Ack>) {
        for ack in acks {
            self.ack_bytes += ack.weight();
            self.acks.push_back(ack);
        }
    }

    /// Time of the next tick, if anything waits. `is_dirty`: a changed subscription does.
    pub(super) fn deadline(&self, is_dirty: bool) -> Option<Instant> {
        let tick = self.next_tick.filter(|_| is_dirty);
        tick.into_iter().chain(self.refusals.next()).min()
    }

    /// Whether an encoded request waits for room.
    pub(super) fn has_encoded(&self) -> bool {
        self.sotw.as_ref().is_some_and(SotwStream::has_next)
    }

    /// Sends the first change after an idle time at once, and later ones together.
    pub(super) fn tick(&mut self, dirty: Vec<TypeUrl>, settings: &Settings, now: Instant) {
        let nacks: Vec<Ack> = self.refusals.due(now).collect();
        self.push(nacks);
        if !dirty.is_empty() && self.next_tick.is_none_or(|at| at <= now) {
            self.due.extend(dirty);
            let list_time = self.sotw.as_ref().map_or(Duration::ZERO, |sotw| list_time(sotw.request_bytes()));
            self.next_tick = Some(now + settings.request_interval.max(list_time));
        }
    }
}

/// Least time between two requests that repeat a list of this length: 100 ms for 1 MiB. It batches
/// new names, as each request repeats the list.
fn list_time(bytes: usize) -> Duration {
    const NANOS_PER_BYTE: u64 = 95;
    Duration::from_nanos(NANOS_PER_BYTE.saturating_mul(bytes as u64))
}
