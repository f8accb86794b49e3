//! Mirror of a directory of resource files, in place of a control plane.
//!
//! Owns the resources of the last reading, to find changes, and the names that clients request.
//! Knows nothing of files.
//!
//! Everything in the directory is a member of the wildcard set of its type, and the directory is
//! complete. A type without files is known to be empty, and a name without a file does not exist.
//! Before the first reading nothing is known (R-Relay-04). While a file was never readable, what is
//! missing may be in it: clients that hold nothing are served the rest, the others wait.
//!
//! A name may have variants for different clients. If several match one client, the lowest
//! canonical encoding of constraints wins.
//!
//! Lists are sorted by name, then by constraints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use super::topic_set::snapshot;
use crate::cache::{Cache, Change, Completeness, Op, View, Wanted, Writer};
use crate::resource::{Collection, Name, Parameters, Resource, TypeUrl};

/// Content of the directory at the last reading, and the names that clients request. A plain value,
/// as [`Mux`](super::Mux) is.
#[derive(Debug)]
pub struct DirectoryMirror {
    writer: Writer,
    held: BTreeMap<TypeUrl, Vec<Arc<Resource>>>,
    /// Requested names of each type and set of parameters in use.
    asked: BTreeMap<(TypeUrl, Parameters), BTreeSet<Name>>,
    /// `Presumed` while the content of some file was never known.
    read: Completeness,
}

impl DirectoryMirror {
    /// Creates the mirror of a directory that has not been read.
    pub fn new(writer: Writer) -> Self {
        let (held, asked) = Default::default();
        Self { writer, held, asked, read: Completeness::Unknown }
    }

    /// Returns the cache that it fills.
    pub const fn cache(&self) -> &Arc<Cache> {
        self.writer.cache()
    }

    /// Sets whether endpoints are sent again when their cluster changed (R-ADS-05).
    pub fn set_eds_repush(&mut self, eds_repush: bool) {
        self.writer.set_eds_repush(eds_repush);
    }

    /// Time of the next call of [`on_deadline`](Self::on_deadline).
    pub fn next_deadline(&self) -> Option<Instant> {
        self.writer.next_rollout()
    }

    /// Rolls out guarded changes that are due.
    pub fn on_deadline(&mut self, now: Instant) {
        self.writer.roll_out(now);
    }

    /// Applies changes of the interest of clients.
    pub fn on_interest(&mut self, wanted: Vec<Wanted>, now: Instant) {
        for wanted in wanted {
            let change = self.want(&wanted);
            if self.read > Completeness::Unknown {
                self.apply(&wanted.type_url, &wanted.parameters, change, now);
            }
            if self.is_whole() {
                self.writer.record_answer(&wanted.type_url, now);
            }
            // Before the first reading too: names that a client may not see are answered without
            // it.
            self.writer.fill(&wanted, now);
        }
    }

    /// Answers a change of interest.
    fn want(&mut self, wanted: &Wanted) -> Change {
        let Wanted { type_url, parameters, interest, .. } = wanted;
        let key = (type_url.clone(), parameters.clone());
        let known = self.asked.remove(&key);
        let mut ops = Vec::new();
        // Resources for clients without parameters are in the cache, requested or not.
        if known.is_none() && !parameters.is_empty() {
            let members = self.members(type_url, parameters);
            ops.extend(members.map(|held| Op::held(View::Wildcard, Arc::clone(held), None)));
        }
        let mut asked = known.unwrap_or_default();
        let snapshot = snapshot(self.cache(), type_url, parameters);
        for (name, is_wanted) in &interest.names {
            if *is_wanted {
                if asked.insert(name.clone()) {
                    ops.extend(self.answer(type_url, parameters, name));
                }
                continue;
            }
            asked.remove(name);
            let listed = snapshot.members_of(name).map(|member| member.name());
            let itself = Some(name).filter(|name| !is_listed(&asked, name));
            let nobodys = listed.filter(|name| !asked.contains(*name)).chain(itself);
            ops.extend(nobodys.map(|name| Op::Forget { view: View::Named, name: name.clone() }));
        }
        let is_wanted = interest.wildcard || !asked.is_empty();
        if is_wanted {
            self.asked.insert(key, asked);
        } else if !parameters.is_empty() {
            let forget =
                |held: &Arc<Resource>| Op::Forget { view: View::Wildcard, name: held.name().clone() };
            ops.extend(self.members(type_url, parameters).map(forget));
        }
        // A type without files is dropped with its last client, as anybody may request any type
        // with any parameters.
        let stays = parameters.is_empty() && self.held.contains_key(type_url);
        let known = self.completeness(type_url, parameters);
        let wildcard_known = if is_wanted || stays { known } else { Completeness::Unknown };
        Change { ops, wildcard_known: Some(wildcard_known), ..Change::default() }
    }

    /// Completeness of a wildcard set. One without a member may be in the file that cannot be read.
    fn completeness(&self, type_url: &TypeUrl, parameters: &Parameters) -> Completeness {
        let is_known = self.is_whole() || self.members(type_url, parameters).next().is_some();
        if is_known { self.read } else { Completeness::Unknown }
    }

    /// Variant that clients with these parameters see by a name.
    fn shown(&self, type_url: &TypeUrl, parameters: &Parameters, name: &Name) -> Option<&Arc<Resource>> {
        shown_of(parameters, variants(self.held.get(type_url)?, name)).next()
    }

    /// All resources that clients with these parameters see.
    fn members(&self, type_url: &TypeUrl, parameters: &Parameters) -> impl Iterator<Item = &Arc<Resource>> {
        let names = self.held.get(type_url).into_iter().flat_map(|held| held.chunk_by(has_same_name));
        names.filter_map(|variants| shown_of(parameters, variants).next())
    }

    /// Answers a requested name. As a name too: clients with a restricted view, or with other
    /// parameters, see the name alone.
    fn answer(&self, type_url: &TypeUrl, parameters: &Parameters, name: &Name) -> Vec<Op> {
        let view = View::Named;
        if let Some(collection) = Collection::named(name.as_str()) {
            let members = self.members(type_url, parameters);
            let covered = members.filter(|held| collection.covers(held.name().as_str()));
            let members = covered.map(|held| Op::held(view, Arc::clone(held), None));
            let complete = Some(Op::Complete { name: name.clone() }).filter(|_| self.is_whole());
            return members.chain(complete).collect();
        }
        let held = self.shown(type_url, parameters, name).map(|held| Op::held(view, Arc::clone(held), None));
        let absent = || self.is_whole().then(|| Op::Remove { view, name: name.clone() });
        held.or_else(absent).into_iter().collect()
    }

    /// Whether a name without a file does not exist.
    fn is_whole(&self) -> bool {
        self.read == Completeness::Complete
    }

    /// Operations that bring a changed name to clients with these parameters, who ask for these.
    fn ops_of(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        asked: &BTreeSet<Name>,
        name: &Name,
    ) -> Vec<Op> {
        let is_named = asked.contains(name);
        let shown = self.shown(type_url, parameters, name);
        let op = |view| match shown {
            Some(resource) => Op::held(view, Arc::clone(resource), None),
            None if view == View::Named && !is_named => Op::LeaveCollection { name: name.clone() },
            None => Op::Remove { view, name: name.clone() },
        };
        let by_name = (is_named || is_listed(asked, name)).then_some(View::Named);
        std::iter::once(View::Wildcard).chain(by_name).map(op).collect()
    }

    /// Applies a reading of the whole directory: one change for each type that differs, in flush
    /// order. `is_whole`: each file was read at least once.
    pub fn on_reading(&mut self, resources: &[Arc<Resource>], is_whole: bool, now: Instant) {
        let known = if is_whole { Completeness::Complete } else { Completeness::Presumed };
        // A file that is added later, and cannot be read, is not in force.
        let known = known.max(self.read);
        let is_first = std::mem::replace(&mut self.read, known) != known;
        let changed = self.replace(resources);
        if self.is_whole() {
            self.cache().types().iter().for_each(|of| self.writer.record_answer(of.type_url(), now));
        }
        let everybody = changed.keys().map(|type_url| (type_url.clone(), Parameters::NONE));
        let audiences: BTreeSet<_> = self.asked.keys().cloned().chain(everybody).collect();
        let nothing = BTreeSet::new();
        let mut rivals = BTreeSet::new();
        for (type_url, parameters) in &audiences {
            let names = changed.get(type_url).map_or(&[][..], Vec::as_slice);
            if names.is_empty() && !is_first {
                continue;
            }
            let asked = self.asked.get(&(type_url.clone(), parameters.clone())).unwrap_or(&nothing);
            let earlier = asked.iter().filter(|_| is_first);
            let mut ops: Vec<Op> = earlier.flat_map(|name| self.answer(type_url, parameters, name)).collect();
            for name in names {
                ops.extend(self.ops_of(type_url, parameters, asked, name));
                let variants = self.held.get(type_url).map(|held| variants(held, name));
                if variants.is_some_and(|variants| shown_of(parameters, variants).nth(1).is_some()) {
                    rivals.insert((type_url, name));
                }
            }
            let wildcard_known = Some(self.completeness(type_url, parameters));
            let change = Change { ops, wildcard_known, ..Change::default() };
            self.apply(type_url, parameters, change, now);
        }
        if let Some((type_url, name)) = rivals.first() {
            let others = rivals.len() - 1;
            tracing::warn!(
                %type_url, %name, others,
                "several variants of a resource of the directory are for the same clients, who see one of them; make their constraints exclude each other"
            );
        }
    }

    /// Replaces the state of the directory. Returns the names that differ.
    fn replace(&mut self, resources: &[Arc<Resource>]) -> BTreeMap<TypeUrl, Vec<Name>> {
        let emptied = self.held.keys().map(|type_url| (type_url.clone(), Vec::new()));
        let mut found: BTreeMap<TypeUrl, Vec<Arc<Resource>>> = emptied.collect();
        for of_type in resources.chunk_by(|one, next| one.type_url() == next.type_url()) {
            let type_url = TypeUrl::from(of_type[0].type_url());
            found.entry(type_url).or_default().extend_from_slice(of_type);
        }
        let mut changed = BTreeMap::new();
        for (type_url, mut found) in found {
            let held = self.held.remove(&type_url).unwrap_or_default();
            if !self.is_whole() {
                // A missing name may have moved to a file that cannot be read.
                let is_missing = |held: &&Arc<Resource>| variants(&found, held.name()).is_empty();
                let missing: Vec<_> = held.iter().filter(is_missing).cloned().collect();
                found.extend(missing);
            }
            found.sort_by(|a, b| (a.name(), a.constraints()).cmp(&(b.name(), b.constraints())));
            found.shrink_to_fit();
            let names = differing(&held, &found);
            if !names.is_empty() {
                changed.insert(type_url.clone(), names);
            }
            if !found.is_empty() {
                self.held.insert(type_url, found);
            }
        }
        changed
    }

    fn apply(&mut self, type_url: &TypeUrl, parameters: &Parameters, change: Change, now: Instant) {
        if let Err(error) = self.writer.apply_with_parameters(type_url, parameters, change, now) {
            tracing::warn!(%type_url, %error, "cannot serve resources of the directory");
        }
    }
}

/// Whether a name belongs to a requested collection.
fn is_listed(asked: &BTreeSet<Name>, name: &Name) -> bool {
    Collection::covering(name.as_str()).is_some_and(|covering| asked.contains(covering.as_str()))
}

fn has_same_name(one: &Arc<Resource>, other: &Arc<Resource>) -> bool {
    one.name() == other.name()
}

/// Variants of a name, in order of preference.
fn variants<'a>(held: &'a [Arc<Resource>], name: &Name) -> &'a [Arc<Resource>] {
    let (_, from) = held.split_at(held.partition_point(|held| held.name() < name));
    &from[..from.partition_point(|held| held.name() == name)]
}

/// Variants for clients with these parameters, who see the first.
fn shown_of<'a>(
    parameters: &Parameters,
    variants: &'a [Arc<Resource>],
) -> impl Iterator<Item = &'a Arc<Resource>> {
    variants.iter().filter(|resource| resource.matches(parameters))
}

/// Names of which two lists have different variants.
fn differing(old: &[Arc<Resource>], new: &[Arc<Resource>]) -> Vec<Name> {
    let [mut old, mut new] = [old, new].map(|list| list.chunk_by(has_same_name).peekable());
    let mut names = Vec::new();
    loop {
        let first = |variants: Option<&&[Arc<Resource>]>| Some(variants?.first()?.name().clone());
        let Some(name) = [first(old.peek()), first(new.peek())].into_iter().flatten().min() else {
            return names;
        };
        let is_it = |variants: &&[Arc<Resource>]| variants.first().is_some_and(|first| *first.name() == name);
        if old.next_if(is_it) != new.next_if(is_it) {
            names.push(name);
        }
    }
}

#[cfg(test)]
mod tests;
