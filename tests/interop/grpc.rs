//! gRPC's own xDS clients, of each implementation: they speak state of the world on one aggregated stream, and ask for
//! each listener, route, cluster and endpoint by name. The bootstrap is `config/grpc-bootstrap.json`.

use std::{thread, time::Duration};

use crate::fixture::{
    CallResult, Fixture, GrpcBackends, GrpcClient, Implementation, PATIENCE, Transport, eventually,
    is_direct,
    resources::{LISTENER, api_listener, cluster, endpoints, routes},
    wait_until_answers,
};

macro_rules! each_implementation {
    ($($module:ident: $implementation:ident),* $(,)?) => {
        $(mod $module {
            #[test]
            fn survives_a_dead_origin() {
                super::survives_a_dead_origin(crate::fixture::Implementation::$implementation);
            }

            #[test]
            fn loses_a_listener_that_went_while_the_relay_was_dead() {
                super::loses_a_listener_that_went_while_the_relay_was_dead(crate::fixture::Implementation::$implementation);
            }
        })*
    };
}

each_implementation! {
    core: Core,
    go: Go,
    java: Java,
    js: Js,
}

const TARGET: &str = "greeter.example";
const BACKEND: &str = "greeter-cluster";

struct World {
    fixture: Fixture,
    clients: Implementation,
    backends: GrpcBackends,
}

impl World {
    fn start(clients: Implementation) -> Option<Self> {
        clients.require()?;
        let fixture = Fixture::start(0)?;
        let backends = fixture.start_grpc_backends(&["a", "b"]);
        let world = Self { fixture, clients, backends };
        let source = Transport::SotwAds.config_source();
        let origin = &world.fixture.origin;
        origin.put(&api_listener(TARGET, &source, "greeter-routes"));
        origin.put(&routes("greeter-routes", BACKEND));
        origin.put(&cluster(BACKEND, &source, "1s"));
        world.lead_to("a");
        Some(world)
    }

    fn client(&self, id: &str) -> GrpcClient {
        self.fixture.start_grpc_client(self.clients, id, TARGET)
    }

    fn lead_to(&self, backend: &str) {
        self.fixture.origin.put(&endpoints(BACKEND, self.backends.port(backend)));
    }
}

/// No call fails once the first has succeeded.
fn assert_no_call_failed(client: &GrpcClient) {
    let results = client.results();
    let is_answer = |result: &&CallResult| matches!(result, CallResult::Answer { .. });
    let failures: Vec<_> = results.iter().skip_while(|result| !is_answer(result)).collect();
    assert!(failures.iter().all(is_answer), "{failures:?}");
}

fn survives_a_dead_origin(clients: Implementation) {
    let Some(world) = World::start(clients) else { return };
    let mut clients = vec![world.client("grpc-client")];
    wait_until_answers(&clients[0], "a");
    world.lead_to("b");
    wait_until_answers(&clients[0], "b");
    world.lead_to("a");
    wait_until_answers(&clients[0], "a");

    world.fixture.origin.kill();
    let before = clients[0].results().len();
    thread::sleep(Duration::from_secs(1));
    eventually(PATIENCE, "it calls on", || {
        if clients[0].results().len() > before { Ok(()) } else { Err("no call ended".to_owned()) }
    });
    if !is_direct() {
        clients.push(world.client("newcomer"));
        wait_until_answers(&clients[1], "a");
    }

    world.lead_to("b");
    world.fixture.origin.start_again();
    for client in &clients {
        wait_until_answers(client, "b");
        assert_no_call_failed(client);
    }
}

/// The control plane never says that a name does not exist (O2), and the relay knows nothing from before.
fn loses_a_listener_that_went_while_the_relay_was_dead(clients: Implementation) {
    let Some(world) = World::start(clients) else { return };
    let client = world.client("grpc-client");
    wait_until_answers(&client, "a");

    if !is_direct() {
        world.fixture.kill_relay();
    }
    world.fixture.origin.delete(LISTENER, TARGET);
    if !is_direct() {
        world.fixture.start_relay_again();
    }
    // The relay asks once more after 6 s.
    eventually(PATIENCE, "calls fail", || match client.results().last() {
        Some(CallResult::Error { .. }) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}
