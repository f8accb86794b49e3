//! Many clients of all transports with overlapping subscriptions, and what the control plane sees of them.

pub(crate) mod client;
pub(crate) mod world;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Ipv4Addr, SocketAddr},
};

use serde_json::Value;

use self::client::{Client, Subscription};
use crate::fixture::{
    Fixture, PATIENCE, Transport, eventually, is_direct,
    resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES, api_listener, cluster, endpoints, routes},
};

const CLIENTS: usize = 100;
const SERVICES: usize = 20;

/// Address of a server on this port of 127.0.0.1.
pub(crate) fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[test]
fn a_hundred_mixed_clients_are_one_client_upstream() {
    let Some(fixture) = Fixture::start(0) else { return };
    let world = services();
    world.values().flat_map(BTreeMap::values).for_each(|resource| fixture.origin.put(resource));

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|index| {
            let transport = Transport::ALL[index % Transport::ALL.len()];
            Client::start(runtime.handle(), local(fixture.xds_port()), transport, &subscriptions(index))
        })
        .collect();
    wait_until_all_hold(&clients, &world);

    // A change reaches all who asked for it, the same bytes for each transport.
    let changed = "service-7";
    let before = held_endpoints(&clients, changed);
    assert_eq!(before.len(), 1, "all hold the same");
    fixture.origin.put(&endpoints(changed, 9));
    eventually(PATIENCE, "all follow the change", || {
        let after = held_endpoints(&clients, changed);
        if after.len() == 1 && after != before { Ok(()) } else { Err(format!("{} forms", after.len())) }
    });
    wait_until_all_hold(&clients, &world);

    assert_upstream_is_one_client(&fixture);

    drop(clients);
    eventually(PATIENCE, "what nobody wants any more is unsubscribed", || {
        let wanted = fixture.origin.stats().wanted;
        if wanted.values().all(BTreeMap::is_empty) { Ok(()) } else { Err(format!("{wanted:?}")) }
    });
}

fn assert_upstream_is_one_client(fixture: &Fixture) {
    let stats = fixture.origin.stats();
    for (type_url, names) in services() {
        let wanted = &stats.subscribed[&type_url];
        assert!(names.keys().all(|name| wanted.contains_key(name) || wanted.contains_key("*")), "{stats:?}");
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

/// Every resource, by type and name.
fn services() -> BTreeMap<String, BTreeMap<String, Value>> {
    let source = Transport::DeltaAds.config_source();
    let mut world = BTreeMap::<_, BTreeMap<_, _>>::new();
    for index in 0..SERVICES {
        let name = format!("service-{index}");
        let port = 10_000 + u16::try_from(index).unwrap();
        for (type_url, resource) in [
            (CLUSTER, cluster(&name, &source, "1s")),
            (ENDPOINTS, endpoints(&name, port)),
            (LISTENER, api_listener(&name, &source, &name)),
            (ROUTES, routes(&name, &name)),
        ] {
            world.entry(type_url.to_owned()).or_default().insert(name.clone(), resource);
        }
    }
    world
}

/// Two clients in three are like Envoy, with all clusters and listeners; the third is like gRPC and names all
/// it wants. Neighbours share most of their names.
fn subscriptions(index: usize) -> Vec<Subscription> {
    let named =
        |count: usize| (0..count).map(|step| format!("service-{}", (index + step) % SERVICES)).collect();
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

/// Waits until each client holds what it asked for, no more and no less.
fn wait_until_all_hold(clients: &[Client], world: &BTreeMap<String, BTreeMap<String, Value>>) {
    eventually(PATIENCE, "every client holds what it asked for", || {
        for (index, client) in clients.iter().enumerate() {
            for subscription in subscriptions(index) {
                let all = || world[subscription.type_url].keys().cloned().collect();
                let expected = if subscription.names.is_empty() { all() } else { subscription.names.clone() };
                let held = client.names(subscription.type_url);
                if held != expected {
                    let kind = client.transport();
                    let type_url = subscription.type_url;
                    return Err(format!("client {index}, {kind:?}, {type_url}: {held:?}, not {expected:?}"));
                }
            }
            client.failure().map_or(Ok(()), |failure| Err(format!("client {index}: {failure}")))?;
        }
        Ok(())
    });
}

/// The forms in which clients hold the endpoints of a service.
fn held_endpoints(clients: &[Client], service: &str) -> BTreeSet<Vec<u8>> {
    clients.iter().filter_map(|client| client.resource(ENDPOINTS, service)).collect()
}
