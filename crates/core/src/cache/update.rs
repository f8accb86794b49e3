//! Next update of a client, and its encoding.
//!
//! A [`Position`] says how far a client has been told; an [`Update`] is what leads on from there, and a frame
//! is an update in bytes. Both can always be made again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use bytes::BytesMut;

mod errors;
mod forms;
mod routed;

use super::Generation;
use super::change::Completeness;
use super::frame::{self, EncodeCount, Fields, Frame, Piece};
use super::mark::ChangeCount;
use super::nonce::{Nonce, Suffix};
use super::position::{Class, NextPosition, Part, Position};
use super::profile::{Protocol, StreamProfile};
use super::segments::Segment;
use super::subscription::Subscription;
use crate::resource::{Constraints, Name, Resource, TypeUrl};
pub(super) use errors::{Errors, size};
pub(super) use forms::{Element, Forms};
pub(super) use routed::Routed;

// Numbers of `resource_errors`.
const DELTA_ERRORS: u8 = 9;
const SOTW_ERRORS: u8 = 7;

/// Items that one client is to be told beside its cohort.
#[derive(Clone, Debug, Default)]
pub struct OwedItems {
    /// Names that it newly asked for, or that are to be repeated to it.
    pub names: BTreeSet<Name>,
    /// Names that it is to be told are gone, whatever it subscribes to (R-Delta-07).
    pub gone: BTreeSet<Name>,
    /// It refused something that it was told up to here: what of that it holds is not sure.
    pub doubt: Generation,
    /// Names whose errors it is to be told, once it has been told their bodies (R-Err-06).
    pub errors: BTreeSet<Name>,
    /// Names that it came to ask for when they were denied, and since when they were: full states leave them out for as
    /// long as that lasts. Nothing that is to be told.
    pub refused: BTreeMap<Name, Generation>,
    /// Resources that it was told with other parameters, of names of which nothing is known with those that it has now. As
    /// long as one stays unchanged it is no news (R-Delta-12).
    pub held: BTreeMap<Name, Arc<Resource>>,
    /// Variants that it may hold from when it asked with other parameters, until it is told of their names (R-DP-08).
    pub past: BTreeMap<Name, Vec<Option<Constraints>>>,
}

impl OwedItems {
    /// Nothing.
    pub const NONE: Self = Self {
        names: BTreeSet::new(),
        gone: BTreeSet::new(),
        doubt: Generation::ZERO,
        errors: BTreeSet::new(),
        refused: BTreeMap::new(),
        held: BTreeMap::new(),
        past: BTreeMap::new(),
    };

    /// Notes variants of a name that the client may hold. It is not told of those that went unsaid for long.
    pub fn remember(&mut self, name: Name, variants: impl IntoIterator<Item = Option<Constraints>>) {
        const REMEMBERED: usize = 16;
        let past = self.past.entry(name).or_default();
        for variant in variants {
            past.retain(|other| *other != variant);
            past.push(variant);
        }
        past.drain(..past.len().saturating_sub(REMEMBERED));
    }

    /// Whether there is nothing to be told.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
            && self.gone.is_empty()
            && self.errors.is_empty()
            && self.held.is_empty()
            && self.past.is_empty()
    }
}

/// Content that leads a client on from a [`Position`].
#[derive(Debug)]
pub struct Update {
    /// Where it leads.
    pub(super) to: Generation,
    pub(super) seen: Generation,
    /// Changes of the cohort up to `to`; `None` where `to` is between two marks.
    pub(super) changes: Option<ChangeCount>,
    pub(super) next: NextPosition,
    /// When the newest generation in it was made.
    pub(super) at: Option<Instant>,
    pub(super) profile: StreamProfile,
    /// How its clients asked, where what they are told has to be written as they did.
    pub(super) form: Option<Subscription>,
    /// Variants that they may hold of what is in it, for those that are told by locator (R-DP-13).
    pub(super) past: BTreeMap<Name, Vec<Option<Constraints>>>,
    pub(super) type_url: TypeUrl,
    pub(super) type_index: u32,
    pub(super) version: Arc<str>,
    /// `control_plane.identifier`.
    pub(super) control_plane: Arc<str>,
    /// The body: in a state-of-the-world answer of a full-state type everything, else what is new.
    pub(super) resources: Vec<Arc<Resource>>,
    pub(super) segments: Vec<Arc<Segment>>,
    pub(super) ghosts: Vec<Arc<Resource>>,
    /// Names that were asked for and do not exist: an answer, which need not wait as removals do.
    pub(super) absent: Vec<Name>,
    pub(super) removed: Vec<Name>,
    /// Up to where removals are told, where not all fit.
    pub(super) removed_to: Option<Generation>,
    /// Names that were asked for, do not exist, and did not fit.
    pub(super) absent_later: Vec<Name>,
    /// Few have any.
    pub(super) errors: Option<Box<Errors>>,
    /// Names of what its clients are to be told and the cache may not keep (R-XT-09).
    pub(super) missed: Vec<Name>,
    /// Whether anything is new, and whether anything is gone.
    pub(super) additions: bool,
    pub(super) removals: bool,
    pub(super) unknown_name: bool,
    pub(super) known_name: bool,
    pub(super) wildcard: Completeness,
    /// Whether it is the first that is told.
    pub(super) from_start: bool,
    /// Endpoints of changed EDS clusters in it, where it is not.
    pub(super) endpoints: Vec<Name>,
    pub(super) owed: OwedItems,
    pub(super) digest: u128,
    /// Replacements for resources that are written in another form than for everybody.
    pub(super) forms: Option<Box<Forms>>,
    pub(super) routed: OnceLock<Routed>,
    pub(super) frames: [OnceLock<Frame>; 2],
}

impl Update {
    /// Whether it brings additions or changes.
    pub const fn has_additions(&self) -> bool {
        self.additions
    }

    /// Whether it takes anything away.
    pub const fn has_removals(&self) -> bool {
        self.removals
    }

    /// Whether a name in the subscription is not known yet (R-Relay-04).
    pub const fn has_unknown_name(&self) -> bool {
        self.unknown_name
    }

    /// Whether anything exists that it holds.
    pub const fn shows_something(&self) -> bool {
        !self.resources.is_empty() || !self.segments.is_empty()
    }

    /// Whether it lacks something that an earlier full state on the same stream held.
    pub const fn takes_away(&self) -> bool {
        !self.ghosts.is_empty()
    }

    /// Whether a name in the subscription is known, be it absent.
    pub const fn has_known_name(&self) -> bool {
        self.known_name
    }

    /// How much of the wildcard set is known, if it is subscribed to (R-Relay-05): whether that is enough depends on what
    /// the client may hold.
    pub const fn wildcard(&self) -> Completeness {
        self.wildcard
    }

    /// Names of what is to be told, but was not to be kept: to be asked for upstream once more (R-XT-09).
    pub fn missed(&self) -> &[Name] {
        &self.missed
    }

    /// Names that do not exist, which is to be told in another response than this (R-Up-23).
    pub fn absent_later(&self) -> &[Name] {
        &self.absent_later
    }

    /// Whether more of the same follows (R-Up-23).
    pub fn is_partial(&self) -> bool {
        self.next != NextPosition::Done
    }

    /// When the newest change in it was applied to the cache.
    pub const fn changed_at(&self) -> Option<Instant> {
        self.at
    }

    /// Names of the endpoints whose clusters changed in it (R-ADS-05), or may have: what a client held before its
    /// stream began is not known.
    pub fn endpoints(&self) -> impl Iterator<Item = &Name> {
        let listed = self.resources.iter().filter(|_| self.from_start);
        let members = self.segments.iter().filter(|_| self.from_start).flat_map(|segment| segment.members());
        self.endpoints.iter().chain(listed.chain(members).filter_map(|resource| resource.eds_service()))
    }

    /// Where it leads.
    pub const fn to(&self) -> Generation {
        self.to
    }

    /// Whether it holds all that the client may see.
    pub fn is_full_state(&self) -> bool {
        self.profile.is_full_state(self.type_url.kind())
    }

    /// Names whose errors are to be told in another response than this.
    pub fn errors_later(&self) -> &[Name] {
        self.errors.as_deref().map_or(&[], |errors| &errors.later)
    }

    /// Names of which the resource is told in it, and with it the variants whose place it takes.
    pub fn tells(&self) -> impl Iterator<Item = &Name> {
        self.resources.iter().map(|resource| resource.name())
    }

    /// Whether the error of this name is told in it.
    pub fn tells_error(&self, name: &Name) -> bool {
        self.errors.as_deref().is_some_and(|errors| errors.tell(name))
    }

    /// Part of the client's own set that it took in.
    pub const fn owed(&self) -> &OwedItems {
        &self.owed
    }

    /// Version of the control plane as of this update, whatever the client is shown; empty if it gives none.
    pub const fn system_version(&self) -> &Arc<str> {
        &self.version
    }

    /// The digest of the client's effective set (R-Relay-11): `version_info`.
    pub fn version_info(&self) -> String {
        format!("{:032x}", self.digest)
    }

    /// The frame that the whole cohort shares.
    pub fn shared_frame(&self, class: Class, count: &EncodeCount) -> Frame {
        let (slot, suffix) = match class {
            Class::Both => (0, Suffix::None),
            Class::Additions => (1, Suffix::Additions),
        };
        self.frames[slot].get_or_init(|| self.encode(class, &BTreeSet::new(), suffix, count)).clone()
    }

    /// A frame with a nonce of the stream's own. `withdrawn`: removals that are said with additions too. `leaves_open`: more follows, though
    /// this is all that there is now.
    pub fn own_frame(
        &self,
        class: Class,
        withdrawn: &BTreeSet<Name>,
        number: u32,
        leaves_open: bool,
        count: &EncodeCount,
    ) -> Frame {
        let announces_more = self.is_partial() || leaves_open;
        let suffix = if announces_more { Suffix::Part(number) } else { Suffix::Own(number) };
        self.encode(class, withdrawn, suffix, count)
    }

    fn encode(&self, class: Class, withdrawn: &BTreeSet<Name>, suffix: Suffix, count: &EncodeCount) -> Frame {
        count.add_one();
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
                let errors = self.encode_errors(class, DELTA_ERRORS);
                self.splice(nonce, &self.version, [removed, &self.absent], &errors, &[])
            }
            Protocol::Sotw => {
                let is_kept =
                    |ghost: &&Arc<Resource>| class == Class::Additions && !withdrawn.contains(ghost.name());
                let ghosts: Vec<_> = self.ghosts.iter().filter(is_kept).cloned().collect();
                let union = ghosts.iter().fold(self.digest, |sum, ghost| sum.wrapping_add(ghost.digest()));
                let errors = self.encode_errors(class, SOTW_ERRORS);
                self.splice(nonce, &format!("{union:032x}"), [&[], &[]], &errors, &ghosts)
            }
        }
    }

    fn encode_errors(&self, class: Class, number: u8) -> BytesMut {
        let spelled = self.form.as_ref().and_then(Subscription::spellings);
        self.errors.as_deref().map(|errors| errors.encode(class, number, spelled)).unwrap_or_default()
    }

    /// `ghosts` are what is gone and still said.
    fn splice(
        &self,
        nonce: Nonce,
        version: &str,
        removed: [&[Name]; 2],
        errors: &[u8],
        ghosts: &[Arc<Resource>],
    ) -> Frame {
        if self.has_forms() {
            return self.splice_forms(nonce, version, removed, errors, ghosts);
        }
        let type_url = self.type_url.as_str();
        let control_plane = self.control_plane();
        let fields = Fields { version, type_url, control_plane, removed, removed_variants: &[], errors };
        let is_delta = self.profile.protocol == Protocol::Delta;
        let segments = self
            .segments
            .iter()
            .map(|segment| Piece::Shared(if is_delta { segment.delta() } else { segment.sotw() }));
        let listed = self.resources.iter().chain(ghosts).map(|resource| {
            let (entry, at) = resource.sotw_tail();
            Piece::Tail(entry, if is_delta { 0 } else { at })
        });
        frame::splice(fields, nonce, segments.chain(listed))
    }

    /// `control_plane` with the number of its field.
    fn control_plane(&self) -> (u8, &str) {
        const DELTA: u8 = 7;
        const SOTW: u8 = 6;
        let number = match self.profile.protocol {
            Protocol::Delta => DELTA,
            Protocol::Sotw => SOTW,
        };
        (number, &self.control_plane)
    }

    /// Moves a client that has been told so far over all that there was when this was made, which must have been nothing.
    pub fn settle(&self, position: &mut Position) {
        debug_assert!(!self.additions && !self.removals, "only what has nothing to say may be passed over");
        *position = Position::up_to(self.seen);
    }

    /// Moves a client on that was sent `class` of this.
    pub fn advance(&self, position: &mut Position, class: Class) {
        position.seen = position.seen.max(self.seen);
        if position.is_start() && self.next != NextPosition::Stay {
            // The first that it was told: what was gone by then it cannot hold, what goes from then on it may.
            position.removed = self.seen;
        }
        match &self.next {
            NextPosition::Stay => {}
            NextPosition::Members { at, after } => {
                position.part = Part::Members { at: *at, after: after.clone() }
            }
            NextPosition::Names { at, after } => {
                position.part = Part::Names { at: *at, after: after.clone() }
            }
            NextPosition::Changes { floor } => {
                position.part = Part::Changes { floor: *floor };
                position.added = self.to;
            }
            NextPosition::Done => {
                position.part = Part::Whole;
                position.added = self.to;
                if class != Class::Additions {
                    position.removed = self.removed_to.unwrap_or(self.to);
                }
            }
        }
    }

    pub(super) fn weight(&self) -> u32 {
        let bytes: usize = self.resources.iter().map(|resource| resource.delta_entry().len()).sum();
        let bytes = bytes + self.own_bytes() + self.errors.as_deref().map_or(0, Errors::weight);
        u32::try_from(bytes + 512 + 16 * (self.segments.len() + self.removed.len())).unwrap_or(u32::MAX)
    }
}
