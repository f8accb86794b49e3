//! Mirror of a directory of resource files, in place of a control plane.
//!
//! Owns the resources of the last reading, to find changes, and the names that clients request.
//! Knows nothing of files.
//!
//! Everything in the directory is a member of the wildcard set of its type, and the directory is
//! complete. A type without files is known to be empty, and a name without a file does not exist.
//! Before the first reading nothing is known (R-Relay-04).
//!
//! A name may have variants for different clients. If several match one client, the lowest
//! canonical encoding of constraints wins.

use std::cell::LazyCell;
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

type AllHeld = BTreeMap<TypeUrl, BTreeMap<Name, Variants>>;

/// Requested names by parameters.
type Asked = BTreeMap<Parameters, BTreeSet<Name>>;

/// Content of the directory at the last reading, and the names that clients request. A plain value,
/// as [`Mux`](super::Mux) is.
#[derive(Debug)]
pub struct DirectoryMirror {
    writer: Writer,
    held: AllHeld,
    asked: BTreeMap<TypeUrl, Asked>,
    read: bool,
}

impl DirectoryMirror {
    /// Creates the mirror of a directory that has not been read.
    pub fn new(writer: Writer) -> Self {
        let (held, asked) = Default::default();
        Self { writer, held, asked, read: false }
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
            if self.read {
                self.apply(&wanted.type_url, &wanted.parameters, change, now);
                self.writer.record_answer(&wanted.type_url, now);
            }
            // Before the first reading too: names that a client may not see are answered without
            // it.
            self.writer.fill(&wanted, now).ok();
        }
    }

    /// Answers a change of interest. A resource in a file is a member of the wildcard set, and
    /// answers its name.
    fn want(&mut self, wanted: &Wanted) -> Change {
        let Wanted { type_url, parameters, interest, .. } = wanted;
        let snapshot = snapshot(self.cache(), type_url, parameters);
        let of_type = self.asked.entry(type_url.clone()).or_default();
        let is_new = !of_type.contains_key(parameters);
        let asked = of_type.entry(parameters.clone()).or_default();
        let mut change = Change::default();
        // Resources for clients without parameters are in the cache, requested or not.
        let is_untold = is_new && !parameters.is_empty();
        // Lazy: most changes of interest concern names only.
        let members = LazyCell::new(|| -> Vec<Arc<Resource>> {
            if !is_untold {
                return snapshot.members().cloned().collect();
            }
            let held = self.held.get(type_url).into_iter().flat_map(BTreeMap::values);
            held.filter_map(|variants| variant_for(parameters, variants)).cloned().collect()
        });
        if is_untold {
            change.ops.extend(members.iter().map(|held| Op::held(View::Wildcard, Arc::clone(held), None)));
        }
        for (name, is_wanted) in &interest.names {
            let (view, name) = (View::Named, name.clone());
            let collection = Collection::named(name.as_str());
            if !is_wanted {
                asked.remove(&name);
                let listed = snapshot.members_of(&name).map(|member| member.name().clone());
                let nobodys = listed.filter(|name| !asked.contains(name));
                change.ops.extend(nobodys.map(|name| Op::Forget { view, name }));
                if !is_listed(asked, &name) {
                    change.ops.push(Op::Forget { view, name });
                }
            } else if asked.insert(name.clone()) {
                if let Some(collection) = collection {
                    let covered = members.iter().filter(|held| collection.covers(held.name().as_str()));
                    change.ops.extend(covered.map(|held| Op::held(view, Arc::clone(held), None)));
                    change.ops.push(Op::Complete { name });
                } else {
                    // As a name too: clients with a restricted view, or with other parameters, see
                    // the name alone.
                    change.ops.push(match held_for(&self.held, type_url, parameters, &name) {
                        Some(held) => Op::held(view, Arc::clone(held), None),
                        None => Op::Remove { view, name },
                    });
                }
            }
        }
        // A type without files is dropped with its last client, as anybody may request any type
        // with any parameters.
        let is_wanted = interest.wildcard || !asked.is_empty();
        let stays = parameters.is_empty() && self.held.contains_key(type_url);
        let is_known = is_wanted || stays;
        change.wildcard_known = Some(if is_known { Completeness::Complete } else { Completeness::Unknown });
        if !is_wanted {
            of_type.remove(parameters);
            if !parameters.is_empty() {
                let forget =
                    |held: &Arc<Resource>| Op::Forget { view: View::Wildcard, name: held.name().clone() };
                change.ops.extend(members.iter().map(forget));
            }
        }
        self.asked.retain(|_, asked| !asked.is_empty());
        change
    }

    /// Parameters for which a type is kept in the cache: none, and those in use.
    fn audiences(&self, type_url: &TypeUrl) -> BTreeSet<Parameters> {
        let asked = self.asked.get(type_url).into_iter().flat_map(BTreeMap::keys);
        asked.cloned().chain([Parameters::NONE]).collect()
    }

    /// Warns of names with several variants for one client, in one line for all.
    fn warn_of_rivals(&self, changed: &[(TypeUrl, Name)]) {
        let has_rivals = |(type_url, name): &&(TypeUrl, Name)| {
            let variants =
                self.held.get(type_url).and_then(|held| held.get(name)).map_or(&[][..], Vec::as_slice);
            let matching = |parameters: &Parameters| {
                variants.iter().filter(|held| held.resource.matches(parameters)).count()
            };
            variants.len() > 1 && self.audiences(type_url).iter().any(|parameters| matching(parameters) > 1)
        };
        let mut rivals = changed.iter().filter(has_rivals);
        if let Some((type_url, name)) = rivals.next() {
            let others = rivals.count();
            tracing::warn!(
                %type_url, %name, others,
                "several variants of a resource of the directory are for the same clients, who see one of them; make their constraints exclude each other"
            );
        }
    }

    /// Operations that bring a changed name to clients with these parameters.
    fn told(&self, type_url: &TypeUrl, parameters: &Parameters, name: &Name) -> Vec<Op> {
        let asked = self.asked.get(type_url).and_then(|asked| asked.get(parameters));
        let is_asked = asked.is_some_and(|asked| asked.contains(name) || is_listed(asked, name));
        match held_for(&self.held, type_url, parameters, name) {
            Some(resource) => {
                let views = std::iter::once(View::Wildcard).chain(is_asked.then_some(View::Named));
                views.map(|view| Op::held(view, Arc::clone(resource), None)).collect()
            }
            None => {
                let named = is_asked.then(|| match asked.is_some_and(|asked| asked.contains(name)) {
                    true => Op::Remove { view: View::Named, name: name.clone() },
                    false => Op::LeaveCollection { name: name.clone() },
                });
                let member = Op::Remove { view: View::Wildcard, name: name.clone() };
                named.into_iter().chain([member]).collect()
            }
        }
    }

    /// Applies a reading of the whole directory: one change for each type that differs, in flush
    /// order. The resources come ordered by type URL and name. Of two spellings of one name the
    /// first wins (R-XT-01).
    pub fn on_reading<'a>(
        &mut self,
        resources: impl IntoIterator<Item = DirectoryResource<'a>>,
        now: Instant,
    ) {
        let mut changes = self.first_reading();
        let mut found: BTreeMap<(TypeUrl, Name), (&str, Vec<&Bytes>)> = BTreeMap::new();
        for DirectoryResource { type_url, name, wrapper } in resources {
            let key = (TypeUrl::from(type_url), Name::normal(name));
            let (spelling, variants) = found.entry(key).or_insert((name, Vec::new()));
            if *spelling == name {
                variants.push(wrapper);
            }
        }
        let is_gone =
            |type_url: &TypeUrl, name: &Name| !found.contains_key(&(type_url.clone(), name.clone()));
        let mut differs = Vec::new();
        for (type_url, held) in &mut self.held {
            let gone = held.extract_if(.., |name, _| is_gone(type_url, name));
            differs.extend(gone.map(|(name, _)| (type_url.clone(), name)));
        }
        for ((type_url, name), (_, wrappers)) in found {
            let of_type = self.held.entry(type_url.clone()).or_default();
            let held = of_type.get(&name).map_or(&[][..], Vec::as_slice);
            if let Some(variants) = read_variants(&type_url, &name, &wrappers, held) {
                of_type.insert(name.clone(), variants);
                differs.push((type_url, name));
            }
        }
        self.warn_of_rivals(&differs);
        for (type_url, name) in &differs {
            for parameters in self.audiences(type_url) {
                let ops = self.told(type_url, &parameters, name);
                changes.entry((type_url.clone(), parameters)).or_default().ops.extend(ops);
            }
        }
        self.held.retain(|_, held| !held.is_empty());
        self.cache().types().iter().for_each(|of| self.writer.record_answer(of.type_url(), now));
        for ((type_url, parameters), mut change) in changes {
            change.wildcard_known = Some(Completeness::Complete);
            self.apply(&type_url, &parameters, change, now);
        }
    }

    /// Answers requests from before the first reading.
    fn first_reading(&mut self) -> BTreeMap<(TypeUrl, Parameters), Change> {
        if std::mem::replace(&mut self.read, true) {
            return BTreeMap::new();
        }
        let absent = |name: &Name| match Collection::named(name.as_str()) {
            Some(_) => Op::Complete { name: name.clone() },
            None => Op::Remove { view: View::Named, name: name.clone() },
        };
        let change =
            |names: &BTreeSet<Name>| Change { ops: names.iter().map(absent).collect(), ..Change::default() };
        let of_type = |(type_url, asked): (&TypeUrl, &Asked)| {
            let of = |(parameters, names): (&Parameters, _)| {
                ((type_url.clone(), parameters.clone()), change(names))
            };
            asked.iter().map(of).collect::<Vec<_>>()
        };
        self.asked.iter().flat_map(of_type).collect()
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

/// Resource that clients with these parameters see by a name.
fn held_for<'a>(
    held: &'a AllHeld,
    type_url: &TypeUrl,
    parameters: &Parameters,
    name: &Name,
) -> Option<&'a Arc<Resource>> {
    variant_for(parameters, held.get(type_url)?.get(name)?)
}

/// Variant for clients with these parameters.
fn variant_for<'a>(parameters: &Parameters, variants: &'a Variants) -> Option<&'a Arc<Resource>> {
    variants.iter().map(|held| &held.resource).find(|resource| resource.matches(parameters))
}

/// Reads the variants of a name. Returns `None` if they are unchanged, or if one cannot be read and
/// the held ones stay.
fn read_variants(type_url: &TypeUrl, name: &Name, wrappers: &[&Bytes], held: &[Held]) -> Option<Variants> {
    let known = |wrapper: &Bytes| held.iter().find(|held| held.wrapper == *wrapper);
    if held.len() == wrappers.len() && wrappers.iter().all(|wrapper| known(wrapper).is_some()) {
        return None;
    }
    let read = |wrapper: &&Bytes| match known(wrapper) {
        Some(held) => Some(held.clone()),
        None => Some(Held { wrapper: (*wrapper).clone(), resource: read(type_url, name, wrapper)? }),
    };
    let read: Vec<Option<Held>> = wrappers.iter().map(read).collect();
    if !held.is_empty() && read.iter().any(Option::is_none) {
        return None;
    }
    let mut variants: Variants = read.into_iter().flatten().collect();
    if variants.is_empty() {
        return None;
    }
    variants.sort_by(|a, b| a.resource.constraints().cmp(&b.resource.constraints()));
    Some(variants)
}

fn read(type_url: &TypeUrl, name: &Name, wrapper: &Bytes) -> Option<Arc<Resource>> {
    let envelope = Envelope::parse(wrapper, type_url).inspect_err(
        |error| tracing::warn!(%type_url, %name, %error, "cannot serve a resource of the directory"),
    );
    let envelope = envelope.ok()?;
    if let Err(error) = &envelope.constraints {
        tracing::warn!(%type_url, %name, %error, "cannot serve a resource of the directory: its constraints are invalid");
        return None;
    }
    envelope.encode(type_url, name.clone()).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{
        ClientScope, Limits, Membership, ParameterView, Protocol, Snapshot, StreamProfile, Subscription,
        TtlSupport, VisibleState, WakeHandle,
    };
    use crate::resource::{Kind, Pattern, Scope, wire};

    const CDS: Kind = Kind::Cluster;

    struct Fixture {
        mirror: DirectoryMirror,
        now: Instant,
    }

    /// View of clients that may see no more than `mine/**`.
    fn mine() -> ParameterView {
        let whole = regex::Regex::new("^mine/.*$").expect("an expression");
        let scope = Scope::only([Pattern::new("mine/**", whole)].into_iter().collect());
        ParameterView::new(&ClientScope { scope, ..ClientScope::default() }, true, &BTreeMap::new())
    }

    impl Fixture {
        fn new() -> Self {
            let (_, writer) = Cache::new(Limits::default());
            Self { mirror: DirectoryMirror::new(writer), now: Instant::now() }
        }

        fn client(&mut self, kind: Kind, wildcard: bool, names: &[&str]) -> Membership {
            let of = self.mirror.cache().of(&kind.into()).expect("few types");
            let subscription = Subscription::new(wildcard, names.iter().map(|name| (*name).into()));
            let profile =
                StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
            let client = of.join(subscription, profile, &Arc::new(WakeHandle::default()));
            self.look();
            client
        }

        fn look(&mut self) {
            let interest = self.mirror.cache().take_interest();
            self.mirror.on_interest(interest, self.now);
        }

        fn scan(&mut self, resources: &[(Kind, &str, &str)]) {
            let wrapper = |(kind, name, version): &(Kind, &str, &str)| {
                let type_url = TypeUrl::from(*kind).as_str().to_owned();
                let mut any = bytes::BytesMut::new();
                wire::put_field(&mut any, 1, type_url.as_bytes());
                let mut wrapper = bytes::BytesMut::new();
                wire::put_field(&mut wrapper, 3, name.as_bytes());
                wire::put_field(&mut wrapper, 1, version.as_bytes());
                wire::put_field(&mut wrapper, 2, &any);
                ((type_url, (*name).to_owned()), wrapper.freeze())
            };
            let sorted: BTreeMap<(String, String), Bytes> = resources.iter().map(wrapper).collect();
            let resources = sorted.iter().map(|((type_url, name), wrapper)| DirectoryResource {
                type_url,
                name,
                wrapper,
            });
            self.mirror.on_reading(resources, self.now);
        }

        fn snapshot(&self, kind: Kind) -> Arc<Snapshot> {
            self.mirror.cache().of(&kind.into()).expect("few types").snapshot()
        }

        fn seen(&self, kind: Kind, name: &str) -> String {
            match self.snapshot(kind).by_name(name) {
                VisibleState::Unknown => "unknown".to_owned(),
                VisibleState::Absent => "absent".to_owned(),
                VisibleState::Collection => "collection".to_owned(),
                VisibleState::Unresolved(_) | VisibleState::Dropped(_) => "without a body".to_owned(),
                VisibleState::Present(resource) => resource.version().to_owned(),
                VisibleState::Denied(_) | VisibleState::Failed => unreachable!("a directory has no errors"),
            }
        }
    }

    #[test]
    fn r_relay_04_nothing_is_known_before_the_first_reading() {
        let mut fixture = Fixture::new();
        let _client = fixture.client(CDS, true, &["c1", "c2"]);
        assert_eq!(
            (fixture.seen(CDS, "c1"), fixture.snapshot(CDS).wildcard_known()),
            ("unknown".to_owned(), false)
        );
        let received = |fixture: &Fixture, kind: Kind| {
            fixture.mirror.cache().of(&kind.into()).expect("few types").answering_since().is_some()
        };
        assert!(!received(&fixture, CDS));
        fixture.scan(&[(CDS, "c1", "v1")]);
        let _other = fixture.client(Kind::Listener, true, &[]);
        assert!(
            received(&fixture, CDS) && received(&fixture, Kind::Listener),
            "it answers for every type once it is read"
        );
        assert_eq!(
            (fixture.seen(CDS, "c1"), fixture.seen(CDS, "c2")),
            ("v1".to_owned(), "absent".to_owned())
        );
        assert!(fixture.snapshot(CDS).wildcard_known());
    }

    #[test]
    fn a_name_that_may_not_be_seen_is_answered_for_before_the_first_reading() {
        let mut fixture = Fixture::new();
        let of = fixture.mirror.cache().store_for(&CDS.into(), &mine()).expect("few");
        let subscription = Subscription::new(true, ["mine/a", "other"].map(Name::from));
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let _client = of.join(subscription, profile, &Arc::new(WakeHandle::default()));
        fixture.look();
        let sees = |name: &str| of.snapshot().by_name(name).present().map(|held| held.version().to_owned());
        assert!(matches!(of.snapshot().by_name("other"), VisibleState::Absent));
        assert!(
            matches!(of.snapshot().by_name("mine/a"), VisibleState::Unknown)
                && !of.snapshot().wildcard_known()
        );
        fixture.scan(&[(CDS, "mine/a", "v1"), (CDS, "other", "v1")]);
        assert_eq!(sees("mine/a").as_deref(), Some("v1"));
        assert!(
            matches!(of.snapshot().by_name("other"), VisibleState::Absent) && of.snapshot().wildcard_known()
        );
    }

    #[test]
    fn a_restricted_client_sees_its_names_by_name_and_by_wildcard() {
        for (wildcard, names) in
            [(true, &[][..]), (false, &["mine/a", "mine/b", "other"]), (true, &["mine/a"])]
        {
            let mut fixture = Fixture::new();
            fixture.scan(&[(CDS, "mine/a", "v1"), (CDS, "other", "v1")]);
            let of = fixture.mirror.cache().store_for(&CDS.into(), &mine()).expect("few");
            let subscription = Subscription::new(wildcard, names.iter().map(|name| Name::from(*name)));
            let profile =
                StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
            let _client = of.join(subscription.clone(), profile, &Arc::new(WakeHandle::default()));
            fixture.look();
            let sees =
                |name: &str| of.snapshot().seen_by(&subscription, name).map(|held| held.version().to_owned());
            assert_eq!(of.snapshot().wildcard_known(), wildcard);
            assert_eq!((sees("mine/a").as_deref(), sees("other")), (Some("v1"), None), "{subscription:?}");
            fixture.scan(&[(CDS, "mine/a", "v2"), (CDS, "mine/b", "v2"), (CDS, "other", "v2")]);
            let b = if wildcard || names.contains(&"mine/b") { Some("v2") } else { None };
            assert_eq!(
                (sees("mine/a").as_deref(), sees("mine/b").as_deref(), sees("other")),
                (Some("v2"), b, None)
            );
            fixture.scan(&[(CDS, "other", "v2")]);
            assert_eq!((sees("mine/a"), sees("mine/b"), sees("other")), (None, None, None));
        }
    }

    #[test]
    fn a_name_comes_and_goes_with_its_file() {
        let mut fixture = Fixture::new();
        fixture.scan(&[]);
        let client = fixture.client(CDS, false, &["c1"]);
        assert_eq!(fixture.seen(CDS, "c1"), "absent");
        for version in ["v1", "v2"] {
            fixture.scan(&[(CDS, "c1", version)]);
            assert_eq!(fixture.seen(CDS, "c1"), version);
            assert_eq!(fixture.snapshot(CDS).member_count(), 1);
        }
        fixture.scan(&[]);
        assert_eq!(fixture.seen(CDS, "c1"), "absent");
        assert_eq!(fixture.snapshot(CDS).member_count(), 0);
        drop(client);
        fixture.look();
        assert_eq!(fixture.seen(CDS, "c1"), "unknown", "nobody asks any more");
    }

    #[test]
    fn r_xt_03_a_glob_has_the_members_that_files_hold() {
        const GLOB: &str = "xdstp://a/t/*";
        let mut fixture = Fixture::new();
        let early = fixture.client(CDS, false, &[GLOB]);
        fixture.scan(&[(CDS, "xdstp://a/t/x", "v1"), (CDS, "xdstp://a/t/x?k=v", "v1"), (CDS, "c", "v1")]);
        let members = |fixture: &Fixture| {
            let snapshot = fixture.snapshot(CDS);
            let text = |held: &Arc<Resource>| format!("{}@{}", held.name(), held.version());
            snapshot.members_of(&GLOB.into()).map(text).collect::<Vec<_>>()
        };
        assert_eq!(members(&fixture), ["xdstp://a/t/x@v1"]);
        assert_eq!(fixture.seen(CDS, GLOB), "collection");
        let by_name = fixture.client(CDS, false, &["xdstp://a/t/x"]);
        fixture.scan(&[(CDS, "xdstp://a/t/x", "v2"), (CDS, "xdstp://a/t/y", "v1")]);
        assert_eq!(members(&fixture), ["xdstp://a/t/x@v2", "xdstp://a/t/y@v1"]);
        fixture.scan(&[]);
        assert_eq!(
            (fixture.seen(CDS, GLOB), fixture.seen(CDS, "xdstp://a/t/x")),
            ("absent".to_owned(), "absent".to_owned())
        );
        fixture.scan(&[(CDS, "xdstp://a/t/x", "v3")]);
        drop((early, by_name));
        fixture.look();
        assert_eq!(members(&fixture), Vec::<String>::new());
        let _late = fixture.client(CDS, false, &[GLOB]);
        assert_eq!(members(&fixture), ["xdstp://a/t/x@v3"]);
    }

    #[test]
    fn r_xt_01_of_two_spellings_in_files_the_first_counts() {
        let mut fixture = Fixture::new();
        let files = [(CDS, "xdstp://a/t/x?a=1&b=2", "v1"), (CDS, "xdstp://a/t/x?b=2&a=1", "v2")];
        fixture.scan(&files);
        let before = fixture.snapshot(CDS).generation();
        fixture.scan(&files);
        assert_eq!(fixture.seen(CDS, "xdstp://a/t/x?a=1&b=2"), "v1");
        assert_eq!((fixture.snapshot(CDS).generation(), fixture.snapshot(CDS).member_count()), (before, 1));
    }

    #[test]
    fn a_type_that_no_file_mentions_is_known_to_be_empty() {
        let mut fixture = Fixture::new();
        fixture.scan(&[(CDS, "c1", "v1")]);
        assert!(fixture.snapshot(CDS).wildcard_known());
        let _client = fixture.client(Kind::Secret, true, &[]);
        assert!(fixture.snapshot(Kind::Secret).wildcard_known());
    }

    #[test]
    fn a_type_that_nobody_asks_for_any_more_leaves_nothing_behind() {
        let mut fixture = Fixture::new();
        fixture.scan(&[(CDS, "c1", "v1")]);
        let clients = [fixture.client(CDS, true, &[]), fixture.client(Kind::Secret, true, &["a"])];
        drop(clients);
        fixture.look();
        assert!(fixture.mirror.asked.is_empty());
        assert!(fixture.snapshot(CDS).wildcard_known(), "it is in a file");
        let _client = fixture.client(Kind::Secret, true, &[]);
        assert!(fixture.snapshot(Kind::Secret).wildcard_known());
    }

    /// A cluster for clients with this `env`; for all where there is none.
    fn variant(version: &str, env: Option<&str>) -> Bytes {
        let mut any = bytes::BytesMut::new();
        wire::put_field(&mut any, 1, TypeUrl::from(CDS).as_str().as_bytes());
        let mut wrapper = bytes::BytesMut::new();
        wire::put_field(&mut wrapper, 1, version.as_bytes());
        wire::put_field(&mut wrapper, 2, &any);
        let mut single = bytes::BytesMut::new();
        wire::put_field(&mut single, 1, b"env");
        wire::put_field(&mut single, 2, env.unwrap_or_default().as_bytes());
        let mut constraints = bytes::BytesMut::new();
        wire::put_field(&mut constraints, 1, &single);
        let mut name = bytes::BytesMut::new();
        wire::put_field(&mut name, 1, b"c");
        if env.is_some() {
            wire::put_field(&mut name, 2, &constraints);
        }
        wire::put_field(&mut wrapper, 8, &name);
        wrapper.freeze()
    }

    fn scan_variants(fixture: &mut Fixture, wrappers: &[Bytes]) {
        let type_url = TypeUrl::from(CDS);
        let of_name = |wrapper| DirectoryResource { type_url: type_url.as_str(), name: "c", wrapper };
        fixture.mirror.on_reading(wrappers.iter().map(of_name), fixture.now);
    }

    #[test]
    fn each_client_sees_the_variant_that_is_for_it() {
        let mut fixture = Fixture::new();
        let cache = Arc::clone(fixture.mirror.cache());
        let of = |env: &str| {
            let scope = ClientScope { given: [("env", env)].into_iter().collect(), ..ClientScope::default() };
            cache.store_for(&CDS.into(), &ParameterView::new(&scope, true, &BTreeMap::new())).expect("few")
        };
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let subscriptions = [Subscription::new(true, []), Subscription::new(false, ["c".into()])];
        let (prod, test) = (of("prod"), of("test"));
        let seen = || {
            let version = |of: &crate::cache::TypeCache, subscription| {
                let snapshot = of.snapshot();
                snapshot.seen_by(subscription, "c").map(|held| held.version().to_owned())
            };
            let [prod, test] = [&prod, &test].map(|of| {
                let [member, named] = subscriptions.each_ref().map(|subscription| version(of, subscription));
                assert_eq!(member, named);
                member.unwrap_or_default()
            });
            (prod, test)
        };
        let [p1, p2, t1, t2] = [("p1", "prod"), ("p2", "prod"), ("t1", "test"), ("t2", "test")]
            .map(|(version, env)| variant(version, Some(env)));
        let everybodys = variant("e", None);
        scan_variants(&mut fixture, &[p1.clone(), t1]);
        let _clients: Vec<_> = [&prod, &test]
            .into_iter()
            .flat_map(|of| subscriptions.each_ref().map(|subscription| (of, subscription)))
            .map(|(of, subscription)| {
                of.join(subscription.clone(), profile, &Arc::new(WakeHandle::default()))
            })
            .collect();
        fixture.look();
        assert_eq!(seen(), ("p1".into(), "t1".into()));
        // A variant of others changes: no generation passes here.
        let before = prod.snapshot().generation();
        scan_variants(&mut fixture, &[p1, t2.clone()]);
        assert_eq!((seen(), prod.snapshot().generation()), (("p1".into(), "t2".into()), before));
        // One goes, and the other stays.
        scan_variants(&mut fixture, &[t2]);
        assert_eq!(seen(), (String::new(), "t2".into()));
        // Two are for the same clients: which of them counts does not depend on their order.
        scan_variants(&mut fixture, &[p2.clone(), everybodys.clone()]);
        assert_eq!(seen(), ("e".into(), "e".into()));
        scan_variants(&mut fixture, &[everybodys, p2]);
        assert_eq!(seen(), ("e".into(), "e".into()));
        scan_variants(&mut fixture, &[]);
        assert_eq!(seen(), (String::new(), String::new()));
    }

    #[test]
    fn an_unchanged_file_causes_nothing() {
        let mut fixture = Fixture::new();
        let _client = fixture.client(CDS, true, &[]);
        fixture.scan(&[(CDS, "c1", "v1"), (CDS, "c2", "v1")]);
        let first = fixture.snapshot(CDS);
        fixture.scan(&[(CDS, "c1", "v1"), (CDS, "c2", "v1")]);
        assert!(Arc::ptr_eq(&first, &fixture.snapshot(CDS)));
        fixture.scan(&[(CDS, "c1", "v1"), (CDS, "c2", "v2")]);
        let kept = |snapshot: &Snapshot| snapshot.by_name("c1").present().cloned();
        assert!(Arc::ptr_eq(&kept(&first).expect("c1"), &kept(&fixture.snapshot(CDS)).expect("c1")));
        assert_eq!(fixture.seen(CDS, "c2"), "v2");
    }

    #[test]
    fn types_change_in_the_order_in_which_they_refer_to_each_other() {
        let mut fixture = Fixture::new();
        let kinds = [CDS, Kind::Endpoint, Kind::Listener, Kind::Route];
        fixture.scan(&kinds.map(|kind| (kind, "x", "v1")));
        let order = kinds.map(|kind| fixture.snapshot(kind).generation());
        assert!(order.is_sorted() && order[0] < order[3], "{order:?}");
    }
}
