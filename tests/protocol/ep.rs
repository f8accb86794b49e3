//! Endpoints, the methods that a stream is opened on: R-EP.

use deltafan::cache::Protocol;
use deltafan::proto;
use deltafan::subscription::{Code, RequestKind};
use deltafan_test_support::fixture::{Fixture, is_acked, url};

#[test]
fn r_ep_03_the_type_is_implied_on_a_per_type_stream_and_required_on_ads() {
    let fixture = Fixture::knowing(&["cds"]).with_members("cds a:1");
    let request = |type_url: &str| proto::DiscoveryRequest {
        type_url: type_url.to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    let mut client = fixture.client(Protocol::Sotw, Some("cds"));
    client.on_sotw_request(&fixture, request("")).unwrap();
    assert_eq!(client.told(&fixture), ["cds a:1"]);
    let refusal = client.on_sotw_request(&fixture, request(url("lds").as_str())).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
    let refusal = fixture.sotw().on_sotw_request(&fixture, request("")).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
}

#[test]
fn r_ep_04_types_of_a_stream_are_independent() {
    let mut fixture = Fixture::knowing(&["cds", "lds"]);
    fixture.rules.warm_wait = std::time::Duration::ZERO;
    fixture.origin("cds a:1");
    fixture.origin("lds a:1");
    let mut client = fixture.sotw_of("cds", &[]);
    client.ask(&fixture, "lds", &["a"]);
    fixture.named("lds a:1");
    let clusters = client.poll(&fixture).unwrap();
    let listeners = client.poll(&fixture).unwrap();
    client.nack(&fixture, &clusters, &[]);
    assert!(is_acked(&client.ack(&fixture, &listeners, &["a"])));
    // Names were sent for listeners only: clusters are a wildcard still.
    client.ack(&fixture, &listeners, &[]);
    fixture.origin("cds a:2");
    assert_eq!(client.told(&fixture), ["cds a:2"]);
    // A nonce of one type means nothing to another.
    let request = proto::DiscoveryRequest {
        type_url: url("lds").as_str().to_owned(),
        response_nonce: client.newest("cds").nonce.clone(),
        ..proto::DiscoveryRequest::default()
    };
    assert!(matches!(client.on_sotw_request(&fixture, request).unwrap(), RequestKind::Stale { .. }));
}

#[test]
fn r_ep_06_unknown_types_pass_through_on_ads() {
    let mut fixture = Fixture::knowing(&["thing"]).with_members("thing a:1");
    let (mut sotw, mut delta) = (fixture.sotw_of("thing", &["*"]), fixture.delta_of("thing", "*"));
    for client in [&mut sotw, &mut delta] {
        assert_eq!(client.acked_with(&fixture, &[("thing", &["*"])]), ["other a:1"]);
    }
    fixture.origin("thing -a b:1");
    assert_eq!(sotw.told(&fixture), ["other b:1"], "not full-state");
    assert_eq!(delta.told(&fixture), ["other b:1 -a"]);
}
