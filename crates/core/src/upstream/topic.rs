//! One type with one set of parameters: what is wanted of it, and what a response changes of it.
//!
//! Knows nothing of other types, nor of this type with other parameters.

mod advance;
mod apply_response;
mod hear;
mod request;

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashSet;

use super::ServerId;
use super::answer::Silence;
use super::expiry::Expiry;
use super::linger::Want;
use super::members::Members;
use super::names::Names;
use super::quiet_clock::QuietInstant;
use super::server::Provenance;
use super::variants::Candidates;
use crate::cache::{Change, Completeness, Lease, Named, Op, Snapshot, View};
use crate::resource::{Collection, Form, Name, Parameters, Resource};

/// Habits of the origin, as far as they were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OriginHabits {
    /// It is a relay like this one. It says of each name that does not exist that it does not, and may itself wait for an origin that is
    /// silent: its own silence proves nothing. It says that more of an answer follows.
    pub(super) is_relay: bool,
    /// It speaks state of the world. It reads no versions, and need not: what is missing from a state is gone, and of a type without
    /// states nothing is missing (R-SotW-18, R-SotW-19).
    pub(super) speaks_sotw: bool,
    /// It does not answer state of the world beside delta.
    pub(super) refuses_census: bool,
}

/// View of the type that a stream carries, and how it is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) view: View,
    /// Whether everything is asked for without parameters: its answers are for all topics.
    pub(super) is_plain: bool,
    pub(super) habits: OriginHabits,
}

/// Subscription to one type with one set of parameters, and how far it is answered.
#[derive(Debug)]
pub(super) struct Topic {
    pub(super) parameters: Parameters,
    pub(super) wildcard: Want,
    /// Subscription to the wildcard; `None` where no stream that carries it is open.
    pub(super) members: Option<Members>,
    pub(super) names: Names,
    /// Members from an earlier stream that may be gone: kept until the answer, which takes their place whatever its constraints
    /// (R-DP-14).
    orphans: HashSet<Name>,
    /// Resources that are to come anew, whatever their version, on the stream that is opened next.
    refreshed: HashSet<(View, Name)>,
    /// Whether a client waits for evidence, of each view, that what the origin has not sent does not exist.
    pub(super) needs_proof: [bool; 2],
    /// Of which views the streams are to be opened anew.
    pub(super) renews: [bool; 2],
    /// Where more than one variant of a name is for these parameters (R-DP-04), all that are held.
    pub(super) rivals: BTreeMap<(View, Name), Candidates>,
    /// One of these that came last, until it is complained of.
    pub(super) ambiguous: Option<Name>,
    /// Servers of what did not come from the present one.
    provenance: Provenance,
    expiry: Expiry,
    /// When what may not be kept came (R-XT-09).
    uncacheable: Expiry,
}

impl Topic {
    /// Parameters with which nothing is wanted yet, and of which views the streams are open.
    pub(super) fn new(parameters: Parameters, open: [bool; 2]) -> Self {
        let mut topic = Self {
            parameters,
            wildcard: Want::No,
            members: None,
            names: Names::default(),
            orphans: HashSet::default(),
            refreshed: HashSet::default(),
            needs_proof: [false; 2],
            renews: [false; 2],
            rivals: BTreeMap::new(),
            ambiguous: None,
            provenance: Provenance::default(),
            expiry: Expiry::default(),
            uncacheable: Expiry::default(),
        };
        View::ALL.into_iter().filter(|view| open[*view as usize]).for_each(|view| topic.opened(view));
        topic
    }

    /// Whether there is nothing to remember of it.
    pub(super) fn is_idle(&self) -> bool {
        self.wants_nothing() && self.names.is_idle() && self.members.as_ref().is_none_or(Members::is_idle)
    }

    /// Whether nobody wants anything of it, or did lately.
    pub(super) fn wants_nothing(&self) -> bool {
        View::ALL.iter().all(|view| !self.wants(*view))
    }

    /// Whether anybody wants anything in a view, or did lately.
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

    /// Whether anybody wants a resource of this name, or did lately.
    pub(super) fn is_wanted(&self, name: &str) -> bool {
        self.wildcard.is_live() || self.names.is_wanted(name) || self.is_listed(name)
    }

    /// Whether others may have it from here: what may not be kept is nothing to lend (R-XT-09).
    pub(super) fn may_lend(&self, name: &Name) -> bool {
        self.names.asks_for(name.as_str()) && !self.uncacheable.has(View::Named, name)
    }

    /// Something is held that an earlier process held.
    pub(super) fn note_restored(&mut self, op: &Op) {
        if let Op::Set { view, resource, lease: Some(lease), .. } = op {
            self.expiry.set(*view, resource.name(), Some(lease.until()));
        }
    }

    /// A stream is open for a view: what is wanted of that is to be asked for.
    pub(super) fn opened(&mut self, view: View) {
        self.renews[view as usize] = false;
        match view {
            View::Wildcard => {
                let set = self.members.insert(Members::default());
                if self.wildcard != Want::No {
                    set.touch();
                }
            }
            View::Named => self.names.opened(),
        }
    }

    pub(super) fn closed(&mut self, view: View) {
        match view {
            View::Wildcard => self.members = None,
            View::Named => self.names.closed(),
        }
    }

    /// Whether the resource held has had no answer since it was asked for on this stream, or since a loan ended.
    fn is_orphan(&self, view: View, name: &Name) -> bool {
        match view {
            View::Wildcard => self.orphans.contains(name),
            View::Named => self.names.is_orphan(name),
        }
    }

    /// Whether something else is wanted than was asked for.
    pub(super) fn is_dirty(&self, view: View) -> bool {
        match view {
            View::Wildcard => self.members.as_ref().is_some_and(Members::is_dirty),
            View::Named => self.names.is_dirty(),
        }
    }

    /// Questions that the origin has left unanswered.
    pub(super) fn silence(&self, view: View) -> Silence {
        match view {
            View::Wildcard => self.members.as_ref().map(Members::silence).unwrap_or_default(),
            View::Named => self.names.silence(),
        }
    }

    /// Whether the stream that lives asks for the wildcard.
    pub(super) fn covers_wildcard(&self) -> bool {
        self.members.as_ref().is_some_and(Members::covers)
    }

    /// A name is wanted that was not, and what is held by another topic serves.
    pub(super) fn borrow(&mut self, name: &Name, lease: Option<Lease>, server: Option<ServerId>) {
        self.provenance.share(View::Named, name, server);
        self.expiry.set(View::Named, name, lease.map(|lease| lease.until()));
        self.names.borrow(name);
    }

    /// The wildcard is wanted that was not.
    pub(super) fn add_wildcard(&mut self) {
        self.wildcard = Want::Yes;
        self.members.iter_mut().for_each(Members::touch);
    }

    /// The wildcard is seen as another topic sees it that asked for it in the same words; `is_asked` tells whether on the stream that
    /// lives.
    pub(super) fn share_wildcard(&mut self, of: &Self, is_asked: bool, held: &[Op]) {
        let members = || held.iter().map(|op| op.name().clone());
        self.share_provenance(of, held);
        self.orphans.extend(members().filter(|member| of.orphans.contains(member)));
        if let (Some(set), Some(of), true) = (&mut self.members, &of.members, is_asked) {
            set.share(of, members());
        }
    }

    /// The wildcard that was asked for at one of these moments was answered for some topic.
    pub(super) fn hear_of_others(&mut self, asked: &[QuietInstant], now: QuietInstant) {
        if let Some(set) = &mut self.members
            && set.asked_at().is_some_and(|at| asked.contains(&at))
        {
            set.arrived(now, false, false);
        }
    }

    /// A client asks for a name that is asked for already: what was not kept has to come once more (R-XT-09).
    pub(super) fn want_again(&mut self, name: &Name, snapshot: &Snapshot) {
        let is_dropped = |held: &Arc<Resource>| held.form() == Form::Dropped;
        if snapshot.held(View::Named, name.as_str()).is_some_and(is_dropped) {
            self.names.ask_once_more(name);
        }
    }

    /// Whether a collection was asked for that has this member.
    fn is_listed(&self, name: &str) -> bool {
        let covering = Collection::covering(name);
        covering.is_some_and(|covering| self.names.is_wanted(covering.as_str()))
    }

    /// Ops for what is no longer known when a name was let go.
    pub(super) fn forget(&mut self, name: Name, snapshot: &Snapshot) -> Vec<Op> {
        let view = View::Named;
        let is_own = |held: &Arc<Resource>| *held.name() == name;
        if self.is_listed(name.as_str()) && snapshot.held(view, name.as_str()).is_some_and(is_own) {
            // It is held as a member of a collection too.
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

    fn remove_wildcard(&mut self, by_locator: bool) {
        self.wildcard = Want::No;
        self.expiry.drop_wildcard();
        self.rivals.retain(|(view, _), _| *view != View::Wildcard);
        self.orphans = HashSet::default();
        self.members.iter_mut().for_each(|set| set.let_go(by_locator));
    }

    /// Forgets the wildcard set. The origin is told if it was asked by locator. A member that clients ask for by name stays
    /// under its name until the origin answers for that: its end is nobody's word yet. Nor is what was said of the name before
    /// the member came: that is asked for again.
    pub(super) fn forget_wildcard(&mut self, by_locator: bool, snapshot: &Snapshot) -> Change {
        self.remove_wildcard(by_locator);
        for member in
            snapshot.members().map(|member| member.name()).filter(|name| is_outdated(snapshot, name))
        {
            if self.names.asks_for(member.as_str()) {
                self.names.ask_again(member);
            }
        }
        let open = snapshot.members().filter(|member| self.is_unanswered(member.name()));
        let open: BTreeMap<&Name, &Arc<Resource>> = open.map(|member| (member.name(), member)).collect();
        let mut ops: Vec<Op> = open.values().map(|member| snapshot.op_as_named(member)).collect();
        for name in open.into_keys() {
            let lease = snapshot.lease(View::Wildcard, name.as_str());
            self.expiry.set(View::Named, name, lease.map(|lease| lease.until()));
            self.provenance.hold_by_name(name);
            if self.names.awaits_since(name.as_str()).is_some() {
                self.names.set_orphan(name.as_str(), true);
            }
        }
        let forget = |name: &Name| Op::Forget { view: View::Wildcard, name: name.clone() };
        ops.extend(snapshot.members().map(|member| forget(member.name())));
        Change { ops, wildcard_known: Some(Completeness::Unknown), ..Change::default() }
    }

    /// Takes notice of what is no longer held: whatever is gone does not end once more.
    pub(super) fn note(&mut self, ops: &[Op]) {
        self.expiry.note(ops);
        self.uncacheable.note(ops);
        self.provenance.note(ops);
        let ends =
            |op: &&Op| matches!(op, Op::Remove { .. } | Op::Forget { .. } | Op::LeaveCollection { .. });
        if !self.rivals.is_empty() {
            for op in ops.iter().filter(ends) {
                self.rivals.remove(&(op.view(), op.name().clone()));
            }
        }
        if !self.orphans.is_empty() {
            for op in ops.iter().filter(ends).filter(|op| op.view() == View::Wildcard) {
                self.orphans.remove(op.name());
            }
        }
        if !self.refreshed.is_empty() {
            for op in ops.iter().filter(|op| matches!(op, Op::Set { .. }) || ends(op)) {
                self.refreshed.remove(&(op.view(), op.name().clone()));
            }
        }
    }

    /// Whether a name is to be answered here that is asked for, or still to be asked for.
    fn is_unanswered(&self, name: &Name) -> bool {
        let (names, name) = (&self.names, name.as_str());
        names.asks_for(name) && (names.awaits_since(name).is_some() || names.covered(name).is_none())
    }
}

/// Whether the last word that came by the name of a member is not that it exists as the member does.
fn is_outdated(snapshot: &Snapshot, name: &Name) -> bool {
    let named = snapshot.get(name.as_str()).map(|entry| entry.named());
    matches!(named, Some(Named::Absent | Named::Superseded(_)))
}

/// Op for a name that does not exist (any more): clients that ask for it by name are told so for as long as it is asked for,
/// clients that ask for a collection only that it left.
pub(super) fn gone(names: &Names, view: View, name: Name) -> Op {
    if view == View::Named && !names.is_wanted(name.as_str()) {
        Op::LeaveCollection { name }
    } else {
        Op::Remove { view, name }
    }
}
