//! Memory of a client beside its connection. Bytes are counted by the allocator of this test program.

use std::sync::Arc;
use std::time::Instant;

use deltafan::cache::{Budget, Cache, Change, Completeness, Limits, Op, Protocol, Resend, View, Writer};
use deltafan::directory::scan;
use deltafan::fleet::Fleet;
use deltafan::identity::{Peer, Source};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{NextStep, Session, SessionConfig, Upstream};
use deltafan::upstream::DirectoryMirror;
use deltafan_test_support::wire;
use stats_alloc::Region;

use crate::{ALLOCATOR, ALONE};

const CLIENTS: usize = 200;

/// Clients that subscribe to clusters and listeners as wildcard, and to so many endpoints and routes by name.
/// No two sets are the same, and every name is in many.
fn clients(cache: &Arc<Cache>, endpoints: usize, routes: usize) -> Vec<Session> {
    const KNOWN: usize = 2_000;
    let rules = Arc::new(SessionConfig::default());
    let now = Instant::now();
    let join = |client: usize| {
        let mut session = Session::new(Arc::clone(cache), Arc::clone(&rules), Protocol::Delta, None, now);
        let names = |count: usize| -> Vec<String> {
            (0..count).map(|at| format!("outbound-cluster-{:06}", (client + at) % KNOWN)).collect()
        };
        let subscribe =
            [("cds", Vec::new()), ("eds", names(endpoints)), ("lds", Vec::new()), ("rds", names(routes))];
        for (short, resource_names_subscribe) in subscribe {
            let request = proto::DeltaDiscoveryRequest {
                node: Some(proto::Node { id: format!("node-{client:06}"), ..proto::Node::default() }),
                type_url: TypeUrl::from_user(short).unwrap().as_str().to_owned(),
                resource_names_subscribe,
                ..proto::DeltaDiscoveryRequest::default()
            };
            session.on_delta_request(request, Default::default(), now).unwrap();
        }
        session
    };
    (0..CLIENTS).map(join).collect()
}

/// Bytes that a client holds.
fn each(endpoints: usize) -> usize {
    let (cache, _writer) = Cache::new(Limits::default());
    // The names themselves are there before: they are the fleet's, not a client's.
    let _known = clients(&cache, endpoints, 10);
    let region = Region::new(ALLOCATOR);
    let more = clients(&cache, endpoints + 1, 11);
    let change = region.change();
    let held = change.bytes_allocated - change.bytes_deallocated;
    drop(more);
    held / CLIENTS
}

#[test]
fn a_client_of_four_types_and_fifty_names_costs_little_beside_its_connection() {
    let _alone = ALONE.lock();
    let bytes = each(40);
    println!("{bytes} bytes per client, {} of them a Session", size_of::<Session>());
    assert!(bytes < 4 << 10, "{bytes} bytes");
}

#[test]
fn a_further_name_that_others_know_costs_two_words_and_a_place_in_the_index() {
    let _alone = ALONE.lock();
    let bytes = (each(1_040) as f64 - each(40) as f64) / 1_000.0;
    println!("{bytes:.1} bytes per further subscription");
    assert!(bytes <= 28.0, "{bytes} bytes");
}

/// Operators see what each client was sent, at no more than this.
#[test]
fn the_record_of_a_client_of_four_types_is_less_than_a_kibibyte() {
    let _alone = ALONE.lock();
    let (cache, mut writer) = Cache::new(Limits::default());
    fill(&mut writer, "x");
    let mut sessions = clients(&cache, 40, 10);
    let fleet = Arc::<Fleet>::default();
    let (peer, now) = (Arc::new(Peer::unproven(Source::Unix)), Instant::now());
    let region = Region::new(ALLOCATOR);
    let open = |at: usize| fleet.open("delta", Arc::clone(&peer), at as u64, now);
    let records: Vec<_> = (0..CLIENTS).map(open).collect();
    records.iter().zip(&sessions).for_each(|(record, session)| record.follow_request(session, None));
    let change = region.change();
    let mut held = change.bytes_allocated - change.bytes_deallocated;
    for (record, session) in records.iter().zip(&mut sessions) {
        // The frame that all share is not a record's.
        let NextStep::Send(mut outgoing) = session.next(now, Upstream::Answering) else { panic!("clusters") };
        let region = Region::new(ALLOCATOR);
        record.sent(session, &mut outgoing, now);
        let change = region.change();
        held += change.bytes_allocated - change.bytes_deallocated;
    }
    println!("{} bytes for the record of a client", held / CLIENTS);
    assert!(held / CLIENTS <= 1 << 10, "{} bytes", held / CLIENTS);
}

/// Resources of a node group, and bytes of each.
const RESOURCES: usize = 1_000;
const BYTES: usize = 1 << 10;

/// Writes all resources with a text into the cache of a group, each from bytes of its own.
fn fill(writer: &mut Writer, text: &str) {
    fill_with(writer, RESOURCES, text, BYTES);
}

fn fill_with(writer: &mut Writer, count: usize, text: &str, bytes: usize) {
    let clusters = wire::type_url("cds");
    let set = |number: usize| {
        let resource = wire::resource(&clusters, &format!("cluster-{number:04}"), text, bytes);
        Op::Set { view: View::Wildcard, resource, resend: Resend::Answer, lease: None }
    };
    let ops = (0..count).map(set).collect();
    let wildcard_known = Some(Completeness::Complete);
    writer.apply(&clusters, Change { ops, wildcard_known, ..Change::default() }, Instant::now()).unwrap();
}

/// Bytes that each of many small resources takes beside its encoding, for a cache that `fill` fills. The last value is
/// whatever else it holds.
fn beside_encoding<T>(fill: impl FnOnce(Writer) -> T) -> usize {
    let (cache, writer) = Cache::new(Limits::default());
    let region = Region::new(ALLOCATOR);
    let _source = fill(writer);
    let change = region.change();
    let totals = cache.of(&wire::type_url("cds")).unwrap().snapshot().held_in_all();
    assert_eq!(totals.resources, SMALL);
    (change.bytes_allocated - change.bytes_deallocated - totals.bytes) / SMALL
}

/// Small resources of a large directory or control plane.
const SMALL: usize = 10_000;

/// A million of them are a small part of a relay's memory.
#[test]
fn a_small_resource_takes_little_beside_its_encoding() {
    let _alone = ALONE.lock();
    let of_control_plane = beside_encoding(|mut writer| {
        fill_with(&mut writer, SMALL, "x", 130);
        writer
    });
    let files = tempfile::tempdir().unwrap();
    let cluster = |number: usize| serde_json::json!({"@type": wire::type_url("cds").as_str(), "name": format!("cluster-{number:04}")});
    let write = |file: &str, count: usize| {
        let resources: Vec<_> = (0..count).map(cluster).collect();
        std::fs::write(files.path().join(file), serde_json::json!({"resources": resources}).to_string())
            .unwrap();
    };
    // The descriptors are the program's.
    write("a.json", 1);
    scan(files.path()).unwrap();
    write("a.json", SMALL);
    let of_directory = beside_encoding(|writer| {
        let (mut mirror, scan) = (DirectoryMirror::new(writer), scan(files.path()).unwrap());
        mirror.on_reading(&scan.resources, true, Instant::now());
        (mirror, scan)
    });
    println!("{of_control_plane} bytes of a control plane, {of_directory} of a directory");
    // Its name, the resource and its entry, and a place in two tables.
    assert!(of_control_plane <= 250, "{of_control_plane} bytes");
    // A place in the reading and one in the mirror, 16 bytes, and a share of what tests before this one did not have to allocate.
    assert!(of_directory <= of_control_plane + 20, "{of_directory} bytes");
}

#[test]
fn node_groups_that_hold_equal_resources_share_their_bytes() {
    let _alone = ALONE.lock();
    let limits = Limits::default();
    let budget = Budget::new(limits.encoded_bytes);
    let mut caches: Vec<_> = (0..3).map(|_| Cache::guarded(limits, &budget, None)).collect();
    let mut held = Vec::new();
    for (_, writer) in &mut caches {
        let region = Region::new(ALLOCATOR);
        fill(writer, "x");
        let change = region.change();
        held.push(change.bytes_allocated - change.bytes_deallocated);
    }
    println!("{held:?} bytes for the relay's own cache, the first group and the second");
    assert!(held[1] > RESOURCES * BYTES, "{held:?}");
    // An entry, its place in two tables, and what a cache takes by itself.
    assert!(held[2] < RESOURCES * 130, "{held:?}");
}

/// The bound of the history is one of bytes: it counts what it takes, or more.
#[test]
fn the_history_takes_no_more_than_it_counts() {
    let _alone = ALONE.lock();
    let limits = Limits::default();
    let grow = |history: u64, changes: usize| {
        let budget = Budget::new(limits.encoded_bytes).with_history(history);
        let (cache, mut writer) = Cache::guarded(limits, &budget, None);
        let region = Region::new(ALLOCATOR);
        (0..changes).for_each(|version| fill(&mut writer, &version.to_string()));
        let change = region.change();
        let counted = cache.history().map_or(0, |history| history.bytes());
        (change.bytes_allocated - change.bytes_deallocated, counted as usize)
    };
    assert_eq!(grow(64 << 20, 1).1, 0, "what is first heard is no change");
    for changes in [2, 4, 40] {
        let ((without, _), (with, counted)) = (grow(0, changes), grow(64 << 20, changes));
        let each = with.saturating_sub(without) / RESOURCES;
        println!("{each} bytes for {changes} changes of a resource, {} counted", counted / RESOURCES);
        assert!(with - without <= counted, "{} of {counted} bytes", with - without);
        assert!(2 * (with - without) >= counted, "{} of {counted} bytes", with - without);
    }
}
