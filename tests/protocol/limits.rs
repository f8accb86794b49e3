//! Limits on a client that would go on for ever.

use std::time::Duration;

use deltafan::cache::{Change, Limits, Op, Protocol, Resend, View};
use deltafan::identity::{Peer, Source};
use deltafan::limit::Limit;
use deltafan::pool::Tenant;
use deltafan::proto::{DeltaDiscoveryRequest, ResourceLocator};
use deltafan::subscription::{Code, NextStep, SessionError};
use deltafan_test_support::fixture::{Client, Fixture, strings, url};
use deltafan_test_support::wire;
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_secs(600);

fn is_closed(client: &mut Client, fixture: &Fixture) -> bool {
    match client.next(fixture) {
        NextStep::Close(refusal) => {
            assert_eq!((refusal.code, refusal.limit), (Code::ResourceExhausted, Some(Limit::Unacked)));
            true
        }
        NextStep::Send(_) | NextStep::Wait(_) => false,
    }
}

/// A client that was told `a` and has not answered.
fn told(fixture: &mut Fixture, protocol: Protocol) -> Client {
    fixture.rules.unacked_timeout = TIMEOUT;
    fixture.origin("cds a:1");
    let mut client = fixture.client(protocol, None);
    client.ask_or_change(fixture, "cds", "*");
    assert_eq!(client.told(fixture), ["cds a:1"]);
    client
}

#[test]
fn r_relay_22_a_client_that_lets_go_of_all_owes_no_answer() {
    let mut fixture = Fixture::knowing(&["cds"]);
    let mut client = told(&mut fixture, Protocol::Delta);
    client.change(&fixture, "cds", "-*");
    fixture.after(2 * TIMEOUT);
    assert!(!is_closed(&mut client, &fixture));
}

#[test]
fn r_relay_22_a_response_that_the_transport_has_not_taken_need_not_be_answered() {
    let mut fixture = Fixture::knowing(&["cds"]);
    fixture.rules.unacked_timeout = TIMEOUT;
    fixture.origin("cds a:1");
    let mut client = fixture.delta_of("cds", "*");
    assert!(matches!(client.next(&fixture), NextStep::Send(_)));
    fixture.after(2 * TIMEOUT);
    assert!(!is_closed(&mut client, &fixture), "that is the transport's fault, which ends by itself");
    client.session.on_flushed(fixture.now);
    fixture.after(TIMEOUT);
    assert!(is_closed(&mut client, &fixture));
}

/// A stream over this connection from this address.
fn stream(fixture: &Fixture, address: u8, connection: u64) -> Client {
    let peer = Peer::unproven(Source::of([10, 0, 0, address].into()));
    let mut client = fixture.delta();
    client.session = client.session.charged_to(Some(Tenant::new(&peer, connection)));
    client
}

fn with_parameters(value: u64) -> DeltaDiscoveryRequest {
    let locator = ResourceLocator {
        name: "a".to_owned(),
        dynamic_parameters: [("k".to_owned(), value.to_string())].into(),
    };
    DeltaDiscoveryRequest {
        type_url: url("eds").as_str().to_owned(),
        resource_locators_subscribe: vec![locator],
        ..DeltaDiscoveryRequest::default()
    }
}

/// Streams over one connection ask for something new each until one is refused. They stay.
fn greedy(
    fixture: &Fixture,
    address: u8,
    connection: u64,
    mut request: impl FnMut() -> DeltaDiscoveryRequest,
) -> (Vec<Client>, SessionError) {
    let mut streams = Vec::new();
    loop {
        let mut stream = stream(fixture, address, connection);
        if let Err(refusal) = stream.on_delta_request(fixture, request()) {
            return (streams, refusal);
        }
        streams.push(stream);
    }
}

#[test]
fn a_client_that_asks_for_ever_new_parameters_leaves_room_for_others() {
    let fixture = Fixture::with_limits(Limits { parameter_sets: 1024, ..Limits::default() });
    let mut values = 0..;
    let mut next = || with_parameters(values.next().unwrap());
    let hostile = [1, 2, 3].map(|connection| greedy(&fixture, 1, connection, &mut next));
    let taken = hostile.each_ref().map(|(streams, _)| streams.len());
    assert_eq!(taken, [256, 128, 64]);
    let (_, refusal) = &hostile[0];
    assert_eq!((refusal.code, refusal.limit), (Code::ResourceExhausted, Some(Limit::ParameterSets)));
    assert!(
        stream(&fixture, 1, 9).on_delta_request(&fixture, next()).is_ok(),
        "an ordinary client of the same address"
    );
    let elsewhere: Vec<_> = (10..110)
        .map(|connection| {
            let mut client = stream(&fixture, 2, connection);
            client.on_delta_request(&fixture, next()).map(|_| client).expect("a client of another address")
        })
        .collect();
    drop((hostile, elsewhere));
    fixture.cache.take_interest();
    assert_eq!(greedy(&fixture, 3, 200, &mut next).0.len(), 256, "all has come back");
}

#[test]
fn types_that_the_control_plane_does_not_have_leave_room_for_those_that_it_has() {
    let mut fixture = Fixture::with_limits(Limits { types: 64, ..Limits::default() });
    let made_up = |number: usize| DeltaDiscoveryRequest {
        type_url: format!("t/{number}"),
        resource_names_subscribe: strings(&["a"]),
        ..DeltaDiscoveryRequest::default()
    };
    let mut numbers = 0..;
    let hostile = greedy(&fixture, 1, 1, || made_up(numbers.next().unwrap()));
    assert_eq!((hostile.0.len(), hostile.1.limit), (16, Some(Limit::Types)));
    // The origin says of some that there is nothing, and has resources of others.
    for number in 0..8 {
        let type_url = format!("t/{number}").as_str().into();
        let ops = match number < 4 {
            true => vec![Op::Remove { view: View::Named, name: "a".into() }],
            false => vec![Op::Set {
                view: View::Named,
                resource: wire::resource(&type_url, "a", "1", 0),
                resend: Resend::Answer,
                lease: None,
            }],
        };
        fixture.writer.apply(&type_url, Change { ops, ..Change::default() }, fixture.now).unwrap();
    }
    // Four are nobody's now.
    let more = greedy(&fixture, 1, 1, || made_up(numbers.next().unwrap()));
    assert_eq!(more.0.len(), 4);
    let mut honest = stream(&fixture, 2, 2);
    assert!(
        (100..108).all(|number| honest.on_delta_request(&fixture, made_up(number)).is_ok()),
        "another address"
    );
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Change,
    Wait(u64),
    Ack,
    Nack,
    AckFirst,
    Repeat,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Change),
        4 => (1_u64..400).prop_map(Step::Wait),
        1 => Just(Step::Ack),
        1 => Just(Step::Nack),
        1 => Just(Step::AckFirst),
        1 => Just(Step::Repeat),
    ]
}

proptest! {
    /// Whatever happens, a stream is closed when its client has answered nothing for so long, and not before.
    #[test]
    fn r_relay_22_a_stream_is_closed_for_want_of_answers_exactly_when_there_are_none(
        steps in prop::collection::vec(any_step(), 0..60),
        is_delta: bool,
    ) {
        let protocol = if is_delta { Protocol::Delta } else { Protocol::Sotw };
        let mut fixture = Fixture::knowing(&["cds"]);
        let mut client = told(&mut fixture, protocol);
        let first = client.newest("cds").clone();
        let (mut newest, mut since, mut version) = (first.clone(), Some(fixture.now), 1);
        for step in steps {
            match step {
                Step::Change => {
                    version += 1;
                    fixture.origin(&format!("cds a:{version}"));
                }
                Step::Wait(seconds) => fixture.after(Duration::from_secs(seconds)),
                Step::Ack => {
                    client.ack(&fixture, &newest, &[]);
                    since = None;
                }
                Step::Nack => {
                    client.nack(&fixture, &newest, &[]);
                    since = None;
                }
                Step::AckFirst => {
                    client.ack(&fixture, &first, &[]);
                    since = since.filter(|_| newest.nonce != first.nonce).map(|_| fixture.now);
                }
                // A repeated request is no answer, and moves nothing.
                Step::Repeat if is_delta => drop(client.change(&fixture, "cds", "-x")),
                Step::Repeat => {}
            }
            let due = since.is_some_and(|since| fixture.now >= since + TIMEOUT);
            if due {
                prop_assert!(is_closed(&mut client, &fixture));
                break;
            }
            while let Some(next) = client.poll(&fixture) {
                newest = next;
                since.get_or_insert(fixture.now);
            }
        }
    }
}
