//! Clients with a second xDS server, and a relay that has nothing to tell them: it sends them away before any response, so that they
//! turn to the other server (R-Relay-07). gRPC does so by gRFC A71, Envoy by a second entry in `grpc_services`.

use deltafan_test_support::origin::Origin as SilentOrigin;
use tokio::runtime::Runtime;

use crate::fixture::{
    Fixture, Implementation, Transport, http_backend,
    resources::{api_listener, cluster, endpoints, listener, routes},
    wait_until_answers,
};
use crate::fleet::local;

/// State of the control plane of a relay that has never been answered.
#[derive(Clone, Copy, Debug)]
enum ControlPlane {
    /// Connected, and says nothing.
    Hangs,
    /// Nobody listens at its address any more.
    IsGone,
}

macro_rules! each_client {
    ($($client:ident: $call:expr;)*) => {
        $(mod $client {
            use super::*;

            #[test]
            fn turns_away_from_a_relay_whose_control_plane_hangs() {
                $call(ControlPlane::Hangs);
            }

            #[test]
            fn turns_away_from_a_relay_whose_control_plane_is_gone() {
                $call(ControlPlane::IsGone);
            }
        })*
    };
}

each_client! {
    core: |state| grpc_turns_away(Implementation::Core, state);
    go: |state| grpc_turns_away(Implementation::Go, state);
    java: |state| grpc_turns_away(Implementation::Java, state);
    envoy_delta: |state| envoy_turns_away(Transport::DeltaAds, state);
    envoy_sotw: |state| envoy_turns_away(Transport::SotwAds, state);
}

const TARGET: &str = "greeter.example";
const BACKEND: &str = "backend";

/// A relay that has nothing.
struct World {
    fixture: Fixture,
    _control_plane: Option<(Runtime, SilentOrigin)>,
}

impl World {
    fn start(state: ControlPlane) -> Option<Self> {
        let runtime = Runtime::new().unwrap();
        let silent = runtime.block_on(SilentOrigin::listen(local(0)));
        let fixture = Fixture::start_of(silent.address().port(), 1)?;
        let control_plane = Some((runtime, silent)).filter(|_| matches!(state, ControlPlane::Hangs));
        Some(Self { fixture, _control_plane: control_plane })
    }
}

fn grpc_turns_away(clients: Implementation, state: ControlPlane) {
    let Some(()) = clients.require() else { return };
    let Some(world) = World::start(state) else { return };
    let other = &world.fixture.origin;
    let backends = world.fixture.start_grpc_backends(&["a"]);
    let source = Transport::SotwAds.config_source();
    other.put(&api_listener(TARGET, &source, "greeter-routes"));
    other.put(&routes("greeter-routes", BACKEND));
    other.put(&cluster(BACKEND, &source, "1s"));
    other.put(&endpoints(BACKEND, backends.port("a")));
    let client = world.fixture.start_grpc_client_with_fallback(clients, "grpc-client", TARGET);
    wait_until_answers(&client, "a");
}

fn envoy_turns_away(transport: Transport, state: ControlPlane) {
    let Some(world) = World::start(state) else { return };
    let other = &world.fixture.origin;
    let source = transport.config_source();
    other.put(&endpoints(BACKEND, http_backend("a")));
    other.put(&cluster(BACKEND, &source, "1s"));
    other.put(&routes("ingress-routes", BACKEND));
    other.put(&listener("ingress", &source, "ingress-routes"));
    let envoy = world.fixture.start_envoy_with_fallback("envoy", transport);
    envoy.wait_until_answered_by("ingress", "a");
}
