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

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;

use super::topic_set::snapshot;
use crate::cache::{Cache, Change, Completeness, Op, View, Wanted, Writer};
use crate::resource::{Collection, Envelope, Name, Parameters, Resource, TypeUrl};

/// Resource as read from a file of the directory.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryResource<'a> {
    /// Its type URL.
    pub type_url: &'a str,
    /// Its name, as it is spelled in the file.
    pub name: &'a str,
    pub wrapper: &'a Bytes,
}

/// Content of a file, and the resource made of it.
#[derive(Clone, Debug)]
struct Held {
    wrapper: Bytes,
    resource: Arc<Resource>,
}

/// Variants of a name, in order of preference; never empty.
type Variants = Vec<Held>;

/// Content of the directory at the last reading, and the names that clients request. A plain value,
/// as [`Mux`](super::Mux) is.
#[derive(Debug)]
pub struct DirectoryMirror {
    writer: Writer,
    held: BTreeMap<TypeUrl, BTreeMap<Name, Variants>>,
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
        shown_of(parameters, self.held.get(type_url)?.get(name)?).next()
    }

    /// All resources that clients with these parameters see.
    fn members(&self, type_url: &TypeUrl, parameters: &Parameters) -> impl Iterator<Item = &Arc<Resource>> {
        let held = self.held.get(type_url).into_iter().flat_map(BTreeMap::values);
        held.filter_map(|variants| shown_of(parameters, variants).next())
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
    fn told(
        &self,
        type_url: &TypeUrl,
        parameters: &Parameters,
        asked: &BTreeSet<Name>,
        name: &Name,
    ) -> Vec<Op> {
        let (is_named, is_listed) = (asked.contains(name), is_listed(asked, name));
        if let Some(resource) = self.shown(type_url, parameters, name) {
            let views = [Some(View::Wildcard), (is_named || is_listed).then_some(View::Named)];
            return views
                .into_iter()
                .flatten()
                .map(|view| Op::held(view, Arc::clone(resource), None))
                .collect();
        }
        let named = match (is_named, is_listed) {
            (true, _) => Some(Op::Remove { view: View::Named, name: name.clone() }),
            (false, true) => Some(Op::LeaveCollection { name: name.clone() }),
            (false, false) => None,
        };
        named.into_iter().chain([Op::Remove { view: View::Wildcard, name: name.clone() }]).collect()
    }

    /// Applies a reading of the whole directory: one change for each type that differs, in flush
    /// order. The resources come ordered by type URL and name. Of two spellings of one name the
    /// first wins (R-XT-01). `is_whole`: each file was read at least once.
    pub fn on_reading<'a>(
        &mut self,
        resources: impl IntoIterator<Item = DirectoryResource<'a>>,
        is_whole: bool,
        now: Instant,
    ) {
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
                ops.extend(self.told(type_url, parameters, asked, name));
                let variants = self.held.get(type_url).and_then(|held| held.get(name));
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
    fn replace<'a>(
        &mut self,
        resources: impl IntoIterator<Item = DirectoryResource<'a>>,
    ) -> BTreeMap<TypeUrl, Vec<Name>> {
        let is_whole = self.is_whole();
        let emptied = self.held.keys().map(|type_url| (type_url.clone(), BTreeMap::new()));
        let mut found: BTreeMap<TypeUrl, BTreeMap<Name, Vec<DirectoryResource<'a>>>> = emptied.collect();
        for resource in resources {
            let of_type = found.entry(resource.type_url.into()).or_default();
            let variants = of_type.entry(Name::normal(resource.name)).or_default();
            if variants.first().is_none_or(|first| first.name == resource.name) {
                variants.push(resource);
            }
        }
        let mut changed = BTreeMap::new();
        for (type_url, found) in found {
            let held = self.held.entry(type_url.clone()).or_default();
            // A missing name may have moved to a file that cannot be read.
            let gone = held.extract_if(.., |name, _| is_whole && !found.contains_key(name));
            let mut names: Vec<Name> = gone.map(|(name, _)| name).collect();
            for (name, found) in found {
                let known = held.get(&name).map_or(&[][..], Vec::as_slice);
                if let Some(variants) = read_variants(&type_url, &name, &found, known) {
                    held.insert(name.clone(), variants);
                    names.push(name);
                }
            }
            if !names.is_empty() {
                changed.insert(type_url, names);
            }
        }
        self.held.retain(|_, held| !held.is_empty());
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

/// Variants for clients with these parameters, who see the first.
fn shown_of<'a>(parameters: &Parameters, variants: &'a Variants) -> impl Iterator<Item = &'a Arc<Resource>> {
    variants.iter().map(|held| &held.resource).filter(|resource| resource.matches(parameters))
}

/// Reads the variants of a name. Returns `None` if they are unchanged, or if one cannot be read and
/// the held ones stay.
fn read_variants(
    type_url: &TypeUrl,
    name: &Name,
    found: &[DirectoryResource<'_>],
    held: &[Held],
) -> Option<Variants> {
    let known = |wrapper: &Bytes| held.iter().find(|held| held.wrapper == *wrapper);
    if held.len() == found.len() && found.iter().all(|found| known(found.wrapper).is_some()) {
        return None;
    }
    let mut variants = Variants::new();
    for DirectoryResource { wrapper, .. } in found {
        match known(wrapper).cloned().or_else(|| read(type_url, name, wrapper)) {
            Some(variant) => variants.push(variant),
            None if held.is_empty() => {}
            None => return None,
        }
    }
    variants.sort_by(|a, b| a.resource.constraints().cmp(&b.resource.constraints()));
    Some(variants).filter(|variants| !variants.is_empty())
}

fn read(type_url: &TypeUrl, name: &Name, wrapper: &Bytes) -> Option<Held> {
    let envelope = Envelope::parse(wrapper, type_url).inspect_err(
        |error| tracing::warn!(%type_url, %name, %error, "cannot serve a resource of the directory"),
    );
    let envelope = envelope.ok()?;
    if let Err(error) = &envelope.constraints {
        tracing::warn!(%type_url, %name, %error, "cannot serve a resource of the directory: its constraints are invalid");
        return None;
    }
    let resource = Arc::new(envelope.encode(type_url, name.clone())?);
    Some(Held { wrapper: wrapper.clone(), resource })
}

#[cfg(test)]
mod tests;
