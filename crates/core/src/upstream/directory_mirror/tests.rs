//! Tests of the mirror.

use super::*;
use crate::cache::{
    Claim, ClientScope, Limits, Membership, ParameterView, Protocol, Snapshot, StreamProfile, Subscription,
    TtlSupport, VisibleState, WakeHandle,
};
use crate::resource::{Envelope, Kind, Pattern, Scope, wire};

const CDS: Kind = Kind::Cluster;

struct Fixture {
    mirror: DirectoryMirror,
    now: Instant,
}

/// A resource of a file.
fn read(kind: Kind, wrapper: &[u8]) -> Arc<Resource> {
    let type_url = TypeUrl::from(kind);
    let envelope = Envelope::parse(wrapper, &type_url).expect("good");
    Arc::new(envelope.encode(&type_url, Name::normal(envelope.name)).expect("a body"))
}

/// View of clients that may see no more than `mine/**`.
fn mine() -> ParameterView {
    let whole = regex::Regex::new("^mine/.*$").expect("an expression");
    let scope = Scope::only([Pattern::new("mine/**", whole)].into_iter().collect());
    ParameterView::new(&ClientScope { scope, ..ClientScope::default() }, true, &BTreeMap::new())
}

impl Fixture {
    fn new() -> Self {
        let (_, writer) = Cache::new(Limits::default());
        Self { mirror: DirectoryMirror::new(writer), now: Instant::now() }
    }

    fn client(&mut self, kind: Kind, wildcard: bool, names: &[&str]) -> Membership {
        let of = self.mirror.cache().of(&kind.into()).expect("few types");
        let subscription = Subscription::new(wildcard, names.iter().map(|name| (*name).into()));
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let client = of.join(subscription, profile, &Arc::new(WakeHandle::default()));
        self.look();
        client
    }

    fn look(&mut self) {
        let interest = self.mirror.cache().take_interest();
        self.mirror.on_interest(interest, self.now);
    }

    fn scan(&mut self, resources: &[(Kind, &str, &str)]) {
        self.scan_with(resources, true);
    }

    fn scan_with(&mut self, resources: &[(Kind, &str, &str)], is_whole: bool) {
        let wrapper = |(kind, name, version): &(Kind, &str, &str)| {
            let mut any = bytes::BytesMut::new();
            wire::put_field(&mut any, 1, TypeUrl::from(*kind).as_str().as_bytes());
            let mut wrapper = bytes::BytesMut::new();
            wire::put_field(&mut wrapper, 3, name.as_bytes());
            wire::put_field(&mut wrapper, 1, version.as_bytes());
            wire::put_field(&mut wrapper, 2, &any);
            read(*kind, &wrapper)
        };
        let resources: Vec<_> = resources.iter().map(wrapper).collect();
        self.mirror.on_reading(&resources, is_whole, self.now);
    }

    fn snapshot(&self, kind: Kind) -> Arc<Snapshot> {
        self.mirror.cache().of(&kind.into()).expect("few types").snapshot()
    }

    fn seen(&self, kind: Kind, name: &str) -> String {
        match self.snapshot(kind).by_name(name) {
            VisibleState::Unknown => "unknown".to_owned(),
            VisibleState::Absent => "absent".to_owned(),
            VisibleState::Collection => "collection".to_owned(),
            VisibleState::Unresolved(_) | VisibleState::Dropped(_) => "without a body".to_owned(),
            VisibleState::Present(resource) => resource.version().to_owned(),
            VisibleState::Denied(_) | VisibleState::Failed => unreachable!("a directory has no errors"),
        }
    }
}

#[test]
fn r_relay_04_nothing_is_known_before_the_first_reading() {
    let mut fixture = Fixture::new();
    let _client = fixture.client(CDS, true, &["c1", "c2"]);
    assert_eq!(
        (fixture.seen(CDS, "c1"), fixture.snapshot(CDS).wildcard_known()),
        ("unknown".to_owned(), false)
    );
    let received = |fixture: &Fixture, kind: Kind| {
        fixture.mirror.cache().of(&kind.into()).expect("few types").answering_since().is_some()
    };
    assert!(!received(&fixture, CDS));
    fixture.scan(&[(CDS, "c1", "v1")]);
    let _other = fixture.client(Kind::Listener, true, &[]);
    assert!(
        received(&fixture, CDS) && received(&fixture, Kind::Listener),
        "it answers for every type once it is read"
    );
    assert_eq!((fixture.seen(CDS, "c1"), fixture.seen(CDS, "c2")), ("v1".to_owned(), "absent".to_owned()));
    assert!(fixture.snapshot(CDS).wildcard_known());
}

#[test]
fn r_relay_04_what_a_file_that_was_never_read_may_hold_is_unknown() {
    let mut fixture = Fixture::new();
    let _client = fixture.client(CDS, true, &["c1", "c2"]);
    let _other = fixture.client(Kind::Listener, true, &[]);
    fixture.scan_with(&[(CDS, "c1", "v1")], false);
    let completeness = |fixture: &Fixture, kind| fixture.snapshot(kind).completeness();
    assert_eq!((fixture.seen(CDS, "c1"), fixture.seen(CDS, "c2")), ("v1".to_owned(), "unknown".to_owned()));
    assert_eq!(completeness(&fixture, CDS), Completeness::Presumed);
    assert_eq!(completeness(&fixture, Kind::Listener), Completeness::Unknown, "all may be in that file");
    let _late = fixture.client(Kind::Endpoint, true, &["e1"]);
    assert_eq!(fixture.seen(Kind::Endpoint, "e1"), "unknown");
    assert_eq!(completeness(&fixture, Kind::Endpoint), Completeness::Unknown);

    fixture.scan_with(&[(CDS, "c3", "v1")], false);
    assert_eq!(
        (fixture.seen(CDS, "c1"), fixture.seen(CDS, "c3")),
        ("v1".to_owned(), "v1".to_owned()),
        "it may have moved"
    );

    fixture.scan(&[(CDS, "c3", "v1")]);
    let seen = ["c1", "c2", "c3"].map(|name| fixture.seen(CDS, name));
    assert_eq!(seen, ["absent", "absent", "v1"]);
    for kind in [CDS, Kind::Listener, Kind::Endpoint] {
        assert_eq!(completeness(&fixture, kind), Completeness::Complete);
    }
    assert_eq!(fixture.seen(Kind::Endpoint, "e1"), "absent");

    fixture.scan_with(&[(CDS, "c1", "v2")], false);
    let snapshot = fixture.snapshot(CDS);
    assert_eq!(
        (snapshot.member_count(), snapshot.completeness()),
        (1, Completeness::Complete),
        "a bad file that comes later holds nothing yet"
    );
}

#[test]
fn a_name_that_may_not_be_seen_is_answered_for_before_the_first_reading() {
    let mut fixture = Fixture::new();
    let of = fixture.mirror.cache().claim_store(Claim::ANYBODY, &CDS.into(), &mine()).expect("few");
    let subscription = Subscription::new(true, ["mine/a", "other"].map(Name::from));
    let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
    let _client = of.join(subscription, profile, &Arc::new(WakeHandle::default()));
    fixture.look();
    let sees = |name: &str| of.snapshot().by_name(name).present().map(|held| held.version().to_owned());
    assert!(matches!(of.snapshot().by_name("other"), VisibleState::Absent));
    assert!(
        matches!(of.snapshot().by_name("mine/a"), VisibleState::Unknown) && !of.snapshot().wildcard_known()
    );
    fixture.scan(&[(CDS, "mine/a", "v1"), (CDS, "other", "v1")]);
    assert_eq!(sees("mine/a").as_deref(), Some("v1"));
    assert!(matches!(of.snapshot().by_name("other"), VisibleState::Absent) && of.snapshot().wildcard_known());
}

#[test]
fn a_restricted_client_sees_its_names_by_name_and_by_wildcard() {
    for (wildcard, names) in [(true, &[][..]), (false, &["mine/a", "mine/b", "other"]), (true, &["mine/a"])] {
        let mut fixture = Fixture::new();
        fixture.scan(&[(CDS, "mine/a", "v1"), (CDS, "other", "v1")]);
        let of = fixture.mirror.cache().claim_store(Claim::ANYBODY, &CDS.into(), &mine()).expect("few");
        let subscription = Subscription::new(wildcard, names.iter().map(|name| Name::from(*name)));
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let _client = of.join(subscription.clone(), profile, &Arc::new(WakeHandle::default()));
        fixture.look();
        let sees =
            |name: &str| of.snapshot().seen_by(&subscription, name).map(|held| held.version().to_owned());
        assert_eq!(of.snapshot().wildcard_known(), wildcard);
        assert_eq!((sees("mine/a").as_deref(), sees("other")), (Some("v1"), None), "{subscription:?}");
        fixture.scan(&[(CDS, "mine/a", "v2"), (CDS, "mine/b", "v2"), (CDS, "other", "v2")]);
        let b = if wildcard || names.contains(&"mine/b") { Some("v2") } else { None };
        assert_eq!(
            (sees("mine/a").as_deref(), sees("mine/b").as_deref(), sees("other")),
            (Some("v2"), b, None)
        );
        fixture.scan(&[(CDS, "other", "v2")]);
        assert_eq!((sees("mine/a"), sees("mine/b"), sees("other")), (None, None, None));
    }
}

#[test]
fn r_xt_03_a_glob_has_the_members_that_files_hold() {
    const GLOB: &str = "xdstp://a/t/*";
    let mut fixture = Fixture::new();
    let early = fixture.client(CDS, false, &[GLOB]);
    fixture.scan(&[(CDS, "xdstp://a/t/x", "v1"), (CDS, "xdstp://a/t/x?k=v", "v1"), (CDS, "c", "v1")]);
    let members = |fixture: &Fixture| {
        let snapshot = fixture.snapshot(CDS);
        let text = |held: &Arc<Resource>| format!("{}@{}", held.name(), held.version());
        snapshot.members_of(&GLOB.into()).map(text).collect::<Vec<_>>()
    };
    assert_eq!(members(&fixture), ["xdstp://a/t/x@v1"]);
    assert_eq!(fixture.seen(CDS, GLOB), "collection");
    let by_name = fixture.client(CDS, false, &["xdstp://a/t/x"]);
    fixture.scan(&[(CDS, "xdstp://a/t/x", "v2"), (CDS, "xdstp://a/t/y", "v1")]);
    assert_eq!(members(&fixture), ["xdstp://a/t/x@v2", "xdstp://a/t/y@v1"]);
    fixture.scan(&[]);
    assert_eq!(
        (fixture.seen(CDS, GLOB), fixture.seen(CDS, "xdstp://a/t/x")),
        ("absent".to_owned(), "absent".to_owned())
    );
    fixture.scan(&[(CDS, "xdstp://a/t/x", "v3")]);
    drop((early, by_name));
    fixture.look();
    assert_eq!(members(&fixture), Vec::<String>::new());
    let _late = fixture.client(CDS, false, &[GLOB]);
    assert_eq!(members(&fixture), ["xdstp://a/t/x@v3"]);
}

#[test]
fn a_type_that_no_file_mentions_is_known_to_be_empty() {
    let mut fixture = Fixture::new();
    fixture.scan(&[(CDS, "c1", "v1")]);
    assert!(fixture.snapshot(CDS).wildcard_known());
    let _client = fixture.client(Kind::Secret, true, &[]);
    assert!(fixture.snapshot(Kind::Secret).wildcard_known());
}

#[test]
fn a_type_that_nobody_asks_for_any_more_leaves_nothing_behind() {
    let mut fixture = Fixture::new();
    fixture.scan(&[(CDS, "c1", "v1")]);
    let clients = [fixture.client(CDS, true, &[]), fixture.client(Kind::Secret, true, &["a"])];
    drop(clients);
    fixture.look();
    assert!(fixture.mirror.asked.is_empty());
    assert!(fixture.snapshot(CDS).wildcard_known(), "it is in a file");
    let _client = fixture.client(Kind::Secret, true, &[]);
    assert!(fixture.snapshot(Kind::Secret).wildcard_known());
}

/// A cluster for clients with this `env`; for all where there is none.
fn variant(version: &str, env: Option<&str>) -> bytes::Bytes {
    let mut any = bytes::BytesMut::new();
    wire::put_field(&mut any, 1, TypeUrl::from(CDS).as_str().as_bytes());
    let mut wrapper = bytes::BytesMut::new();
    wire::put_field(&mut wrapper, 1, version.as_bytes());
    wire::put_field(&mut wrapper, 2, &any);
    let mut single = bytes::BytesMut::new();
    wire::put_field(&mut single, 1, b"env");
    wire::put_field(&mut single, 2, env.unwrap_or_default().as_bytes());
    let mut constraints = bytes::BytesMut::new();
    wire::put_field(&mut constraints, 1, &single);
    let mut name = bytes::BytesMut::new();
    wire::put_field(&mut name, 1, b"c");
    if env.is_some() {
        wire::put_field(&mut name, 2, &constraints);
    }
    wire::put_field(&mut wrapper, 8, &name);
    wrapper.freeze()
}

fn scan_variants(fixture: &mut Fixture, wrappers: &[bytes::Bytes]) {
    let resources: Vec<_> = wrappers.iter().map(|wrapper| read(CDS, wrapper)).collect();
    fixture.mirror.on_reading(&resources, true, fixture.now);
}

#[test]
fn each_client_sees_the_variant_that_is_for_it() {
    let mut fixture = Fixture::new();
    let cache = Arc::clone(fixture.mirror.cache());
    let of = |env: &str| {
        let scope = ClientScope { given: [("env", env)].into_iter().collect(), ..ClientScope::default() };
        cache
            .claim_store(Claim::ANYBODY, &CDS.into(), &ParameterView::new(&scope, true, &BTreeMap::new()))
            .expect("few")
    };
    let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
    let subscriptions = [Subscription::new(true, []), Subscription::new(false, ["c".into()])];
    let (prod, test) = (of("prod"), of("test"));
    let seen = || {
        let version = |of: &crate::cache::TypeCache, subscription| {
            let snapshot = of.snapshot();
            snapshot.seen_by(subscription, "c").map(|held| held.version().to_owned())
        };
        let [prod, test] = [&prod, &test].map(|of| {
            let [member, named] = subscriptions.each_ref().map(|subscription| version(of, subscription));
            assert_eq!(member, named);
            member.unwrap_or_default()
        });
        (prod, test)
    };
    let [p1, p2, t1, t2] = [("p1", "prod"), ("p2", "prod"), ("t1", "test"), ("t2", "test")]
        .map(|(version, env)| variant(version, Some(env)));
    let everybodys = variant("e", None);
    scan_variants(&mut fixture, &[p1.clone(), t1]);
    let _clients: Vec<_> = [&prod, &test]
        .into_iter()
        .flat_map(|of| subscriptions.each_ref().map(|subscription| (of, subscription)))
        .map(|(of, subscription)| of.join(subscription.clone(), profile, &Arc::new(WakeHandle::default())))
        .collect();
    fixture.look();
    assert_eq!(seen(), ("p1".into(), "t1".into()));
    // A variant of others changes: no generation passes here.
    let before = prod.snapshot().generation();
    scan_variants(&mut fixture, &[p1, t2.clone()]);
    assert_eq!((seen(), prod.snapshot().generation()), (("p1".into(), "t2".into()), before));
    // One goes, and the other stays.
    scan_variants(&mut fixture, &[t2]);
    assert_eq!(seen(), (String::new(), "t2".into()));
    // Two are for the same clients: which of them counts does not depend on their order.
    scan_variants(&mut fixture, &[p2.clone(), everybodys.clone()]);
    assert_eq!(seen(), ("e".into(), "e".into()));
    scan_variants(&mut fixture, &[everybodys, p2]);
    assert_eq!(seen(), ("e".into(), "e".into()));
    scan_variants(&mut fixture, &[]);
    assert_eq!(seen(), (String::new(), String::new()));
}

#[test]
fn an_unchanged_file_causes_nothing() {
    let mut fixture = Fixture::new();
    let _client = fixture.client(CDS, true, &[]);
    fixture.scan(&[(CDS, "c1", "v1"), (CDS, "c2", "v1")]);
    let first = fixture.snapshot(CDS);
    fixture.scan(&[(CDS, "c1", "v1"), (CDS, "c2", "v1")]);
    assert!(Arc::ptr_eq(&first, &fixture.snapshot(CDS)));
    fixture.scan(&[(CDS, "c1", "v1"), (CDS, "c2", "v2")]);
    let kept = |snapshot: &Snapshot| snapshot.by_name("c1").present().cloned();
    assert!(Arc::ptr_eq(&kept(&first).expect("c1"), &kept(&fixture.snapshot(CDS)).expect("c1")));
    assert_eq!(fixture.seen(CDS, "c2"), "v2");
}

#[test]
fn types_change_in_the_order_in_which_they_refer_to_each_other() {
    let mut fixture = Fixture::new();
    let kinds = [CDS, Kind::Endpoint, Kind::Listener, Kind::Route];
    fixture.scan(&kinds.map(|kind| (kind, "x", "v1")));
    let order = kinds.map(|kind| fixture.snapshot(kind).generation());
    assert!(order.is_sorted() && order[0] < order[3], "{order:?}");
}
