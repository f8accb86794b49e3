//! Types that the control plane does not serve: go-control-plane ends the stream on which one is asked for (O8).

use std::{net::SocketAddr, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    fixture::{
        ControlPlane, ForeignFixture, Transport, eventually, is_direct,
        resources::{CLUSTER, LISTENER},
        skipped,
    },
    fleet::{
        client::Client,
        world::{Guest, World, subscriptions},
    },
};

/// Time in which newcomers are answered, on a busy machine too.
const ANSWERED: Duration = Duration::from_secs(5);

/// A client asks for listeners of a LinearCache of clusters, and stays. Directly, only its own stream ends.
#[test]
fn o8_a_client_that_asks_for_a_type_nobody_serves_locks_no_newcomer_out() {
    if is_direct() {
        return skipped("the stream that ends is the client's own");
    }
    let control_plane = ControlPlane::Go("v0.14.0", &["--cache", "linear"]);
    let Some(fixture) = ForeignFixture::start(control_plane, 1) else { return };
    let mut world = World::default();
    world.set(&fixture.origin, CLUSTER, "a");
    let runtime = Runtime::new().unwrap();
    let server = SocketAddr::from(([127, 0, 0, 1], fixture.port(0)));
    let enter =
        |transport, asked: &[_]| Client::start(runtime.handle(), server, transport, &subscriptions(asked));
    let _asking = enter(Transport::DeltaAds, &[(LISTENER, &[])]);
    let mut guests = Vec::new();
    for name in ["b", "c", "d"] {
        for transport in [Transport::SotwAds, Transport::DeltaAds] {
            let client = enter(transport, &[(CLUSTER, &[])]);
            let who = format!("came before {name}, {transport:?}");
            guests.push(Guest { client, who, asked: subscriptions(&[(CLUSTER, &[])]) });
        }
        let complaint = |world: &World| guests.iter().find_map(|guest| guest.complaint(world));
        eventually(ANSWERED, "newcomers are answered", || complaint(&world).map_or(Ok(()), Err));
        world.set(&fixture.origin, CLUSTER, name);
        eventually(ANSWERED, "changes arrive", || complaint(&world).map_or(Ok(()), Err));
    }
}
