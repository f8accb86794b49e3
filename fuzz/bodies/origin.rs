//! An origin that says anything at all: nothing panics, what it causes is bounded, and what was not subscribed to is not
//! kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use deltafan::cache::{
    Cache, Claim, ClientScope, Limits, Membership, Protocol, StreamProfile, Subscription, TtlSupport,
    WakeHandle,
};
use deltafan::proto::{DeltaDiscoveryResponse, ResourceError, ResourceName, Status};
use deltafan::resource::{Constraints, Kind, Name, Parameters, TypeUrl, wire};
use deltafan::upstream::{Locators, Mux, Settings, StreamId};
use prost::Message as _;

use super::input::Input;

const TYPES: [Kind; 4] = [Kind::Cluster, Kind::Endpoint, Kind::Route, Kind::Secret];
const NAMES: [&str; 8] =
    ["a", "b", "vh/one", "vh/two", "xdstp://x/t/f/a", "xdstp://x/t/f/*", "xdstp://x/t/%66/b#d", "*"];
const VERSIONS: [&str; 4] = ["1", "2", "3", ""];
/// Encoded constraints: `exists(k)`, `k = "v"`, `not exists(k)`, such as are not understood.
const CONSTRAINTS: [&[u8]; 4] = [
    b"\x0a\x05\x0a\x01k\x1a\x00",
    b"\x0a\x06\x0a\x01k\x12\x01v",
    b"\x22\x07\x0a\x05\x0a\x01k\x1a\x00",
    b"\x2a\x00",
];

/// How it is asked, who asks for what, then what it says and what else happens.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World::new(&mut input);
    for _ in 0..3 {
        world.join(&mut input);
    }
    world.requests();
    for _ in 0..100 {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.requests();
        world.keeps_only_what_is_wanted();
    }
    // Once nobody wants anything, nothing is left.
    world.clients.clear();
    world.look();
    for _ in 0..10 {
        world.pass(Duration::from_secs(200));
        world.requests();
    }
    if world.open[0] {
        let held = |of: &Arc<deltafan::cache::TypeCache>| of.snapshot().member_count();
        assert!(world.cache.types().iter().all(|of| held(of) == 0));
        assert_eq!(world.mux.next_deadline(), None, "nothing is left to be done");
    }
}

struct World {
    cache: Arc<Cache>,
    mux: Mux,
    now: Instant,
    clients: Vec<Membership>,
    open: [bool; 2],
}

impl World {
    fn new(input: &mut Input<'_>) -> Self {
        let limits = Limits { encoded_bytes: 0, tombstones: 3, ..Limits::default() };
        let (cache, writer) = Cache::new(limits);
        let settings = Settings {
            locators: if input.flag() { Locators::Plain } else { Locators::Native },
            ..Settings::default()
        };
        let mut mux = Mux::new(writer, settings);
        let now = Instant::now();
        mux.opened(StreamId::Primary, now);
        Self { cache, mux, now, clients: Vec::new(), open: [true, false] }
    }

    /// A client comes, or takes the place of another.
    fn join(&mut self, input: &mut Input<'_>) {
        let type_url = TypeUrl::from(*input.pick(&TYPES));
        let names: Vec<&str> = input.some(&NAMES).copied().collect();
        let parameters: Parameters =
            if input.flag() { [("k", "v")].into_iter().collect() } else { Parameters::NONE };
        let plain = names.iter().filter(|name| **name != "*").map(|name| Name::from(*name));
        let subscription = Subscription::new(names.contains(&"*"), plain);
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let parameter_view =
            subscription.parameter_view(&ClientScope { given: parameters, ..ClientScope::default() });
        let of = self.cache.claim_store(Claim::ANYBODY, &type_url, &parameter_view).expect("there is room");
        let joined = of.join(subscription, profile, &Arc::new(WakeHandle::default()));
        self.clients.push(joined);
        if self.clients.len() > 4 {
            self.clients.remove(0);
        }
        self.look();
    }

    fn look(&mut self) {
        let interest = self.cache.take_interest();
        self.mux.interest(interest, self.now);
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0..=3 => {
                let response = response(input).encode_to_vec();
                self.hear(input, response);
            }
            4 => {
                let response = input.piece().to_vec();
                self.hear(input, response);
            }
            5 => self.pass(Duration::from_millis(1 << (input.byte() % 18))),
            6 => self.join(input),
            _ => {
                let stream = *input.pick(&StreamId::ALL);
                if self.open[stream as usize] {
                    self.mux.closed(stream);
                    self.open[stream as usize] = false;
                    self.open[1] &= self.open[0];
                } else if stream == StreamId::Primary || self.open[0] && self.mux.wants_secondary() {
                    self.mux.opened(stream, self.now);
                    self.open[stream as usize] = true;
                }
            }
        }
    }

    fn hear(&mut self, input: &mut Input<'_>, response: Vec<u8>) {
        let stream = if self.open[1] { *input.pick(&StreamId::ALL) } else { StreamId::Primary };
        if self.open[stream as usize] && self.mux.on_message(stream, response.into(), self.now).is_err() {
            self.mux.closed(stream);
            self.open[stream as usize] = false;
            self.open[1] &= self.open[0];
        }
    }

    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        for _ in 0..10_000 {
            let Some(at) = self.mux.next_deadline().filter(|at| *at <= end) else {
                self.now = end;
                self.mux.on_deadline(end);
                return;
            };
            self.now = self.now.max(at);
            self.mux.on_deadline(self.now);
            if self.mux.begin_inquiry(self.now).is_some() {
                self.mux.inquiry_refused(self.now);
            }
            while let Some(stream) = self.mux.renewal_due(self.now) {
                self.mux.closed(stream);
                let reopens = stream == StreamId::Primary || self.mux.wants_secondary();
                self.open[stream as usize] = reopens;
                self.open[1] &= stream != StreamId::Primary;
                if reopens {
                    self.mux.opened(stream, self.now);
                }
            }
        }
        panic!("there is always something due");
    }

    fn requests(&mut self) {
        for stream in StreamId::ALL {
            for said in 0.. {
                assert!(said < 1000, "there is always something more to ask");
                let Some(request) = self.mux.next_request(stream, self.now) else { break };
                assert!(self.open[stream as usize]);
                assert!(!request.type_url.is_empty());
                assert!(request.error_detail.is_none_or(|error| error.message.len() < 10_000));
            }
        }
    }

    /// Members are kept of types whose wildcard is, or lately was, wanted; other names only if they are.
    fn keeps_only_what_is_wanted(&self) {
        for of in self.cache.types() {
            let snapshot = of.snapshot();
            let names = snapshot.entries().count();
            assert!(names <= 4 * NAMES.len() + 300, "{names} names of {}", of.type_url());
        }
    }
}

fn response(input: &mut Input<'_>) -> DeltaDiscoveryResponse {
    let type_url = TypeUrl::from(*input.pick(&TYPES));
    let mut response = DeltaDiscoveryResponse {
        type_url: type_url.as_str().to_owned(),
        nonce: input.byte().to_string(),
        ..DeltaDiscoveryResponse::default()
    };
    let parts = input.byte() % 6;
    for _ in 0..parts {
        let (form, name) = (input.byte(), *input.pick(&NAMES));
        let constraints = || CONSTRAINTS[usize::from(form >> 4) % CONSTRAINTS.len()];
        let named = |constraints: &'static [u8]| ResourceName {
            name: name.to_owned(),
            dynamic_parameter_constraints: constraints.into(),
        };
        match form % 16 {
            0 => response.removed_resources.push(name.to_owned()),
            1 => response.removed_resource_names.push(named(constraints())),
            2 => response.resource_errors.push(ResourceError {
                resource_name: Some(named(if form > 127 { constraints() } else { &[] })),
                error_detail: Some(Status { code: i32::from(input.byte() % 17), message: "no".to_owned() }),
            }),
            3 => response.resources.push(input.piece().to_vec().into()),
            form => response.resources.push(resource(input, &type_url, name, form, constraints()).into()),
        }
    }
    response
}

/// A resource; the bits of its form say what it has beside a name and a version.
fn resource(input: &mut Input<'_>, type_url: &TypeUrl, name: &str, form: u8, constraints: &[u8]) -> BytesMut {
    let (mut out, mut any) = (BytesMut::new(), BytesMut::new());
    wire::put_field(&mut out, 1, input.pick(&VERSIONS).as_bytes());
    wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
    wire::put_field(&mut any, 2, &[0x0a, 1, input.byte()]);
    if form & 1 == 0 {
        wire::put_field(&mut out, 2, &any);
    }
    if form & 2 == 0 {
        wire::put_field(&mut out, 3, name.as_bytes());
    } else {
        let mut named = BytesMut::new();
        wire::put_field(&mut named, 1, name.as_bytes());
        if Constraints::parse(constraints).is_ok() || input.flag() {
            wire::put_field(&mut named, 2, constraints);
        }
        wire::put_field(&mut out, 8, &named);
    }
    if form & 4 == 4 {
        wire::put_field(&mut out, 4, input.pick(&NAMES).as_bytes());
    }
    if form & 8 == 8 {
        // A TTL, or that it is not to be kept.
        let seconds = input.byte() % 32;
        wire::put_field(&mut out, if seconds == 0 { 7 } else { 6 }, &[8, seconds.max(1)]);
    }
    out
}
