//! Many clients of all transports with overlapping subscriptions, and what the control plane sees of them.

pub(crate) mod client;
pub(crate) mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};

use self::client::{Client, Subscription};
use self::world::{Guest, World};
use crate::fixture::{
    Fixture, PATIENCE, Transport, eventually, is_direct,
    resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES},
};

const CLIENTS: usize = 100;
const SERVICES: usize = 20;
const TYPES: [&str; 4] = [CLUSTER, ENDPOINTS, LISTENER, ROUTES];

/// Address of a server on this port of 127.0.0.1.
pub(crate) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn service(number: usize) -> String {
    format!("service-{}", number % SERVICES)
}

#[test]
fn a_hundred_mixed_clients_are_one_client_upstream() {
    let Some(fixture) = Fixture::start(0) else { return };
    let mut world = World::default();
    for type_url in TYPES {
        (0..SERVICES).for_each(|number| world.set(&fixture.origin, type_url, service(number).leak()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let guests: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let (transport, asked) = (Transport::ALL[index % Transport::ALL.len()], subscriptions(index));
            let client = Client::start(runtime.handle(), local(fixture.xds_port()), transport, &asked);
            Guest { client, who: format!("client {index}, {transport:?}"), asked }
        })
        .collect();
    let all_hold = |world: &World| {
        eventually(PATIENCE, "every client holds what it asked for", || {
            guests.iter().try_for_each(|guest| guest.complaint(world).map_or(Ok(()), Err))
        });
    };
    all_hold(&world);
    world.set(&fixture.origin, ENDPOINTS, "service-7");
    all_hold(&world);
    let forms: BTreeSet<_> =
        guests.iter().filter_map(|guest| guest.client.resource(ENDPOINTS, "service-7")).collect();
    assert_eq!(forms.len(), 1, "a change has the same bytes for each transport");
    assert_upstream_is_one_client(&fixture, &world);

    drop(guests);
    eventually(PATIENCE, "what nobody wants any more is unsubscribed", || {
        let wanted = fixture.origin.stats().wanted;
        if wanted.values().all(BTreeMap::is_empty) { Ok(()) } else { Err(format!("{wanted:?}")) }
    });
}

fn assert_upstream_is_one_client(fixture: &Fixture, world: &World) {
    let stats = fixture.origin.stats();
    for type_url in TYPES {
        let wanted = &stats.subscribed[type_url];
        let is_wanted = |name: &str| wanted.contains_key(name) || wanted.contains_key("*");
        assert!(world.names(type_url).all(is_wanted), "{stats:?}");
    }
    if is_direct() {
        assert_eq!(stats.connections.ever, CLIENTS, "each for itself");
        return;
    }
    assert_eq!(stats.connections.ever, 1);
    assert!(stats.open_streams <= 2, "{stats:?}");
    // Once, and once more for proof that the sets are complete, which the state-of-the-world clients wait for.
    let repeated: Vec<_> = stats.subscribed.values().flatten().filter(|(_, count)| **count > 2).collect();
    assert!(repeated.is_empty(), "subscribed more than twice: {repeated:?}");
}

/// Two clients in three are like Envoy, with all clusters and listeners; the third is like gRPC and names all
/// it wants. Neighbours share most of their names.
fn subscriptions(index: usize) -> Vec<Subscription> {
    let named = |count: usize| (0..count).map(|step| service(index + step)).collect();
    let like_envoy = !index.is_multiple_of(3);
    let clusters = if like_envoy { BTreeSet::new() } else { named(5) };
    let listeners = if like_envoy { BTreeSet::new() } else { named(2) };
    vec![
        Subscription { type_url: CLUSTER, names: clusters },
        Subscription { type_url: ENDPOINTS, names: named(5) },
        Subscription { type_url: LISTENER, names: listeners },
        Subscription { type_url: ROUTES, names: named(2) },
    ]
}
