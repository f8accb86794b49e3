//! Memory of a client beside its connection. Bytes are counted by the allocator of this test program.

use std::sync::Arc;
use std::time::Instant;

use deltafan::cache::{Cache, Limits, Protocol};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{Session, SessionConfig};
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
            session.on_delta_request(request, now).unwrap();
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
