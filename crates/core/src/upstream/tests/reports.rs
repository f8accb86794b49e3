//! Reports of changes that canaries rejected.

use crate::cache::{CanaryResponse, Class, Note, Order, ParameterView, Position, RolloutSettings, Track};
use crate::proto::Status;
use crate::resource::Parameters;

use super::sotw::{World, parts};
use super::*;

const CDS: Kind = Kind::Cluster;
const EDS: Kind = Kind::Endpoint;
/// Longer than a trial with the time in which changes are gathered, in milliseconds.
const TRIAL: u64 = 32_000;
const HELD_A: &str = "held after canaries rejected it: a at version 2 (1 of 1 canaries): no such thing";

impl Fixture {
    fn guarded(reports: bool) -> Self {
        let settings = RolloutSettings {
            types: [CDS, EDS].map(TypeUrl::from).into(),
            named: None,
            shares: vec![0.0],
            key: [0; 16],
            window: Duration::from_secs(30),
            threshold: 0.1,
            max_removed: None,
            reports,
            counts: Arc::default(),
        };
        let limits = Limits::default();
        let (cache, writer) = Cache::guarded(limits, &Budget::new(limits.encoded_bytes), Some(settings));
        let mux = Mux::new(writer, Settings::default());
        let mut fixture = Self { cache, mux, ..Self::new() };
        fixture.client("clusters", CDS, &["a", "b"]);
        fixture.client("endpoints", EDS, &["a"]);
        fixture
    }

    /// A relay of an origin that has sent `a` and `b`.
    fn reporting() -> Self {
        let mut fixture = Self::guarded(true);
        fixture.open(Primary);
        fixture.begin();
        fixture
    }

    fn begin(&mut self) {
        self.pass(10);
        self.requests(Primary);
        self.hear(Primary, &Answer::of(CDS, "c1").set("a", "1").set("b", "1"));
        self.hear(Primary, &Answer::of(EDS, "e1").set("a", "1"));
    }

    /// Changes are put on trial, and a canary rejects what it was sent last of these names.
    fn reject(&mut self, kind: Kind, names: &[&str], text: &str) {
        self.pass(1_000);
        let view = ParameterView::uniform(Parameters::NONE).on(Track::Canary(0));
        let of = self.cache.find(&kind.into(), &view).expect("a track");
        let subscription = Subscription::new(false, names.iter().map(|name| (*name).into()));
        let rollout = self.cache.rollout().expect("a guard");
        let seat = rollout.seat("canary", None, false).expect("the first client is one");
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let canary = of.join(subscription.clone(), profile, &Arc::new(WakeHandle::default()));
        let update = of.update(canary.cohort(), &Position::default(), self.now).expect("a first answer");
        let (class, rejection) = (Class::Both, Some(text));
        let (of, subscription, update) = (&*of, &subscription, &*update);
        rollout.vote(&CanaryResponse { of, subscription, update, class, rejection }, &seat);
    }

    /// The origin changes `a`, the canary rejects that, and it is held. The report has not been taken.
    fn hold(&mut self, nonce: &str, version: &str) {
        self.hear(Primary, &Answer::of(CDS, nonce).set("a", version));
        self.reject(CDS, &["a"], "no such thing");
        self.pass(TRIAL);
    }

    fn order(&self, order: Order) {
        assert!(self.cache.order(order, self.now));
    }
}

fn report_of(kind: Kind, nonce: &str, text: &str) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        type_url: TypeUrl::from(kind).as_str().to_owned(),
        response_nonce: nonce.to_owned(),
        error_detail: Some(Status { code: 3, message: text.to_owned() }),
        ..DeltaDiscoveryRequest::default()
    }
}

#[test]
fn r_relay_13_held_changes_are_reported_once_for_a_hold() {
    let mut fixture = Fixture::reporting();
    fixture.hold("c2", "2");
    assert_eq!(fixture.requests(Primary), [report_of(CDS, "c2", HELD_A)]);
    // Whatever else comes, of this type or another.
    fixture.hear(Primary, &Answer::of(CDS, "c3").set("b", "2"));
    fixture.hear(Primary, &Answer::of(EDS, "e2").set("a", "2"));
    fixture.pass(10 * TRIAL);
    assert_eq!(fixture.requests(Primary), []);
    assert_eq!(fixture.mux.counters().holds_reported.get(), 1);
    // A correction that is rejected in its turn is another hold.
    fixture.hold("c4", "4");
    let again = "held after canaries rejected it: a at version 4 (1 of 1 canaries): no such thing";
    assert_eq!(fixture.requests(Primary), [report_of(CDS, "c4", again)]);
}

#[test]
fn r_relay_13_each_type_is_reported_and_a_removal_is_named() {
    let mut fixture = Fixture::reporting();
    fixture.hear(Primary, &Answer::of(CDS, "c2").set("a", "2").remove("b"));
    fixture.hear(Primary, &Answer::of(EDS, "e2").set("a", "2"));
    fixture.reject(CDS, &["a", "b"], "a: bad\nb: needed");
    fixture.reject(EDS, &["a"], "none");
    fixture.pass(TRIAL);
    assert_eq!(fixture.requests(Primary), [], "not before the search for the bad ones is over");
    fixture.pass(4 * TRIAL);
    let clusters = "held after canaries rejected it: a at version 2 (1 of 1 canaries), removal of b (1 of 1 canaries): \
                    a: bad b: needed";
    let endpoints = "held after canaries rejected it: a at version 2 (1 of 1 canaries): none";
    let expected = [report_of(CDS, "c2", clusters), report_of(EDS, "e2", endpoints)];
    assert_eq!(fixture.requests(Primary), expected);
}

#[test]
fn r_relay_13_a_report_comes_after_acks_and_without_names() {
    let mut fixture = Fixture::reporting();
    fixture.hold("c2", "2");
    fixture.client("clusters", CDS, &["a", "b", "c"]);
    fixture
        .mux
        .on_message(Primary, Answer::of(CDS, "c3").set("b", "2").bytes(), fixture.now)
        .expect("an ACK");
    fixture.pass(10);
    let requests = fixture.requests(Primary);
    let [ack, report] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!((ack.response_nonce.as_str(), &ack.error_detail), ("c3", &None));
    assert_eq!(ack.resource_names_subscribe, ["c"]);
    assert_eq!(report, &report_of(CDS, "c3", HELD_A));
}

#[test]
fn r_relay_13_a_new_stream_is_told_after_its_first_response_and_only_while_it_holds() {
    let mut fixture = Fixture::reporting();
    fixture.hold("c2", "2");
    fixture.requests(Primary);
    for nonce in ["1", "2"] {
        fixture.close();
        fixture.open(Primary);
        fixture.pass(10);
        let requests = fixture.requests(Primary);
        assert!(requests.iter().all(|request| request.error_detail.is_none()), "{requests:?}");
        let answer = Answer::of(CDS, nonce).set("a", "2");
        fixture.mux.on_message(Primary, answer.bytes(), fixture.now).expect("a response");
        let requests = fixture.requests(Primary);
        assert_eq!(requests.len(), 2, "{requests:?}");
        assert_eq!((requests[0].response_nonce.as_str(), &requests[0].error_detail), (nonce, &None));
        assert_eq!(requests[1], report_of(CDS, nonce, HELD_A));
    }
    // The control plane has corrected it, which the relay finds on a new stream.
    fixture.close();
    fixture.open(Primary);
    fixture.pass(10);
    fixture.requests(Primary);
    fixture.hear(Primary, &Answer::of(CDS, "3").set("a", "3"));
    fixture.pass(10 * TRIAL);
    let requests = fixture.requests(Primary);
    assert!(requests.iter().all(|request| request.error_detail.is_none()), "{requests:?}");
    assert_eq!(fixture.mux.counters().holds_reported.get(), 3);
}

/// The secondary stream has another nonce.
#[test]
fn r_relay_13_both_streams_of_a_type_are_told() {
    let mut fixture = Fixture::reporting();
    fixture.client("wild", CDS, &["*"]);
    fixture.open(Secondary);
    fixture.pass(10);
    fixture.requests(Secondary);
    fixture.hold("c2", "2");
    assert_eq!(fixture.requests(Primary), [report_of(CDS, "c2", HELD_A)]);
    assert_eq!(fixture.requests(Secondary), [], "nothing has come there");
    let answer = Answer::of(CDS, "w1").set("a", "2").set("b", "1");
    fixture.mux.on_message(Secondary, answer.bytes(), fixture.now).expect("a response");
    assert_eq!(fixture.requests(Secondary)[1], report_of(CDS, "w1", HELD_A));
}

#[test]
fn r_relay_13_a_hold_that_an_operator_ends_before_is_not_reported() {
    for order in [Order::Release(None), Order::Discard(None, Note::default())] {
        let mut fixture = Fixture::reporting();
        fixture.hold("c2", "2");
        assert!(fixture.mux.has_request(Primary));
        fixture.order(order.clone());
        assert_eq!(fixture.requests(Primary), []);
        fixture.pass(10 * TRIAL);
        fixture.close();
        fixture.open(Primary);
        fixture.begin();
        assert_eq!(fixture.requests(Primary), []);
        assert_eq!(fixture.mux.counters().holds_reported.get(), 0, "{order:?}");
    }
}

#[test]
fn r_relay_13_no_change_is_reported_that_the_control_plane_has_replaced() {
    let mut fixture = Fixture::reporting();
    fixture.hear(Primary, &Answer::of(CDS, "c2").set("a", "2").set("b", "2"));
    fixture.reject(CDS, &["a", "b"], "no such thing");
    fixture.pass(10_000);
    fixture.hear(Primary, &Answer::of(CDS, "c3").set("b", "3"));
    fixture.pass(4 * TRIAL);
    assert_eq!(fixture.requests(Primary), [report_of(CDS, "c3", HELD_A)]);
}

#[test]
fn r_relay_14_nothing_is_reported_unless_the_operator_says_so() {
    let mut fixture = Fixture::guarded(false);
    fixture.open(Primary);
    fixture.begin();
    fixture.hold("c2", "2");
    assert_eq!(fixture.requests(Primary), []);
}

#[test]
fn r_relay_14_a_report_is_one_short_line_whatever_canaries_say() {
    let names: Vec<String> = (0..50).map(|number| format!("{number:0200}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut fixture = Fixture::reporting();
    fixture.client("clusters", CDS, &names);
    fixture.pass(10_000);
    fixture.requests(Primary);
    for version in ["1", "2"] {
        let answer = names.iter().fold(Answer::of(CDS, version), |answer, name| answer.set(name, version));
        fixture.hear(Primary, &answer);
    }
    for client in 0..10 {
        fixture.reject(CDS, &names, &format!("{client}\u{1b}[31m\r\n{}", "é".repeat(10_000)));
    }
    fixture.pass(4 * TRIAL);
    let requests = fixture.requests(Primary);
    let [DeltaDiscoveryRequest { error_detail: Some(Status { message, .. }), .. }, ..] = &requests[..] else {
        panic!("{requests:?}")
    };
    assert!((3_000..=4_096).contains(&message.len()), "{} bytes", message.len());
    assert!(!message.contains(char::is_control), "{message}");
    assert!(message.contains(" and 42 more: 0 [31m  éé"), "{message}");
}

/// A canary has rejected `a`, and the trial is not over.
fn rejecting_by_state_of_the_world() -> Fixture {
    let mut fixture = Fixture::guarded(true);
    fixture.open_sotw(Primary);
    fixture.says(Primary);
    fixture.takes(Primary, &World::of(CDS, "1", &[("a", "1"), ("b", "1")]));
    fixture.takes(Primary, &World::of(CDS, "2", &[("a", "2"), ("b", "1")]));
    fixture.reject(CDS, &["a"], "no such thing");
    fixture
}

/// The version is that of the origin, which sends nothing again then.
#[test]
fn r_relay_13_by_state_of_the_world_a_report_says_the_accepted_version_and_all_names() {
    let mut fixture = rejecting_by_state_of_the_world();
    // A response that the relay refuses itself is not to be refused once more: its next NACK would wait.
    fixture.told(Primary, &World::of(CDS, "3", &[("a", "2"), ("a", "2")]));
    fixture.pass(TRIAL);
    assert_eq!(fixture.says(Primary), []);
    fixture.sends(Primary, &World::of(CDS, "4", &[("a", "2"), ("b", "2")]));
    let said = fixture.says(Primary);
    let [ack, report] = &said[..] else { panic!("{said:?}") };
    assert_eq!((parts(ack), &ack.error_detail), ((vec!["a", "b"], "4", "4"), &None));
    assert_eq!(parts(report), (vec!["a", "b"], "4", "4"));
    let error = report.error_detail.as_ref().expect("a NACK");
    assert!(error.code == 3 && error.message.ends_with(": no such thing"), "{error:?}");
    fixture.pass(10 * TRIAL);
    assert_eq!(fixture.says(Primary), []);
}

/// A LinearCache of go-control-plane before 0.14 leaves a name unanswered that is listed with a version. The last request of a type
/// takes the place of those before it that are not answered yet.
#[test]
fn r_sotw_15_a_report_says_no_version_while_a_name_may_be_unread() {
    let mut fixture = rejecting_by_state_of_the_world();
    fixture.pass(1_000);
    fixture.client("clusters", CDS, &["a", "b", "c"]);
    fixture.says(Primary);
    // It crosses the list with the new name.
    fixture.sends(Primary, &World::of(CDS, "3", &[("a", "2"), ("b", "3")]));
    fixture.pass(TRIAL);
    let said = fixture.says(Primary);
    let [ack, report] = &said[..] else { panic!("{said:?}") };
    assert_eq!((parts(ack), &ack.error_detail), ((vec!["a", "b", "c"], "", "3"), &None));
    assert_eq!(parts(report), (vec!["a", "b", "c"], "", "3"));
    assert!(report.error_detail.is_some());
}
