//! Questions that a probe asks.

use bytes::Bytes;
use prost::Message as _;

use super::super::came_from;
use super::*;
use crate::RelayIdentity;
use crate::proto::{ControlPlane, DiscoveryRequest, DiscoveryResponse};

fn asked(fixture: &Fixture) -> Vec<Vec<String>> {
    let questions = fixture.mux.questions();
    let delta = questions.iter().map(|question| question.ask(Protocol::Delta, fixture.mux.node()));
    let request = |message: Bytes| DeltaDiscoveryRequest::decode(message).expect("a request");
    delta.map(request).map(|request| request.resource_names_subscribe).collect()
}

#[test]
fn a_probe_asks_for_a_name_that_exists_before_a_wildcard_and_for_nothing_if_nothing_is_wanted() {
    let mut fixture = Fixture::connected();
    assert!(fixture.mux.questions().is_empty());
    fixture.client("grpc", Kind::Endpoint, &["gone"]);
    assert_eq!(asked(&fixture), [["gone"]]);
    fixture.client("envoy", Kind::Cluster, &["*"]);
    assert_eq!(asked(&fixture), [vec![], vec!["gone".to_owned()]]);
    fixture.client("other", Kind::Endpoint, &["gone", "x"]);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(Kind::Endpoint, "1").set("x", "1"));
    assert_eq!(asked(&fixture), [vec!["x".to_owned()], vec![], vec!["gone".to_owned()]]);
}

#[test]
fn a_probe_acknowledges_by_nonce_and_in_state_of_the_world_by_version() {
    let mut fixture = Fixture::connected();
    fixture.client("grpc", Kind::Endpoint, &["x"]);
    let question = fixture.mux.questions().remove(0);
    let (version_info, nonce) = ("v7".to_owned(), "n1".to_owned());
    let response = DiscoveryResponse { version_info, nonce, ..Default::default() }.encode_to_vec();
    let ack = question.acknowledge(Protocol::Sotw, &response).expect("a response");
    let ack = DiscoveryRequest::decode(ack).expect("a request");
    assert_eq!(
        (&*ack.version_info, &*ack.response_nonce, ack.resource_names),
        ("v7", "n1", vec!["x".to_owned()])
    );
    let ack = question.acknowledge(Protocol::Delta, &Answer::of(Kind::Endpoint, "n2").bytes());
    let ack = DeltaDiscoveryRequest::decode(ack.expect("a response")).expect("a request");
    assert_eq!((&*ack.response_nonce, ack.resource_names_subscribe.len()), ("n2", 0));
    assert_eq!(question.acknowledge(Protocol::Delta, &[0xff]), None);
}

#[test]
fn r_relay_24_a_response_of_this_relay_itself_is_recognized_unread() {
    let identity = RelayIdentity::new("edge", 1);
    for (identifier, is_own) in [("hub/7 via edge/00000001", true), ("hub/7", false), ("", false)] {
        let control_plane = Some(ControlPlane { identifier: identifier.to_owned() });
        let delta = DeltaDiscoveryResponse { control_plane: control_plane.clone(), ..Default::default() };
        let sotw = DiscoveryResponse { control_plane, ..Default::default() };
        assert_eq!(came_from(&delta.encode_to_vec(), Protocol::Delta, &identity), is_own);
        assert_eq!(came_from(&sotw.encode_to_vec(), Protocol::Sotw, &identity), is_own);
    }
    assert!(!came_from(b"garbage", Protocol::Delta, &identity));
}
