//! The upstream side of a relay, and its two streams to the origin, on which messages take their time.
//!
//! Owns time and the order of messages, and does as the shell of `upstream::Client` does: it opens, closes and renews streams, and
//! passes by every deadline. Knows nothing of what the origin says.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::cache::{Cache, Limits, TypeCache};
use deltafan::subscription::Upstream;
use deltafan::upstream::{Mux, Settings, StreamId};
use prost::Message as _;
use rand::Rng;
use rand::rngs::StdRng;

use super::origin::{Origin, Peer};
use super::stores::Stores;

/// Time that a message is under way at most: below the settle time.
const DELAY: Duration = Duration::from_millis(60);

/// When a message arrives that is sent now.
pub(crate) fn arrival(rng: &mut StdRng, now: Instant) -> Instant {
    now + rng.random_range(Duration::ZERO..DELAY)
}

pub(crate) struct Connection {
    pub(crate) cache: Arc<Cache>,
    pub(crate) mux: Mux,
    pub(crate) origin: Origin,
    pub(crate) rng: StdRng,
    pub(crate) now: Instant,
    pub(crate) trace: bool,
    /// Attempts to connect that still fail.
    pub(crate) away: u64,
    stores: Stores,
}

impl Connection {
    pub(crate) fn new(origin: Origin, rng: StdRng, limits: Limits, settings: Settings, trace: bool) -> Self {
        let (cache, writer) = Cache::new(limits);
        let (mux, stores) = (Mux::new(writer, settings), Stores::default());
        Self { cache, mux, origin, rng, now: Instant::now(), trace, away: 0, stores }
    }

    pub(crate) fn has(&self, stream: StreamId) -> bool {
        self.origin.streams[stream as usize].is_some()
    }

    /// The way upstream, as sessions are told of it.
    pub(crate) fn upstream(&self) -> Upstream {
        if self.has(StreamId::Primary) { Upstream::Answering } else { Upstream::Away }
    }

    /// Opens one stream that is wanted and not there, or closes one that is not wanted.
    pub(crate) fn connect(&mut self) {
        if self.away > 0 {
            self.away -= 1;
        } else if !self.has(StreamId::Primary) {
            self.mux.connected(&"http://origin".into());
            self.open(StreamId::Primary);
        } else if self.mux.wants_secondary() && !self.has(StreamId::Secondary) {
            self.open(StreamId::Secondary);
        } else if !self.mux.wants_secondary() && self.has(StreamId::Secondary) {
            self.lose(StreamId::Secondary);
        }
    }

    fn open(&mut self, stream: StreamId) {
        if self.trace {
            eprintln!("  {stream:?} opens");
        }
        self.origin.streams[stream as usize] = Some(Peer::default());
        self.mux.opened(stream, self.now);
    }

    /// Ends a stream; the secondary ends with its primary.
    pub(crate) fn lose(&mut self, stream: StreamId) {
        if self.trace {
            eprintln!("  {stream:?} is lost");
        }
        self.origin.streams[stream as usize..].iter_mut().for_each(|stream| *stream = None);
        self.mux.closed(stream);
    }

    /// The upstream side learns what clients want.
    pub(crate) fn look(&mut self) {
        let wanted = self.cache.take_interest();
        if self.trace {
            for of in &wanted {
                eprintln!("  wanted: {} {} {:?}", of.type_url, of.parameters, of.interest);
            }
        }
        if !wanted.is_empty() {
            self.mux.interest(wanted, self.now);
        }
        self.pump();
    }

    /// Both ends read and write what is due.
    fn pump(&mut self) {
        for stream in StreamId::ALL {
            let (on, now) = (stream as usize, self.now);
            let mut requests = 0;
            while self.mux.has_request(stream) {
                if let Some(request) = self.mux.next_request(stream, now)
                    && let Some(open) = &mut self.origin.streams[on]
                {
                    open.to_origin.send(request, arrival(&mut self.rng, now));
                }
                requests += 1;
                assert!(requests < 1000, "it has always something more to say");
            }
            while let Some(open) = &mut self.origin.streams[on]
                && let Some(request) = open.to_origin.take(now)
            {
                self.origin.read(&mut self.rng, on, &request, now);
            }
            while let Some(open) = &mut self.origin.streams[on]
                && let Some(response) = open.to_relay.take(now)
            {
                if self.trace {
                    eprintln!("  relay: hears #{}", response.nonce);
                }
                let message = Bytes::from(response.encode_to_vec());
                self.mux.on_message(stream, message, now).expect("a response");
                self.stores.look(&self.cache, &self.origin, now);
            }
        }
        self.stores.look(&self.cache, &self.origin, self.now);
    }

    /// Lets time pass, by everything that is due on the way.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.look();
        let known = self.known_sets();
        for turns in 0.. {
            assert!(turns < 10_000, "a deadline that never passes");
            while let Some(stream) = self.mux.renewal_due(self.now) {
                self.lose(stream);
                if stream == StreamId::Primary || self.mux.wants_secondary() {
                    self.open(stream);
                }
                self.connect();
                self.pump();
            }
            // As the shell does, once a second while anything is unanswered.
            let unanswered = self.mux.unanswered(self.now).count > 0;
            let look_at = unanswered.then(|| self.now + Duration::from_secs(1));
            let streams = self.origin.streams.iter().flatten();
            let arrivals = streams.flat_map(|stream| [stream.to_origin.next(), stream.to_relay.next()]);
            let next = arrivals.chain([self.mux.next_deadline(), look_at]).flatten().min();
            let Some(next) = next.filter(|at| *at <= end) else { break };
            self.now = self.now.max(next);
            self.mux.on_deadline(self.now);
            if self.mux.begin_inquiry(self.now).is_some() {
                self.mux.inquiry_refused(self.now);
            }
            self.pump();
            Self::check_known(&known);
        }
        self.now = end;
        self.mux.on_deadline(end);
        self.pump();
        Self::check_known(&known);
    }

    /// Returns the stores whose wildcard set is wanted and known.
    fn known_sets(&self) -> Vec<Arc<TypeCache>> {
        let stores = self.cache.types().into_iter();
        stores.filter(|of| of.wants_wildcard() && of.snapshot().wildcard_known()).collect()
    }

    /// While clients want it, a set that was known stays known, whatever the origin says or leaves out.
    fn check_known(known: &[Arc<TypeCache>]) {
        for of in known {
            let (type_url, view) = (of.type_url(), of.parameter_view());
            assert!(
                of.snapshot().wildcard_known(),
                "the set of {type_url} for {view:?} is not known any more"
            );
        }
    }
}
