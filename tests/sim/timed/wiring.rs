//! Delivery of messages between processes.
//!
//! Owns what becomes of each output and of each event; the rest of a [`World`] is moved by these alone.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use deltafan::cache::Protocol;
use deltafan::upstream::{ServerId, StreamId};
use prost::Message as _;

use super::client::{Effect, Outgoing};
use super::judge::Scene;
use super::net::{Consumer, Server, Way};
use super::origin::Said;
use super::reading::{self, Told};
use super::relay::{ENDING, Input, Output, Request};
use super::servers::uri;
use super::truth::{TYPES, at_of};
use super::world::{Arrival, Event, Site, World};
use deltafan_test_support::wire::type_url;

/// In this time a relay has asked on a new stream for what it wants.
const AT_ONCE: Duration = Duration::from_millis(100);
/// After this a relay opens a stream anew for a name that is not answered.
const UNANSWERED: Duration = Duration::from_secs(3);

impl World {
    /// Does what a relay wants done.
    pub(crate) fn route(&mut self, relay: usize, output: Output) {
        match output {
            Output::Dial => self.dial(relay),
            Output::Watch => {
                let latency = self.net.links[relay].latency;
                if let Some(there) = self.net.links[relay].carry_word(self.now, latency) {
                    self.queue.put(there, Event::Watches { relay, attempt: self.attempts[relay] });
                }
            }
            Output::Serves(serves) => {
                let behind = relay + 1;
                if behind < self.relays.len()
                    && let Some(there) = self.net.links[behind].carry_word(self.now, Duration::ZERO)
                {
                    let attempt = self.attempts[behind];
                    self.queue.put(there, Event::Serves { relay: behind, attempt, serves });
                }
            }
            Output::Open(stream, id) => {
                self.say(|_| format!("relay {relay} opens {stream:?} as {id}"));
                self.check_choice(relay, stream);
                self.net.open(
                    id,
                    self.link_of(relay),
                    Consumer::Mux(relay, stream),
                    Self::server_of(&self.plan, relay),
                );
                self.opened.insert(id, self.now);
                let is_anew = self.now > self.connected;
                self.is_misled |= is_anew && self.now < self.hushed_until + UNANSWERED;
            }
            Output::Inquire(id, request) => {
                self.say(|_| format!("relay {relay} inquires on {id} {}", shown_request(&request)));
                self.net.open(
                    id,
                    self.link_of(relay),
                    Consumer::Inquiry(relay),
                    Self::server_of(&self.plan, relay),
                );
                self.send_up(id, None, *request, 100);
            }
            Output::Close(id) => {
                self.note_let_go(relay, id);
                self.hang_up(id);
            }
            Output::Ask(id, request) => self.send_relay(relay, id, *request),
            Output::Say { stream, frame, heard } => {
                let bytes = deltafan_test_support::wire::message_in(&frame);
                let (sent, there) = self.net.send(&mut self.rng, stream, Way::Down, bytes.len(), self.now);
                if let Some(there) = there {
                    self.queue.put(there, Event::Down(Arrival { stream, bytes, heard, made: self.now }));
                }
                let consumer = self.consumer(stream);
                if let Some(Consumer::Client(client)) = consumer
                    && !self.clients[client].reading
                {
                    // The transport takes one response; the next waits in the relay.
                    let stuffed = &mut self.stuffed[client];
                    if let Some(full) = stuffed.iter_mut().find(|(id, _)| *id == stream) {
                        full.1 = true;
                        return;
                    }
                    stuffed.push((stream, false));
                }
                self.queue.put(sent, Event::Taken { relay, stream });
            }
            Output::End { stream, reason } => {
                self.say(|_| format!("relay {relay} ends {stream}: {reason}"));
                let (_, there) = self.net.send(&mut self.rng, stream, Way::Down, 10, self.now);
                self.net.close(stream, &[Way::Up]);
                if let Some(there) = there {
                    self.queue.put(there, Event::End { stream, reason });
                }
            }
        }
    }

    /// Sends what a relay asks for, and notes what it asks for by that.
    fn send_relay(&mut self, relay: usize, id: u32, request: Request) {
        self.say(|_| format!("relay {relay} asks on {id} {}", shown_request(&request)));
        let is_of_histories = request.type_url() != type_url(ENDING).as_str();
        let bytes = if is_of_histories { self.note_request(relay, id, &request) } else { 100 };
        let (sent, _) = self.send_up(id, None, request, bytes);
        if let Some(Consumer::Mux(_, stream)) = self.consumer(id) {
            self.relays[relay].room[stream as usize] = Some(sent);
        }
    }

    /// Notes what a relay asks for; returns the length of the request.
    fn note_request(&mut self, relay: usize, id: u32, request: &Request) -> usize {
        let (at, add, end, bytes) = match request {
            Request::Delta(request) => {
                let (add, end) = (&request.resource_names_subscribe, &request.resource_names_unsubscribe);
                (at_of(&request.type_url), add.clone(), end.clone(), request.encoded_len())
            }
            Request::Sotw(request) => {
                let at = at_of(&request.type_url);
                let list: BTreeSet<String> = request.resource_names.iter().cloned().collect();
                let before = self.lists.insert((id, at), list.clone()).unwrap_or_default();
                let add = list.difference(&before).cloned().collect();
                (at, add, before.difference(&list).cloned().collect::<Vec<_>>(), request.encoded_len())
            }
        };
        let key = (id, at);
        let is_first = !self.wildcards.contains_key(&key);
        if is_first || !add.is_empty() {
            let is_wildcard = add.is_empty() || add.iter().any(|name| name == "*");
            self.wildcards.insert(key, is_wildcard);
            // The first request for names on a stream has all that are wanted: there are few. Where it comes later than
            // at once, nothing was wanted when the stream was opened.
            if is_first && !is_wildcard {
                let at_once = self.opened.get(&id).is_none_or(|at| self.now < *at + AT_ONCE);
                self.seen[relay].leave_others(at, if at_once { &add } else { &[] });
            }
        }
        add.iter().for_each(|name| self.seen[relay].ask(at, name, id, self.now));
        end.iter().for_each(|name| self.seen[relay].leave(at, name));
        bytes
    }

    /// A relay that wants nothing of its second stream any more closes it: a word about each name is not needed then.
    fn note_let_go(&mut self, relay: usize, id: u32) {
        let [primary, secondary] = self.relays[relay].open;
        let is_second = self.consumer(id) == Some(Consumer::Mux(relay, StreamId::Secondary));
        if is_second && primary.is_some() && secondary.is_none() && !self.relays[relay].mux.wants_secondary()
        {
            let named = (0..TYPES.len()).filter(|at| self.wildcards.get(&(id, *at)) == Some(&false));
            named.for_each(|at| self.seen[relay].leave_others(at, &[]));
        }
    }

    fn dial(&mut self, relay: usize) {
        self.attempts[relay] += 1;
        let (attempt, link) = (self.attempts[relay], &self.net.links[self.link_of(relay)]);
        let ok = !link.is_down(self.now) || self.may_join(relay);
        let takes = if ok || link.refuses { link.latency * 2 } else { Duration::from_secs(10) };
        let takes = if self.may_join(relay) { Duration::ZERO } else { takes };
        self.say(|_| format!("relay {relay} connects: {ok}"));
        self.queue.put(self.now + takes, Event::Connected { relay, ok, attempt });
    }

    /// A consumer closes a stream.
    pub(crate) fn hang_up(&mut self, id: u32) {
        let (_, there) = self.net.send(&mut self.rng, id, Way::Up, 10, self.now);
        self.net.close(id, &[Way::Down]);
        if let Some(there) = there {
            self.queue.put(there, Event::Gone { stream: id });
        }
    }

    fn send_up(
        &mut self,
        stream: u32,
        only: Option<usize>,
        request: Request,
        bytes: usize,
    ) -> (Instant, bool) {
        let (sent, there) = self.net.send(&mut self.rng, stream, Way::Up, bytes, self.now);
        if let Some(there) = there {
            self.queue.put(there, Event::Up { stream, only, request: Box::new(request) });
        }
        (sent, there.is_some())
    }

    /// Sends what a client says.
    pub(crate) fn send_client(&mut self, client: usize, out: impl IntoIterator<Item = Outgoing>) {
        for (stream, only, request) in out {
            self.say(|_| format!("client {client} on {stream} says {}", shown_request(&request)));
            if !self.net.streams.contains_key(&stream) {
                let (link, relay) = (self.clients[client].link, self.clients[client].relay);
                self.net.open(stream, link, Consumer::Client(client), Server::Relay(relay));
            }
            self.send_up(stream, only, request, 100);
        }
    }

    pub(crate) fn send_origin(&mut self, said: Vec<Said>) {
        for Said { stream, bytes, text, .. } in said {
            self.say(|_| format!("origin says on {stream} {text}"));
            let (_, there) = self.net.send(&mut self.rng, stream, Way::Down, bytes.len(), self.now);
            if let Some(there) = there {
                self.queue.put(there, Event::Down(Arrival { stream, bytes, heard: 0, made: self.now }));
            }
        }
    }

    pub(crate) fn happen(&mut self, event: Event) {
        match event {
            Event::Up { stream, only, request } => self.arrive_up(stream, only, *request),
            Event::Down(arrival) => {
                if self.net.is_open(arrival.stream, Way::Down) {
                    self.arrive_down(arrival);
                }
            }
            Event::End { stream, reason } => {
                assert!(reason.starts_with("Unavailable"), "a decent client is closed: {reason}");
                let consumer = self.consumer(stream).filter(|_| self.net.is_open(stream, Way::Down));
                self.net.close(stream, &[Way::Down, Way::Up]);
                if let Some(Consumer::Client(client)) = consumer {
                    self.repeats.sent_away(client);
                }
                self.tell_consumer(stream, consumer);
            }
            Event::Gone { stream } => {
                let server = self.net.streams.get(&stream).map(|stream| stream.server);
                self.net.close(stream, &[Way::Up]);
                self.tell_server(stream, server);
            }
            Event::Lost { link } => {
                self.net.links[link].half_open = false;
                let is_lost = |stream: &u32| self.net.streams[stream].lost;
                let lost: Vec<u32> = self.net.on(link).into_iter().filter(is_lost).collect();
                lost.into_iter().for_each(|stream| self.lose(stream));
                if link == 0 && self.net.on(0).is_empty() {
                    self.may_move();
                }
            }
            Event::Connected { relay, ok, attempt } => {
                if self.attempts[relay] == attempt {
                    let is_down = self.net.links[self.link_of(relay)].is_down(self.now);
                    let ok = ok && (!is_down || self.may_join(relay));
                    // Relays ask each other by delta.
                    if Self::server_of(&self.plan, relay) == Server::Origin {
                        self.relays[relay].protocol = self.flavor().protocol();
                        self.relays[relay].server = ServerId::from(&*uri(self.present));
                    }
                    (self.connected, self.is_misled) = (self.now, false);
                    self.relays[relay].inbox.push_back(Input::Connected(ok));
                }
            }
            Event::Watches { relay, attempt } => {
                let serves = self.relays[relay - 1].vouched;
                self.happen(Event::Serves { relay, attempt, serves });
            }
            Event::Serves { relay, attempt, serves } => {
                if self.attempts[relay] == attempt {
                    self.say(|_| format!("relay {relay} hears that the one before it is answered: {serves}"));
                    self.relays[relay].inbox.push_back(Input::Serves(serves));
                }
            }
            Event::Taken { relay, stream } => self.relays[relay].inbox.push_back(Input::Taken(stream)),
            Event::Ack { client, stream, at, nonce } => {
                if self.clients[client].has(stream) {
                    let ack = self.clients[client].acknowledge(at, nonce, &mut self.net.next);
                    self.send_client(client, [ack]);
                }
            }
            Event::Back { client, attempt } => self.come_back(client, attempt),
            Event::Reads { client } => self.read_on(client),
            Event::OriginWakes => self.wake_origin(),
            Event::Heartbeat => {
                if self.origin_paused.is_none() {
                    for site in 0..self.sites.len() {
                        let Site { truth, origin, .. } = &mut self.sites[site];
                        let said = origin.heartbeat(truth);
                        self.send_origin(said);
                    }
                }
                if let Some(ttl) = self.plan.ttl {
                    self.queue.put(self.now + ttl / 3, Event::Heartbeat);
                }
            }
        }
    }

    fn arrive_up(&mut self, stream: u32, only: Option<usize>, request: Request) {
        if !self.net.is_open(stream, Way::Up) {
            return;
        }
        match (self.net.streams[&stream].server, request) {
            (Server::Origin, request) => {
                let protocol = match request {
                    Request::Delta(_) => Protocol::Delta,
                    Request::Sotw(_) => Protocol::Sotw,
                };
                let is_inquiry = matches!(self.consumer(stream), Some(Consumer::Inquiry(_)));
                if (!is_inquiry && protocol != self.flavor().protocol()) || self.is_elsewhere(stream) {
                    // Another control plane has taken over since the relay found out about the last one.
                    return self.lose(stream);
                }
                if self.origin_paused.is_some() {
                    self.origin_backlog.push_back((stream, request));
                } else {
                    self.origin_hears(stream, &request);
                }
            }
            (Server::Relay(relay), request) => {
                let only = only.map(|at| type_url(TYPES[at]));
                let protocol = match request {
                    Request::Delta(_) => Protocol::Delta,
                    Request::Sotw(_) => Protocol::Sotw,
                };
                let request = Box::new(request);
                self.relays[relay].inbox.push_back(Input::Asked { stream, protocol, only, request });
            }
        }
    }

    fn arrive_down(&mut self, arrival: Arrival) {
        let Arrival { stream, bytes, .. } = &arrival;
        match self.consumer(*stream) {
            Some(Consumer::Mux(relay, _)) => {
                let told = match self.relays[relay].protocol {
                    Protocol::Delta => reading::read_delta(bytes),
                    Protocol::Sotw => reading::read_state(bytes),
                };
                self.causes += 1;
                self.say(|_| format!("relay {relay} hears on {stream} {}", told.shown()));
                let wildcard = self.wildcards.get(&(*stream, told.at)).copied().unwrap_or(false);
                if !self.relays[relay].has_lost_primary() {
                    self.seen[relay].note(&told, arrival.made, wildcard, self.plan.ttl, self.now);
                }
                self.relays[relay].inbox.push_back(Input::Message(*stream, bytes.clone()));
            }
            Some(Consumer::Inquiry(relay)) => {
                self.causes += 1;
                // By state of the world every inquiry is about names.
                if self.relays[relay].protocol == Protocol::Sotw {
                    self.seen[relay].note_inquiry(&reading::read_state(bytes), self.now);
                }
                self.relays[relay].inbox.push_back(Input::Message(*stream, bytes.clone()));
            }
            Some(Consumer::Client(client)) if !self.clients[client].reading => {
                self.unread[client].push_back(arrival);
            }
            Some(Consumer::Client(client)) => self.client_hears(client, &arrival),
            None => {}
        }
    }

    pub(crate) fn client_hears(&mut self, client: usize, arrival: &Arrival) {
        let Arrival { stream, ref bytes, heard, made } = *arrival;
        if !self.clients[client].has(stream) {
            return;
        }
        let told = reading::read(self.clients[client].protocol, bytes);
        self.say(|_| format!("client {client} hears on {stream} {}", told.shown()));
        let names = self.truth(self.clients[client].relay).names(told.at);
        self.check_world(client, &told);
        let effect = self.clients[client].hear(&told, heard, &names, made);
        self.check(client, &effect, &told, made);
        let wait = self.clients[client].ack_delay;
        let Told { at, nonce, .. } = told;
        self.queue.put(self.now + wait, Event::Ack { client, stream, at, nonce });
    }

    fn check(&mut self, client: usize, effect: &Effect, told: &Told, made: Instant) {
        let of = &self.clients[client];
        // The first relay of a chain may know older states than the last.
        let way = self.way(of.relay);
        let started = self.known_since[way.clone()].iter().min().copied();
        let scene = Scene {
            truth: self.truth(of.relay),
            seen: &self.seen[of.relay],
            way: &self.seen[way],
            started: started.unwrap_or(self.base),
            ttl: self.plan.ttl,
            made,
            now: self.now,
        };
        scene.judge(of, effect, told);
        let changes = self.causes + of.types[told.at].changes;
        self.repeats.note(client, told, changes);
    }

    /// A connection is lost: both ends know.
    pub(crate) fn lose(&mut self, stream: u32) {
        let Some(of) = self.net.streams.remove(&stream) else { return };
        let [consumer, server] = of.open;
        self.tell_consumer(stream, Some(of.consumer).filter(|_| consumer));
        self.tell_server(stream, Some(of.server).filter(|_| server));
    }

    /// The origin does not serve what an inquiry asks for.
    pub(crate) fn refuse(&mut self, stream: u32) {
        if let Some(Consumer::Inquiry(relay)) = self.consumer(stream) {
            self.relays[relay].inbox.push_back(Input::Refused(stream));
        }
        self.lose(stream);
    }

    fn tell_consumer(&mut self, stream: u32, consumer: Option<Consumer>) {
        match consumer {
            Some(Consumer::Mux(relay, id)) => {
                self.say(|_| format!("relay {relay} loses {id:?}"));
                self.causes += 1;
                self.relays[relay].inbox.push_back(Input::Ended(stream));
            }
            Some(Consumer::Inquiry(relay)) => self.relays[relay].inbox.push_back(Input::Ended(stream)),
            Some(Consumer::Client(client)) if self.clients[client].has(stream) => {
                self.say(|_| format!("client {client} loses its streams"));
                self.leave(client);
                let wait = super::plan::millis(&mut self.rng, 100..2_000);
                self.return_in(client, wait);
            }
            Some(Consumer::Client(_)) | None => {}
        }
    }

    fn tell_server(&mut self, stream: u32, server: Option<Server>) {
        match server {
            Some(Server::Origin) => self.sites.iter_mut().for_each(|site| site.origin.gone(stream)),
            Some(Server::Relay(relay)) => self.relays[relay].inbox.push_back(Input::ClientGone(stream)),
            None => {}
        }
    }
}

fn shown(request: &deltafan::proto::DeltaDiscoveryRequest) -> String {
    let type_url = request.type_url.rsplit('.').next().unwrap_or_default();
    let clip = |version: &String| version.chars().take(12).collect::<String>();
    let mut versions: Vec<String> = request
        .initial_resource_versions
        .iter()
        .map(|(name, version)| format!("{name}={}", clip(version)))
        .collect();
    versions.sort();
    format!(
        "{type_url} +{:?} -{:?} ack {:?} has {versions:?}",
        request.resource_names_subscribe, request.resource_names_unsubscribe, request.response_nonce
    )
}

/// A request, for people to read.
fn shown_request(request: &Request) -> String {
    match request {
        Request::Delta(request) => shown(request),
        Request::Sotw(request) => {
            let type_url = request.type_url.rsplit('.').next().unwrap_or_default();
            let (names, nonce) = (&request.resource_names, &request.response_nonce);
            format!("{type_url} {names:?} version {:?} nonce {nonce:?}", request.version_info)
        }
    }
}
