//! Node groups of a relay: which of them each stream of a client is in, and what they share.
//!
//! Owns what the shell of `groups` does around the core: it places clients by the rules, makes a group with its first client and
//! releases it after its linger. Owns the rules that only groups have to keep: nobody is shown anything of another node, and
//! what is gone leaves nothing behind.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use deltafan::cache::{Budget, Cache, Claim, ParameterView, Protocol, View, Writer};
use deltafan::group_table::GroupTable;
use deltafan::node_group::{
    Condition, GroupKey, GroupNode, GroupPlace, GroupRules, Rule, RuleSpec, Unmatched,
};
use deltafan::proto::Node;
use deltafan::resource::{Resource, TypeUrl};
use deltafan::upstream::{NodeBudget, Representative, Settings, Stay, StreamId};
use prost::Message as _;
use rand::Rng;
use regex::Regex;

use super::flavor::Flavor;
use super::net::{Consumer, Server};
use super::plan::{GroupPlan, Plan, millis};
use super::reading::Told;
use super::relay::{ENDING, Input, Relay, Request};
use super::truth::{TYPES, at_of};
use super::world::{Site, World};
use deltafan_test_support::wire::{body, type_url};

/// Nodes of clients that a group keeps at least, while so many are there.
const KEPT: usize = 4;

/// For how long memory may be in use that nothing holds, on a busy machine.
const RECLAIM: Duration = Duration::from_secs(60);
/// Time in which everybody has heard that clients have left, after the linger.
const NOTICE: Duration = Duration::from_secs(5);

/// Place of a stream in its group.
#[derive(Debug)]
struct Visit {
    relay: usize,
    key: Option<GroupKey>,
    /// Number at the representative.
    number: Option<u64>,
    node: Bytes,
    /// Whether its node is kept for new streams while it is there.
    is_kept: bool,
}

/// Parts of a relay that its groups share.
pub(crate) struct Host {
    rules: GroupRules,
    budget: Budget,
    nodes: Arc<NodeBudget>,
    lingering: Arc<AtomicUsize>,
    table: GroupTable<GroupKey, usize>,
    most: usize,
    made: u64,
    /// By the stream.
    visits: BTreeMap<u32, Visit>,
}

impl Host {
    pub(crate) fn new(plan: &Plan, groups: GroupPlan) -> Self {
        let whole = Regex::new(r"\A(?:fleet-(?P<fleet>[0-9]+))\z").expect("a pattern");
        let condition = Condition::new("node.cluster".parse().expect("a key"), "fleet-…", whole);
        let made = serde_json::json!({"id": "edge-${fleet}", "cluster": "fleet-${fleet}"});
        let node = made.as_object().filter(|_| !groups.lends_nodes).cloned();
        let spec = RuleSpec { name: "fleet", conditions: vec![condition], key: Some("${fleet}"), node };
        let rules = vec![Rule::new(spec).expect("a rule")];
        Self {
            rules: GroupRules::new(rules, Unmatched::Own, plan.settings().node, 256),
            budget: Budget::new(plan.limits().encoded_bytes),
            nodes: Arc::new(NodeBudget::new(groups.count)),
            lingering: Arc::default(),
            table: GroupTable::default(),
            most: groups.count - 1,
            made: 0,
            visits: BTreeMap::new(),
        }
    }

    /// Store of a new group.
    pub(crate) fn store(&self, plan: &Plan) -> (Arc<Cache>, Writer) {
        Cache::guarded(plan.limits(), &self.budget, None)
    }

    /// Settings of a group that the control plane sees as this node.
    pub(crate) fn settings(&self, plan: &Plan, node: Node) -> Settings {
        Settings { node, all_lingering: Arc::clone(&self.lingering), ..plan.settings() }
    }

    fn visits(&self, relay: usize) -> impl Iterator<Item = &Visit> {
        self.visits.values().filter(move |visit| visit.relay == relay)
    }
}

/// Resources that a group holds.
fn resources(cache: &Cache) -> Vec<(TypeUrl, View, Arc<Resource>)> {
    let mut found = Vec::new();
    for of in cache.types() {
        for entry in of.snapshot().entries() {
            for (view, seen) in [(View::Wildcard, entry.as_member()), (View::Named, entry.by_name())] {
                found.extend(seen.present().map(|held| (of.type_url().clone(), view, Arc::clone(held))));
            }
        }
    }
    found
}

impl World {
    /// Gives the streams of new clients their places, before the relay hears them.
    pub(crate) fn seat(&mut self, relay: usize) {
        let Some(host) = &self.host else { return };
        if self.relays[relay].paused.is_some_and(|(_, until)| until > self.now) {
            return;
        }
        let is_new = |(stream, _): &(u32, Node)| !host.visits.contains_key(stream);
        // A client may have asked for several types by now.
        let newcomers: BTreeMap<u32, Node> = self.relays[relay].asking().filter(is_new).collect();
        for (stream, node) in newcomers {
            self.enter(relay, stream, &node);
        }
        if self.relays[relay].is_unused() {
            self.relays[relay].inbox.clear();
        }
    }

    fn enter(&mut self, relay: usize, stream: u32, node: &Node) {
        let Some(host) = &mut self.host else { return };
        let (key, mut number) = (None, None);
        let mut visit = Visit { relay, key, number, node: node.encode_to_vec().into(), is_kept: false };
        match host.rules.place(node, None).expect("a group takes everybody") {
            None => assert_eq!(relay, 0, "RULE: {node:?} is in the own group"),
            Some(place) => {
                assert_eq!(place.key.text(), relay.to_string(), "RULE: the group of {node:?}");
                let joined = host.table.join(&place.key, None, host.most, || relay);
                assert_eq!(joined, Ok(&relay), "ROOM: groups that are gone are counted");
                if self.relays[relay].is_unused() {
                    self.make_group(relay, &place);
                }
                let representative = self.relays[relay].representative.as_ref();
                number =
                    representative.map(|of| of.arrive(visit.node.clone(), None, Stay::Stream).expect("room"));
                visit.key = Some(place.key);
            }
        }
        let Some(host) = &mut self.host else { return };
        visit.number = number;
        visit.is_kept = true;
        // The newest takes the place of the one before it.
        let kept = host.visits.values_mut().filter(|visit| visit.relay == relay && visit.is_kept);
        let mut kept: Vec<&mut Visit> = kept.collect();
        if kept.len() == KEPT
            && let Some(last) = kept.iter_mut().max_by_key(|visit| visit.number)
        {
            last.is_kept = false;
        }
        host.visits.insert(stream, visit);
    }

    fn make_group(&mut self, relay: usize, place: &GroupPlace) {
        self.say(|_| format!("group {relay} is made"));
        let Some(host) = &mut self.host else { return };
        let (node, representative) = match host.rules.node(place) {
            GroupNode::Made(node) => (*node, None),
            GroupNode::Client => {
                let representative = Representative::new(Arc::clone(&host.nodes));
                (Node { id: place.key.to_string(), ..Node::default() }, Some(Arc::new(representative)))
            }
        };
        let store = host.store(&self.plan);
        host.made += 1;
        // A type that the origin does not have is charged to the pool that all groups share.
        let type_url = TypeUrl::from(format!("type.googleapis.com/test.Type{}", host.made).as_str());
        let claimed = store.0.claim_store(Claim::ANYBODY, &type_url, &ParameterView::default());
        assert!(claimed.is_ok(), "ROOM: types of groups that are gone are counted");
        let settings = host.settings(&self.plan, node);
        let mut new = Relay::new(settings, store, &self.rules, (false, false), self.now);
        new.representative = representative;
        let old = std::mem::replace(&mut self.relays[relay], new);
        self.begin_group(relay, old);
    }

    /// A group takes the place of another state of it, and knows nothing yet.
    fn begin_group(&mut self, relay: usize, old: Relay) {
        let new = &mut self.relays[relay];
        (new.opens, new.requests) = (old.opens, old.requests);
        let is_of_clients = |input: &Input| matches!(input, Input::Asked { .. } | Input::ClientGone(_));
        new.inbox = old.inbox.into_iter().filter(is_of_clients).collect();
        self.seen[relay] = Default::default();
        self.looked.retain(|(of, _), _| *of != relay);
        self.known_since[relay] = self.now;
        self.attempts[relay] += 1;
        self.causes += 1;
    }

    /// Takes streams that are over out of their groups.
    pub(crate) fn unseat(&mut self, relay: usize) {
        let Some(host) = &mut self.host else { return };
        let of = &self.relays[relay];
        let is_gone = |stream: &u32, visit: &mut Visit| visit.relay == relay && !of.has_session(*stream);
        let gone: Vec<_> = host.visits.extract_if(.., is_gone).collect();
        for (_, Visit { key, number, .. }) in gone {
            if let (Some(representative), Some(number)) = (&of.representative, number) {
                representative.leave(number);
            }
            if let Some(key) = key {
                host.table.leave(&key, self.now + self.plan.linger);
            }
        }
    }

    /// When the next group is released, while the process runs.
    pub(crate) fn next_release(&self) -> Option<Instant> {
        let host = self.host.as_ref().filter(|_| self.relays[0].paused.is_none());
        host.and_then(|host| host.table.next_release())
    }

    /// Releases groups whose linger is over.
    pub(crate) fn release_unused(&mut self) {
        while self.next_release().is_some_and(|at| at <= self.now)
            && let Some((_, relay)) =
                self.host.as_mut().and_then(|host| host.table.release_unless(self.now, self.now, |_| false))
        {
            self.release(relay);
        }
    }

    fn release(&mut self, relay: usize) {
        self.say(|_| format!("group {relay} is released"));
        let unused = Relay::new(
            self.plan.settings(),
            Cache::new(self.plan.limits()),
            &self.rules,
            (false, false),
            self.now,
        );
        let old = std::mem::replace(&mut self.relays[relay], unused.unused());
        old.open.into_iter().chain([old.inquiry]).flatten().for_each(|stream| self.hang_up(stream));
        let cache: Weak<Cache> = Arc::downgrade(&old.cache);
        let held: Vec<(TypeUrl, View, Weak<Resource>)> = resources(&old.cache)
            .into_iter()
            .map(|(type_url, view, held)| (type_url, view, Arc::downgrade(&held)))
            .collect();
        self.begin_group(relay, old);
        assert_eq!(cache.strong_count(), 0, "KEPT: the cache of group {relay}, which is released");
        // Clients of others may stand at a state that held what is equal.
        let own = format!("@{relay}");
        for (type_url, _, held) in held {
            let kept = || {
                let held = held.upgrade()?;
                Some(body(held.body(), &type_url)).filter(|(_, text)| text.ends_with(&own))
            };
            self.reclaim(|| kept().is_none());
            let kept = kept();
            assert!(kept.is_none(), "KEPT: {kept:?} of {type_url:?} of group {relay}, which is released");
        }
    }

    /// Waits until memory is given back. What the byte cache lets go of is freed once no thread of the process can see it, and
    /// histories of other tests have threads too.
    fn reclaim(&self, is_free: impl Fn() -> bool) {
        let Some(host) = &self.host else { return };
        let began = Instant::now();
        while !is_free() && began.elapsed() < RECLAIM {
            std::thread::sleep(Duration::from_millis(1));
            // A cache that ends has the byte cache do what is due.
            drop(host.store(&self.plan));
        }
    }

    /// Whether a group finds a connection that another one stands on.
    pub(crate) fn may_join(&self, relay: usize) -> bool {
        let others = self.relays.iter().enumerate().filter(|(other, _)| *other != relay);
        self.host.is_some() && others.into_iter().any(|(_, other)| other.stands())
    }

    /// The node that new streams show is that of a client that is there, if the node of any is kept.
    pub(crate) fn check_choice(&self, relay: usize, stream: StreamId) {
        let (Some(host), Some(of)) = (&self.host, &self.relays[relay].representative) else { return };
        let oldest = host.visits(relay).filter(|visit| visit.is_kept).filter_map(|visit| visit.number).min();
        if let Some(oldest) = oldest.filter(|_| stream == StreamId::Primary) {
            let shown = of.node();
            let mut there = host.visits(relay).filter(|visit| visit.number <= Some(oldest));
            assert!(
                there.any(|visit| visit.node == shown),
                "NODE: group {relay} shows that of a client that left"
            );
        }
    }

    /// A request arrives at the origin, which answers by the node of the stream.
    pub(crate) fn origin_hears(&mut self, stream: u32, request: &Request) {
        if request.type_url() == type_url(ENDING).as_str() {
            self.say(|_| format!("the origin ends stream {stream}: it has no cache for {ENDING}"));
            return self.lose(stream);
        }
        let site = self.site_asked(stream, request);
        let is_inquiry = matches!(self.consumer(stream), Some(Consumer::Inquiry(_)));
        let Site { truth, origin, .. } = &mut self.sites[site];
        let is_census = matches!(request, Request::Sotw(_)) && !matches!(origin.flavor, Flavor::Sotw(_));
        if is_inquiry && is_census {
            return match origin.census(stream, request, truth) {
                Some(said) => self.send_origin(vec![said]),
                None => self.refuse(stream),
            };
        }
        let said = origin.hear(stream, request, truth);
        self.send_origin(said);
    }

    fn site_asked(&mut self, stream: u32, request: &Request) -> usize {
        let Some(groups) = self.plan.groups else { return 0 };
        if let Some(site) = self.nodes.get(&stream) {
            assert!(request.node().is_none(), "NODE: {stream} shows one once more");
            return *site;
        }
        let node = request.node().expect("the first request of a stream shows a node");
        let site = node.cluster.strip_prefix("fleet-").map_or(0, |fleet| fleet.parse().expect("a fleet"));
        if let Some(Consumer::Mux(relay, _) | Consumer::Inquiry(relay)) = self.consumer(stream) {
            assert_eq!(relay, site, "NODE: group {relay} shows {node:?}");
            let is_client = groups.lends_nodes && relay > 0;
            let is_right = match is_client {
                true => self.relays[relay].representative.is_none() || node.id.starts_with('c'),
                false => node.id == if relay > 0 { format!("edge-{relay}") } else { "relay".to_owned() },
            };
            assert!(is_right, "NODE: group {relay} shows {node:?}");
        }
        self.nodes.insert(stream, site);
        site
    }

    /// Everything that a client is told was published for the node of its group, in that version.
    pub(crate) fn check_world(&self, client: usize, told: &Told) {
        if self.host.is_none() {
            return;
        }
        let of = &self.clients[client];
        let says_versions = of.protocol == Protocol::Delta
            && self.flavor().protocol() == Protocol::Delta
            && self.flavor().has_versions();
        for (name, text, version) in told.resources.iter().filter(|(_, text, _)| !text.is_empty()) {
            let truth = self.truth(of.relay);
            assert!(
                truth.had(told.at, name, text, Some(&**version).filter(|_| says_versions)),
                "FOREIGN: client {client} of group {} is told {name}:{text} of {} in version {version}",
                of.relay,
                TYPES[told.at],
            );
        }
    }

    /// Looks at all groups while nothing happens.
    pub(crate) fn check_groups(&mut self) {
        (0..self.relays.len()).for_each(|relay| self.check_choice(relay, StreamId::Primary));
        self.check_table();
        self.check_streams();
        self.check_shared();
        self.check_change();
        self.check_release();
    }

    fn check_table(&self) {
        let Some(host) = &self.host else { return };
        for (key, relay, clients) in host.table.iter() {
            assert!(!self.relays[*relay].is_unused(), "GROUP: {key} is not there");
            assert_eq!(clients, host.visits(*relay).count(), "GROUP: clients of {key}");
        }
        let used = self.relays[1..].iter().filter(|relay| !relay.is_unused()).count();
        assert_eq!(host.table.iter().count(), used, "GROUP: number of groups");
    }

    /// The streams upstream are those that the groups ask for.
    fn check_streams(&self) {
        for (relay, of) in self.relays.iter().enumerate() {
            let open: Vec<u32> = of.open.into_iter().flatten().collect();
            let is_its = |consumer: Consumer| matches!(consumer, Consumer::Mux(other, _) if other == relay);
            let streams = self.net.streams.iter().filter(|(_, stream)| is_its(stream.consumer));
            let mut found: Vec<u32> = streams.map(|(id, _)| *id).collect();
            found.sort_by_key(|id| open.iter().position(|other| other == id));
            assert_eq!(found, open, "STREAMS: of group {relay}");
            let expected = if of.is_unused() { [false; 2] } else { [true, of.mux.wants_secondary()] };
            assert_eq!(of.open.map(|id| id.is_some()), expected, "STREAMS: of group {relay}");
            let heard = self.sites[relay].origin.streams();
            let is_open = |id: &u32| {
                open.iter().chain(&of.inquiry).any(|open| open == id)
                    && self.net.streams[id].server == Server::Origin
            };
            assert!(
                heard.iter().all(is_open),
                "STREAMS: the origin has {heard:?} for group {relay}: {open:?}"
            );
        }
    }

    /// Groups that clients make hold equal resources once.
    fn check_shared(&self) {
        let mut held: BTreeMap<(usize, String), Vec<Arc<Resource>>> = BTreeMap::new();
        for (type_url, _, resource) in self.relays[1..].iter().flat_map(|relay| resources(&relay.cache)) {
            let key = (at_of(type_url.as_str()), resource.name().as_str().to_owned());
            held.entry(key).or_default().push(resource);
        }
        for ((at, name), held) in held {
            let is_once =
                |one: &Arc<Resource>, other: &Arc<Resource>| one != other || Arc::ptr_eq(one, other);
            let is_shared = held.iter().all(|one| held.iter().all(|other| is_once(one, other)));
            assert!(is_shared, "SHARED: {name} of {} is there more than once", TYPES[at]);
        }
    }

    /// A change for one node is no news to the clients of others.
    fn check_change(&mut self) {
        let site = self.rng.random_range(0..self.sites.len());
        let told = |world: &Self| -> Vec<u64> {
            let count = |client| world.repeats.told(client);
            (0..world.clients.len()).map(count).collect()
        };
        let opens = |world: &Self| -> Vec<u64> { world.relays.iter().map(|relay| relay.opens).collect() };
        let before = (told(self), opens(self));
        self.change_site(site, 3);
        self.advance(Duration::from_secs(3));
        let after = (told(self), opens(self));
        for (client, of) in self.clients.iter().enumerate() {
            let is_calm = before.1[of.relay] == after.1[of.relay] && self.plan.ttl.is_none();
            if of.relay != site && is_calm {
                assert_eq!(before.0[client], after.0[client], "NEWS: client {client} hears of node {site}");
            }
        }
    }

    /// Groups that all clients leave go, with all that they held.
    fn check_release(&mut self) {
        let count = self.sites.len();
        let only = Some(self.rng.random_range(0..2 * count)).filter(|only| *only < count);
        let leaves = |relay: usize| only.is_none_or(|only| only == relay);
        self.say(|_| format!("all clients leave, of group {only:?}"));
        let leaving: Vec<usize> =
            (0..self.clients.len()).filter(|client| leaves(self.clients[*client].relay)).collect();
        leaving.iter().for_each(|client| self.leave(*client));
        self.advance(self.plan.linger + NOTICE);
        let mut left = (1..count).filter(|relay| leaves(*relay));
        assert!(left.all(|relay| self.relays[relay].is_unused()), "GROUP: one is there that nobody uses");
        self.check_table();
        self.check_streams();
        // Behind an origin that keeps versions names linger for longer.
        self.advance(if only.is_none() { self.plan.linger * 10 } else { Duration::ZERO });
        if let Some(host) = self.host.as_ref().filter(|_| only.is_none()) {
            assert_eq!(host.lingering.load(Ordering::Relaxed), 0, "KEPT: names of clients that are gone");
        }
        for client in leaving {
            let wait = millis(&mut self.rng, 0..2_000);
            if self.rng.random_bool(0.3) {
                self.clients[client].forget();
            }
            self.return_in(client, wait);
        }
    }

    /// Something that happens to a group alone.
    pub(crate) fn group_trouble(&mut self, client: usize) {
        let relay = self.rng.random_range(0..self.relays.len());
        match self.rng.random_range(0..4) {
            0 => {
                self.say(|_| format!("the origin ends the streams of group {relay}"));
                let is_its = |consumer: Consumer| matches!(consumer, Consumer::Mux(of, _) | Consumer::Inquiry(of) if of == relay);
                let streams = self.net.streams.iter().filter(|(_, stream)| is_its(stream.consumer));
                let streams: Vec<u32> = streams.map(|(id, _)| *id).collect();
                streams.into_iter().for_each(|stream| self.lose(stream));
            }
            1 => {
                self.say(|_| format!("client {client} starts anew as a node of group {relay}"));
                self.leave(client);
                let wait = self.away();
                let cluster = self.plan.cluster(relay);
                let of = &mut self.clients[client];
                (of.relay, of.cluster) = (relay, cluster);
                of.forget();
                self.return_in(client, wait);
            }
            2 => {
                let wait = self.away();
                self.say(|_| format!("the clients of group {relay} leave for {wait:?}"));
                for client in 0..self.clients.len() {
                    if self.clients[client].relay == relay {
                        self.leave(client);
                        let more = millis(&mut self.rng, 0..500);
                        self.return_in(client, wait + more);
                    }
                }
            }
            _ => self.change_site(relay, 2),
        }
    }
}
