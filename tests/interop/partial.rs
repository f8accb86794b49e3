//! Answers of state of the world that hold only what changed (O7): a LinearCache or MuxCache sends them on a stream that lives, of 0.13
//! and older for clusters and listeners too, of 0.14 for scoped routes. Nothing that is missing from one is gone.

use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;

use crate::fixture::resources::{CLUSTER, LISTENER, SCOPED_ROUTES};
use crate::fixture::{ControlPlane, ForeignFixture, PATIENCE, Transport, eventually};
use crate::fleet::client::{Client, Held};
use crate::fleet::local;
use crate::fleet::world::{Guest, World, subscriptions};

const VERSIONS: [&str; 3] = ["v0.12.0", "v0.13.4", "v0.14.0"];
const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Time in which a wrong removal would be sent.
const QUIET: Duration = Duration::from_millis(700);

#[test]
fn o7_nothing_is_gone_that_a_response_with_the_changes_alone_lacks() {
    for version in VERSIONS {
        for cache in [&["--cache", "linear"], &["--cache", "mux"], &["--cache", "snapshot"]] {
            let control_plane = ControlPlane::Go(version, cache);
            let types = [CLUSTER, LISTENER, SCOPED_ROUTES];
            let served = if control_plane.serves_clusters_only() { &types[..1] } else { &types[..] };
            let Some(fixture) = ForeignFixture::start_speaking(control_plane, 1, "sotw") else { return };
            let runtime = Runtime::new().unwrap();
            let mut world = World::default();
            for type_url in served {
                NAMES[..4].iter().for_each(|name| world.set(&fixture.origin, type_url, name));
            }
            let asked: Vec<(&'static str, &[&str])> = served.iter().map(|each| (*each, &[][..])).collect();
            let guests = [Transport::DeltaAds, Transport::SotwAds].map(|transport| {
                let asked = subscriptions(&asked);
                let server = local(fixture.port(0));
                let client = Client::come_back(runtime.handle(), server, transport, &asked, Held::default());
                Guest { client, who: format!("{transport:?} behind {version} {}", cache[1]), asked }
            });
            let check = |world: &World| {
                eventually(PATIENCE, "all hold what there is", || {
                    guests.iter().try_for_each(|guest| guest.complaint(world).map_or(Ok(()), Err))
                });
                // A cluster that was removed and comes back would be a moment in which calls fail.
                let since = Instant::now();
                while since.elapsed() < QUIET {
                    for guest in &guests {
                        assert_eq!(guest.complaint(world), None);
                    }
                    thread::sleep(Duration::from_millis(5));
                }
            };
            check(&world);
            for type_url in served {
                // One changes, then one comes.
                for name in ["b", "e"] {
                    world.set(&fixture.origin, type_url, name);
                    check(&world);
                }
            }
            // One goes: the next stream tells, if the response does not.
            for type_url in served.iter().filter(|_| cache[1] == "snapshot") {
                world.remove(&fixture.origin, type_url, "c");
                check(&world);
            }
        }
    }
}
