//! REST-JSON clients: each polls for one subscription at a time, and holds what it was given last.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Completeness};
use deltafan::proto;
use deltafan::subscription::{Poll, PollHistory, PollPeer, PollVerdict, SessionConfig, Upstream};
use rand::Rng;
use rand::rngs::StdRng;

use super::origin::{Origin, Seen, TYPES};
use super::subscription::{Subscribed, pick};
use deltafan_test_support::wire::{self, type_url};

/// Types that have a path.
const POLLED: usize = 5;

type Held = BTreeMap<String, String>;
/// The type, whether the wildcard was asked for, the names, and what was found.
type Stood = (usize, bool, BTreeSet<String>, Held);

/// Clients that poll, and what every version ever given out stood for.
#[derive(Debug, Default)]
pub(crate) struct Pollers {
    memory: PollHistory,
    clients: Vec<Poller>,
    versions: HashMap<String, Stood>,
}

#[derive(Debug)]
struct Poller {
    id: usize,
    at: usize,
    names: Vec<String>,
    version: String,
    held: Held,
}

/// The relay and the origin at a moment.
#[derive(Clone, Copy)]
pub(crate) struct Scene<'a> {
    pub(crate) cache: &'a Arc<Cache>,
    pub(crate) rules: &'a Arc<SessionConfig>,
    pub(crate) origin: &'a Origin,
    pub(crate) now: Instant,
}

impl Pollers {
    /// One of them polls, for what it asked for before or for something else, and takes or rejects its answer.
    pub(crate) fn step(&mut self, rng: &mut StdRng, scene: Scene<'_>) {
        if self.clients.len() < 6 {
            let (id, at) = (self.clients.len(), rng.random_range(0..POLLED));
            let names = pick(rng, at, 0.2, 0.3);
            self.clients.push(Poller { id, at, names, version: String::new(), held: Held::new() });
        }
        let which = rng.random_range(0..self.clients.len());
        let client = &mut self.clients[which];
        if rng.random_bool(0.2) {
            client.names = pick(rng, client.at, 0.2, 0.3);
        }
        let rejects = rng.random_bool(0.2);
        self.poll(which, rejects, scene);
    }

    /// All of them poll and take what they are given. Where the origin has said everything, they hold all of it.
    pub(crate) fn settle(&mut self, scene: Scene<'_>) {
        for which in 0..self.clients.len() {
            let known = self.poll(which, false, scene);
            let client = &self.clients[which];
            let subscribed = subscribed(client);
            if known {
                assert!(
                    owned(scene.origin.said[client.at].visible(&subscribed)) == client.held,
                    "{client:?}"
                );
            }
        }
    }

    /// Whether everything that it asked for is known.
    fn poll(&mut self, which: usize, rejects: bool, Scene { cache, rules, origin, now }: Scene<'_>) -> bool {
        let client = &mut self.clients[which];
        let type_url = type_url(TYPES[client.at]);
        let request = proto::DiscoveryRequest {
            node: Some(proto::Node { id: client.id.to_string(), ..proto::Node::default() }),
            resource_names: client.names.clone(),
            version_info: client.version.clone(),
            ..proto::DiscoveryRequest::default()
        };
        let hold = Duration::from_secs(1);
        let poll =
            Poll::new(cache, rules, &self.memory, type_url.kind(), request, PollPeer::default(), hold, now)
                .unwrap();
        let subscribed = subscribed(client);
        let said = &origin.said[client.at];
        let visible = owned(said.visible(&subscribed));
        let needed = if client.version.is_empty() { Completeness::Presumed } else { Completeness::Complete };
        let known = !said.is_unknown(&subscribed, needed, false);
        let is_unknown = |name: &String| said.seen(&subscribed, name) == Some(Seen::Unknown);
        let knows_nothing =
            !subscribed.wildcard && !subscribed.names.is_empty() && subscribed.names.iter().all(is_unknown);
        let timed = rules.cold_deadline < Duration::from_secs(60);
        let answerable = !said.is_unknown(&subscribed, needed, timed);
        let verdict = poll.expire(now, Upstream::Answering);
        if let PollVerdict::Answer(version) = poll.next(now, Upstream::Answering) {
            assert_eq!(
                verdict,
                PollVerdict::Answer(version),
                "what is answered at once is answered in the end"
            );
        }
        match verdict {
            PollVerdict::Answer(version) => {
                assert!(answerable, "{client:?} is answered though not all is known");
                let found = poll.found();
                assert_eq!(found.version, version);
                let told = found.resources.iter().map(|resource| wire::body(resource.body(), &type_url));
                assert_eq!(told.clone().count(), visible.len(), "no name twice");
                assert!(told.collect::<Held>() == visible, "{client:?} is told {found:?}, not {visible:?}");
                let version = version.to_string();
                let stood = (client.at, subscribed.wildcard, subscribed.names, visible);
                let before = self.versions.entry(version.clone()).or_insert_with(|| stood.clone());
                assert!(*before == stood, "{version} stood for {before:?}, now for {stood:?}");
                poll.end(Some(found.version), &self.memory, now);
                if !rejects {
                    client.version = version;
                    client.held = stood.3;
                }
            }
            PollVerdict::NotModified => {
                assert!(!knows_nothing, "{client:?} is told that it has what nothing is known of");
                let holds_it = client.held == visible;
                assert!(!known || holds_it, "{client:?} is told that it has all, and that is {visible:?}");
                poll.end(None, &self.memory, now);
            }
            PollVerdict::Unknown => {
                assert!(!known && (client.version.is_empty() || knows_nothing));
                poll.end(None, &self.memory, now);
            }
            PollVerdict::Wait(_) => panic!("the end of a poll is no wait"),
        }
        known
    }
}

fn subscribed(client: &Poller) -> Subscribed {
    let mut subscribed = Subscribed::default();
    subscribed.list(client.at, false, &client.names);
    subscribed
}

fn owned(visible: BTreeMap<&str, &str>) -> Held {
    visible.into_iter().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}
