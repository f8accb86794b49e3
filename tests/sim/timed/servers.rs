//! Two control planes, of which the relay is connected to one.
//!
//! Owns the contents of the one that is away. Both have the same names. Each numbers its versions by itself, so that an equal version
//! often is another content, and sometimes an equal one. Where the relay lands on the other one, that is a change of everything to
//! whoever judges: the time line goes on with the contents of the present one.

use std::collections::BTreeMap;

use rand::Rng;

use super::flavor::Flavor;
use super::net::Consumer;
use super::plan::Versions;
use super::truth::{Body, NONE, TYPES};
use super::world::World;

/// The control plane that is away.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    flavor: Flavor,
    contents: u64,
    bodies: [BTreeMap<String, Body>; TYPES.len()],
}

/// URI of one of the two.
pub(crate) fn uri(server: usize) -> String {
    format!("http://origin-{server}")
}

impl World {
    /// Begins the other control plane: a copy of the first one, or one of its own kind.
    pub(crate) fn begin_elsewhere(&mut self) {
        let is_copy = self.rng.random_bool(0.3);
        // Its numbers go on behind those of the copy: one control plane gives a version to one content.
        let contents = if is_copy { self.sites[0].contents } else { 0 };
        let mut elsewhere = Elsewhere { flavor: self.other_flavor(), contents, bodies: Default::default() };
        for at in 0..TYPES.len() {
            for name in self.plan.all_names(at) {
                let copied = self.sites[0].truth.get(at, &name).map(|body| Body::clone(body));
                let is_its_own = |body: &Body| !body.text.ends_with(['1', '3', '5', '7', '9']);
                let fits = self.plan.versions == Versions::Unique || copied.as_ref().is_none_or(is_its_own);
                let body = if is_copy && fits {
                    copied
                } else {
                    self.draw_elsewhere(&mut elsewhere.contents, at, &name)
                };
                body.into_iter().for_each(|body| drop(elsewhere.bodies[at].insert(name.clone(), body)));
            }
        }
        self.elsewhere = Some(elsewhere);
    }

    /// Both may be of different kinds, as far as they have versions alike.
    fn other_flavor(&mut self) -> Flavor {
        let own = self.plan.flavor;
        if self.plan.padding > 0 || self.plan.ttl.is_some() || self.rng.random_bool(0.6) {
            return own;
        }
        let other = Flavor::random(&mut self.rng);
        if other.has_versions() == own.has_versions() { other } else { own }
    }

    /// Draws a state of a name at the control plane that is away.
    fn draw_elsewhere(&mut self, contents: &mut u64, at: usize, name: &str) -> Option<Body> {
        *contents += 1;
        let number = match self.plan.versions {
            Versions::Unique => *contents,
            Versions::Hashes => self.rng.random_range(0..3),
        };
        let has_versions = self.plan.flavor.has_versions();
        let padding = "x".repeat(self.plan.padding);
        let version = if has_versions { format!("{number}{padding}") } else { String::new() };
        let text = self.plan.text(1 - self.present, name, number);
        match self.rng.random_bool(0.7) {
            true => Some(Body { text, version: version.into() }),
            false if self.plan.flavor.knows_all(at) => {
                Some(Body { text: NONE.to_owned(), version: version.into() })
            }
            false => None,
        }
    }

    /// Whether a stream is of a relay that connected to the other control plane before.
    pub(crate) fn is_elsewhere(&self, stream: u32) -> bool {
        let relay = match self.consumer(stream) {
            Some(Consumer::Mux(relay, _) | Consumer::Inquiry(relay)) => &self.relays[relay],
            Some(Consumer::Client(_)) | None => return false,
        };
        relay.server.as_str() != uri(self.present)
    }

    /// The relay lost its connection, and may find the other control plane next.
    pub(crate) fn may_move(&mut self) {
        if self.elsewhere.is_some() && self.rng.random_bool(0.5) {
            self.change_server();
        }
    }

    /// Changes the order of the two in the configuration, for a relay that starts from its disk. One that has nothing on disk does not
    /// know what its clients were told: there the order is the one that it began with.
    pub(crate) fn reorder_servers(&mut self, relay: usize) {
        let first = if self.rng.random_bool(0.5) { 1 - self.plan.first } else { self.plan.first };
        self.plan.first = if self.disks[relay].is_blank() { 0 } else { first };
        self.say(|world| format!("{} is the first control plane in the list", uri(world.plan.first)));
    }

    /// Loses the connection to the present control plane. The other one takes its place.
    pub(crate) fn move_over(&mut self) {
        let streams = self.net.on(0);
        streams.into_iter().for_each(|stream| self.lose(stream));
        self.net.links[0].forget(self.now);
        self.change_server();
    }

    fn change_server(&mut self) {
        let Some(mut elsewhere) = self.elsewhere.take() else { return };
        for _ in 0..[0, 0, 1, 4][self.rng.random_range(0..4)] {
            let at = self.rng.random_range(0..TYPES.len());
            let names = self.plan.all_names(at);
            let name = &names[self.rng.random_range(0..names.len())];
            match self.draw_elsewhere(&mut elsewhere.contents, at, name) {
                Some(body) => drop(elsewhere.bodies[at].insert(name.clone(), body)),
                None => drop(elsewhere.bodies[at].remove(name)),
            }
        }
        self.present = 1 - self.present;
        (self.moved, self.causes) = (Some(self.now), self.causes + 1);
        self.say(|world| format!("the relay is to find {} ({:?})", uri(world.present), elsewhere.flavor));
        let site = &mut self.sites[0];
        std::mem::swap(&mut site.contents, &mut elsewhere.contents);
        std::mem::swap(&mut site.origin.flavor, &mut elsewhere.flavor);
        for (at, bodies) in elsewhere.bodies.iter_mut().enumerate() {
            let here: BTreeMap<String, Body> =
                site.truth.present(at).map(|(name, body)| (name.clone(), Body::clone(body))).collect();
            let there = std::mem::replace(bodies, here);
            let names: Vec<String> = there.keys().chain(bodies.keys()).cloned().collect();
            for name in names {
                if site.truth.get(at, &name).map(|body| &**body) != there.get(&name) {
                    site.truth.set(at, &name, there.get(&name).cloned(), self.now);
                }
            }
        }
        site.origin.restart();
        site.origin.forgotten.clear();
        self.origin_backlog.clear();
        if !self.flavors.contains(&self.sites[0].origin.flavor) {
            self.flavors.push(self.sites[0].origin.flavor);
        }
        self.elsewhere = Some(elsewhere);
    }
}
