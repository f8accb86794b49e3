//! One type with one set of parameters: its subscription, and the changes from responses.
//!
//! Knows nothing of other types, nor of this type with other parameters.

mod advance;
mod apply_response;
mod match_response;
mod request;

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};

use super::answer::Silence;
use super::expiry::Expiry;
use super::linger::Want;
use super::members::Members;
use super::names::Names;
use super::quiet_clock::QuietInstant;
use super::variants::Candidates;
use crate::cache::{Change, Completeness, Lease, Named, Op, Snapshot, View};
use crate::resource::{Collection, Form, Name, Parameters, Resource};

/// Observed behaviour of the control plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OriginTraits {
    /// It is a relay like this one. It reports each name that does not exist, and says when more of
    /// an answer follows. Its silence proves nothing, as it may wait itself.
    pub(super) is_relay: bool,
    /// It speaks SotW and reads no versions. A resource missing from a state is gone; types without
    /// states prove no absence (R-SotW-18, R-SotW-19).
    pub(super) speaks_sotw: bool,
    /// It does not answer SotW beside delta.
    pub(super) refuses_census: bool,
    /// It has shown that it knows locators.
    pub(super) knows_locators: bool,
    /// It is asked without parameters: answers are for all topics (R-Up-18).
    pub(super) is_plain: bool,
}

/// View of the type that a stream carries, and the control plane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) view: View,
    pub(super) traits: OriginTraits,
}

/// Subscription to one type with one set of parameters.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) parameters: Parameters,
    pub(super) wildcard: Want,
    pub(super) members: Members,
    pub(super) names: Names,
    /// Members from an earlier stream that may be gone. They are kept until the answer, which
    /// replaces them whatever its constraints (R-DP-14).
    unconfirmed: HashSet<Name>,
    /// Resources to fetch anew, whatever their version, on the next stream, and whether another
    /// server sent them (R-Up-04).
    outdated: HashMap<(View, Name), bool>,
    /// By view: whether a client waits for evidence that unsent resources do not exist.
    pub(super) needs_proof: [bool; 2],
    /// By view: whether its stream is to be opened anew.
    pub(super) renews: [bool; 2],
    /// All held variants of names with more than one for these parameters (R-DP-04).
    pub(super) rivals: BTreeMap<(View, Name), Candidates>,
    /// The last of these names, until it is logged.
    pub(super) ambiguous: Option<Name>,
    expiry: Expiry,
    /// Ends of resources that may not be cached (R-XT-09).
    uncacheable: Expiry,
}

impl Topic {
    /// Creates it without a subscription. `open`: the views with an open stream.
    pub(super) fn new(parameters: Parameters, open: [bool; 2]) -> Self {
        let mut topic = Self {
            parameters,
            wildcard: Want::No,
            members: Members::default(),
            names: Names::default(),
            unconfirmed: HashSet::default(),
            outdated: HashMap::default(),
            needs_proof: [false; 2],
            renews: [false; 2],
            rivals: BTreeMap::new(),
            ambiguous: None,
            expiry: Expiry::default(),
            uncacheable: Expiry::default(),
        };
        View::ALL.into_iter().filter(|view| open[*view as usize]).for_each(|view| topic.opened(view));
        topic
    }

    pub(super) fn is_idle(&self) -> bool {
        self.wants_nothing() && self.names.is_idle() && self.members.is_idle()
    }

    pub(super) fn wants_nothing(&self) -> bool {
        View::ALL.iter().all(|view| !self.wants(*view))
    }

    /// Whether anything of a view is wanted, or was until recently.
    pub(super) fn is_live(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard.is_live(),
            View::Named => !self.names.is_empty(),
        }
    }

    pub(super) fn wants(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.wildcard != Want::No,
            View::Named => !self.names.is_empty(),
        }
    }

    /// Wish for a name, or for the wildcard (`None`).
    pub(super) fn want_of(&self, name: Option<&Name>) -> Want {
        name.map_or(self.wildcard, |name| self.names.want_of(name.as_str()))
    }

    pub(super) fn set_want(&mut self, name: Option<&Name>, want: Want) {
        match name {
            Some(name) => _ = self.names.want(name, want),
            None => self.wildcard = want,
        }
    }

    /// Whether a resource of this name is wanted, or was until recently.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.wildcard.is_live() || self.names.is_wanted(name) || self.is_listed(name)
    }

    /// Whether new clients with other parameters may see the resource of a name until their own
    /// answer. Uncacheable ones are for present clients only (R-XT-09).
    pub(super) fn may_copy(&self, name: &Name) -> bool {
        self.names.is_wanted(name.as_str()) && !self.uncacheable.has(View::Named, name)
    }

    pub(super) fn note_restored(&mut self, op: &Op) {
        if let Op::Set { view, resource, lease: Some(lease), .. } = op {
            self.expiry.set(*view, resource.name(), Some(lease.until()));
        }
    }

    /// Starts a stream for a view, on which everything wanted is to be requested.
    pub(super) fn opened(&mut self, view: View) {
        self.renews[view as usize] = false;
        match view {
            View::Wildcard => {
                self.members = Members::default();
                if self.wildcard != Want::No {
                    self.members.touch();
                }
            }
            View::Named => self.names.opened(),
        }
    }

    pub(super) fn closed(&mut self, view: View) {
        match view {
            View::Wildcard => self.members = Members::default(),
            View::Named => self.names.closed(),
        }
    }

    /// Whether the held resource has had no answer since it was requested on this stream.
    fn is_unconfirmed(&self, view: View, name: &Name) -> bool {
        match view {
            View::Wildcard => self.unconfirmed.contains(name),
            View::Named => self.names.is_unconfirmed(name),
        }
    }

    pub(super) fn is_dirty(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.members.is_dirty(),
            View::Named => self.names.is_dirty(),
        }
    }

    pub(super) fn silence(&self, view: View) -> Silence {
        match view {
            View::Wildcard => self.members.silence(),
            View::Named => self.names.silence(),
        }
    }

    pub(super) fn covers_wildcard(&self) -> bool {
        self.members.covers()
    }

    /// Notes a copy of another topic's resource.
    pub(super) fn note_copy(&mut self, name: &Name, lease: Option<Lease>, is_foreign: bool) {
        self.outdated.extend(is_foreign.then(|| ((View::Named, name.clone()), true)));
        self.expiry.set(View::Named, name, lease.map(|lease| lease.until()));
    }

    /// Adds the wildcard.
    pub(super) fn add_wildcard(&mut self) {
        self.wildcard = Want::Yes;
        self.members.touch();
    }

    /// Shares the wildcard of another topic with the same request. `is_asked`: it was sent on the
    /// live stream.
    pub(super) fn share_wildcard(&mut self, of: &Self, is_asked: bool, held: &[Op]) {
        self.share_foreign(of, held);
        let members = held.iter().map(Op::name).filter(|member| of.unconfirmed.contains(*member));
        self.unconfirmed.extend(members.cloned());
        if is_asked && of.covers_wildcard() {
            self.members.share();
        }
    }

    /// Notes that a wildcard requested at one of these moments was answered for some topic.
    pub(super) fn note_other_answers(&mut self, asked: &[QuietInstant], now: QuietInstant) {
        if self.members.asked_at().is_some_and(|at| asked.contains(&at)) {
            self.members.arrived(now, false, false);
        }
    }

    /// Handles a client that joins a name: a dropped body has to be fetched again (R-XT-09).
    pub(super) fn want_again(&mut self, name: &Name, snapshot: &Snapshot) {
        let is_dropped = |held: &Arc<Resource>| held.form() == Form::Dropped;
        if snapshot.held(View::Named, name.as_str()).is_some_and(is_dropped) {
            self.names.ask_once_more(name);
        }
    }

    /// Whether a requested collection has this member.
    fn is_listed(&self, name: &str) -> bool {
        let covering = Collection::covering(name);
        covering.is_some_and(|covering| self.names.is_wanted(covering.as_str()))
    }

    /// Returns the operations that drop the resources of a name that was let go.
    pub(super) fn forget(&mut self, name: Name, snapshot: &Snapshot) -> Vec<Op> {
        let view = View::Named;
        let is_own = |held: &Arc<Resource>| *held.name() == name;
        if self.is_listed(name.as_str()) && snapshot.held(view, name.as_str()).is_some_and(is_own) {
            // It is also held as a member of a collection.
            return Vec::new();
        }
        let members = snapshot.answers_of(&name).cloned();
        let mut ops: Vec<Op> = members
            .filter(|member| !self.names.is_wanted(member.as_str()))
            .map(|name| Op::Forget { view, name })
            .collect();
        ops.push(Op::Forget { view, name });
        self.note(&ops);
        ops
    }

    /// Forgets the wildcard set, with an unsubscribe for locators. A member that clients also ask
    /// for by name stays until its name is answered, as its end is not proven. A name with an older
    /// answer than the member is requested again.
    pub(super) fn forget_wildcard(&mut self, by_locator: bool, snapshot: &Snapshot) -> Change {
        self.wildcard = Want::No;
        self.members.let_go(by_locator);
        for member in
            snapshot.members().map(|member| member.name()).filter(|name| is_outdated(snapshot, name))
        {
            if self.names.is_wanted(member.as_str()) {
                self.names.ask_again(member);
            }
        }
        let open = snapshot.members().filter(|member| self.is_unanswered(member.name()));
        let open: BTreeMap<&Name, &Arc<Resource>> = open.map(|member| (member.name(), member)).collect();
        let mut ops: Vec<Op> = open.values().map(|member| snapshot.op_as_named(member)).collect();
        for name in open.into_keys() {
            let lease = snapshot.lease(View::Wildcard, name.as_str());
            self.expiry.set(View::Named, name, lease.map(|lease| lease.until()));
            let is_foreign = self.is_foreign(View::Wildcard, name);
            self.outdated.extend(is_foreign.then(|| ((View::Named, name.clone()), true)));
            if self.names.awaits_since(name.as_str()).is_some() {
                self.names.set_unconfirmed(name.as_str(), true);
            }
        }
        let forget = |name: &Name| Op::Forget { view: View::Wildcard, name: name.clone() };
        let mut forgotten: Vec<Op> = snapshot.members().map(|member| forget(member.name())).collect();
        self.note(&forgotten);
        ops.append(&mut forgotten);
        Change { ops, wildcard_known: Some(Completeness::Unknown), ..Change::default() }
    }

    /// Notes removed resources, so that they do not end twice.
    pub(super) fn note(&mut self, ops: &[Op]) {
        self.expiry.note(ops);
        self.uncacheable.note(ops);
        if self.rivals.is_empty() && self.unconfirmed.is_empty() && self.outdated.is_empty() {
            return;
        }
        for op in ops {
            let ends = matches!(op, Op::Remove { .. } | Op::Forget { .. } | Op::LeaveCollection { .. });
            if !ends && !matches!(op, Op::Set { .. } | Op::Alias { .. }) {
                continue;
            }
            let key = (op.view(), op.name().clone());
            self.outdated.remove(&key);
            if let Op::Alias { resource, .. } = op {
                self.outdated.remove(&(key.0, resource.name().clone()));
            }
            if ends {
                self.rivals.remove(&key);
            }
            if ends && key.0 == View::Wildcard {
                self.unconfirmed.remove(&key.1);
            }
        }
    }

    /// Whether a name of this topic is requested or to be requested, and unanswered.
    fn is_unanswered(&self, name: &Name) -> bool {
        let (names, name) = (&self.names, name.as_str());
        names.is_wanted(name) && (names.awaits_since(name).is_some() || names.covered(name).is_none())
    }
}

/// Whether the last answer by name is older than the member.
fn is_outdated(snapshot: &Snapshot, name: &Name) -> bool {
    let named = snapshot.get(name.as_str()).map(|entry| entry.named());
    matches!(named, Some(Named::Absent | Named::Superseded(_)))
}

/// Operation for a name that does not exist. Clients that ask by name learn of its absence; those
/// of a collection only that it left.
pub(super) fn gone(names: &Names, view: View, name: Name) -> Op {
    if view == View::Named && !names.is_wanted(name.as_str()) {
        Op::LeaveCollection { name }
    } else {
        Op::Remove { view, name }
    }
}
