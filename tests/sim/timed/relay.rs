//! One relay: its pure core, and a model of the shell around it.
//!
//! Owns the cache, the subscriptions upstream and the sessions, and the order in which the shell of `upstream::Client` and the
//! streams downstream hand them what arrives: input first, then deadlines. Knows no links: what it wants sent is returned.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::cache::{
    Cache, Frame, Membership, Protocol, StreamProfile, Subscription, TtlSupport, WakeHandle, Writer,
};
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};
use deltafan::resource::{Name, TypeUrl};
use deltafan::subscription::{NextStep, Outgoing, Session, SessionConfig, Upstream};
use deltafan::upstream::{Backoff, Mux, Representative, ServerId, Settings, StreamId, UpstreamState};
use prost::Message as _;
use rand::rngs::StdRng;

use deltafan_test_support::bell::Bell;
use deltafan_test_support::fixture::next_step;
use deltafan_test_support::wire::type_url;

/// Time between two looks at what is unanswered, as of the client upstream.
const LOOK: Duration = Duration::from_secs(1);

/// Least time in which responses were on their way that the core is told of.
const LEAST_TRANSFER: Duration = Duration::from_millis(5);

/// A request of a client.
#[derive(Clone, Debug)]
pub(crate) enum Request {
    Delta(DeltaDiscoveryRequest),
    Sotw(DiscoveryRequest),
}

/// Type at which some origins end the stream.
pub(crate) const ENDING: &str = "thing";

impl Request {
    pub(crate) fn type_url(&self) -> &str {
        match self {
            Self::Delta(request) => &request.type_url,
            Self::Sotw(request) => &request.type_url,
        }
    }

    pub(crate) const fn node(&self) -> Option<&Node> {
        match self {
            Self::Delta(request) => request.node.as_ref(),
            Self::Sotw(request) => request.node.as_ref(),
        }
    }
}

/// Arrival at a relay.
#[derive(Debug)]
pub(crate) enum Input {
    Connected(bool),
    /// The relay that is its origin says whether its own control plane answers.
    Serves(bool),
    Message(u32, Bytes),
    Ended(u32),
    /// The origin does not serve what was asked on the stream, which ends.
    Refused(u32),
    Asked {
        stream: u32,
        protocol: Protocol,
        only: Option<TypeUrl>,
        request: Box<Request>,
    },
    ClientGone(u32),
    /// The transport has taken what was said on this stream.
    Taken(u32),
}

/// Action of a relay.
#[derive(Debug)]
pub(crate) enum Output {
    Dial,
    /// Asks the relay that is its origin whether its control plane answers, and to be told whenever that changes.
    Watch,
    /// Tells those that watch it whether its control plane answers.
    Serves(bool),
    Open(StreamId, u32),
    Inquire(u32, Box<Request>),
    Close(u32),
    Ask(u32, Box<Request>),
    Say {
        stream: u32,
        frame: Frame,
        heard: u64,
    },
    End {
        stream: u32,
        reason: String,
    },
}

/// A stream of a client.
#[derive(Debug)]
struct Down {
    session: Session,
    bell: Arc<Bell>,
    heard: u64,
    deadline: Option<Instant>,
    untaken: bool,
    turns: (Option<Instant>, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Waits(Instant),
    Dials,
    Stands,
    /// Nobody uses the group: there is nothing to connect.
    Unused,
}

/// A relay with the state of its shell, or one of its node groups.
pub(crate) struct Relay {
    pub(crate) cache: Arc<Cache>,
    pub(crate) mux: Mux,
    rules: Arc<SessionConfig>,
    /// Node of one of its clients, in the place of its own.
    pub(crate) representative: Option<Arc<Representative>>,
    link: Link,
    backoffs: [Backoff; 2],
    /// The streams upstream.
    pub(crate) open: [Option<u32>; 2],
    /// The stream of a question.
    pub(crate) inquiry: Option<u32>,
    second_answered: bool,
    second_retry: Option<Instant>,
    more_interest: Option<Instant>,
    /// When each stream upstream can take a request.
    pub(crate) room: [Option<Instant>; 2],
    pub(crate) inbox: VecDeque<Input>,
    sessions: BTreeMap<u32, Down>,
    pub(crate) paused: Option<(Instant, Instant)>,
    /// Time in which responses were on their way, as told to the core.
    received: Duration,
    /// When to look again while one is on its way.
    receives_at: Option<Instant>,
    /// A client that asks for a type at which the origin ends the stream.
    ending: Option<Membership>,
    /// Streams upstream that it opened, by itself or not.
    pub(crate) opens: u64,
    pub(crate) requests: u64,
    /// Protocol in which its origin is asked.
    pub(crate) protocol: Protocol,
    /// Server that the connection leads to.
    pub(crate) server: ServerId,
    /// Its origin is a relay, which says so with the headers of each stream.
    behind_relay: bool,
    /// A relay is behind it, which it tells whether its origin answers.
    before_relay: bool,
    state: UpstreamState,
    look_at: Instant,
    /// Last word to that relay.
    pub(crate) vouched: bool,
}

impl Relay {
    pub(crate) fn new(
        settings: Settings,
        (cache, writer): (Arc<Cache>, Writer),
        rules: &Arc<SessionConfig>,
        (behind_relay, before_relay): (bool, bool),
        now: Instant,
    ) -> Self {
        Self {
            cache,
            mux: Mux::new(writer, settings),
            rules: Arc::clone(rules),
            representative: None,
            link: Link::Waits(now),
            backoffs: [Backoff::new(Duration::from_millis(500), Duration::from_secs(30)); 2],
            open: [None; 2],
            inquiry: None,
            second_answered: false,
            second_retry: None,
            more_interest: None,
            room: [None; 2],
            inbox: VecDeque::new(),
            sessions: BTreeMap::new(),
            paused: None,
            received: Duration::ZERO,
            receives_at: None,
            ending: None,
            opens: 0,
            requests: 0,
            protocol: Protocol::Delta,
            server: ServerId::from("http://relay"),
            behind_relay,
            before_relay,
            state: UpstreamState::new(now),
            look_at: now,
            vouched: false,
        }
    }

    /// A client comes that asks for a type at which the origin ends the stream.
    pub(crate) fn ask_for_ending(&mut self) {
        let of = self.cache.of(&type_url(ENDING)).expect("room for a type");
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let subscription = Subscription::new(false, [Name::from("secret")]);
        self.ending = Some(of.join(subscription, profile, &Arc::new(WakeHandle::default())));
    }

    /// The place of a group that nobody uses.
    pub(crate) fn unused(self) -> Self {
        Self { link: Link::Unused, ..self }
    }

    /// Streams on which clients have asked since it last ran, with the node of each.
    pub(crate) fn asking(&self) -> impl Iterator<Item = (u32, Node)> {
        self.inbox.iter().filter_map(|input| match input {
            Input::Asked { stream, request, .. } => Some((*stream, request.node()?.clone())),
            _ => None,
        })
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.link == Link::Unused
    }

    pub(crate) fn has_session(&self, stream: u32) -> bool {
        self.sessions.contains_key(&stream)
    }

    /// Whether it takes itself for connected.
    pub(crate) fn stands(&self) -> bool {
        self.link == Link::Stands
    }

    /// How its sessions see the way upstream; all that depends on the form of it is here.
    pub(crate) const fn upstream(&self) -> Upstream {
        match self.link {
            Link::Stands if self.state.origin_is_cut_off => Upstream::Away,
            Link::Stands if self.state.answered => Upstream::Answering,
            Link::Stands => Upstream::Silent,
            Link::Waits(_) | Link::Dials | Link::Unused => Upstream::Away,
        }
    }

    /// When it has something to do though nothing arrives; `now` where that is at once.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        if let Some((_, until)) = self.paused {
            return Some(until);
        }
        let mut next = self.mux.next_deadline();
        let mut also = |at: Option<Instant>| next = next.into_iter().chain(at).min();
        also((!self.inbox.is_empty()).then_some(now));
        also(self.receives_at);
        also(self.cache.has_interest().then(|| self.more_interest.unwrap_or(now)));
        match self.link {
            Link::Waits(until) => also(Some(until)),
            Link::Dials | Link::Unused => {}
            Link::Stands => {
                if self.before_relay || self.representative.is_some() {
                    also(Some(self.look_at));
                }
                for stream in StreamId::ALL {
                    let has = self.open[stream as usize].is_some() && self.mux.has_request(stream);
                    also(has.then(|| self.room[stream as usize].unwrap_or(now)));
                }
                match (self.mux.wants_secondary(), self.open[1]) {
                    (true, None) => also(Some(self.second_retry.unwrap_or(now))),
                    (false, Some(_)) => also(Some(now)),
                    (true, Some(_)) | (false, None) => {}
                }
            }
        }
        for down in self.sessions.values() {
            if !down.untaken {
                also(down.deadline);
                also(down.bell.is_ringing().then_some(now));
            }
        }
        next
    }

    /// Whether it is still to find out that its primary has ended. What comes behind that on the secondary is not read: that one
    /// ends with it.
    pub(crate) fn has_lost_primary(&self) -> bool {
        let is_primary = |input: &Input| matches!(input, Input::Ended(id) if self.open[0] == Some(*id));
        self.inbox.iter().any(is_primary)
    }

    /// Work that is due at this moment, for people to read.
    pub(crate) fn busy(&self, now: Instant) -> String {
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let sessions = self.sessions.iter();
        let busy =
            sessions.filter(|(_, down)| !down.untaken && (is_due(down.deadline) || down.bell.is_ringing()));
        format!(
            "deadline of the core {}, interest {}, requests {:?}, wants the secondary {} of {:?}, sessions {:?}",
            is_due(self.mux.next_deadline()),
            self.cache.has_interest(),
            StreamId::ALL.map(|stream| self.mux.has_request(stream)),
            self.mux.wants_secondary(),
            self.open[1],
            busy.map(|(stream, _)| stream).collect::<Vec<_>>(),
        )
    }

    /// Does what there is to do at this moment.
    pub(crate) fn turn(
        &mut self,
        (received, receives): (Duration, bool),
        now: Instant,
        rng: &mut StdRng,
        ids: &mut u32,
    ) -> Vec<Output> {
        let mut out = Vec::new();
        let pause = self.paused.filter(|(_, until)| *until <= now);
        if self.paused.is_some() && pause.is_none() {
            return out;
        }
        while let Some(input) = self.inbox.pop_front() {
            self.take(input, now, rng, ids, &mut out);
        }
        if let Some((since, until)) = pause {
            self.paused = None;
            self.mux.exclude_pause(until - since, now);
        }
        let transfer = received - self.received;
        let transfer = if transfer < LEAST_TRANSFER { Duration::ZERO } else { transfer };
        self.received += transfer;
        self.mux.transferred(transfer, receives, now);
        self.receives_at = receives.then(|| now + LOOK);
        self.mux.on_deadline(now);
        if matches!(self.link, Link::Waits(until) if until <= now) {
            self.link = Link::Dials;
            out.push(Output::Dial);
        }
        if self.more_interest.is_none_or(|at| at <= now) {
            let interest = self.cache.take_interest();
            if !interest.is_empty() {
                self.mux.interest(interest, now);
                self.more_interest = self.cache.has_interest().then(|| now + self.mux.request_interval());
            }
        }
        if self.link == Link::Stands {
            self.renew(now, ids, &mut out);
            self.adjust(now, ids, &mut out);
            self.inquire(now, ids, &mut out);
            self.ask(now, &mut out);
        }
        self.say(now, &mut out);
        if self.link == Link::Stands && self.look_at <= now {
            self.look_at = now + LOOK;
            self.look(now);
        }
        if self.before_relay {
            self.vouch(now, &mut out);
        }
        out
    }

    /// Looks once a second whether anything is unanswered, and whether the client is gone whose node is shown.
    fn look(&mut self, now: Instant) {
        self.state.look(self.mux.unanswered(now));
        if self.representative.as_ref().is_some_and(|one| one.is_outdated()) {
            self.mux.node_is_outdated();
        }
    }

    /// Tells the relay behind it whether anything is unanswered.
    fn vouch(&mut self, now: Instant, out: &mut Vec<Output>) {
        let vouches = self.state.vouches(now);
        if std::mem::replace(&mut self.vouched, vouches) != vouches {
            out.push(Output::Serves(vouches));
        }
    }

    fn take(&mut self, input: Input, now: Instant, rng: &mut StdRng, ids: &mut u32, out: &mut Vec<Output>) {
        match input {
            Input::Connected(true) => {
                self.link = Link::Stands;
                self.state.connected(now);
                self.look_at = now + LOOK;
                if self.behind_relay {
                    out.push(Output::Watch);
                }
                self.mux.connected(&self.server);
                self.mux.set_protocol(self.protocol);
                self.backoffs[1].reset();
                self.second_retry = None;
                self.open_on(StreamId::Primary, now, ids, out);
            }
            Input::Serves(serves) => {
                self.state.origin_reported(serves, now);
                self.mux.origin_reported(serves, now);
            }
            Input::Connected(false) => self.link = Link::Waits(now + self.backoffs[0].next(rng)),
            Input::Message(stream, bytes) if self.inquiry == Some(stream) => match self.behind_relay {
                true => self.mux.inquiry_refused(now),
                false => self.mux.on_inquiry_message(bytes, now),
            },
            Input::Ended(stream) if self.inquiry == Some(stream) => {
                self.inquiry = None;
                self.mux.inquiry_lost();
            }
            Input::Refused(stream) => {
                if self.inquiry.take_if(|open| *open == stream).is_some() {
                    self.mux.inquiry_refused(now);
                }
            }
            Input::Message(stream, bytes) => {
                let Some(id) = StreamId::ALL.into_iter().find(|id| self.open[*id as usize] == Some(stream))
                else {
                    return;
                };
                if self.behind_relay {
                    self.mux.origin_is_relay(true);
                }
                match self.mux.on_message(id, bytes, now) {
                    Ok(()) if id == StreamId::Primary => self.state.answered = true,
                    Ok(()) => self.second_answered = true,
                    Err(fault) => panic!("the response of a decent origin is refused: {fault}"),
                }
            }
            Input::Ended(stream) => self.ended(stream, now, rng, out),
            Input::Asked { stream, protocol, only, request } => {
                let (cache, rules) = (&self.cache, &self.rules);
                let down = self.sessions.entry(stream).or_insert_with(|| Down {
                    session: Session::new(Arc::clone(cache), Arc::clone(rules), protocol, only, now),
                    bell: Arc::default(),
                    heard: 0,
                    deadline: None,
                    untaken: false,
                    turns: (None, 0),
                });
                down.heard += 1;
                down.deadline = Some(now);
                let heard = match *request {
                    Request::Delta(request) => {
                        down.session.on_delta_request(request, Default::default(), now)
                    }
                    Request::Sotw(request) => down.session.on_sotw_request(request, now),
                };
                heard
                    .unwrap_or_else(|refusal| panic!("the request of a decent client is refused: {refusal}"));
            }
            Input::ClientGone(stream) => drop(self.sessions.remove(&stream)),
            Input::Taken(stream) => {
                if let Some(down) = self.sessions.get_mut(&stream) {
                    down.session.on_flushed(now);
                    (down.untaken, down.deadline) = (false, Some(now));
                }
            }
        }
    }

    fn open_on(&mut self, stream: StreamId, now: Instant, ids: &mut u32, out: &mut Vec<Output>) {
        *ids += 1;
        self.opens += 1;
        self.open[stream as usize] = Some(*ids);
        self.room[stream as usize] = None;
        if let Some(representative) = self.representative.as_ref().filter(|_| stream == StreamId::Primary) {
            representative.choose(now);
        }
        out.push(Output::Open(stream, *ids));
        self.mux.opened(stream, now);
    }

    fn close(&mut self, stream: StreamId, out: &mut Vec<Output>) {
        let first = if stream == StreamId::Primary { 0 } else { 1 };
        for open in &mut self.open[first..] {
            out.extend(open.take().map(Output::Close));
        }
        out.extend(self.inquiry.take_if(|_| stream == StreamId::Primary).map(Output::Close));
        self.mux.closed(stream);
    }

    fn ended(&mut self, stream: u32, now: Instant, rng: &mut StdRng, out: &mut Vec<Output>) {
        if self.open[1] == Some(stream) {
            self.close(StreamId::Secondary, out);
            if std::mem::take(&mut self.second_answered) {
                self.backoffs[1].reset();
            }
            self.second_retry = Some(now + self.backoffs[1].next(rng));
        } else if self.open[0] == Some(stream) {
            self.mux.ended_by_server(now);
            self.close(StreamId::Primary, out);
            if self.state.answered {
                self.backoffs[0].reset();
            }
            self.link = Link::Waits(now + self.backoffs[0].next(rng));
            self.state.lost(String::new(), now);
        }
    }

    fn renew(&mut self, now: Instant, ids: &mut u32, out: &mut Vec<Output>) {
        if let Some(stream) = self.mux.renewal_due(now)
            && self.open[stream as usize].is_some()
        {
            self.close(stream, out);
            // The secondary is opened where it is wanted.
            if stream == StreamId::Primary {
                self.open_on(stream, now, ids, out);
            }
        }
    }

    fn adjust(&mut self, now: Instant, ids: &mut u32, out: &mut Vec<Output>) {
        match (self.mux.wants_secondary(), self.open[1]) {
            (true, None) if self.second_retry.is_none_or(|at| at <= now) => {
                self.second_answered = false;
                self.open_on(StreamId::Secondary, now, ids, out);
            }
            (false, Some(_)) => self.close(StreamId::Secondary, out),
            _ => {}
        }
    }

    /// Opens a stream for a question that is due, and closes that of one that is over.
    fn inquire(&mut self, now: Instant, ids: &mut u32, out: &mut Vec<Output>) {
        if self.mux.has_inquiry() {
            return;
        }
        out.extend(self.inquiry.take().map(Output::Close));
        if let Some((protocol, message)) = self.mux.begin_inquiry(now) {
            let message = match &self.representative {
                Some(representative) => representative.lend(message, protocol),
                None => message,
            };
            *ids += 1;
            self.opens += 1;
            self.inquiry = Some(*ids);
            let request = match protocol {
                Protocol::Delta => DeltaDiscoveryRequest::decode(message).map(Request::Delta),
                Protocol::Sotw => DiscoveryRequest::decode(message).map(Request::Sotw),
            };
            out.push(Output::Inquire(*ids, Box::new(request.expect("a request"))));
        }
    }

    /// One request on each stream that has room for it.
    fn ask(&mut self, now: Instant, out: &mut Vec<Output>) {
        for stream in StreamId::ALL {
            let at = stream as usize;
            if let Some(id) = self.open[at]
                && self.mux.has_request(stream)
                && self.room[at].is_none_or(|room| room <= now)
                && let Some(message) = self.mux.next_message(stream, now)
            {
                self.requests += 1;
                let message = match &self.representative {
                    Some(representative) => representative.lend(message, self.protocol),
                    None => message,
                };
                let request = match self.protocol {
                    Protocol::Delta => DeltaDiscoveryRequest::decode(message).map(Request::Delta),
                    Protocol::Sotw => DiscoveryRequest::decode(message).map(Request::Sotw),
                };
                out.push(Output::Ask(id, Box::new(request.expect("a request"))));
            }
        }
    }

    /// One response on each stream that was woken or whose time has come.
    fn say(&mut self, now: Instant, out: &mut Vec<Output>) {
        let upstream = self.upstream();
        let mut ended = Vec::new();
        for (stream, down) in &mut self.sessions {
            let is_due = down.deadline.is_some_and(|at| at <= now);
            if down.untaken || !(down.bell.take() > 0 || is_due) {
                continue;
            }
            let turns = if down.turns.0 == Some(now) { down.turns.1 + 1 } else { 0 };
            down.turns = (Some(now), turns);
            assert!(turns < 1000, "a session that is never done: stream {stream}");
            down.session.wake_handle().register(&down.bell.waker());
            match next_step(&mut down.session, now, upstream) {
                NextStep::Send(Outgoing { frame, .. }) => {
                    down.untaken = true;
                    out.push(Output::Say { stream: *stream, frame, heard: down.heard });
                }
                NextStep::Wait(until) => down.deadline = until,
                NextStep::Close(refusal) => {
                    let reason = format!("{:?}: {refusal}", refusal.code);
                    out.push(Output::End { stream: *stream, reason });
                    ended.push(*stream);
                }
            }
        }
        ended.iter().for_each(|stream| drop(self.sessions.remove(stream)));
    }
}
