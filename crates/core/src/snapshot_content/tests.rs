//! Content, records and content again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;
use crate::cache::{
    Cache, Change, Completeness, Lease, Limits, Op, OriginError, ParameterView, Protocol, Resend, Snapshot,
    StreamProfile, Subscription, TtlSupport, View, WakeHandle, Writer,
};
use crate::resource::wire::field;
use crate::resource::{Envelope, Kind, Name, Parameters, Resource, TypeUrl};
use crate::upstream::{Mux, ServerId, Settings, StreamId};

const ALL: Selection = Selection { secrets: true };

/// A resource as the origin sends it, with these fields beside the ordinary ones.
fn resource_with(type_url: &TypeUrl, name: &str, version: &str, body: &str, more: &[u8]) -> Arc<Resource> {
    let any = [field(1, type_url.as_str().as_bytes()), field(2, body.as_bytes())].concat();
    let sent = [&field(1, version.as_bytes())[..], &field(2, &any), more].concat();
    let sent =
        if more.first() == Some(&(8 << 3 | 2)) { sent } else { [sent, field(3, name.as_bytes())].concat() };
    let envelope = Envelope::parse(&sent, type_url).expect("a good envelope");
    Arc::new(envelope.encode(type_url, name.into()).expect("it has a body"))
}

fn resource(type_url: &TypeUrl, name: &str, version: &str) -> Arc<Resource> {
    resource_with(type_url, name, version, &format!("{name}@{version}"), &[])
}

fn clock(now: Instant) -> Clock {
    Clock { now, unix: Duration::from_secs(1_800_000_000) }
}

fn records(
    type_url: &TypeUrl,
    snapshot: &Snapshot,
    selection: Selection,
    clock: Clock,
) -> BTreeMap<Name, Record> {
    let record = |name: &Name| record_of(type_url, snapshot, name.as_str(), selection, clock);
    let names = snapshot.entries().map(|entry| entry.name().clone());
    names.filter_map(|name| Some((name.clone(), record(&name)?))).collect()
}

fn content(id: &StoreId, snapshot: &Snapshot, records: &BTreeMap<Name, Record>) -> StoreContent {
    let (completeness, members) = wildcard_kept(snapshot, Instant::now());
    StoreContent { id: id.clone(), completeness, members, records: records.clone().into_iter().collect() }
}

fn plain(type_url: &TypeUrl) -> StoreId {
    StoreId { type_url: type_url.clone(), parameters: Parameters::NONE }
}

/// A mux into which content was restored, and its cache.
fn restored(stores: Vec<StoreContent>, clock: Clock) -> (Mux, Arc<Cache>) {
    let (cache, writer) = Cache::new(Limits::default());
    let mut mux = Mux::new(writer, Settings::default());
    mux.restore(Content { stores }, Some("http://a".into()), clock);
    (mux, cache)
}

fn snapshot_of(cache: &Cache, id: &StoreId) -> Arc<Snapshot> {
    let of = cache.find(&id.type_url, &ParameterView::uniform(id.parameters.clone()));
    of.map(|of| of.snapshot()).unwrap_or_default()
}

fn apply(writer: &mut Writer, type_url: &TypeUrl, ops: Vec<Op>, now: Instant) -> Arc<Snapshot> {
    writer.apply(type_url, Change { ops, ..Change::default() }, now).expect("a type of the protocol");
    snapshot_of(writer.cache(), &plain(type_url))
}

#[test]
fn what_is_not_to_be_kept_is_not_recorded() {
    let (now, eds) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
    let (_cache, mut writer) = Cache::new(Limits::default());
    let held = |resource| Op::held(View::Named, resource, None);
    let uncacheable = field(7, &[1 << 3, 1]);
    let denied = OriginError::new(7, "no");
    let remove = |name: &str| Op::Remove { view: View::Named, name: name.into() };
    let ops = vec![
        held(resource(&eds, "kept", "1")),
        held(resource_with(&eds, "uncacheable", "1", "", &uncacheable)),
        held(resource(&eds, "denied", "1")),
        Op::Fail { name: "denied".into(), failure: Arc::new(denied), listed: false },
        held(resource(&eds, "removed", "1")),
        remove("removed"),
        remove("absent"),
        Op::Alias { name: "alias".into(), resource: resource(&eds, "kept", "1"), resend: Resend::Answer },
    ];
    let snapshot = apply(&mut writer, &eds, ops, now);
    let names: Vec<String> =
        records(&eds, &snapshot, ALL, clock(now)).keys().map(ToString::to_string).collect();
    assert_eq!(names, ["alias", "kept"]);
}

#[test]
fn secrets_are_recorded_only_where_asked_for() {
    let (now, sds) = (Instant::now(), TypeUrl::from(Kind::Secret));
    let (_cache, mut writer) = Cache::new(Limits::default());
    let snapshot =
        apply(&mut writer, &sds, vec![Op::held(View::Named, resource(&sds, "key", "1"), None)], now);
    let count = |secrets| records(&sds, &snapshot, Selection { secrets }, clock(now)).len();
    assert_eq!((count(false), count(true)), (0, 1));
}

#[test]
fn r_ttl_10_a_ttl_ends_at_its_time_on_the_wall_whatever_the_process() {
    let (now, eds) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
    let (_cache, mut writer) = Cache::new(Limits::default());
    let lease = Lease::new(Duration::from_secs(100), now);
    let ops = vec![Op::held(View::Named, resource(&eds, "a", "1"), lease)];
    let snapshot = apply(&mut writer, &eds, ops, now);
    let id = plain(&eds);
    let written = content(&id, &snapshot, &records(&eds, &snapshot, ALL, clock(now)));
    // Another process has another clock: it begins anywhere.
    let start = now + Duration::from_secs(5_000);
    let after = |seconds| Clock { now: start, unix: clock(now).unix + Duration::from_secs(seconds) };
    let (mux, cache) = restored(vec![written.clone()], after(40));
    assert!(snapshot_of(&cache, &id).held(View::Named, "a").is_some());
    assert_eq!(mux.next_deadline().map(|at| at - start), Some(Duration::from_secs(60)));
    let (_, cache) = restored(vec![written.clone()], after(100));
    assert!(snapshot_of(&cache, &id).held(View::Named, "a").is_none());
    // The clock of the wall was set back by an hour.
    let back = Clock { now: start, unix: clock(now).unix - Duration::from_secs(3_600) };
    let (mut mux, cache) = restored(vec![written], back);
    mux.on_deadline(start + Duration::from_secs(100));
    assert!(snapshot_of(&cache, &id).held(View::Named, "a").is_none());
}

#[test]
fn members_of_a_collection_are_held_by_the_collection_while_the_origin_is_away() {
    let (now, eds) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
    let (_cache, mut writer) = Cache::new(Limits::default());
    let name = |last: &str| format!("xdstp://a/envoy.config.endpoint.v3.ClusterLoadAssignment/x/{last}");
    let ops = vec![
        Op::held(View::Named, resource(&eds, &name("1"), "1"), None),
        Op::held(View::Named, resource(&eds, &name("2"), "1"), None),
        Op::Complete { name: Name::from(name("*")) },
    ];
    let snapshot = apply(&mut writer, &eds, ops, now);
    let id = plain(&eds);
    let written = content(&id, &snapshot, &records(&eds, &snapshot, ALL, clock(now)));
    assert_eq!(written.records.len(), 3);
    let (mut mux, cache) = restored(vec![written], clock(now));
    for hours in 1..4 {
        mux.on_deadline(now + Duration::from_secs(hours * 3_600));
    }
    let glob = Name::from(name("*"));
    assert_eq!(snapshot_of(&cache, &id).members_of(&glob).count(), 2);
}

/// The file could not be read before clients came.
#[test]
fn content_that_comes_behind_clients_leaves_them_what_they_want() {
    let (now, eds) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
    let (cache, writer) = Cache::new(Limits::default());
    let mut mux = Mux::new(writer, Settings::default());
    let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
    let subscription = Subscription::new(false, ["a".into()]);
    let of = cache.of(&eds).expect("room for a type");
    let _client = of.join(subscription, profile, &Arc::new(WakeHandle::default()));
    mux.interest(cache.take_interest(), now);
    let record = |name: &str| {
        let kept = Kept::Resource(resource(&eds, name, "1"));
        (Name::from(name), Record { view: View::Named, kept, lease: None })
    };
    let (id, completeness) = (plain(&eds), Completeness::Unknown);
    let store =
        StoreContent { id: id.clone(), completeness, members: 0, records: ["a", "b"].map(record).into() };
    let restored = mux.restore(Content { stores: vec![store] }, Some("http://a".into()), clock(now));
    assert_eq!(restored.resources, 2);
    let held = || ["a", "b"].map(|name| snapshot_of(&cache, &id).get(name).is_some());
    assert_eq!(held(), [true, true]);
    mux.connected(&"http://a".into());
    mux.opened(StreamId::Primary, now);
    let request = mux.next_request(StreamId::Primary, now).expect("both are asked for");
    assert_eq!(request.type_url, eds.as_str());
    for hours in 1..4 {
        mux.on_deadline(now + Duration::from_secs(hours * 3_600));
    }
    assert_eq!(held(), [true, false], "nobody wants the other one");
}

#[test]
fn r_up_04_versions_of_an_earlier_process_are_told_to_their_server_alone() {
    let (now, cds) = (Instant::now(), TypeUrl::from(Kind::Cluster));
    let claims = |from: Option<&str>| {
        let record = |name: &str| {
            let kept = Kept::Resource(resource(&cds, name, "1"));
            (Name::from(name), Record { view: View::Wildcard, kept, lease: None })
        };
        let records = ["a", "b", "c"].map(record).into();
        let (id, completeness) = (plain(&cds), Completeness::Complete);
        let content = Content { stores: vec![StoreContent { id, completeness, members: 3, records }] };
        let (_cache, writer) = Cache::new(Limits::default());
        let mut mux = Mux::new(writer, Settings::default());
        mux.restore(content, from.map(ServerId::from), clock(now));
        mux.connected(&"http://a".into());
        mux.opened(StreamId::Primary, now);
        let request = mux.next_request(StreamId::Primary, now).expect("the wildcard is asked for");
        assert_eq!(request.type_url, cds.as_str());
        request.initial_resource_versions.keys().filter(|name| *name != Name::END_MARK).count()
    };
    assert_eq!([Some("http://a"), Some("http://b"), None].map(claims), [3, 0, 0]);
}

#[test]
fn a_wildcard_set_is_complete_only_when_the_control_plane_says_so() {
    let known = |before, members, held| {
        let cds = TypeUrl::from(Kind::Cluster);
        let record = |number: usize| {
            let name = format!("c{number}");
            let kept = Kept::Resource(resource(&cds, &name, "1"));
            (Name::from(name), Record { view: View::Wildcard, kept, lease: None })
        };
        let records = (0..held).map(record).collect();
        let store = StoreContent { id: plain(&cds), completeness: before, members, records };
        let (_, cache) = restored(vec![store], clock(Instant::now()));
        snapshot_of(&cache, &plain(&cds)).completeness()
    };
    use Completeness::{Complete, Presumed, Settled, Unknown};
    assert_eq!(
        [Complete, Presumed, Settled, Unknown].map(|before| known(before, 2, 2)),
        [Presumed, Presumed, Settled, Unknown]
    );
    // Members that are not recorded.
    assert_eq!([known(Complete, 2, 1), known(Complete, 2, 0)], [Settled, Unknown]);
    assert_eq!(
        [known(Complete, 0, 0), known(Settled, 0, 0), known(Unknown, 0, 0)],
        [Presumed, Settled, Unknown]
    );
}

#[test]
fn a_set_that_has_settled_is_taken_for_what_there_is_after_a_while() {
    let (now, cds) = (Instant::now(), TypeUrl::from(Kind::Cluster));
    let (cache, mut writer) = Cache::new(Limits::default());
    let ops = vec![Op::held(View::Wildcard, resource(&cds, "a", "1"), None)];
    let change = Change { ops, wildcard_known: Some(Completeness::Settled), ..Change::default() };
    writer.apply(&cds, change, now).expect("a type of the protocol");
    let snapshot = snapshot_of(&cache, &plain(&cds));
    let known = |seconds| wildcard_kept(&snapshot, now + Duration::from_secs(seconds)).0;
    assert_eq!([known(4), known(5)], [Completeness::Settled, Completeness::Presumed]);
}

/// One step of a history.
#[derive(Clone, Debug)]
enum Step {
    Set {
        view: View,
        name: u8,
        version: u8,
        ttl: Option<u8>,
        constrained: bool,
    },
    Remove {
        view: View,
        name: u8,
    },
    Forget {
        view: View,
        name: u8,
    },
    Alias {
        name: u8,
        of: u8,
        version: u8,
    },
    Renew {
        view: View,
        name: u8,
        ttl: Option<u8>,
    },
    Deny {
        name: u8,
    },
    Known(bool),
    /// The reader copies what has changed.
    Copy,
}

fn step() -> impl Strategy<Value = Step> {
    let view = prop_oneof![Just(View::Wildcard), Just(View::Named)];
    let name = 0_u8..6;
    let ttl = proptest::option::of(1_u8..50);
    prop_oneof![
        6 => (view.clone(), name.clone(), 0_u8..4, ttl.clone(), any::<bool>())
            .prop_map(|(view, name, version, ttl, constrained)| Step::Set { view, name, version, ttl, constrained }),
        2 => (view.clone(), name.clone()).prop_map(|(view, name)| Step::Remove { view, name }),
        3 => (view.clone(), name.clone()).prop_map(|(view, name)| Step::Forget { view, name }),
        1 => (name.clone(), name.clone(), 0_u8..4).prop_map(|(name, of, version)| Step::Alias { name, of, version }),
        1 => (view, name.clone(), ttl).prop_map(|(view, name, ttl)| Step::Renew { view, name, ttl }),
        1 => name.prop_map(|name| Step::Deny { name }),
        1 => any::<bool>().prop_map(Step::Known),
        3 => Just(Step::Copy),
    ]
}

fn constraints() -> Vec<u8> {
    let single = [field(1, b"key"), field(2, b"value")].concat();
    field(1, &single)
}

fn change_of(step: &Step, type_url: &TypeUrl, now: Instant) -> Option<Change> {
    let named = |name: &u8| Name::from(format!("n{name}"));
    let lease = |ttl: &Option<u8>| ttl.and_then(|ttl| Lease::new(Duration::from_secs(ttl.into()), now));
    let op = match step {
        Step::Set { view, name, version, ttl, constrained } => {
            let (text, version) =
                (named(name).to_string(), if *version == 0 { String::new() } else { version.to_string() });
            let full = [field(1, text.as_bytes()), field(2, &constraints())].concat();
            let more = if *constrained { field(8, &full) } else { Vec::new() };
            let resource = resource_with(type_url, &text, &version, &version, &more);
            Op::Set { view: *view, resource, resend: Resend::Answer, lease: lease(ttl) }
        }
        Step::Remove { view, name } => Op::Remove { view: *view, name: named(name) },
        Step::Forget { view, name } => Op::Forget { view: *view, name: named(name) },
        Step::Alias { name, of, version } => {
            let resource = resource(type_url, named(of).as_str(), &version.to_string());
            Op::Alias { name: named(name), resource, resend: Resend::Answer }
        }
        Step::Renew { view, name, ttl } => Op::Renew { view: *view, name: named(name), lease: lease(ttl) },
        Step::Deny { name } => {
            let failure = Arc::new(OriginError::new(7, "no"));
            Op::Fail { name: named(name), failure, listed: false }
        }
        Step::Known(known) => {
            let wildcard_known = Some(if *known { Completeness::Complete } else { Completeness::Unknown });
            return Some(Change { wildcard_known, ..Change::default() });
        }
        Step::Copy => return None,
    };
    Some(Change { ops: vec![op], ..Change::default() })
}

/// An alias has no TTL: that the one which was told has ended is a change, for clients and for the record on disk.
#[test]
fn a_ttl_that_an_alias_ends_is_a_change() {
    let (now, type_url) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
    let (_cache, mut writer) = Cache::new(Limits::default());
    let alias = Step::Alias { name: 3, of: 3, version: 0 };
    let renewal = Step::Renew { view: View::Named, name: 3, ttl: Some(1) };
    let apply = |writer: &mut Writer, step| {
        writer.apply(&type_url, change_of(step, &type_url, now).unwrap(), now).unwrap()
    };
    apply(&mut writer, &alias);
    apply(&mut writer, &renewal);
    let timed = snapshot_of(writer.cache(), &plain(&type_url));
    apply(&mut writer, &alias);
    let untimed = snapshot_of(writer.cache(), &plain(&type_url));
    assert_eq!(untimed.changed_since(&timed), [Name::from("n3")].into());
}

proptest! {
    /// A reader that copies what has changed now and then holds what a reader of everything would.
    #[test]
    fn changes_lead_to_what_is_there(steps in proptest::collection::vec(step(), 1..80), tombstones in 1_usize..6) {
        let (now, type_url) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
        let (_cache, mut writer) = Cache::new(Limits { tombstones, ..Limits::default() });
        let (mut copy, mut earlier) = (BTreeMap::new(), Arc::new(Snapshot::default()));
        for step in steps.iter().chain([&Step::Copy]) {
            if let Some(change) = change_of(step, &type_url, now) {
                writer.apply(&type_url, change, now).expect("a type of the protocol");
                continue;
            }
            let snapshot = snapshot_of(writer.cache(), &plain(&type_url));
            let whole = records(&type_url, &snapshot, ALL, clock(now));
            for name in snapshot.changed_since(&earlier) {
                match record_of(&type_url, &snapshot, name.as_str(), ALL, clock(now)) {
                    Some(record) => drop(copy.insert(name, record)),
                    None => drop(copy.remove(&name)),
                }
            }
            earlier = snapshot;
            prop_assert_eq!(&copy, &whole);
        }
    }

    /// Records of a restored relay are those that it was restored from.
    #[test]
    fn content_that_is_restored_has_the_records_that_it_came_from(steps in proptest::collection::vec(step(), 1..60)) {
        let (now, type_url) = (Instant::now(), TypeUrl::from(Kind::Endpoint));
        let (_cache, mut writer) = Cache::new(Limits::default());
        for change in steps.iter().filter_map(|step| change_of(step, &type_url, now)) {
            writer.apply(&type_url, change, now).expect("a type of the protocol");
        }
        let id = plain(&type_url);
        let before = snapshot_of(writer.cache(), &id);
        let written = records(&type_url, &before, ALL, clock(now));
        let (_mux, cache) = restored(vec![content(&id, &before, &written)], clock(now));
        let after = snapshot_of(&cache, &id);
        prop_assert_eq!(records(&type_url, &after, ALL, clock(now)), written);
        prop_assert!(after.completeness() <= Completeness::Presumed);
    }
}
