//! Next update of a client, and its encoding.
//!
//! An [`Update`] leads on from a [`Position`]; a frame is an update in bytes. Both can be made again at any
//! time. Parts have a form of their own where the shared encoding does not fit: with TTLs (R-TTL-07), for locators (R-DP-09),
//! or in a client's spelling. Bodies are always shared.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::Bytes;
use foldhash::{HashMap, HashSet};
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::change::Completeness;
use super::grpc_frame::{self, Fields, Frame, Nonce, Piece, Suffix};
use super::origin_error::UpdateErrors;
use super::position::{Class, Generation, Part, Position};
use super::segments::Segment;
use super::snapshot::Snapshot;
use super::subscription::{Protocol, StreamProfile, Subscription};
use super::view_leases::MOMENT;
use crate::resource::{Constraints, Name, Resource, TypeUrl, clusters_in_routes, resource_name};

/// Items to send one client besides its cohort's updates.
#[derive(Clone, Debug, Default)]
pub struct OwedItems {
    /// Names newly requested, or to repeat.
    pub names: BTreeSet<Name>,
    /// Names to remove, subscribed or not (R-Delta-07).
    pub gone: BTreeSet<Name>,
    /// It rejected something sent up to here: what it holds of that is uncertain.
    pub doubt: Generation,
    /// Names whose errors follow their bodies (R-Err-06).
    pub errors: BTreeSet<Name>,
    /// Names denied when it requested them, and since when; full states leave them out meanwhile. Nothing to
    /// send.
    pub refused: BTreeMap<Name, Generation>,
    /// Variants that it may hold from other parameters, until their names are sent (R-DP-08).
    pub past: BTreeMap<Name, Vec<Option<Constraints>>>,
}

impl OwedItems {
    /// Records variants of a name that the client may hold. Beyond the newest 16, variants are forgotten and
    /// not removed at the client.
    pub fn remember(&mut self, name: Name, variants: impl IntoIterator<Item = Option<Constraints>>) {
        const REMEMBERED: usize = 16;
        let past = self.past.entry(name).or_default();
        for variant in variants {
            past.retain(|other| *other != variant);
            past.push(variant);
        }
        past.drain(..past.len().saturating_sub(REMEMBERED));
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.gone.is_empty() && self.errors.is_empty() && self.past.is_empty()
    }
}

#[derive(Debug)]
pub struct Update {
    pub to: Generation,
    pub(super) newest_state: Generation,
    /// Cohort changes up to `to`; `None` if `to` is between two marks.
    pub(super) changes: Option<u64>,
    /// Part to which it leads; `None` if it has only owed items, and the client stays where it is.
    pub(super) next: Option<Part>,
    /// When the cache applied its newest change.
    pub changed_at: Option<Instant>,
    pub(super) profile: StreamProfile,
    /// The subscription, if resources need its form.
    pub(super) asked: Option<Subscription>,
    /// Variants that clients by locator may hold of its names (R-DP-13).
    pub(super) past: BTreeMap<Name, Vec<Option<Constraints>>>,
    pub(super) type_url: TypeUrl,
    pub(super) type_index: u32,
    /// Version of the control plane as of this update; empty for none.
    pub system_version: Arc<str>,
    pub(super) control_plane: Arc<str>,
    /// The body: everything in a full state, else the news.
    pub(super) resources: Vec<Arc<Resource>>,
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) ghosts: Vec<Arc<Resource>>,
    /// Requested names that do not exist: an answer, which does not wait.
    pub(super) absent: Vec<Name>,
    pub(super) removed: Vec<Name>,
    /// End of the removals in it, if not all fit.
    pub(super) removed_to: Option<Generation>,
    /// Requested names that do not exist, left to another response (R-Up-23).
    pub absent_later: Vec<Name>,
    /// Boxed, as few have any.
    pub(super) errors: Option<Box<UpdateErrors>>,
    /// Names to request upstream again, because their bodies were not kept (R-XT-09).
    pub missed: Vec<Name>,
    pub additions: bool,
    pub removals: bool,
    /// Whether a subscribed name is unknown (R-Relay-04).
    pub unknown_name: bool,
    /// Whether a subscribed name is known, even as absent.
    pub known_name: bool,
    /// Completeness of the wildcard set, if subscribed (R-Relay-05); what suffices depends on the client.
    pub wildcard: Completeness,
    /// Whether it is the client's first.
    pub(super) from_start: bool,
    /// Endpoints of changed EDS clusters, unless it is the first.
    pub(super) endpoints: Vec<Name>,
    /// Owed items that it covers.
    pub owed: OwedItems,
    pub(super) digest: u128,
    /// Replacements of shared encodings.
    pub(super) own_encodings: Option<Box<OwnEncodings>>,
    pub(super) routed: OnceLock<Routed>,
    pub(super) frames: [OnceLock<Frame>; 2],
}

impl Update {
    pub const fn has_content(&self) -> bool {
        !self.resources.is_empty() || !self.segments.is_empty()
    }

    /// Whether it lacks resources of an earlier full state of the stream.
    pub const fn has_ghosts(&self) -> bool {
        !self.ghosts.is_empty()
    }

    /// Contents of a response with this class of it, by digest, their names, and names that it ends.
    pub(super) fn contents(&self, class: Class) -> (HashSet<u128>, HashSet<&str>, HashSet<&str>) {
        let members = self.segments.iter().flat_map(|segment| segment.members());
        let given = self.resources.iter().chain(members);
        let (digests, names) = given.map(|resource| (resource.digest(), resource.name().as_str())).unzip();
        let removed = self.removed.iter().chain(&self.owed.gone).filter(|_| class == Class::Both);
        (digests, names, removed.chain(&self.absent).map(Name::as_str).collect())
    }

    /// Whether more of the answer follows (R-Up-23).
    pub fn is_partial(&self) -> bool {
        self.next != Some(Part::Whole)
    }

    /// Endpoints whose clusters changed in it, or may have, as a client's state before its stream is unknown
    /// (R-ADS-05).
    pub fn endpoints(&self) -> impl Iterator<Item = &Name> {
        let listed = self.resources.iter().filter(|_| self.from_start);
        let members = self.segments.iter().filter(|_| self.from_start).flat_map(|segment| segment.members());
        self.endpoints.iter().chain(listed.chain(members).filter_map(|resource| resource.eds_service()))
    }

    pub fn is_full_state(&self) -> bool {
        self.profile.is_full_state(self.type_url.kind())
    }

    /// Names whose errors are left to another response.
    pub fn errors_later(&self) -> &[Name] {
        self.errors.as_deref().map_or(&[], |errors| &errors.later)
    }

    /// Names of its resources, which also cover the variants that they replace.
    pub fn resource_names(&self) -> impl Iterator<Item = &Name> {
        self.resources.iter().map(|resource| resource.name())
    }

    pub fn has_error_of(&self, name: &Name) -> bool {
        self.errors.as_deref().is_some_and(|errors| errors.contains(name))
    }

    /// `version_info`: digest of the client's effective set (R-Relay-11).
    pub fn version_info(&self) -> String {
        format!("{:032x}", self.digest)
    }

    /// Frame shared by the cohort.
    pub fn shared_frame(&self, class: Class, count: &AtomicU64) -> Frame {
        let (slot, suffix) = match class {
            Class::Both => (0, Suffix::None),
            Class::Additions => (1, Suffix::Additions),
        };
        self.frames[slot].get_or_init(|| self.encode(class, &BTreeSet::new(), suffix, count)).clone()
    }

    /// Frame with the stream's own nonce. `withdrawn`: removals sent even with additions. `leaves_open`: more
    /// follows, not yet known.
    pub fn own_frame(
        &self,
        class: Class,
        withdrawn: &BTreeSet<Name>,
        number: u32,
        leaves_open: bool,
        count: &AtomicU64,
    ) -> Frame {
        let announces_more = self.is_partial() || leaves_open;
        let suffix = if announces_more { Suffix::Part(number) } else { Suffix::Own(number) };
        self.encode(class, withdrawn, suffix, count)
    }

    fn encode(&self, class: Class, withdrawn: &BTreeSet<Name>, suffix: Suffix, count: &AtomicU64) -> Frame {
        count.fetch_add(1, Ordering::Relaxed);
        let nonce = Nonce { type_index: self.type_index, generation: self.to, suffix };
        match self.profile.protocol {
            Protocol::Delta => {
                let early: Vec<Name>;
                let removed = if class == Class::Both {
                    &self.removed[..]
                } else {
                    early = self.removed.iter().filter(|name| withdrawn.contains(*name)).cloned().collect();
                    &early[..]
                };
                self.splice(class, nonce, &self.system_version, [removed, &self.absent], &[])
            }
            Protocol::Sotw => {
                let is_kept =
                    |ghost: &&Arc<Resource>| class == Class::Additions && !withdrawn.contains(ghost.name());
                let ghosts: Vec<_> = self.ghosts.iter().filter(is_kept).cloned().collect();
                let union = ghosts.iter().fold(self.digest, |sum, ghost| sum.wrapping_add(ghost.digest()));
                self.splice(class, nonce, &format!("{union:032x}"), [&[], &[]], &ghosts)
            }
        }
    }

    /// `ghosts`: removed resources that are still sent.
    fn splice(
        &self,
        class: Class,
        nonce: Nonce,
        version: &str,
        removed: [&[Name]; 2],
        ghosts: &[Arc<Resource>],
    ) -> Frame {
        let is_delta = self.profile.protocol == Protocol::Delta;
        // Field numbers of `control_plane` and `resource_errors`.
        let (control_plane, resource_errors) = if is_delta { (7, 9) } else { (6, 7) };
        let spellings = self.asked.as_ref().and_then(Subscription::spellings);
        let errors = self.errors.as_deref().map(|errors| errors.encode(class, resource_errors, spellings));
        let encoded = self.segments.iter().map(|segment| (segment.encoded(self.profile.protocol), 0));
        let mut pieces: SmallVec<[Piece<'_>; 4]> = encoded.collect();
        for resource in self.resources.iter().chain(ghosts) {
            let (entry, tail) = resource.sotw_tail();
            match self.element(resource.name()) {
                Some(element) => {
                    pieces.push((&element.head, 0));
                    pieces.extend(element.with_body.then_some((entry, tail)));
                }
                None => pieces.push((entry, if is_delta { 0 } else { tail })),
            }
        }
        let mut variants = Vec::new();
        let spelled = self.asked.as_ref().map(|asked| self.split_removed(asked, removed, &mut variants));
        let fields = Fields {
            version,
            type_url: self.type_url.as_str(),
            control_plane: (control_plane, &self.control_plane),
            removed: spelled.as_ref().map_or(removed, |names| names.each_ref().map(Vec::as_slice)),
            removed_variants: &variants,
            errors: errors.as_deref().unwrap_or_default(),
        };
        grpc_frame::splice(fields, nonce, pieces.iter().copied())
    }

    /// Moves a client to the newest state. Only for an update without content.
    pub fn settle(&self, position: &mut Position) {
        debug_assert!(!self.additions && !self.removals, "only what has nothing to say may be passed over");
        *position = Position::up_to(self.newest_state);
    }

    /// Moves a client on that was sent `class` of this.
    pub fn advance(&self, position: &mut Position, class: Class) {
        position.newest_state = position.newest_state.max(self.newest_state);
        let Some(part) = &self.next else { return };
        if position.is_start() {
            // First update: the client can hold nothing that was gone by then.
            position.removed = self.newest_state;
        }
        position.part = part.clone();
        if matches!(part, Part::Whole | Part::Changes { .. }) {
            position.added = self.to;
        }
        if *part == Part::Whole && class != Class::Additions {
            position.removed = self.removed_to.unwrap_or(self.to);
        }
    }

    pub(super) fn weight(&self) -> u64 {
        let bytes: usize = self.resources.iter().map(|resource| resource.delta_entry().len()).sum();
        let bytes = bytes + self.own_bytes() + self.errors.as_deref().map_or(0, UpdateErrors::weight);
        (bytes + 512 + 16 * (self.segments.len() + self.removed.len())) as u64
    }
}

/// Clusters that the routes of an update name.
#[derive(Debug)]
pub(super) struct Routed {
    clusters: Vec<Name>,
    /// Last checked store and its generation, and whether all clusters were there.
    looked_at: Mutex<Option<(u32, Generation, bool)>>,
}

impl Update {
    /// Whether store number `store` has every cluster that its routes name, in this state. Computed once for
    /// all clients.
    pub fn has_its_clusters(&self, store: u32, snapshot: &Snapshot) -> bool {
        let routed = self.routed.get_or_init(|| {
            let kind = self.type_url.kind();
            let names = self.resources.iter().flat_map(|resource| clusters_in_routes(kind, resource.body()));
            let mut clusters: Vec<Name> = names.collect();
            clusters.sort_unstable();
            clusters.dedup();
            Routed { clusters, looked_at: Mutex::new(None) }
        });
        let known = *routed.looked_at.lock();
        if let Some((_, _, all)) = known.filter(|(of, at, _)| (*of, *at) == (store, snapshot.generation())) {
            return all;
        }
        let all = routed.clusters.iter().all(|name| snapshot.by_name(name.as_str()).existing().is_some());
        *routed.looked_at.lock() = Some((store, snapshot.generation(), all));
        all
    }

    /// Clusters that its routes name and that do not exist, once [`has_its_clusters`](Self::has_its_clusters)
    /// was asked.
    pub fn lacking_clusters<'a>(&'a self, snapshot: &'a Snapshot) -> impl Iterator<Item = &'a Name> {
        let named = self.routed.get().into_iter().flat_map(|routed| &routed.clusters);
        named.filter(|name| snapshot.by_name(name.as_str()).existing().is_none())
    }
}

/// Replacements of shared encodings, by name.
#[derive(Debug, Default)]
pub(super) struct OwnEncodings {
    /// When the TTLs in it were computed, if there are any.
    pub(super) ttls_at: Option<Instant>,
    pub(super) elements: HashMap<Name, Element>,
}

#[derive(Debug)]
pub(super) struct Element {
    pub(super) head: Bytes,
    /// Whether the tail of the shared encoding follows.
    pub(super) with_body: bool,
}

impl Update {
    pub(super) fn has_current_ttls(&self, now: Instant) -> bool {
        let sent = self.own_encodings.as_ref().and_then(|own| own.ttls_at);
        sent.is_none_or(|sent| now.saturating_duration_since(sent) <= MOMENT)
    }

    pub fn has_ttls(&self) -> bool {
        self.own_encodings.as_ref().is_some_and(|own| own.ttls_at.is_some())
    }

    pub(super) fn element(&self, name: &Name) -> Option<&Element> {
        self.own_encodings.as_ref()?.elements.get(name)
    }

    /// Whether it has only a heartbeat of a resource.
    pub(super) fn is_heartbeat(&self, resource: &Resource) -> bool {
        self.element(resource.name()).is_some_and(|element| !element.with_body)
    }

    fn own_bytes(&self) -> usize {
        let elements = self.own_encodings.iter().flat_map(|own| own.elements.values());
        elements.map(|element| element.head.len() + size_of::<(Name, Element)>()).sum()
    }

    /// Removed and absent names in the client's spelling. Names requested by locator, and replaced variants, go
    /// to `variants` by identity (R-DP-08, R-DP-13).
    fn split_removed(
        &self,
        asked: &Subscription,
        [removed, absent]: [&[Name]; 2],
        variants: &mut Vec<Bytes>,
    ) -> [Vec<Name>; 2] {
        let past = |name: &Name| self.past.get(name).into_iter().flatten().map(Option::as_ref);
        // A set, as requests have many names.
        let mut sent: HashSet<Bytes> = HashSet::default();
        let mut variant = |name: &Name, constraints: Option<&Constraints>| {
            let variant = resource_name(asked.spelling(name), constraints);
            if sent.insert(variant.clone()) {
                variants.push(variant);
            }
        };
        let locates = |name: &&Name| asked.locates(name.as_str());
        for name in self.resources.iter().map(|resource| resource.name()).filter(locates) {
            past(name).for_each(|constraints| variant(name, constraints));
        }
        for name in removed.iter().filter(locates) {
            // A name that never existed is removed by its bare name.
            let never = past(name).next().is_none().then_some(None);
            past(name).chain(never).for_each(|constraints| variant(name, constraints));
        }
        for name in absent.iter().filter(locates) {
            // The answer for an absent name has the bare name too, whichever variants existed.
            past(name).chain([None]).for_each(|constraints| variant(name, constraints));
        }
        let plain = |names: &[Name]| {
            let plain = names.iter().filter(|name| !locates(name));
            plain.map(|name| asked.spelling(name).clone()).collect()
        };
        [plain(removed), plain(absent)]
    }
}
