//! Histories of guarded changes: an origin that sends good and bad versions and repeats itself, canaries that reject the bad ones, at
//! once or late, and clients that are to be spared. All come and go.
//!
//! No client but a canary is ever sent a version that no canary accepted, no operator released and that was not known before; the
//! stable track shows at any moment the state of all guarded types at one moment of the origin, before an operator orders anything; and in
//! the end all clients hold the last good state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use deltafan::cache::{
    Change, Completeness, EarlierState, Note, Op, Order, OrderKind, ParameterView, Phase, Protocol,
    RolloutSettings, RolloutStatus, Snapshot, Track, View,
};
use deltafan::resource::{Parameters, Resource};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{self, Scenario};
use deltafan_test_support::fixture::{Client, Fixture, url};
use deltafan_test_support::wire::Told;

const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];
const ROUTES: [&str; 3] = ["r", "s", "t"];
const CANARIES: usize = 3;
const OTHERS: usize = 4;
/// Longest times for which slow canaries do nothing, in half seconds; the second is longer than a trial.
const IDLE: [u32; 2] = [10, 150];
const WINDOW: Duration = Duration::from_secs(30);
/// Longer than any trial.
const LONG: Duration = Duration::from_secs(40);

fn is_bad(version: &str) -> bool {
    version.parse::<u64>().unwrap() % 3 == 0
}

/// Content of the guarded types: versions by type and name.
type Content = BTreeMap<(&'static str, String), String>;

/// Versions by type and name.
type Versions = BTreeSet<(&'static str, String, String)>;

struct Reader {
    client: Client,
    id: String,
    protocol: Protocol,
    /// Asks for clusters by name.
    by_name: bool,
    held: Content,
    /// Responses that it has read and not answered.
    unanswered: VecDeque<Told>,
    idle: u32,
}

impl Reader {
    fn new(fixture: &Fixture, id: &str, protocol: Protocol, by_name: bool) -> Self {
        let mut client = fixture.client_named(id, protocol);
        match protocol {
            Protocol::Delta => {
                client.change(fixture, "cds", &if by_name { CLUSTERS.join(" ") } else { "*".to_owned() });
                client.change(fixture, "rds", &ROUTES.join(" "));
            }
            Protocol::Sotw => {
                client.ask(fixture, "cds", if by_name { &CLUSTERS } else { &[] });
                client.ask(fixture, "rds", &ROUTES);
            }
        }
        let held = Content::new();
        Self { client, id: id.to_owned(), protocol, by_name, held, unanswered: VecDeque::new(), idle: 0 }
    }

    /// Clients that are canaries, or not, by the hashes of their node IDs.
    fn all(fixture: &Fixture, rng: &mut StdRng, count: usize, canaries: bool, by_name: bool) -> Vec<Self> {
        let seats = || fixture.cache.rollout().unwrap().status(fixture.now).canaries;
        let mut found = Vec::new();
        for at in 0.. {
            let protocol = if rng.random_bool(0.5) { Protocol::Delta } else { Protocol::Sotw };
            let before = seats();
            let by_name = by_name && rng.random_bool(0.4);
            let reader = Self::new(fixture, &format!("node-{at}"), protocol, by_name);
            if (seats() > before) == canaries {
                found.push(reader);
            }
            if found.len() == count {
                break;
            }
        }
        found
    }

    /// Comes again.
    fn reconnect(&mut self, fixture: &Fixture) {
        *self = Self::new(fixture, &self.id, self.protocol, self.by_name);
    }

    /// Reads a response and answers it at once. Returns whether there was one.
    fn poll(&mut self, fixture: &Fixture, proven: &mut Proven<'_>) -> bool {
        self.read(fixture, proven) && self.answer(fixture, proven)
    }

    fn read(&mut self, fixture: &Fixture, proven: &Proven<'_>) -> bool {
        let Some(told) = self.client.poll(fixture) else { return false };
        if let Proven::Of(versions) = proven {
            let short = told.type_url.kind().short();
            for (name, version) in &told.resources {
                let is_proven = versions.contains(&(short, name.clone(), version.clone()));
                assert!(is_proven, "{}, which is no canary, is sent {told:?}; {name} is not proven", self.id);
            }
        }
        self.unanswered.push_back(told);
        true
    }

    /// Takes in a response, and rejects it if it has a bad version. As Envoy may, it takes the good ones then, and names one bad
    /// one, or none.
    fn answer(&mut self, fixture: &Fixture, proven: &mut Proven<'_>) -> bool {
        let Some(told) = self.unanswered.pop_front() else { return false };
        let short = told.type_url.kind().short();
        let names: &[&str] = match short {
            "rds" => &ROUTES,
            _ if self.by_name => &CLUSTERS,
            _ => &[],
        };
        let bad = told.resources.iter().find(|(_, version)| is_bad(version)).map(|(name, _)| name);
        self.hold(short, &told);
        match bad {
            None => {
                if let Proven::By(versions) = proven {
                    let accepted = told.resources.iter().cloned();
                    versions.extend(accepted.map(|(name, version)| (short, name, version)));
                }
                self.client.ack(fixture, &told, names)
            }
            Some(bad) if self.id.ends_with(['0', '2', '4', '6']) => {
                self.client.nack_saying(fixture, &told, names, &format!("rejected: {bad}"))
            }
            Some(_) => self.client.nack_saying(fixture, &told, names, "no such thing"),
        };
        true
    }

    /// Does something or other, as a slow client does.
    fn act(&mut self, fixture: &Fixture, rng: &mut StdRng, most_idle: u32, proven: &mut Proven<'_>) {
        self.idle += 1;
        if self.idle < most_idle && rng.random_bool(1.0 - 2.0 / f64::from(most_idle)) {
            return;
        }
        self.idle = 0;
        while self.read(fixture, proven) {}
        if rng.random_bool(0.7) {
            while self.answer(fixture, proven) {}
        }
    }

    fn hold(&mut self, short: &'static str, told: &Told) {
        if self.protocol == Protocol::Sotw && short == "cds" {
            let is_told = |name: &String| told.resources.iter().any(|(other, _)| other == name);
            self.held.retain(|(of, name), _| *of != short || is_told(name));
        }
        for (name, version) in told.resources.iter().filter(|(_, version)| !is_bad(version)) {
            self.held.insert((short, name.clone()), version.clone());
        }
        for name in &told.removed {
            self.held.remove(&(short, name.clone()));
        }
    }
}

/// Versions that clients may hold that are no canaries.
enum Proven<'v> {
    /// By what this canary accepts.
    By(&'v mut Versions),
    /// For this client, which is none.
    Of(&'v Versions),
}

struct World {
    rng: StdRng,
    fixture: Fixture,
    origin: Content,
    /// Accepted by a canary, released, or known when there was nothing better.
    proven: Versions,
    /// All states of the origin so far.
    history: BTreeSet<Vec<((&'static str, String), String)>>,
    canaries: Vec<Reader>,
    /// Canaries are slow, with this longest time in which they do nothing.
    slow: Option<u32>,
    others: Vec<Reader>,
    /// Some ask for clusters by name, so the origin sends each twice.
    by_name: bool,
    next_version: u64,
    discards: bool,
    releases: bool,
    has_ordered: bool,
    /// Steps of a trial.
    steps: u8,
    /// Random draws of an operator that holds, releases and restores; none in most histories.
    operator: Option<StdRng>,
    /// States that the stable track has shown, by type and name.
    shown: BTreeMap<(&'static str, &'static str), Vec<Option<Arc<Resource>>>>,
    trace: bool,
}

impl World {
    /// A response with these changes: versions by name.
    fn say(&mut self, short: &'static str, changes: &[(&str, Option<u64>)]) {
        let mut text = short.to_owned();
        for (name, version) in changes {
            let place = (short, (*name).to_owned());
            match version {
                Some(version) => {
                    self.origin.insert(place, version.to_string());
                    text += &format!(" {name}:{version}");
                }
                None => {
                    self.origin.remove(&place);
                    text += &format!(" -{name}");
                }
            }
        }
        if self.trace {
            eprintln!("{:?} {text}", self.fixture.now);
        }
        let names_first = self.by_name && self.rng.random_bool(0.5);
        if short == "rds" || names_first {
            self.fixture.named(&text);
        }
        if short == "cds" {
            self.fixture.origin(&text);
        }
        if short == "cds" && self.by_name && !names_first {
            self.fixture.named(&text);
        }
        self.history.insert(self.origin.clone().into_iter().collect());
        if self.slow.is_none() {
            // The verdict is there before any trial ends.
            self.judge();
        }
    }

    /// The control plane says again all that it has, as it does after a reconnect.
    fn repeat(&mut self) {
        let all = |short| {
            let of = self.origin.iter().filter(|((of, _), _)| *of == short);
            of.map(|((_, name), version)| format!(" {name}:{version}")).collect::<String>()
        };
        for (short, view) in [("cds", View::Wildcard), ("rds", View::Named)] {
            let text = format!("{short}{}", all(short));
            if self.trace {
                eprintln!("{:?} again {text}", self.fixture.now);
            }
            if text.len() > short.len() {
                self.fixture.answer(view, &text);
                if short == "cds" && self.by_name {
                    self.fixture.answer(View::Named, &text);
                }
            }
        }
    }

    /// All clients leave, and the relay lets go of all that they asked for; then they come back.
    fn restart_all(&mut self) {
        if self.trace {
            eprintln!("{:?} all leave and come back", self.fixture.now);
        }
        let leavers = self.canaries.iter().chain(&self.others);
        let leavers = leavers.map(|reader| (reader.id.clone(), reader.protocol, reader.by_name));
        let leavers: Vec<_> = leavers.collect();
        self.canaries.clear();
        self.others.clear();
        let time = [0, 2_000, 20_000, 70_000][self.rng.random_range(0..4)];
        self.fixture.roll_out(Duration::from_millis(time));
        let forget = |view, name: &str| Op::Forget { view, name: name.into() };
        let mut ops = CLUSTERS.map(|name| forget(View::Wildcard, name)).to_vec();
        if self.by_name {
            ops.extend(CLUSTERS.map(|name| forget(View::Named, name)));
        }
        let wildcard_known = Some(Completeness::Unknown);
        self.fixture.apply("cds", Change { ops, wildcard_known, ..Change::default() });
        self.fixture.ops("rds", ROUTES.map(|name| forget(View::Named, name)).to_vec());
        self.prove_all();
        for (at, (id, protocol, by_name)) in leavers.iter().enumerate() {
            let reader = Reader::new(&self.fixture, id, *protocol, *by_name);
            if at < CANARIES { self.canaries.push(reader) } else { self.others.push(reader) }
        }
        self.repeat();
        self.fixture.known("cds");
        self.judge();
    }

    /// Clients may hold all that the origin has.
    fn prove_all(&mut self) {
        let all = self.origin.iter();
        self.proven.extend(all.map(|((short, name), version)| (*short, name.clone(), version.clone())));
    }

    fn judge(&mut self) {
        let proven = &mut Proven::By(&mut self.proven);
        for canary in &mut self.canaries {
            canary.idle = 0;
            let mut polls = 0;
            while canary.answer(&self.fixture, proven) || canary.poll(&self.fixture, proven) {
                polls += 1;
                assert!(polls < 50, "{} is sent more and more", canary.id);
            }
        }
    }

    fn version(&mut self, is_bad_one: bool) -> u64 {
        self.next_version += 3;
        if is_bad_one { self.next_version } else { self.next_version + 1 }
    }

    /// Changes of some of these names. One that does not exist begins with a good version: who asks for it by name has nothing
    /// better, so it is not tried.
    fn change(&mut self, short: &'static str, names: &[&'static str], removes: bool) {
        let count = [1, 1, 2, names.len()][self.rng.random_range(0..4)];
        let first = self.rng.random_range(0..names.len());
        let mut changes = Vec::new();
        for at in 0..count {
            let name = names[(first + at) % names.len()];
            let place = (short, name.to_owned());
            // An operator may have restored that it does not exist.
            let is_new = !self.origin.contains_key(&place) || !self.stable().contains_key(&place);
            let is_bad_one = self.rng.random_bool(0.2) && !(is_new && self.by_name);
            let version = self.version(is_bad_one);
            if is_new && self.by_name {
                self.proven.insert((short, name.to_owned(), version.to_string()));
            }
            let removes = removes && self.rng.random_bool(0.2);
            changes.push((name, (!removes).then_some(version)));
        }
        self.say(short, &changes);
    }

    fn wait(&mut self, time: Duration) {
        let end = self.fixture.now + time;
        while self.fixture.now < end {
            self.fixture.roll_out(Duration::from_millis(500));
            if let Some(most_idle) = self.slow {
                let proven = &mut Proven::By(&mut self.proven);
                self.canaries
                    .iter_mut()
                    .for_each(|canary| canary.act(&self.fixture, &mut self.rng, most_idle, proven));
            } else {
                self.judge();
            }
        }
    }

    /// An operator releases what is held.
    fn prove_held(&mut self, status: &RolloutStatus) {
        let held = status.held.iter().filter_map(|held| {
            let version = held.version.as_deref()?.to_owned();
            Some((held.type_url.kind().short(), held.name.to_string(), version))
        });
        self.proven.extend(held);
        for step in 0..self.steps {
            let others = self.track(Track::Canary(step)).into_iter();
            self.proven.extend(others.map(|((short, name), version)| (short, name, version)));
        }
    }

    fn status(&self) -> RolloutStatus {
        self.fixture.cache.rollout().unwrap().status(self.fixture.now)
    }

    fn snapshot(&self, short: &str, track: Track) -> Arc<Snapshot> {
        let view = ParameterView::uniform(Parameters::NONE).on(track);
        self.fixture.cache.find(&url(short), &view).unwrap().snapshot()
    }

    fn note_shown(&mut self) {
        for (short, name) in
            CLUSTERS.map(|name| ("cds", name)).into_iter().chain(ROUTES.map(|name| ("rds", name)))
        {
            let state = self.snapshot(short, Track::Stable).by_name(name).present().cloned();
            let shown = self.shown.entry((short, name)).or_default();
            if shown.last().map(Option::as_deref) != Some(state.as_deref()) {
                shown.push(state);
            }
        }
    }

    fn operate(&mut self, operator: &mut StdRng) {
        let short = if operator.random_bool(0.5) { "cds" } else { "rds" };
        match operator.random_range(0..6) {
            0..2 => _ = self.order(Order::Hold(Some(url(short)), Note::default())),
            2 => self.release(operator.random_bool(0.5).then_some(short)),
            3 => _ = self.order(Order::Discard(None, Note::default())),
            _ => {
                let count = operator.random_range(1..4);
                let states: Vec<EarlierState> = (0..count).map(|_| self.earlier(operator)).collect();
                self.order(Order::Restore(states, Note::default()));
            }
        }
    }

    /// A state that was once good.
    fn earlier(&self, operator: &mut StdRng) -> EarlierState {
        let at = operator.random_range(0..self.shown.len());
        let ((short, name), states) = self.shown.iter().nth(at).unwrap();
        EarlierState {
            type_url: url(short),
            parameters: Parameters::NONE,
            name: (*name).into(),
            resource: states[operator.random_range(0..states.len())].clone(),
            is_member: *short == "cds",
        }
    }

    /// Gives an order, which the relay follows before anything else happens, or later.
    fn order(&mut self, order: Order) -> bool {
        if self.trace {
            eprintln!("{:?} {order:?}", self.fixture.now);
        }
        let is_due = self.fixture.order(order);
        self.has_ordered |= is_due;
        self.fixture.roll_out(Duration::ZERO);
        is_due
    }

    fn release(&mut self, short: Option<&str>) {
        let status = self.status();
        // As a whole, if it has the type.
        let is_held =
            status.held.iter().any(|held| short.is_none_or(|short| held.type_url.kind().short() == short));
        if is_held || status.unanswered > 0 {
            self.prove_held(&status);
        }
        self.order(Order::Release(short.map(url)));
    }

    /// No client is sent changes of a type on hold.
    fn check_holds(&self) {
        let status = self.status();
        for order in status.orders.iter().filter(|order| order.kind == OrderKind::Hold) {
            let short = order.type_url.kind().short();
            let content =
                |track| self.track(track).into_iter().filter(|((of, _), _)| *of == short).collect::<Vec<_>>();
            for step in 0..self.steps {
                assert_eq!(
                    content(Track::Canary(step)),
                    content(Track::Stable),
                    "{short} is on hold: {status:?}"
                );
            }
        }
    }

    fn stable(&self) -> Content {
        self.track(Track::Stable)
    }

    fn track(&self, track: Track) -> Content {
        let mut content = Content::new();
        for (short, names) in [("cds", &CLUSTERS[..]), ("rds", &ROUTES[..])] {
            let snapshot = self.snapshot(short, track);
            for name in names {
                if let Some(resource) = snapshot.by_name(name).present() {
                    content.insert((short, (*name).to_owned()), resource.version().to_owned());
                }
            }
        }
        content
    }
}

impl Scenario for World {
    const NAME: &'static str = "rollout";
    const LENGTH: u64 = 80;
    const STEPS: u64 = 3000 * Self::LENGTH;

    fn new(seed: u64, trace: bool) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let types = ["cds", "rds"].map(url).into_iter().collect();
        let settings = RolloutSettings {
            types,
            named: None,
            shares: if seed % 5 == 1 { vec![0.15, 0.45] } else { vec![0.3] },
            key: [0; 16],
            window: WINDOW,
            threshold: 0.0,
            max_removed: None,
            reports: false,
            counts: Arc::default(),
        };
        let mut fixture = Fixture::guarded(settings);
        fixture.rules.unacked_timeout = Duration::from_secs(24 * 60 * 60);
        fixture.origin("cds a:1 b:1");
        fixture.known("cds");
        fixture.named("rds r:1 s:1 t:1");
        let first = [("cds", "a"), ("cds", "b"), ("rds", "r"), ("rds", "s"), ("rds", "t")];
        let origin: Content =
            first.map(|(short, name)| ((short, name.to_owned()), "1".to_owned())).into_iter().collect();
        let by_name = rng.random_bool(0.3);
        if by_name {
            fixture.named("cds a:1 b:1");
        }
        let canaries = Reader::all(&fixture, &mut rng, CANARIES, true, by_name);
        let others = Reader::all(&fixture, &mut rng, OTHERS, false, by_name);
        let slow = rng.random_bool(0.5).then(|| IDLE[rng.random_range(0..2)]);
        let history = [origin.clone().into_iter().collect()].into_iter().collect();
        let (discards, releases) = (rng.random_bool(0.5), rng.random_bool(0.3));
        let mut world = Self {
            rng,
            fixture,
            origin,
            proven: Versions::new(),
            history,
            canaries,
            slow,
            others,
            by_name,
            next_version: 3,
            discards,
            releases,
            has_ordered: false,
            steps: if seed % 5 == 1 { 2 } else { 1 },
            operator: seed.is_multiple_of(3).then(|| StdRng::seed_from_u64(seed ^ 0x0bde)),
            shown: BTreeMap::new(),
            trace,
        };
        world.prove_all();
        world.judge();
        world
    }

    fn step(&mut self, _: u64) {
        if let Some(mut operator) = self.operator.take() {
            self.note_shown();
            if operator.random_bool(0.15) {
                self.operate(&mut operator);
            }
            self.operator = Some(operator);
            self.check_holds();
        }
        match self.rng.random_range(0..14) {
            0..3 => self.change("cds", &CLUSTERS, true),
            3..5 => self.change("rds", &ROUTES, false),
            5..7 => {
                let time = [100, 900, 3_000, 12_000, 35_000][self.rng.random_range(0..5)];
                self.wait(Duration::from_millis(time));
            }
            7 if self.discards => {
                let ordered = self.fixture.order(Order::Discard(None, Note::default()));
                self.has_ordered |= ordered;
                if ordered && self.trace {
                    eprintln!("discard");
                }
            }
            11 if self.releases && self.rng.random_bool(0.3) => {
                let status = self.status();
                if !status.held.is_empty() && self.fixture.order(Order::Release(None)) {
                    if self.trace {
                        eprintln!("release");
                    }
                    self.has_ordered = true;
                    self.prove_held(&status);
                }
            }
            8 if self.rng.random_bool(0.3) => {
                let at = self.rng.random_range(0..CANARIES);
                self.canaries[at].reconnect(&self.fixture);
            }
            8 => {
                let at = self.rng.random_range(0..OTHERS);
                self.others[at].reconnect(&self.fixture);
            }
            9 => self.repeat(),
            // Then there is nothing but the newest content, good or bad.
            10 if self.rng.random_bool(0.3) && !self.origin.values().any(|version| is_bad(version)) => {
                self.restart_all();
            }
            _ => {
                let at = self.rng.random_range(0..OTHERS);
                self.others[at].poll(&self.fixture, &mut Proven::Of(&self.proven));
            }
        }
        // A name that did not exist is answered at once by name.
        if !self.has_ordered && !self.by_name {
            let stable = self.stable();
            let key: Vec<_> = stable.clone().into_iter().collect();
            assert!(self.history.contains(&key), "{stable:?} was never the state of the origin");
        }
    }

    fn finish(mut self) {
        self.release(None);
        for (short, names) in [("cds", &CLUSTERS[..]), ("rds", &ROUTES[..])] {
            for name in names {
                // Nothing else has to change but what is bad, or what an operator may keep back.
                let given = self.origin.get(&(short, (*name).to_owned()));
                if !self.has_ordered && given.is_none_or(|version| !is_bad(version)) {
                    continue;
                }
                let version = self.version(false);
                if self.by_name {
                    self.proven.insert((short, (*name).to_owned(), version.to_string()));
                }
                self.say(short, &[(*name, Some(version))]);
            }
        }
        for _ in 0..10 {
            self.wait(LONG);
            if self.status().phase == Phase::Idle {
                break;
            }
        }
        // Removed clusters stay until all routes are accepted, and a moment longer.
        for _ in 0..3 {
            self.judge();
            for reader in &mut self.others {
                while reader.poll(&self.fixture, &mut Proven::Of(&self.proven)) {}
            }
            self.wait(LONG);
        }
        self.judge();
        let (others, canaries) = (std::mem::take(&mut self.others), std::mem::take(&mut self.canaries));
        for mut reader in others.into_iter().chain(canaries) {
            while reader.poll(&self.fixture, &mut Proven::Of(&self.proven)) {}
            let status = self.status();
            assert_eq!(reader.held, self.origin, "{} {:?} {status:?}", reader.id, reader.protocol);
        }
        assert_eq!(self.stable(), self.origin);
        assert_eq!(self.status().phase, Phase::Idle);
    }
}

#[test]
fn no_bad_change_reaches_the_fleet_and_every_good_one_does_in_the_end() {
    harness::play::<World>();
    harness::play_kept::<World>(&[(5077, "a removal beside bad content was suspect, though unnamed")]);
}
