//! Random events.
//!
//! Owns the steps of a history: changes at the origin, clients that come, go and ask for something else, processes that do not
//! run for a while, links that fail in each way there is. Judges nothing.

use std::time::Duration;

use deltafan::cache::Protocol;
use rand::Rng;

use super::flavor::Flavor;
use super::groups::Host;
use super::judge::Seen;
use super::net::{Consumer, Server};
use super::plan::{Versions, millis};
use super::sotw::SotwHabits;
use super::truth::{Body, NONE, TYPES, is_full_state};
use super::world::{Event, Site, World};
use deltafan_test_support::wire::type_url;

impl World {
    /// The origin has a new state of a name, or none any more.
    pub(crate) fn publish(&mut self, site: usize, at: usize, name: &str, is_there: bool) {
        self.sites[site].contents += 1;
        let number = match self.plan.versions {
            Versions::Unique => self.sites[site].contents,
            Versions::Hashes => self.rng.random_range(0..3),
        };
        let padding = "x".repeat(self.plan.padding);
        let version =
            if self.plan.flavor.has_versions() { format!("{number}{padding}") } else { String::new() };
        let body = match is_there {
            true => Some(Body {
                text: self.plan.text(if self.plan.failover { self.present } else { site }, name, number),
                version: version.into(),
            }),
            false if self.plan.flavor.knows_all(at) => {
                Some(Body { text: NONE.to_owned(), version: version.into() })
            }
            false => None,
        };
        if self.sites[site].truth.get(at, name).map(|held| &**held) == body.as_ref() {
            return;
        }
        self.causes += 1;
        self.say(|_| format!("origin has {name}: {:?}", body.as_ref().map(|body| &body.text)));
        let Site { truth, origin, .. } = &mut self.sites[site];
        origin.forgotten.remove(&(at, name.to_owned()));
        truth.set(at, name, body, self.now);
    }

    /// Sends what changed, if the origin runs.
    fn push(&mut self) {
        if self.origin_paused.is_none() {
            for (site, at) in (0..self.sites.len()).flat_map(|site| (0..4).map(move |at| (site, at))) {
                let Site { truth, origin, .. } = &mut self.sites[site];
                let said = origin.changed(at, truth);
                self.send_origin(said);
            }
        }
    }

    pub(crate) fn change(&mut self, count: usize) {
        let site = if self.sites.len() > 1 { self.rng.random_range(0..self.sites.len()) } else { 0 };
        self.change_site(site, count);
    }

    /// Changes what the origin has for one node.
    pub(crate) fn change_site(&mut self, site: usize, count: usize) {
        for _ in 0..count {
            let at = self.rng.random_range(0..4);
            let names = self.plan.all_names(at);
            let name = &names[self.rng.random_range(0..names.len())];
            let is_there = self.rng.random_bool(0.7);
            self.publish(site, at, name, is_there);
        }
        self.push();
    }

    pub(crate) fn leave(&mut self, client: usize) {
        for stream in self.clients[client].streams() {
            self.hang_up(stream);
        }
        self.clients[client].disconnect();
        self.clients[client].attempt += 1;
        self.unread[client].clear();
        self.stuffed[client].clear();
    }

    pub(crate) fn return_in(&mut self, client: usize, wait: Duration) {
        let attempt = self.clients[client].attempt;
        self.queue.put(self.now + wait, Event::Back { client, attempt });
    }

    pub(crate) fn come_back(&mut self, client: usize, attempt: u64) {
        if self.clients[client].attempt != attempt || self.clients[client].online {
            return;
        }
        if self.net.links[self.clients[client].link].is_down(self.now) {
            return self.return_in(client, Duration::from_secs(1));
        }
        self.causes += 1;
        self.say(|_| format!("client {client} connects"));
        let out = self.clients[client].connect(self.now, &mut self.net.next);
        self.send_client(client, out);
    }

    pub(crate) fn read_on(&mut self, client: usize) {
        self.clients[client].reading = true;
        for (stream, full) in std::mem::take(&mut self.stuffed[client]) {
            if let (true, Some(Server::Relay(relay))) =
                (full, self.net.streams.get(&stream).map(|stream| stream.server))
            {
                self.queue.put(self.now, Event::Taken { relay, stream });
            }
        }
        while let Some(arrival) = self.unread[client].pop_front() {
            self.client_hears(client, &arrival);
        }
    }

    pub(crate) fn wake_origin(&mut self) {
        if self.origin_paused.is_some_and(|until| until <= self.now) {
            self.origin_paused = None;
            while let Some((stream, request)) = self.origin_backlog.pop_front() {
                if self.net.streams.contains_key(&stream) {
                    self.origin_hears(stream, &request);
                }
            }
            self.push();
        }
    }

    fn ask(&mut self, client: usize) {
        let at = self.rng.random_range(0..4);
        let grpc = self.clients[client].grpc;
        let mut asked = self.clients[client].types[at].asked.clone();
        match self.rng.random_range(0..4) {
            0 => asked = self.plan.asked(&mut self.rng, at, grpc),
            1 if is_full_state(at) && !grpc => asked.wildcard = !asked.wildcard,
            _ => {
                let names = self.plan.asked_names(at);
                let name = &names[self.rng.random_range(0..names.len())];
                if !asked.names.remove(name) {
                    asked.names.insert(name.clone());
                }
            }
        }
        if self.clients[client].may_ask(at, &asked) {
            self.causes += 1;
            let out = self.clients[client].ask(at, asked, self.now, &mut self.net.next);
            self.send_client(client, out);
        }
    }

    /// An operator has a relay ask for a resource anew. The choice takes nothing from the random numbers: histories that are kept
    /// by their seed stay as they are.
    fn refresh(&self, relay: usize) {
        let number = self.causes as usize;
        let at = number % TYPES.len();
        let names = self.plan.all_names(at);
        let name = &names[number / TYPES.len() % names.len()];
        for part in self.parts(relay) {
            let ordered = self.relays[part].cache.refresh(&type_url(TYPES[at]), &name.as_str().into());
            self.say(|_| format!("an operator has relay {part} ask for {name} anew: {ordered:?}"));
        }
    }

    pub(crate) fn pause_relay(&mut self, relay: usize, time: Duration) {
        if self.relays[relay].paused.is_none() {
            self.say(|_| format!("relay {relay} does not run for {time:?}"));
            for part in self.parts(relay) {
                self.relays[part].paused = Some((self.now, self.now + time));
            }
        }
    }

    pub(crate) fn pause_origin(&mut self, time: Duration) {
        self.say(|_| format!("the origin does not run for {time:?}"));
        let until = self.now + time;
        self.origin_paused = Some(self.origin_paused.map_or(until, |before| before.max(until)));
        self.hushed_until = self.hushed_until.max(until);
        self.queue.put(until, Event::OriginWakes);
    }

    fn restart_origin(&mut self, away: Duration) {
        self.say(|_| format!("the origin restarts and is away for {away:?}"));
        let of = |server: Server| server == Server::Origin;
        let streams = self.net.streams.iter().filter(|(_, stream)| of(stream.server));
        let streams: Vec<u32> = streams.map(|(id, _)| *id).collect();
        streams.into_iter().for_each(|stream| self.lose(stream));
        self.sites.iter_mut().for_each(|site| site.origin.restart());
        let flavor = self.flavor();
        if self.plan.harsh && flavor.has_versions() && self.rng.random_bool(0.2) {
            let other =
                std::iter::repeat_with(|| Flavor::random(&mut self.rng)).find(|other| other.has_versions());
            let speaks_sotw = self.plan.flavor.protocol() == Protocol::Sotw && self.rng.random_bool(0.5);
            let other = match speaks_sotw {
                true => Flavor::Sotw(SotwHabits::random(&mut self.rng)),
                false => other.unwrap_or(flavor),
            };
            self.say(|_| format!("the origin is {other:?} from here on"));
            self.sites.iter_mut().for_each(|site| site.origin.flavor = other);
            self.flavors.push(other);
        }
        self.origin_backlog.clear();
        self.origin_paused = None;
        self.may_move();
        self.net.links[0].down_until = Some(self.now + away);
        self.net.links[0].refuses = true;
        self.net.links[0].half_open = false;
    }

    pub(crate) fn restart_relay(&mut self, relay: usize) {
        self.say(|_| format!("relay {relay} restarts"));
        let parts = self.parts(relay);
        let is_its = |stream: &super::net::Stream| {
            matches!(stream.server, Server::Relay(of) if parts.contains(&of))
                || matches!(stream.consumer, Consumer::Mux(of, _) | Consumer::Inquiry(of) if parts.contains(&of))
        };
        let streams = self.net.streams.iter().filter(|(_, stream)| is_its(stream));
        let streams: Vec<u32> = streams.map(|(id, _)| *id).collect();
        streams.into_iter().for_each(|stream| self.lose(stream));
        self.host = self.plan.groups.map(|groups| Host::new(&self.plan, groups));
        if self.plan.warm {
            self.crash_disk(relay);
        }
        if self.plan.warm && self.plan.failover {
            self.reorder_servers(relay);
        }
        for part in self.parts(relay) {
            self.begin_relay(part);
        }
        let oldest = self.known_since[relay];
        self.known_since[relay + 1..].iter_mut().for_each(|since| *since = oldest.min(*since));
        for part in self.parts(relay) {
            self.known_since[part] = self.now;
        }
        if self.plan.warm {
            self.start_warm(relay);
        }
        self.causes += 1;
    }

    /// Starts a relay, or the part of it that one group is. Groups that clients make begin with the first of them.
    fn begin_relay(&mut self, relay: usize) {
        self.relays[relay] = Self::new_relay(&self.plan, self.host.as_ref(), relay, &self.rules, self.now);
        self.seen[relay] = Seen::default();
        self.attempts[relay] += 1;
    }

    pub(crate) fn cut(&mut self, link: usize, down: Duration) {
        self.say(|_| format!("link {link} is cut for {down:?}"));
        self.net.links[link].down_until = Some(self.now + down);
        self.net.links[link].refuses = self.rng.random_bool(0.7);
        self.net.on(link).into_iter().for_each(|stream| self.lose(stream));
        self.net.links[link].forget(self.now);
        if link == 0 {
            self.may_move();
        }
    }

    /// Loses all messages on a link from here on; both ends find out later.
    fn half_open(&mut self, link: usize, time: Duration) {
        self.say(|_| format!("link {link} is half open for {time:?}"));
        for id in self.net.on(link) {
            if let Some(stream) = self.net.streams.get_mut(&id) {
                stream.lost = true;
            }
        }
        self.net.links[link].down_until = Some(self.now + time);
        self.net.links[link].half_open = true;
        self.queue.put(self.now + time, Event::Lost { link });
    }

    /// How long something is out of reach: in harsh histories also for minutes.
    fn outage(&mut self) -> Duration {
        match self.plan.harsh && self.rng.random_bool(0.15) {
            true => millis(&mut self.rng, 40_000..240_000),
            false => self.random_time(),
        }
    }

    pub(crate) fn random_time(&mut self) -> Duration {
        match self.rng.random_range(0..4) {
            0 => millis(&mut self.rng, 50..600),
            1 => millis(&mut self.rng, 600..3_000),
            2 => millis(&mut self.rng, 3_000..10_000),
            _ => millis(&mut self.rng, 10_000..20_000),
        }
    }

    pub(crate) fn away(&mut self) -> Duration {
        let linger = self.plan.linger;
        match self.rng.random_range(0..3) {
            0 => millis(&mut self.rng, 10..2_000),
            1 => linger + millis(&mut self.rng, 100..3_000),
            _ => self.random_time(),
        }
    }

    /// Lets something happen, and time pass.
    pub(crate) fn trouble(&mut self) {
        let client = self.rng.random_range(0..self.clients.len());
        let relay = self.rng.random_range(0..if self.plan.chain { self.relays.len() } else { 1 });
        let is_of_groups = self.host.is_some() && self.rng.random_bool(0.2);
        if self.plan.failover && self.rng.random_bool(0.1) {
            self.move_over();
        }
        if self.plan.warm && self.rng.random_bool(0.1) {
            self.kill_relay(relay);
        }
        match if is_of_groups { 100 } else { self.rng.random_range(0..100) } {
            100 => self.group_trouble(client),
            0..28 => {
                let count = [1, 1, 2, 5][self.rng.random_range(0..4)];
                self.change(count);
            }
            28..46 => self.ask(client),
            46..54 => {
                self.leave(client);
                let (wait, forgets) = (self.away(), self.rng.random_bool(0.3));
                self.say(|_| format!("client {client} leaves for {wait:?}, forgets: {forgets}"));
                if forgets {
                    self.clients[client].forget();
                }
                self.return_in(client, wait);
            }
            54..58 => {
                // Often all of them, so that nothing is wanted any more.
                let wait = self.away();
                self.say(|_| format!("most clients leave for {wait:?}"));
                for client in 0..self.clients.len() {
                    if self.rng.random_bool(0.9) {
                        self.leave(client);
                        let more = millis(&mut self.rng, 0..500);
                        self.return_in(client, wait + more);
                    }
                }
            }
            58..62 if self.clients[client].online => {
                let time = self.random_time() * 2;
                self.say(|_| format!("client {client} does not read for {time:?}"));
                self.clients[client].reading = false;
                self.queue.put(self.now + time, Event::Reads { client });
            }
            62..70 => {
                let time = self.random_time();
                self.pause_relay(relay, time);
            }
            70..76 => {
                let time = self.random_time();
                self.pause_origin(time);
            }
            76..82 => {
                let time = self.outage();
                self.cut(relay, time);
                if self.rng.random_bool(0.5) {
                    self.change(2);
                }
            }
            82..84 => {
                let time = self.random_time() * 2;
                self.half_open(relay, time);
            }
            84..88 => {
                let time = self.random_time();
                self.say(|_| format!("link {relay} stalls for {time:?}"));
                self.net.links[relay].stalled_until = Some(self.now + time);
                self.hushed_until = self.hushed_until.max(self.now + time);
            }
            88..92 => {
                let time = self.outage();
                self.restart_origin(time);
                let count = self.rng.random_range(0..4);
                self.change(count);
            }
            92..95 => {
                self.restart_relay(relay);
                if self.rng.random_bool(0.5) {
                    let time = self.random_time();
                    self.pause_origin(time);
                }
            }
            95..97 => {
                let link = self.clients[client].link;
                let time = self.outage();
                self.cut(link, time);
            }
            97..100 => self.refresh(relay),
            _ => {}
        }
        let gap = match self.rng.random_range(0..20) {
            0..7 => millis(&mut self.rng, 0..50),
            7..12 => millis(&mut self.rng, 50..1_000),
            12..17 => millis(&mut self.rng, 1_000..6_000),
            17..19 => millis(&mut self.rng, 6_000..20_000),
            _ => millis(&mut self.rng, 20_000..80_000),
        };
        self.advance(gap);
    }
}
