//! The shared store that one upstream fills and every session reads.
//!
//! Owns, for a node group: per type the resources as last heard, the order in which they changed, the cohorts of
//! clients and what each cohort has to be told, encoded once. Knows nothing of streams, requests, nonces or ACKs,
//! does no I/O, and has no clock: times come in as arguments and only go out again.
//!
//! Invariants:
//! - One [`Writer`] per cache, by ownership. A reader waits for it no longer than a pointer swap.
//! - A change is one snapshot: readers see all of it or nothing.
//! - Unknown is never absent (R-Relay-04), and nothing but the origin's word makes a name absent.
//! - A cohort is marked after the snapshot that concerns it is published, and woken after it is marked: a session
//!   that registers, then looks, misses nothing.

mod alias;
mod cohort;
mod encoder;
mod entry;
mod frame;
mod generation;
mod journal;
mod nonce;
mod registry;
mod scan;
mod segments;
mod shelf;
mod sight;
mod snapshot;
mod span;
mod update;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use foldhash::HashMap;
use parking_lot::{Mutex, RwLock};

pub use alias::Alias;
pub use cohort::{Cohort, Dialect, Mailbox, Protocol};
pub use encoder::{Encoder, FellBehind};
pub use entry::{Entry, Named, Seen};
pub use frame::Frame;
pub use generation::Generation;
pub use nonce::{Nonce, NonceText, Suffix};
pub use registry::{Interest, Membership, Subscription};
pub use sight::{Found, SetVersion, Sight};
pub use snapshot::Snapshot;
pub use span::{Class, Span};
pub use update::{Owed, Update};

use registry::Registry;
use snapshot::Draft;

use crate::resource::{Kind, Name, Resource, TypeUrl};

/// Through which of its two subscriptions the relay holds a resource (R-Relay-03).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// As a member of the origin's wildcard set.
    Wildcard,
    /// By its name.
    Named,
}

/// Why the origin sent a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resend {
    /// It answers a subscription of ours; unchanged content is no news.
    Answer,
    /// It came by itself; unchanged content is meant for the clients (R-ADS-05, R-Relay-21).
    Unsolicited,
}

/// One thing that the upstream learned or decided.
#[derive(Clone, Debug)]
pub enum Op {
    /// The resource exists in this version.
    Set {
        /// Where it was seen.
        view: View,
        /// The resource.
        resource: Arc<Resource>,
        /// Why it came.
        resend: Resend,
    },
    /// It does not exist, says the origin.
    Remove {
        /// Where that was said.
        view: View,
        /// The name.
        name: Name,
    },
    /// The relay no longer subscribes to it, so that nothing is known of it any more.
    Forget {
        /// The subscription that ended.
        view: View,
        /// The name.
        name: Name,
    },
    /// It is no member of its collection any more, and nobody asks for it by name.
    Withdraw {
        /// The name.
        name: Name,
    },
    /// All members of a collection have been heard (R-XT-03).
    Complete {
        /// The collection's name.
        name: Name,
    },
    /// The name is one of the aliases of this resource (R-Relay-20); or the origin cannot say of what, and says it with this
    /// (R-Delta-22).
    Alias {
        /// The name that was asked for.
        name: Name,
        /// The resource.
        resource: Arc<Resource>,
        /// Why it came.
        resend: Resend,
    },
    /// Its body is not to be kept any longer (R-XT-09). Nobody is told.
    Drop {
        /// The name.
        name: Name,
    },
    /// Aggregated clients are to be sent it again though it did not change (R-ADS-05).
    Repush {
        /// The name.
        name: Name,
    },
}

impl Op {
    /// The name it is about.
    pub fn name(&self) -> &Name {
        match self {
            Self::Set { resource, .. } => resource.name(),
            Self::Remove { name, .. }
            | Self::Forget { name, .. }
            | Self::Withdraw { name }
            | Self::Complete { name }
            | Self::Alias { name, .. }
            | Self::Drop { name }
            | Self::Repush { name } => name,
        }
    }
}

/// What one response of the origin changes, applied as a whole (R-Up-12).
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// In the order in which they take effect.
    pub ops: Vec<Op>,
    /// Whether the wildcard set is complete from now on (R-Relay-05), where that changes.
    pub wildcard_known: Option<bool>,
    /// The origin's `system_version_info`, for debugging only (R-Delta-20).
    pub system_version: Option<Arc<str>>,
}

/// How much the cache may keep.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of shared encodings.
    pub encoded_bytes: u64,
    /// Removed names remembered per type.
    pub tombstones: usize,
    /// Answers that may be sent in parts are cut when they reach this many bytes (R-Up-23).
    pub response_bytes: usize,
    /// Types; requests for more are refused, but for the types of the protocol.
    pub types: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { encoded_bytes: 256 << 20, tombstones: 10_000, response_bytes: 1 << 20, types: 1024 }
    }
}

/// The store of one type.
#[derive(Debug)]
pub struct TypeCache {
    type_url: TypeUrl,
    index: u32,
    snapshot: ArcSwap<Snapshot>,
    registry: Mutex<Registry>,
    interest: Arc<Mailbox>,
    encoder: Arc<Encoder>,
}

impl TypeCache {
    /// The type.
    pub const fn type_url(&self) -> &TypeUrl {
        &self.type_url
    }

    /// Its number among the cache's types, for nonces.
    pub const fn index(&self) -> u32 {
        self.index
    }

    /// The newest state.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// Takes a place among the clients with this subscription.
    pub fn join(
        self: &Arc<Self>,
        subscription: Subscription,
        dialect: Dialect,
        mailbox: &Arc<Mailbox>,
    ) -> Membership {
        Membership::join(Arc::clone(self), subscription, dialect, Arc::clone(mailbox))
    }

    /// What a poll of this cohort sees now, worked out once per change for all of them.
    pub fn sight(&self, cohort: &Cohort) -> Sight {
        Sight::of(self, cohort)
    }

    /// The same with the resources, which is to be written out.
    pub fn found(&self, cohort: &Cohort) -> Found {
        Found::of(self, cohort)
    }

    /// Whether any client asks for this name.
    pub fn wants(&self, name: &str) -> bool {
        self.registry.lock().wants(name)
    }

    /// These names are to be asked for upstream once more: their bodies were not kept (R-XT-09).
    pub fn ask_again<'a>(&self, names: impl IntoIterator<Item = &'a Name>) {
        if self.registry.lock().ask_again(names) {
            self.interest.wake();
        }
    }

    /// Whether any client asks for the wildcard.
    pub fn wants_wildcard(&self) -> bool {
        self.registry.lock().wants_wildcard()
    }

    /// What makes and shares this type's updates.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// How many cohorts its clients form.
    pub fn cohorts(&self) -> usize {
        self.registry.lock().cohorts()
    }
}

/// Too many types are subscribed to; the peer that asked for one more is told so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the relay already serves {0} resource types, its limit")]
pub struct TooManyTypes(pub usize);

/// The store of one node group, as its readers see it.
#[derive(Debug)]
pub struct Cache {
    types: RwLock<Types>,
    interest: Arc<Mailbox>,
    encoder: Arc<Encoder>,
    limits: Limits,
}

#[derive(Debug, Default)]
struct Types {
    by_url: HashMap<Box<str>, Arc<TypeCache>>,
    next_index: u32,
}

impl Cache {
    /// An empty store, and the one hand that may write to it.
    pub fn new(limits: Limits) -> (Arc<Self>, Writer) {
        let cache = Arc::new(Self {
            types: RwLock::default(),
            interest: Arc::default(),
            encoder: Arc::new(Encoder::new(limits.encoded_bytes, limits.response_bytes)),
            limits,
        });
        let writer = Writer { cache: Arc::clone(&cache), clock: Generation::ZERO, repush: true };
        (cache, writer)
    }

    /// The store of a type, made when first asked for.
    pub fn of(&self, type_url: &TypeUrl) -> Result<Arc<TypeCache>, TooManyTypes> {
        if let Some(found) = self.types.read().by_url.get(type_url.as_str()) {
            return Ok(Arc::clone(found));
        }
        let mut types = self.types.write();
        if let Some(found) = types.by_url.get(type_url.as_str()) {
            return Ok(Arc::clone(found));
        }
        // The few types of the protocol have room whatever else is asked for.
        let is_full =
            |types: &Types| type_url.kind() == Kind::Other && types.by_url.len() >= self.limits.types;
        if is_full(&types) {
            // Types that nobody asks for and of which nothing is known make room.
            types.by_url.retain(|_, of| {
                Arc::strong_count(of) > 1 || !of.registry.lock().is_idle() || !of.snapshot().is_blank()
            });
        }
        if is_full(&types) {
            return Err(TooManyTypes(self.limits.types));
        }
        types.next_index += 1;
        let of = Arc::new(TypeCache {
            type_url: type_url.clone(),
            index: types.next_index,
            snapshot: ArcSwap::default(),
            registry: Mutex::default(),
            interest: Arc::clone(&self.interest),
            encoder: Arc::clone(&self.encoder),
        });
        types.by_url.insert(type_url.as_str().into(), Arc::clone(&of));
        Ok(of)
    }

    /// All types that were ever asked for.
    pub fn types(&self) -> Vec<Arc<TypeCache>> {
        self.types.read().by_url.values().cloned().collect()
    }

    /// Woken when what the clients want may have changed; then ask [`take_interest`](Self::take_interest).
    pub const fn interest(&self) -> &Arc<Mailbox> {
        &self.interest
    }

    /// What the clients want, for each type where it changed since last asked.
    pub fn take_interest(&self) -> Vec<(TypeUrl, Interest)> {
        let take = |of: Arc<TypeCache>| Some((of.type_url.clone(), of.registry.lock().take_interest()?));
        self.types().into_iter().filter_map(take).collect()
    }

    /// Counts of encoding at work.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }
}

/// The one writer of a group's cache.
#[derive(Debug)]
pub struct Writer {
    cache: Arc<Cache>,
    clock: Generation,
    repush: bool,
}

impl Writer {
    /// Whether endpoints are sent again when their cluster changed (R-ADS-05). On by default.
    pub const fn set_eds_repush(&mut self, on: bool) {
        self.repush = on;
    }

    /// The store it writes to.
    pub const fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Applies a change as a whole and wakes the clients it concerns.
    pub fn apply(&mut self, type_url: &TypeUrl, change: Change, now: Instant) -> Result<(), TooManyTypes> {
        let of = self.cache.of(type_url)?;
        let endpoints = self.publish(&of, change, now);
        if self.repush && type_url.kind() == Kind::Cluster && !endpoints.is_empty() {
            let of = self.cache.of(&Kind::Endpoint.into())?;
            let ops = endpoints.into_iter().map(|name| Op::Repush { name }).collect();
            self.publish(&of, Change { ops, ..Change::default() }, now);
        }
        Ok(())
    }

    fn publish(&mut self, of: &TypeCache, change: Change, now: Instant) -> Vec<Name> {
        let mut draft = Draft::new(&of.snapshot.load(), &of.type_url, &mut self.clock);
        draft.apply(change);
        let touched = std::mem::take(&mut draft.touched);
        let endpoints = std::mem::take(&mut draft.endpoints);
        let turned = draft.wildcard_turned;
        let snapshot = draft.finish(self.cache.limits.tombstones, now);
        let generation = snapshot.generation();
        of.snapshot.store(Arc::new(snapshot));
        if turned || !touched.is_empty() {
            let cohorts = of.registry.lock().touch(&touched, turned, generation);
            registry::wake(&cohorts);
        }
        endpoints
    }
}
