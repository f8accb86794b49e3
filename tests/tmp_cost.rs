use deltafan::cache::{Cache, Limits, Protocol};
use deltafan::proto;
use deltafan::resource::TypeUrl;
use deltafan::subscription::{Rules, Session};
use std::sync::Arc;
use std::time::Instant;
#[test]
fn cost() {
    for n in [1000usize, 10_000, 90_000] {
        let (cache, _w) = Cache::new(Limits::default());
        let now = Instant::now();
        let mut s = Session::new(Arc::clone(&cache), Arc::new(Rules::default()), Protocol::Delta, None, now);
        let t = TypeUrl::from_user("eds").unwrap().as_str().to_owned();
        let req = |names: Vec<String>| proto::DeltaDiscoveryRequest {
            node: Some(proto::Node::default()),
            type_url: t.clone(),
            resource_names_subscribe: names,
            ..Default::default()
        };
        s.hear_delta(req((0..n).map(|i| format!("outbound-cluster-name-{i}")).collect()), now).unwrap();
        let start = Instant::now();
        for k in 0..20 {
            s.hear_delta(req(vec![format!("new-{k}")]), now).unwrap();
        }
        println!("n={n}: {:?} per request of one name", start.elapsed() / 20);
        let start = Instant::now();
        for k in 0..20 {
            s.hear_delta(req(vec![format!("new-{k}")]), now).unwrap();
        }
        println!("n={n}: {:?} per request repeating one name", start.elapsed() / 20);
    }
}
