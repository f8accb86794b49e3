//! Links between processes, and the streams on them.
//!
//! Owns latency, jitter, bandwidth, order, stalls and what a lost connection means for each stream on it. Knows nothing of
//! what is said.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use deltafan::upstream::StreamId;
use rand::Rng;
use rand::rngs::StdRng;

/// The end of a stream that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consumer {
    /// A stream upstream of a relay.
    Mux(usize, StreamId),
    /// A stream upstream of a relay for one question.
    Inquiry(usize),
    Client(usize),
}

/// The end that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Origin,
    Relay(usize),
}

/// A direction on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the server.
    Up,
    /// To the consumer.
    Down,
}

/// One link. What is sent arrives in order.
#[derive(Clone, Debug)]
pub(crate) struct Link {
    pub(crate) latency: Duration,
    pub(crate) jitter: Duration,
    /// Bytes in a second.
    pub(crate) bandwidth: Option<u64>,
    /// Nothing arrives before then: it is late, not lost.
    pub(crate) stalled_until: Option<Instant>,
    /// Connections cannot be made before then, and are refused at once or not answered at all.
    pub(crate) down_until: Option<Instant>,
    pub(crate) refuses: bool,
    /// The connection on it is half open: so is each stream that is opened on it.
    pub(crate) half_open: bool,
    busy: [Option<Instant>; 2],
    last: [Option<Instant>; 2],
    /// When the last word of a health service arrives.
    word: Option<Instant>,
    thin: bool,
    /// Messages on their way to the consumer: when the first and the last byte arrive.
    arriving: VecDeque<(Instant, Instant)>,
    /// Time in which those before arrived.
    received: Duration,
}

impl Link {
    pub(crate) const fn new(latency: Duration, jitter: Duration, bandwidth: Option<u64>) -> Self {
        Self {
            latency,
            jitter,
            bandwidth,
            stalled_until: None,
            down_until: None,
            refuses: true,
            half_open: false,
            busy: [None; 2],
            last: [None; 2],
            word: None,
            thin: false,
            arriving: VecDeque::new(),
            received: Duration::ZERO,
        }
    }

    /// A link that carries so many bytes in a second to the consumer, and as many as are sent to the server.
    pub(crate) fn thin(latency: Duration, rate: u64) -> Self {
        Self { thin: true, ..Self::new(latency, Duration::ZERO, Some(rate)) }
    }

    /// When a word of a health service arrives that is said so long from now; `None` where it is lost.
    pub(crate) fn carry_word(&mut self, now: Instant, from_now: Duration) -> Option<Instant> {
        let there =
            [Some(now + from_now + self.latency), self.stalled_until, self.word].into_iter().flatten().max();
        self.word = there.filter(|_| !self.half_open);
        self.word
    }

    /// When so many bytes that are sent now are on their way, and when they are there.
    fn carry(&mut self, rng: &mut StdRng, way: Way, bytes: usize, now: Instant) -> (Instant, Instant) {
        let at = way as usize;
        let start = self.busy[at].map_or(now, |busy| busy.max(now));
        let takes = self
            .bandwidth
            .filter(|_| way == Way::Down || !self.thin)
            .map_or(Duration::ZERO, |rate| Duration::from_nanos(bytes as u64 * 1_000_000_000 / rate.max(1)));
        let sent = start + takes;
        self.busy[at] = Some(sent);
        let jitter = Duration::from_micros(rng.random_range(0..=self.jitter.as_micros() as u64));
        let mut there = sent + self.latency + jitter;
        for bound in [self.last[at], self.stalled_until].into_iter().flatten() {
            there = there.max(bound);
        }
        self.last[at] = Some(there);
        if way == Way::Down && takes > Duration::ZERO {
            self.arriving.push_back((there - takes, there));
        }
        (sent, there)
    }

    /// For how long messages have been arriving at the consumer so far, and whether one is: some of it is there, and not all.
    pub(crate) fn received(&mut self, now: Instant) -> (Duration, bool) {
        while let Some((from, to)) = self.arriving.pop_front_if(|(_, to)| *to <= now) {
            self.received += to - from;
        }
        let since = self.arriving.front().map(|(from, _)| *from).filter(|from| *from <= now);
        (self.received + since.map_or(Duration::ZERO, |since| now - since), since.is_some())
    }

    pub(crate) fn is_down(&self, now: Instant) -> bool {
        self.down_until.is_some_and(|until| now < until)
    }

    /// Everything is well again.
    pub(crate) const fn heal(&mut self) {
        self.down_until = None;
        self.stalled_until = None;
        self.half_open = false;
    }

    /// Other connections are not held up by what was on its way.
    pub(crate) fn forget(&mut self, now: Instant) {
        self.received = self.received(now).0;
        (self.busy, self.last) = ([None; 2], [None; 2]);
        self.arriving.clear();
        self.half_open = false;
    }
}

#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) link: usize,
    pub(crate) consumer: Consumer,
    pub(crate) server: Server,
    /// Whether the consumer has it open, and whether the server has.
    pub(crate) open: [bool; 2],
    /// Half-open: messages from here on are lost, and neither end knows.
    pub(crate) lost: bool,
}

/// All links and streams.
#[derive(Debug, Default)]
pub(crate) struct Net {
    pub(crate) links: Vec<Link>,
    pub(crate) streams: BTreeMap<u32, Stream>,
    pub(crate) next: u32,
}

impl Net {
    pub(crate) fn open(&mut self, id: u32, link: usize, consumer: Consumer, server: Server) {
        let lost = self.links[link].half_open;
        let stream = Stream { link, consumer, server, open: [true; 2], lost };
        self.streams.insert(id, stream);
    }

    /// When what is said now was sent, and when it arrives, if it does.
    pub(crate) fn send(
        &mut self,
        rng: &mut StdRng,
        id: u32,
        way: Way,
        bytes: usize,
        now: Instant,
    ) -> (Instant, Option<Instant>) {
        let Some(stream) = self.streams.get(&id) else { return (now, None) };
        let lost = stream.lost;
        let (sent, there) = self.links[stream.link].carry(rng, way, bytes, now);
        (sent, (!lost).then_some(there))
    }

    /// Whether an arrival has a recipient.
    pub(crate) fn is_open(&self, id: u32, way: Way) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.open[usize::from(way == Way::Up)])
    }

    /// One end is gone; a stream that has neither is forgotten.
    pub(crate) fn close(&mut self, id: u32, ends: &[Way]) {
        if let Some(stream) = self.streams.get_mut(&id) {
            ends.iter().for_each(|way| stream.open[usize::from(*way == Way::Up)] = false);
            if stream.open == [false; 2] {
                self.streams.remove(&id);
            }
        }
    }

    /// The streams on a link that somebody has open.
    pub(crate) fn on(&self, link: usize) -> Vec<u32> {
        self.streams.iter().filter(|(_, stream)| stream.link == link).map(|(id, _)| *id).collect()
    }
}
