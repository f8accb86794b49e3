//! Quiet points: everything is well and nothing changes, until everybody has what is theirs.
//!
//! Owns what has to hold then. What an origin does not say nobody can know: exactly that is exempt here.

use std::time::Duration;

use deltafan::cache::Protocol;

use super::client::Type;
use super::flavor::Flavor;
use super::truth::{TYPES, is_full_state};
use super::world::{Site, World};

/// In which time every change has to reach everybody: the longest back-off, and renewals of streams, which are paced.
const BOUND: Duration = Duration::from_secs(120);
/// That time where deletions are found by sweeping, as they are of an origin without versions: a resource has to be missing
/// from two answers, each waited for four times as long as its slowest part took, which may have been on its way while a
/// link stalled.
const SWEPT: Duration = Duration::from_secs(600);
/// That time over a thin link, on which one first answer takes minutes.
const THIN: Duration = Duration::from_secs(3_600);
/// By when a control plane has heard what its relay let go of.
const NOTICE: Duration = Duration::from_secs(5);
/// How long next to nothing may be said after that.
const SILENCE: Duration = Duration::from_secs(10);

/// Responses that may be said then: a stream that is renewed may bring some resources once more.
const RESPONSES: u64 = 40;
/// Streams that relays may open meanwhile: connections that were lost, and streams that are renewed.
const OPENS: u64 = 30;

/// How long the end of a history lasts in which nothing is left to do, and how many streams each relay may open then: wildcards that
/// nobody wants are let go late. A stream that is opened anew for ever is opened 14 times.
const CALM: (Duration, u64) = (Duration::from_secs(900), 4);
/// Shorter end where heartbeats make time expensive: there a stream is opened 4 times.
const BEATING: (Duration, u64) = (Duration::from_secs(300), 2);

impl World {
    fn opens(&self) -> u64 {
        self.relays.iter().map(|relay| relay.opens).sum()
    }

    fn requests(&self) -> u64 {
        self.relays.iter().map(|relay| relay.requests).sum()
    }

    fn heal(&mut self) {
        self.say(|_| "everything is well".to_owned());
        self.net.links.iter_mut().for_each(super::net::Link::heal);
        let lost: Vec<u32> =
            self.net.streams.iter().filter(|(_, stream)| stream.lost).map(|(id, _)| *id).collect();
        lost.into_iter().for_each(|stream| self.lose(stream));
        for relay in &mut self.relays {
            if let Some((since, _)) = relay.paused {
                relay.paused = Some((since, self.now));
            }
        }
        if self.origin_paused.is_some() {
            self.origin_paused = Some(self.now);
            self.wake_origin();
        }
        for client in 0..self.clients.len() {
            self.read_on(client);
            if !self.clients[client].online {
                self.clients[client].attempt += 1;
                self.return_in(client, Duration::from_millis(100));
            }
        }
    }

    /// In which time every change has to reach everybody.
    fn bound(&self) -> Duration {
        // Resources of another control plane are swept too.
        // An origin that does not say what does not exist: clients wait for such names, behind two relays twice.
        let is_mute = self.flavors.contains(&Flavor::Java);
        let sweeps = !self.plan.flavor.has_versions() || self.plan.failover || is_mute;
        match () {
            () if self.plan.thin => THIN,
            () if sweeps => SWEPT,
            () => BOUND,
        }
    }

    /// Waits until all is said, and for long after that: relays find nothing more to ask on other streams.
    pub(crate) fn calm(&mut self) {
        self.heal();
        self.advance(self.bound());
        self.say(|_| "nothing is left to do".to_owned());
        let before: Vec<u64> = self.relays.iter().map(|relay| relay.opens).collect();
        let (calm, most) = if self.plan.ttl.is_some() { BEATING } else { CALM };
        // A type at which the stream ends is tried once more in that time, which takes both streams and what is inquired behind them.
        let most = if self.plan.ends_stream { most + 5 } else { most };
        self.advance(calm);
        for (at, (relay, before)) in self.relays.iter().zip(before).enumerate() {
            let opened = relay.opens - before;
            assert!(opened <= most, "BUSY: relay {at} opened {opened} streams with nothing left to do");
        }
    }

    /// Waits until all is said, and looks whether it is what is so.
    pub(crate) fn quiet(&mut self) {
        self.heal();
        let opens = self.opens();
        self.advance(self.bound());
        self.say(|_| "everybody must have what is theirs".to_owned());
        self.repeats.rest();
        for client in 0..self.clients.len() {
            for at in 0..TYPES.len() {
                self.check_type(client, at);
            }
        }
        let opened = self.opens() - opens;
        assert!(opened <= OPENS, "BUSY: {opened} streams opened upstream while nothing happens");
        let before = (self.requests(), self.repeats.all());
        self.advance(SILENCE);
        let after = (self.requests(), self.repeats.all());
        // Names that nobody wants are let go late; heartbeats are answered.
        let beats = if self.plan.ttl.is_some() { 400 } else { 20 };
        assert!(after.0 - before.0 <= beats, "BUSY: {} requests while nothing happens", after.0 - before.0);
        let responses = after.1 - before.1;
        assert!(responses <= RESPONSES, "BUSY: {responses} responses while nothing happens");
        if self.host.is_some() {
            self.check_groups();
        }
        self.check_let_go();
    }

    fn check_type(&self, client: usize, at: usize) {
        let of = &self.clients[client];
        let (state, truth) = (&of.types[at], self.truth(of.relay));
        assert!(of.online, "client {client} is not connected");
        for (name, body) in truth.present(at).filter(|(name, _)| state.asked.covers(name)) {
            let held = state.held.get(name).map(|held| held.text.as_str());
            assert!(
                held == Some(body.text.as_str()),
                "LATE: client {client} has {name} of {} as {held:?}, the origin as {:?}: asked {:?}",
                TYPES[at],
                body.text,
                state.asked,
            );
        }
        for name in state.held.keys().filter(|name| truth.get(at, name).is_none()) {
            assert!(
                self.may_be_dead(client, at, state, name),
                "DEAD: client {client} still has {name} of {}: asked {:?}",
                TYPES[at],
                state.asked,
            );
        }
    }

    /// All clients leave: names are let go after the linger (R-Relay-16). By state of the world nobody is told that an endpoint or a
    /// route has gone, and a client that came back would be served what was deleted. No control plane here that speaks it keeps
    /// versions, which would be a reason to keep names for longer (O1). In a chain names linger at both relays.
    fn check_let_go(&mut self) {
        let speaks_sotw = |flavor: &Flavor| matches!(flavor, Flavor::Sotw(_));
        if self.plan.chain || self.host.is_some() || self.is_misled || !self.flavors.iter().all(speaks_sotw) {
            return;
        }
        self.say(|_| "all clients leave".to_owned());
        (0..self.clients.len()).for_each(|client| self.leave(client));
        self.advance(self.plan.linger + NOTICE);
        for at in (0..TYPES.len()).filter(|at| !is_full_state(*at)) {
            let kept = self.sites.iter().find_map(|site| site.origin.listed(at).next());
            assert!(kept.is_none(), "KEPT: {kept:?} of {} is asked for, and nobody wants it", TYPES[at]);
        }
        (0..self.clients.len()).for_each(|client| self.return_in(client, Duration::from_millis(100)));
    }

    /// Whether nobody could tell a client that what it holds is gone.
    fn may_be_dead(&self, client: usize, at: usize, state: &Type, name: &str) -> bool {
        let of = &self.clients[client];
        let Site { truth, origin, .. } = &self.sites[self.site_of(of.relay)];
        let reports_deleted_names = self.flavors.iter().all(|flavor| flavor.reports_deleted_names());
        let tells_absent = self.flavors.iter().all(|flavor| flavor.tells_absent());
        let named = state.asked.names.contains(name);
        if named && origin.forgotten.contains(&(at, name.to_owned())) {
            return true;
        }
        // The present control plane never sent what the other one had, and says nothing of what it does not have.
        let of_another = |moved| !self.seen[of.relay].came_by_name(at, name, moved);
        if named && !tells_absent && self.moved.is_some_and(of_another) {
            return true;
        }
        // State of the world says of such types that something is there, and never that it is gone (R-SotW-19).
        let speaks_sotw = |flavor: &Flavor| matches!(flavor, Flavor::Sotw(_));
        let has_sotw = self.flavors.iter().any(speaks_sotw);
        if has_sotw && !is_full_state(at) {
            return true;
        }
        if named && !reports_deleted_names {
            return true;
        }
        // Of a set that was emptied while nobody listened java-control-plane says nothing (docs/before-you-adopt.md).
        if self.flavors.contains(&Flavor::Java) && truth.present(at).next().is_none() {
            return true;
        }
        // An origin that reports nothing, asked for names of which it has none: there is only silence, even for a sweep.
        let answers_empty = |flavor: &Flavor| !matches!(flavor, Flavor::Sotw(of) if !of.answers_empty());
        if named
            && !(reports_deleted_names && self.flavors.iter().all(answers_empty))
            && !truth
                .present(at)
                .any(|(name, _)| self.neighbours(of).any(|of| of.types[at].asked.names.contains(name)))
        {
            return true;
        }
        // The first relay of a chain may have let go of a name that the second holds.
        if named && self.plan.chain && !tells_absent {
            return true;
        }
        let full_state = of.protocol == Protocol::Sotw && is_full_state(at);
        if of.protocol == Protocol::Sotw && !full_state {
            // There is nothing by which to say it.
            return true;
        }
        let Some(gone) = truth.absent_since(at, name) else { return false };
        // It was asked for by a name of which the relay knew nothing, of an origin that does not say that there is none.
        let asked = state.since.get(name).copied().unwrap_or(self.base) + Duration::from_secs(1);
        let unknown = asked >= gone || !self.seen[of.relay].had(at, name);
        // A full state of which nothing is known is never told; one that lacks some names is.
        let tells_others = full_state && truth.present(at).any(|(name, _)| state.asked.covers(name));
        if tells_others {
            return false;
        }
        // An empty one says of all names that they are gone. Of one of which the origin says nothing that is not known: the
        // client may hold it (R-Relay-04).
        let is_silent = |other: &String| {
            other != name && truth.get(at, other).is_none() && !self.seen[of.relay].had(at, other)
        };
        let is_blank = full_state && named && state.asked.names.iter().any(is_silent);
        if is_blank && !tells_absent {
            return true;
        }
        named && !tells_absent && unknown
    }
}
