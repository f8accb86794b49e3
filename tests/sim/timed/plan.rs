//! Parameters of a history, drawn from its seed.
//!
//! Owns the choice of the origin, of the links, of the relay's settings and of the clients. Knows nothing of what happens.

use std::time::Duration;

use deltafan::cache::{Limits, Protocol};
use deltafan::proto::Node;
use deltafan::upstream::{ServerId, Settings};
use rand::Rng;
use rand::rngs::StdRng;

use super::client::Client;
use super::flavor::Flavor;
use super::net::Link;
use super::servers::uri;
use super::sotw::SotwHabits;
use super::truth::{TYPES, is_full_state};
use deltafan_test_support::wire::type_url;

/// Histories from this seed on are harsh: outages last for minutes, another kind of control plane takes over after a restart, and
/// every second one has a chain of relays.
pub(crate) const HARSH: u64 = 1_000_000;
/// From this seed on the origin speaks state of the world, and from the second one on its histories are harsh: there a control
/// plane that speaks delta may take over, and the other way round.
pub(crate) const SOTW: u64 = 2_000_000;
const HARSH_SOTW: u64 = 3_000_000;
/// From this seed on the relay has node groups, and the origin answers each by its node.
pub(crate) const GROUPS: u64 = 4_000_000;
/// From this seed on the link upstream is thin: a first answer takes minutes, in parts that are many seconds apart.
pub(crate) const THIN: u64 = 5_000_000;
/// From this seed on there are two control planes, and the relay moves between them.
pub(crate) const FAILOVER: u64 = 6_000_000;
/// From this seed on relays keep what they hold on disk, and start from that after they were killed.
pub(crate) const WARM: u64 = 7_000_000;
/// From this seed on they also move between two control planes.
pub(crate) const WARM_FAILOVER: u64 = 7_500_000;

/// From this seed on a client asks for a type at which the origin ends the stream, or the origin speaks state of the world and sends
/// only what changed on a stream that lives, or it has a spelling of its own for some names.
pub(crate) const PECULIAR: u64 = 8_000_000;

pub(crate) fn millis(rng: &mut StdRng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(rng.random_range(range))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Versions {
    /// Never the same twice.
    Unique,
    /// Equal for equal content, which comes back.
    Hashes,
}

/// Node groups of a relay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GroupPlan {
    /// Number of groups, the relay's own one counted.
    pub(crate) count: usize,
    /// Whether the rule says `node: client`.
    pub(crate) lends_nodes: bool,
    /// Bytes of shared encodings: with few, updates of all groups meet in the byte cache.
    pub(crate) encoded_bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) flavor: Flavor,
    pub(crate) versions: Versions,
    /// Bytes by which versions are longer than need be.
    pub(crate) padding: usize,
    pub(crate) ttl: Option<Duration>,
    /// A relay behind a relay.
    pub(crate) chain: bool,
    pub(crate) linger: Duration,
    pub(crate) response_bytes: usize,
    pub(crate) harsh: bool,
    pub(crate) thin: bool,
    /// How many names there are of each type.
    pub(crate) names: [usize; 4],
    pub(crate) clients: usize,
    pub(crate) groups: Option<GroupPlan>,
    pub(crate) failover: bool,
    /// Control plane that stands first in the list, where there are two. Relays that start from their disk may find another order.
    pub(crate) first: usize,
    /// Whether relays keep what they hold on disk.
    pub(crate) warm: bool,
    /// Whether a client of each relay asks for a type at which the origin ends the stream.
    pub(crate) ends_stream: bool,
    /// Whether the origin has names of several spellings, and knows its own alone.
    spells: bool,
}

impl Plan {
    pub(crate) fn new(seed: u64, rng: &mut StdRng) -> Self {
        let groups = (GROUPS..THIN).contains(&seed).then(|| GroupPlan {
            count: rng.random_range(2..5),
            lends_nodes: rng.random_bool(0.5),
            encoded_bytes: [256 << 20, 1 << 20, 4 << 10][rng.random_range(0..3)],
        });
        let (thin, failover) = (
            (THIN..FAILOVER).contains(&seed),
            (FAILOVER..WARM).contains(&seed) || (WARM_FAILOVER..PECULIAR).contains(&seed),
        );
        let warm = (WARM..PECULIAR).contains(&seed);
        let peculiar = seed >= PECULIAR;
        let ends_stream = peculiar && rng.random_bool(0.6);
        let sotw = match () {
            () if failover || warm => rng.random_bool(0.15),
            () if groups.is_some() || thin => rng.random_bool(0.4),
            () if ends_stream => rng.random_bool(0.3),
            () => seed >= SOTW,
        };
        let is_of_harsh = (HARSH..SOTW).contains(&seed) || (HARSH_SOTW..GROUPS).contains(&seed);
        let harsh = is_of_harsh || ((failover || warm) && rng.random_bool(0.3));
        let mut flavor = Flavor::random(rng);
        // Versions that do not fit into one request, nor those of names into the first.
        let bulky = rng.random_bool(0.06) || thin;
        if bulky {
            let plain = Flavor::Plain { parts: rng.random_range(2..30), tells_absent: rng.random_bool(0.5) };
            flavor = [Flavor::Go14 { linear: true }, Flavor::Go14 { linear: false }, plain, plain]
                [rng.random_range(0..4)];
        }
        if thin {
            let plain = Flavor::Plain { parts: rng.random_range(1..4), tells_absent: rng.random_bool(0.5) };
            flavor = if rng.random_bool(0.75) { plain } else { Flavor::random(rng) };
        }
        if sotw {
            let habits = SotwHabits::random(rng);
            flavor = Flavor::Sotw(if peculiar { habits.sending_changes() } else { habits });
        }
        let chain = groups.is_none() && !bulky && rng.random_bool(if harsh { 0.5 } else { 0.25 });
        let timed = !chain
            && !bulky
            && matches!(flavor, Flavor::Plain { .. } | Flavor::Sotw(_))
            && rng.random_bool(0.3);
        let large = !bulky && rng.random_bool(0.1);
        let mut names = [10, 6, 4, 4];
        if large {
            names = [60, 6, 30, 4];
        }
        if bulky {
            names = [24, 24, 3, 3];
        }
        let padding = if bulky { [64_000, 150_000][rng.random_range(0..2)] } else { 0 };
        let versions = if rng.random_bool(0.3) { Versions::Hashes } else { Versions::Unique };
        let ttl = timed.then(|| millis(rng, 2_000..8_000));
        let linger = Duration::from_secs(if bulky { 60 } else { [1, 1, 3, 10, 60][rng.random_range(0..5)] });
        // It once chose a setting. Without it each kept seed would be another history.
        let _ = !bulky && rng.random_bool(0.1);
        Self {
            flavor,
            versions,
            padding,
            ttl,
            chain,
            linger,
            response_bytes: if bulky {
                1 << 20
            } else {
                [150, 600, 1 << 20, 1 << 20][rng.random_range(0..4)]
            },
            harsh,
            thin,
            names,
            clients: if bulky || large { 4 } else { rng.random_range(3..9) },
            groups,
            failover,
            first: 0,
            warm,
            ends_stream,
            // No random number: kept seeds stay the histories that they were.
            spells: peculiar && !sotw && seed % 4 == 1,
        }
    }

    /// Number of the groups; one where there are none.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.map_or(1, |groups| groups.count)
    }

    /// `node.cluster` of the clients of a group, which decides their group. The own group takes the others.
    pub(crate) fn cluster(&self, relay: usize) -> String {
        if self.groups.is_some() && relay > 0 { format!("fleet-{relay}") } else { String::new() }
    }

    /// Text of a content. Contents of one number are equal for all nodes and control planes, or differ between them under equal
    /// versions.
    pub(crate) fn text(&self, site: usize, name: &str, number: u64) -> String {
        let is_own = (self.groups.is_some() || (self.failover && site > 0)) && !number.is_multiple_of(2);
        if is_own { format!("{name}/{number}@{site}") } else { format!("{name}/{number}") }
    }

    /// Names of a type, as they are called.
    pub(crate) fn all_names(&self, at: usize) -> Vec<String> {
        let name = |number: usize| match at {
            0 | 2 if self.spells && number == 1 => {
                let type_url = type_url(TYPES[at]);
                format!(
                    "xdstp://west/{}/n?a=1&b=2",
                    type_url.as_str().trim_start_matches("type.googleapis.com/")
                )
            }
            0 if number.is_multiple_of(2) => format!("eds{}", number / 2),
            0 => format!("c{number}"),
            1 => format!("eds{number}"),
            2 => format!("l{number}"),
            _ => format!("r{number}"),
        };
        (0..self.names[at]).map(name).collect()
    }

    /// Those of them that clients ask for by name: an origin does not know its own name by another spelling.
    pub(crate) fn asked_names(&self, at: usize) -> Vec<String> {
        self.all_names(at).into_iter().filter(|name| !name.starts_with("xdstp:")).collect()
    }

    pub(crate) fn settings(&self) -> Settings {
        let user_agent_name = "deltafan".to_owned();
        let node = Node { id: "relay".to_owned(), user_agent_name, ..Node::default() };
        let first_server = self.failover.then(|| ServerId::from(&*uri(self.first)));
        Settings { node, linger: self.linger, first_server, ..Settings::default() }
    }

    pub(crate) fn limits(&self) -> Limits {
        let limits = Limits { response_bytes: self.response_bytes, ..Limits::default() };
        match self.groups {
            // Each group asks for one type, of which none is left for a group that gives its own not back.
            Some(groups) => Limits { encoded_bytes: groups.encoded_bytes, types: groups.count, ..limits },
            None => limits,
        }
    }

    /// A link of the kind that leads upstream.
    pub(crate) fn upstream_link(&self, rng: &mut StdRng) -> Link {
        let latency = match rng.random_range(0..4) {
            0 => Duration::from_micros(200),
            1 => millis(rng, 1..20),
            2 => millis(rng, 20..150),
            _ => millis(rng, 150..500),
        };
        let jitter = if rng.random_bool(0.5) { Duration::ZERO } else { latency / 2 };
        if self.thin {
            let of_part = if let Flavor::Plain { parts, .. } = self.flavor { parts.min(24) } else { 24 };
            let part = (self.padding * of_part) as u64;
            return Link::thin(latency, rng.random_range(part / 8..part / 3));
        }
        let bandwidth = rng.random_bool(0.15).then(|| rng.random_range(20_000..2_000_000));
        Link::new(latency, jitter, bandwidth.filter(|_| self.padding == 0))
    }

    pub(crate) fn client_link(rng: &mut StdRng) -> Link {
        let latency = if rng.random_bool(0.8) { millis(rng, 0..30) } else { millis(rng, 30..300) };
        Link::new(latency, latency / 3, None)
    }

    pub(crate) fn client(&self, rng: &mut StdRng, id: usize, link: usize) -> Client {
        let protocol = if rng.random_bool(0.5) { Protocol::Sotw } else { Protocol::Delta };
        let grpc = rng.random_bool(0.3);
        let relay = match self.groups {
            Some(groups) => rng.random_range(0..groups.count),
            None => usize::from(self.chain && rng.random_bool(0.7)),
        };
        let cluster = self.cluster(relay);
        let mut client =
            Client::new(id, relay, link, protocol, [rng.random_bool(0.25), grpc, rng.random_bool(0.5)]);
        client.cluster = cluster;
        client.ack_delay = if rng.random_bool(0.7) { millis(rng, 1..20) } else { millis(rng, 20..400) };
        for at in 0..4 {
            client.types[at].asked = self.asked(rng, at, grpc);
        }
        client
    }

    /// Draws a subscription.
    pub(crate) fn asked(&self, rng: &mut StdRng, at: usize, grpc: bool) -> super::client::Asked {
        let may_be_wildcard = is_full_state(at) && !grpc;
        let wildcard = may_be_wildcard && rng.random_bool(0.6);
        let chance = match () {
            () if self.padding > 0 && at < 2 => 0.9,
            () if wildcard && rng.random_bool(0.7) => 0.0,
            () => [0.0, 0.3, 0.6, 0.9][rng.random_range(0..4)],
        };
        let names = self.asked_names(at).into_iter().filter(|_| rng.random_bool(chance)).collect();
        super::client::Asked { wildcard, names }
    }
}
