//! How costs of the core grow, without sockets: each row is one operation at several sizes, and its figures should not depend on what is beside it.

#![allow(clippy::expect_used)]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use deltafan::cache::{
    Cache, Change, Completeness, Limits, Membership, Op, Protocol, Resend, StreamProfile, Subscription,
    TtlSupport, View, WakeHandle, Writer,
};
use deltafan::proto;
use deltafan::resource::{Envelope, Kind, Name, Resource, TypeUrl, wire};
use deltafan::subscription::{NextStep, Session, SessionConfig, Upstream};

const TURNS: usize = 50;

fn name(at: usize) -> String {
    format!("resource-{at:06}")
}

/// A resource as an origin sends it.
fn resource(type_url: &TypeUrl, name: &str, version: usize) -> Arc<Resource> {
    let version = version.to_string();
    let mut any = BytesMut::new();
    wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
    wire::put_field(&mut any, 2, &[0x7a; 200]);
    let mut sent = BytesMut::new();
    wire::put_field(&mut sent, 1, version.as_bytes());
    wire::put_field(&mut sent, 2, &any);
    wire::put_field(&mut sent, 3, name.as_bytes());
    let envelope = Envelope::parse(&sent, type_url).expect("a good envelope");
    Arc::new(envelope.encode(type_url, name.into()).expect("it has a body"))
}

fn median(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took[took.len() / 2]
}

fn print(row: &str, figures: &[(usize, Duration)]) {
    let each = |(size, took): &(usize, Duration)| format!("{size}: {:.2}", took.as_nanos() as f64 / 1000.0);
    println!("{row:58} {}", figures.iter().map(each).collect::<Vec<_>>().join(", "));
}

/// One type with one client that accepts everything.
struct Fixture {
    writer: Writer,
    session: Session,
    protocol: Protocol,
    type_url: TypeUrl,
    now: Instant,
}

impl Fixture {
    fn new(protocol: Protocol) -> Self {
        let (cache, writer) = Cache::new(Limits::default());
        let now = Instant::now();
        // It answers nothing, which does not count here.
        let unacked_timeout = Duration::from_secs(1 << 30);
        let rules = SessionConfig { max_names: 1_000_000, unacked_timeout, ..SessionConfig::default() };
        let session = Session::new(cache, Arc::new(rules), protocol, None, now);
        Self { writer, session, protocol, type_url: Kind::Endpoint.into(), now }
    }

    fn set(&self, view: View, at: usize, version: usize) -> Op {
        let resource = resource(&self.type_url, &name(at), version);
        Op::Set { view, resource, resend: Resend::Answer, lease: None }
    }

    fn apply(&mut self, ops: Vec<Op>) {
        let change = Change { ops, wildcard_known: Some(Completeness::Complete), ..Change::default() };
        self.writer.apply(&self.type_url, change, self.now).expect("a type of the protocol");
    }

    fn ask(&mut self, names: Vec<String>) {
        let (node, type_url) = (Some(proto::Node::default()), self.type_url.as_str().to_owned());
        match self.protocol {
            Protocol::Sotw => {
                let request =
                    proto::DiscoveryRequest { node, type_url, resource_names: names, ..Default::default() };
                self.session.on_sotw_request(request, self.now).expect("within the rules");
            }
            Protocol::Delta => {
                let request = proto::DeltaDiscoveryRequest {
                    node,
                    type_url,
                    resource_names_subscribe: names,
                    ..Default::default()
                };
                self.session
                    .on_delta_request(request, Default::default(), self.now)
                    .expect("within the rules");
            }
        }
    }

    /// Until there is nothing left to tell; how long it took to work that out, without the answers to it.
    fn catch_up(&mut self) -> Duration {
        let mut took = Duration::ZERO;
        loop {
            let begin = Instant::now();
            let next = self.session.next(self.now, Upstream::Answering);
            took += begin.elapsed();
            let NextStep::Send(outgoing) = next else { return took };
            black_box(outgoing);
            self.session.on_flushed(self.now);
            // Its gate opens by itself: what an ACK costs is not what is measured.
            self.now += SessionConfig::default().ack_timeout;
        }
    }
}

/// Clients leave that have twenty names in common and one of their own, or the wildcard beside that: a leave, of all.
fn leave(wildcard: bool) {
    let figure = |clients: usize| {
        let (cache, _writer) = Cache::new(Limits::default());
        let of = cache.of(&Kind::Endpoint.into()).expect("a type of the protocol");
        let profile =
            StreamProfile { protocol: Protocol::Delta, aggregated: true, ttl: TtlSupport::Unsupported };
        let wake_handle = Arc::<WakeHandle>::default();
        let join = |client: usize| {
            let common = if wildcard { 0 } else { 20 };
            let names = (0..common).chain([100 + client]).map(|at| Name::from(name(at)));
            of.join(Subscription::new(wildcard, names), profile, &wake_handle)
        };
        let members: Vec<Membership> = (0..clients).map(join).collect();
        let begin = Instant::now();
        // The newest first, or in any other order: the oldest first is what costs a list the least.
        members.into_iter().rev().for_each(drop);
        (clients, begin.elapsed() / clients as u32)
    };
    let row = if wildcard { "a leave, all ask for the wildcard" } else { "a leave, 20 names in common" };
    print(&format!("{row} (us by clients)"), &[2_500, 10_000, 40_000].map(figure));
}

/// One name of many changes.
fn change(protocol: Protocol, forgets: bool) {
    let figure = |names: usize| {
        let mut fixture = Fixture::new(protocol);
        fixture.ask((0..names).map(name).collect());
        let all = (0..names).map(|at| fixture.set(View::Named, at, 0)).collect();
        fixture.apply(all);
        fixture.catch_up();
        let took = (1..=TURNS).map(|turn| {
            if forgets {
                let other = vec![fixture.set(View::Named, names + turn, 0)];
                fixture.apply(other);
                let name = name(names + turn).into();
                fixture.apply(vec![Op::Forget { view: View::Named, name }]);
            }
            let one = vec![fixture.set(View::Named, turn * 7919 % names, turn)];
            fixture.apply(one);
            fixture.catch_up()
        });
        (names, median(took.collect()))
    };
    let row = match (protocol, forgets) {
        (Protocol::Sotw, _) => "an update, state of the world",
        (Protocol::Delta, false) => "an update, delta",
        (Protocol::Delta, true) => "an update, delta, another name is forgotten",
    };
    print(&format!("{row} (us by names of the client)"), &[1_000, 10_000, 80_000].map(figure));
}

/// A client is behind by so many entries, which it is told in parts: what each entry costs.
fn catch_up(view: View) {
    let figure = |stale: usize| {
        let mut fixture = Fixture::new(Protocol::Delta);
        fixture.ask(match view {
            View::Wildcard => vec!["*".to_owned()],
            View::Named => (0..stale).map(name).collect(),
        });
        for version in 0..2 {
            let all = (0..stale).map(|at| fixture.set(view, at, version)).collect();
            fixture.apply(all);
            if version == 0 {
                fixture.catch_up();
            }
        }
        // By its names only where the log is the longer list.
        let more = (0..stale).map(|at| fixture.set(View::Wildcard, stale + at, 0)).collect();
        if view == View::Named {
            fixture.apply(more);
        }
        let took = fixture.catch_up();
        (stale, took / stale as u32)
    };
    let row = match view {
        View::Wildcard => "an entry, wildcard, in parts",
        View::Named => "an entry, by name, in parts",
    };
    print(&format!("{row} (us by entries that are stale)"), &[12_500, 50_000, 200_000].map(figure));
}

fn main() {
    leave(false);
    leave(true);
    change(Protocol::Sotw, false);
    change(Protocol::Delta, false);
    change(Protocol::Delta, true);
    catch_up(View::Wildcard);
    catch_up(View::Named);
}
