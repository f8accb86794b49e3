//! What a stream is asked on: R-EP.

use deltafan::cache::Protocol;
use deltafan::proto;
use deltafan::subscription::{Code, RequestKind};

use crate::support::{Bed, is_acked, url};

#[test]
fn r_ep_03_the_type_is_implied_on_a_per_type_stream_and_required_on_ads() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.origin("cds a:1");
    let request = |type_url: &str| proto::DiscoveryRequest {
        type_url: type_url.to_owned(),
        ..proto::DiscoveryRequest::default()
    };
    let mut client = bed.client(Protocol::Sotw, Some("cds"));
    client.on_sotw_request(&bed, request("")).unwrap();
    assert_eq!(client.told(&bed), ["cds a:1"]);
    let refusal = client.on_sotw_request(&bed, request(url("lds").as_str())).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
    let refusal = bed.sotw().on_sotw_request(&bed, request("")).unwrap_err();
    assert_eq!(refusal.code, Code::InvalidArgument);
}

#[test]
fn r_ep_04_types_of_a_stream_are_independent() {
    let mut bed = Bed::knowing(&["cds", "lds"]);
    bed.origin("cds a:1");
    bed.origin("lds a:1");
    let mut client = bed.sotw();
    client.ask(&bed, "cds", &[]);
    client.ask(&bed, "lds", &["a"]);
    bed.named("lds a:1");
    let clusters = client.poll(&bed).unwrap();
    let listeners = client.poll(&bed).unwrap();
    client.nack(&bed, &clusters, &[]);
    assert!(is_acked(&client.ack(&bed, &listeners, &["a"])));
    // Names were sent for listeners only: clusters are a wildcard still.
    client.ack(&bed, &listeners, &[]);
    bed.origin("cds a:2");
    assert_eq!(client.told(&bed), ["cds a:2"]);
    // A nonce of one type means nothing to another.
    let request = proto::DiscoveryRequest {
        type_url: url("lds").as_str().to_owned(),
        response_nonce: client.newest("cds").nonce.clone(),
        ..proto::DiscoveryRequest::default()
    };
    assert!(matches!(client.on_sotw_request(&bed, request).unwrap(), RequestKind::Stale { .. }));
}

#[test]
fn r_ep_05_the_node_of_the_first_request_counts() {
    let bed = Bed::knowing(&["cds"]);
    let node = |id: &str| Some(proto::Node { id: id.to_owned(), ..proto::Node::default() });
    let request = |node| proto::DiscoveryRequest {
        type_url: url("cds").as_str().to_owned(),
        node,
        ..proto::DiscoveryRequest::default()
    };
    let mut client = bed.sotw();
    client.node = None;
    assert_eq!(client.on_sotw_request(&bed, request(None)).unwrap_err().code, Code::InvalidArgument);
    let mut client = bed.sotw();
    client.on_sotw_request(&bed, request(node("a"))).unwrap();
    client.on_sotw_request(&bed, request(node("b"))).unwrap();
    client.on_sotw_request(&bed, request(None)).unwrap();
    assert_eq!(client.session.client().unwrap().node_id, "a");
}

#[test]
fn r_ep_06_unknown_types_pass_through_on_ads() {
    let mut bed = Bed::knowing(&["thing"]);
    bed.origin("thing a:1");
    let (mut sotw, mut delta) = (bed.sotw(), bed.delta());
    sotw.ask(&bed, "thing", &["*"]);
    delta.change(&bed, "thing", "*");
    for client in [&mut sotw, &mut delta] {
        assert_eq!(client.acked_with(&bed, &[("thing", &["*"])]), ["other a:1"]);
    }
    bed.origin("thing -a b:1");
    assert_eq!(sotw.told(&bed), ["other b:1"], "not full-state");
    assert_eq!(delta.told(&bed), ["other b:1 -a"]);
}
