//! Cost of an operation beside much that it does not concern: it follows from what a request says, what a leaving client had
//! or what changed, and not from what was said before, who else is there, or what else is asked for. It is held against the
//! cost of the same operation beside little, in the same process.
//!
//! Cost is CPU time of the thread, so that waiting for a core does not count, and the least of some runs in turns, so that
//! caches that others emptied count little.

use std::array;
use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{
    Cache, Change, Completeness, Limits, Membership, Op, Protocol, Resend, StreamProfile, Subscription,
    TtlSupport, View, WakeHandle, Writer,
};
use deltafan::node_group::{Condition, GroupRules, Rule, RuleSpec, Unmatched};
use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};
use deltafan::resource::{Name, TypeUrl};
use deltafan::subscription::{NextStep, Session, SessionConfig, Upstream};
use deltafan_test_support::wire;
use prost::Message as _;
use regex::Regex;
use rustix::time::{ClockId, clock_gettime};

const EDS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
const TURNS: usize = 20;
const RUNS: usize = 2;

/// CPU time that this thread has had.
pub(crate) fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// The least cost of each size, in runs that take turns.
fn least<const SIZES: usize, const COSTS: usize>(
    sizes: [usize; SIZES],
    cost: impl Fn(usize) -> [Duration; COSTS],
) -> [[Duration; COSTS]; SIZES] {
    let mut least = [[Duration::MAX; COSTS]; SIZES];
    for _ in 0..RUNS {
        for (least, size) in least.iter_mut().zip(sizes) {
            let cost = cost(size);
            *least = array::from_fn(|at| least[at].min(cost[at]));
        }
    }
    least
}

fn ask(session: &mut Session, names: Vec<String>, let_go: Vec<String>) {
    let request = DeltaDiscoveryRequest {
        node: Some(Node { id: "greedy".to_owned(), ..Node::default() }),
        type_url: EDS.to_owned(),
        resource_names_subscribe: names,
        resource_names_unsubscribe: let_go,
        ..DeltaDiscoveryRequest::default()
    };
    session.on_delta_request(request, Default::default(), Instant::now()).unwrap();
}

/// The median of what a request takes.
fn median(mut request: impl FnMut(usize)) -> Duration {
    let time = |turn| {
        let start = cpu();
        request(turn);
        cpu() - start
    };
    let mut took: Vec<_> = (0..TURNS).map(time).collect();
    took.sort_unstable();
    took[TURNS / 2]
}

/// To say again what is held, to add a name, to let one go, and to look what there is to say.
fn costs(held: usize) -> [Duration; 4] {
    let (cache, _writer) = Cache::new(Limits::default());
    let rules = Arc::new(SessionConfig::default());
    let mut session = Session::new(cache, rules, Protocol::Delta, None, Instant::now());
    let name = |n: usize| format!("bomb-{n:08x}");
    ask(&mut session, (0..held).map(|n| name(n * 16)).collect(), Vec::new());
    let upstream = Upstream::Answering;
    session.next(Instant::now(), upstream);
    let place = |turn: usize| held / 2 * 16 + turn * 16;
    let again = median(|turn| ask(&mut session, vec![name(place(turn))], Vec::new()));
    let added = median(|turn| ask(&mut session, vec![name(place(turn) + 1)], Vec::new()));
    let let_go = median(|turn| ask(&mut session, Vec::new(), vec![name(place(turn) + 1)]));
    let next = median(|_| drop(session.next(Instant::now(), upstream)));
    [again, added, let_go, next]
}

/// To look what there is to say after more names turned out not to exist, while the answer to the first is awaited. The
/// median.
fn cost_unanswered(held: usize) -> Duration {
    let (cache, mut writer) = Cache::new(Limits::default());
    let mut session =
        Session::new(cache, Arc::new(SessionConfig::default()), Protocol::Delta, None, Instant::now());
    let name = |n: usize| format!("bomb-{n:08x}");
    ask(&mut session, (0..held).map(name).collect(), Vec::new());
    let (upstream, eds) = (Upstream::Answering, TypeUrl::from(EDS));
    let part = held / (TURNS + 1);
    let mut look = |turn: usize| {
        let gone = |n: usize| Op::Remove { view: View::Named, name: name(n).into() };
        let ops = (turn * part..(turn + 1) * part).map(gone).collect();
        writer.apply(&eds, Change { ops, ..Change::default() }, Instant::now()).unwrap();
        let start = cpu();
        let next = session.next(Instant::now(), upstream);
        (next, cpu() - start)
    };
    assert!(matches!(look(0).0, NextStep::Send(_)));
    let mut took: Vec<_> = (1..=TURNS)
        .map(|turn| {
            let (next, took) = look(turn);
            assert!(matches!(next, NextStep::Wait(_)), "the first answer is awaited");
            took
        })
        .collect();
    took.sort_unstable();
    took[TURNS / 2]
}

#[test]
fn a_client_that_answers_nothing_is_not_looked_at_again_for_each_change() {
    let [[few], [many]] = least([2_000, 90_000], |held| [cost_unanswered(held)]);
    println!("2,000 names {few:.1?}, 90,000 names {many:.1?}");
    assert!(many < (few * 10).max(Duration::from_millis(1)), "{few:?} {many:?}");
}

#[test]
fn a_request_costs_as_much_as_it_says() {
    let sizes = [1_000, 10_000, 90_000];
    let all = least(sizes, costs);
    for (held, [again, added, let_go, next]) in sizes.into_iter().zip(all) {
        println!(
            "{held} names: again {again:.1?}, one added {added:.1?}, one let go {let_go:.1?}, next {next:.1?}"
        );
    }
    let [few, _, many] = all;
    // Noise aside, to say again what is held costs the same whatever else is.
    assert!(many[0] < (few[0] * 10).max(Duration::from_millis(1)), "{few:?} {many:?}");
    // To add or drop one of 90,000 costs a copy of the list, not a registration: without optimization that took 290 ms.
    assert!(many[1].max(many[2]) < Duration::from_millis(100), "{many:?}");
}

/// To leave one of so many cohorts that have eight names in common, or the wildcard. The median of some that leave one after
/// the other.
fn cost_leave(cohorts: usize, wildcard: bool) -> Duration {
    let (cache, _writer) = Cache::new(Limits::default());
    let of = cache.of(&TypeUrl::from(EDS)).unwrap();
    let profile = StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
    let wake_handle = Arc::<WakeHandle>::default();
    let join = |cohort: usize| {
        let common = (0..8).filter(|_| !wildcard).map(|n| format!("common-{n}"));
        let names = common.chain([format!("own-{cohort}")]).map(Name::from);
        of.join(Subscription::new(wildcard, names), profile, &wake_handle)
    };
    let mut members: Vec<Membership> = (0..cohorts).map(join).collect();
    median(|_| drop(members.swap_remove(members.len() / 2)))
}

#[test]
fn a_leave_costs_as_much_as_the_client_had_however_many_share_its_names() {
    for wildcard in [false, true] {
        let [[few], [many]] = least([500, 8_000], |cohorts| [cost_leave(cohorts, wildcard)]);
        println!("wildcard {wildcard}: among 500 {few:.1?}, among 8,000 {many:.1?}");
        assert!(many < few * 4, "wildcard {wildcard}: {few:?} {many:?}");
    }
}

/// A client of endpoints that takes all that it is told, and the origin.
struct Pair {
    writer: Writer,
    session: Session,
    now: Instant,
}

impl Pair {
    fn new(protocol: Protocol, response_bytes: usize, names: Vec<String>) -> Self {
        let (cache, writer) = Cache::new(Limits { response_bytes, ..Limits::default() });
        let now = Instant::now();
        // It answers nothing, which does not count here.
        let unacked_timeout = Duration::from_secs(1 << 30);
        let rules = SessionConfig { unacked_timeout, ..SessionConfig::default() };
        let mut session = Session::new(cache, Arc::new(rules), protocol, None, now);
        match protocol {
            Protocol::Delta => ask(&mut session, names, Vec::new()),
            Protocol::Sotw => {
                let node = Some(Node { id: "many".to_owned(), ..Node::default() });
                let (type_url, resource_names) = (EDS.to_owned(), names);
                let request =
                    DiscoveryRequest { node, type_url, resource_names, ..DiscoveryRequest::default() };
                session.on_sotw_request(request, now).unwrap();
            }
        }
        Self { writer, session, now }
    }

    fn apply(&mut self, ops: Vec<Op>) {
        let change = Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.writer.apply(&TypeUrl::from(EDS), change, self.now).unwrap();
    }

    fn set(&mut self, view: View, places: impl Iterator<Item = usize>, version: &str) {
        let set = |place: usize| {
            let resource = wire::resource(&TypeUrl::from(EDS), &name(place), version, 0);
            Op::Set { view, resource, resend: Resend::Answer, lease: None }
        };
        self.apply(places.map(set).collect());
    }

    /// How long it takes to work out all that there is to say, and in how many responses that is said.
    fn told(&mut self) -> (Duration, usize) {
        let (mut took, mut responses) = (Duration::ZERO, 0);
        loop {
            let start = cpu();
            let next = self.session.next(self.now, Upstream::Answering);
            took += cpu() - start;
            if !matches!(next, NextStep::Send(_)) {
                return (took, responses);
            }
            responses += 1;
            self.session.on_flushed(self.now);
            // Its gate opens by itself.
            self.now += SessionConfig::default().ack_timeout;
        }
    }
}

fn name(place: usize) -> String {
    format!("cluster-{place:06}")
}

/// To tell a client of so many names that one of them changed. The median.
fn cost_change(protocol: Protocol, names: usize, is_another_forgotten: bool) -> Duration {
    let mut pair = Pair::new(protocol, 1 << 20, (0..names).map(name).collect());
    pair.set(View::Named, 0..names, "0");
    pair.told();
    let mut took: Vec<_> = (0..TURNS)
        .map(|turn| {
            if is_another_forgotten {
                pair.set(View::Named, [names + turn].into_iter(), "0");
                pair.apply(vec![Op::Forget { view: View::Named, name: name(names + turn).into() }]);
            }
            pair.set(View::Named, [turn * 7919 % names].into_iter(), &format!("{}", turn + 1));
            let (took, responses) = pair.told();
            assert_eq!(responses, 1);
            took
        })
        .collect();
    took.sort_unstable();
    took[TURNS / 2]
}

#[test]
fn a_client_by_name_is_told_of_a_change_at_the_cost_of_the_change() {
    for (protocol, is_another_forgotten) in
        [(Protocol::Delta, false), (Protocol::Sotw, false), (Protocol::Delta, true)]
    {
        let [[few], [many]] =
            least([1_000, 32_000], |names| [cost_change(protocol, names, is_another_forgotten)]);
        let row = format!("{protocol:?}, another forgotten: {is_another_forgotten}");
        println!("{row}: 1,000 names {few:.1?}, 32,000 names {many:.1?}");
        assert!(many < few * 6, "{row}: {few:?} {many:?}");
    }
}

/// To tell a client of so many entries that changed while it took nothing, in parts of some forty: what each of them costs.
fn cost_catching_up(view: View, stale: usize) -> Duration {
    let names = match view {
        View::Wildcard => vec!["*".to_owned()],
        View::Named => (0..stale).map(name).collect(),
    };
    let mut pair = Pair::new(Protocol::Delta, 4 << 10, names);
    pair.set(view, 0..stale, "0");
    if view == View::Wildcard {
        pair.told();
        pair.set(view, 0..stale, "1");
    } else {
        // More than it asks for, so that its names are the shorter list.
        pair.set(View::Wildcard, stale..2 * stale, "0");
    }
    let (took, responses) = pair.told();
    assert!(responses > stale / 100, "{responses} responses");
    took / stale as u32
}

#[test]
fn to_catch_up_in_parts_costs_as_much_as_is_stale() {
    for view in View::ALL {
        let [[few], [many]] = least([1_000, 16_000], |stale| [cost_catching_up(view, stale)]);
        println!("{view:?}: each of 1,000 {few:.1?}, each of 16,000 {many:.1?}");
        assert!(many < few * 4, "{view:?}: {few:?} {many:?}");
    }
}

/// To find the node group of a client with much metadata, by rules that look at fields that it lacks.
fn cost_of_placing(rules: usize) -> Duration {
    let rule = |at: usize| {
        let key = format!("node.metadata.labels.k{at}").parse().unwrap();
        let conditions = vec![Condition::new(key, "x", Regex::new(r"\Ax\z").unwrap())];
        Rule::new(RuleSpec { name: &format!("r{at}"), conditions, key: None, node: None }).unwrap()
    };
    let rules = GroupRules::new((0..rules).map(rule).collect(), Unmatched::Own, Node::default(), 256);
    let many: serde_json::Map<_, _> = (0..4000).map(|at| (format!("x{at}"), at.into())).collect();
    let labels = serde_json::json!({ "labels": many });
    let metadata = deltafan::proto::structure(labels.as_object().unwrap()).encode_to_vec();
    assert!(metadata.len() > 60_000);
    let node = Node { metadata: metadata.into(), ..Node::default() };
    median(|_| assert_eq!(rules.place(&node, None), Ok(None)))
}

#[test]
fn placing_a_client_reads_its_metadata_once_however_many_rules_there_are() {
    let [[one], [many]] = least([1, 500], |rules| [cost_of_placing(rules)]);
    println!("1 rule {one:.1?}, 500 rules {many:.1?}");
    assert!(many < one * 20, "1 rule {one:?}, 500 rules {many:?}");
}
