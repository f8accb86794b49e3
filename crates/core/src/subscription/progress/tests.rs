//! Progress of one client of all clusters, beside its session.

use bytes::BytesMut;

use super::*;
use crate::cache::{Cache, Change, Completeness, Limits, Op, Protocol, Resend, View, Writer};
use crate::proto::{DeltaDiscoveryRequest, Node, Status};
use crate::resource::{Envelope, Kind, wire};
use crate::subscription::{NextStep, Outgoing, RequestKind, Session, SessionConfig, Upstream};

/// A client of all clusters, its progress, and the one that writes.
struct World {
    writer: Writer,
    session: Session,
    progress: Option<TypeProgress>,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self::of(&["*"])
    }

    /// A client of these clusters.
    fn of(names: &[&str]) -> Self {
        Self::returning(names, &[])
    }

    /// A client of these clusters that comes with these versions of some.
    fn returning(names: &[&str], held: &[(&str, &str)]) -> Self {
        let (cache, writer) = Cache::new(Limits::default());
        let (rules, now) = (Arc::new(SessionConfig::default()), Instant::now());
        let session = Session::new(cache, rules, Protocol::Delta, None, now);
        let mut world = Self { writer, session, progress: None, now };
        let held = held.iter().map(|(name, version)| ((*name).to_owned(), (*version).to_owned()));
        world.request(|request| {
            request.resource_names_subscribe = names.iter().map(|name| (*name).to_owned()).collect();
            request.initial_resource_versions = held.collect();
        });
        world.progress = Some(TypeProgress::new(world.view()));
        world
    }

    fn view(&self) -> &StreamType {
        &self.session.types()[0]
    }

    fn progress(&self) -> &TypeProgress {
        self.progress.as_ref().unwrap()
    }

    fn state(&self) -> ClientState {
        self.progress().state(&Withheld::default())
    }

    fn request(&mut self, fill: impl FnOnce(&mut DeltaDiscoveryRequest)) {
        let type_url = TypeUrl::from(Kind::Cluster).as_str().to_owned();
        let mut request =
            DeltaDiscoveryRequest { node: Some(Node::default()), type_url, ..Default::default() };
        fill(&mut request);
        self.session.on_delta_request(request, Default::default(), self.now).unwrap();
    }

    fn set(&mut self, names: &[&str], version: &str) {
        self.set_of(names, version, Completeness::Complete);
    }

    /// Sets clusters, of which so much is known.
    fn set_of(&mut self, names: &[&str], version: &str, known: Completeness) {
        let type_url = TypeUrl::from(Kind::Cluster);
        let op = |name: &&str| {
            let (mut any, mut sent) = (BytesMut::new(), BytesMut::new());
            wire::put_field(&mut any, 1, type_url.as_str().as_bytes());
            wire::put_field(&mut sent, 1, version.as_bytes());
            wire::put_field(&mut sent, 2, &any);
            wire::put_field(&mut sent, 3, name.as_bytes());
            let envelope = Envelope::parse(&sent, &type_url).unwrap();
            let resource = Arc::new(envelope.encode(&type_url, (*name).into()).unwrap());
            Op::Set { view: View::Wildcard, resource, resend: Resend::Answer, lease: None }
        };
        let (ops, system_version) = (names.iter().map(op).collect(), Some(version.into()));
        let change = Change { ops, wildcard_known: Some(known), system_version, ..Change::default() };
        self.writer.apply(&type_url, change, self.now).unwrap();
    }

    /// Has the client sent what there is.
    fn send(&mut self) -> Outgoing {
        self.now += Duration::from_millis(1);
        let NextStep::Send(outgoing) = self.session.next(self.now, Upstream::Answering) else {
            panic!("something to say")
        };
        self.session.on_flushed(self.now);
        let view = &self.session.types()[0];
        self.progress.as_mut().unwrap().sent(view, outgoing.system_version.clone(), self.now);
        outgoing
    }

    fn ack(&mut self, outgoing: &Outgoing) {
        self.now += Duration::from_millis(1);
        self.request(|request| request.response_nonce = outgoing.frame.nonce.to_string());
        let took = self.progress.as_mut().unwrap().acked(self.now);
        assert!(took.is_some_and(|took| took >= Duration::from_millis(1)), "{took:?}");
    }

    /// Answers a response that another has overtaken.
    fn answer_late(&mut self, outgoing: &Outgoing, error: Option<Status>) {
        self.now += Duration::from_millis(1);
        let type_url = TypeUrl::from(Kind::Cluster);
        let request = DeltaDiscoveryRequest {
            type_url: type_url.as_str().to_owned(),
            response_nonce: outgoing.frame.nonce.to_string(),
            error_detail: error.clone(),
            ..Default::default()
        };
        let heard = self.session.on_delta_request(request, Default::default(), self.now).unwrap();
        assert_eq!(heard, RequestKind::Late { type_url, error: error.clone() });
        let progress = self.progress.as_mut().unwrap();
        match error {
            Some(error) => assert!(progress.rejected(&error, "no".into(), true, self.now).is_some()),
            None => progress.acked_late(self.now),
        }
    }

    fn nack(&mut self, outgoing: &Outgoing) {
        self.now += Duration::from_millis(1);
        let error = Status { code: 13, message: "no".to_owned() };
        self.request(|request| {
            request.response_nonce = outgoing.frame.nonce.to_string();
            request.error_detail = Some(error.clone());
        });
        self.progress.as_mut().unwrap().rejected(&error, "no".into(), false, self.now);
    }

    /// Has the client sent what there is, which it accepts.
    fn ack_next(&mut self) {
        let sent = self.send();
        self.ack(&sent);
    }

    /// Has the client sent what there is, which it rejects.
    fn nack_next(&mut self) {
        let sent = self.send();
        self.nack(&sent);
    }

    /// States of these clusters.
    fn states<const N: usize>(&self, names: [&str; N]) -> [&'static str; N] {
        let audience = self.progress().upgrade().unwrap();
        let snapshot = audience.of().snapshot();
        names.map(|name| text(self.progress().resource_state(&audience, &snapshot, &name.into())))
    }
}

const fn text(state: ResourceState<'_>) -> &'static str {
    match state {
        ResourceState::Unknown => "unknown",
        ResourceState::Synced => "synced",
        ResourceState::NotSent => "not sent",
        ResourceState::Stale => "stale",
        ResourceState::Rejected(_) => "rejected",
    }
}

#[test]
fn time_without_an_answer_counts_from_the_oldest_response() {
    let mut world = World::new();
    world.set(&["a"], "17");
    let mut sent = world.send();
    let since = world.now;
    for version in ["18", "19", "20"] {
        assert_eq!(world.progress().unanswered_since(), Some(since));
        world.now += Duration::from_secs(60);
        world.set(&["a"], version);
        sent = world.send();
    }
    world.ack(&sent);
    assert_eq!(world.progress().unanswered_since(), None);
    // A rejection is an answer too.
    world.set(&["a"], "21");
    let sent = world.send();
    assert_eq!(world.progress().unanswered_since(), Some(world.now));
    world.nack(&sent);
    assert_eq!(world.progress().unanswered_since(), None);
    world.set(&["a"], "22");
    world.send();
    assert_eq!(world.progress().unanswered_since(), Some(world.now));
}

#[test]
fn a_client_is_synced_once_it_has_accepted_what_there_is() {
    let mut world = World::new();
    assert_eq!(world.state(), ClientState::Waiting);
    world.set(&["a", "b"], "17");
    assert_eq!(world.states(["a", "b"]), ["not sent"; 2]);
    let sent = world.send();
    assert_eq!(world.state(), ClientState::Unacked);
    assert_eq!(world.progress().unanswered_since(), Some(world.now));
    assert_eq!(world.states(["a", "b"]), ["stale"; 2]);
    assert_eq!(world.progress().newest_acked(), None);
    world.ack(&sent);
    assert_eq!((world.state(), world.progress().lag()), (ClientState::Synced, 0));
    assert_eq!(world.progress().unanswered_since(), None);
    assert_eq!(world.states(["a", "b"]), ["synced"; 2]);
    let acked = world.progress().newest_acked().unwrap();
    assert_eq!((&*acked.version, acked.at), ("17", world.now));

    world.set(&["b"], "18");
    assert_eq!((world.state(), world.progress().lag()), (ClientState::Behind, 1));
    assert_eq!(world.states(["a", "b"]), ["synced", "not sent"]);
    world.send();
    assert_eq!(world.states(["a", "b"]), ["synced", "stale"]);
    assert_eq!(&*world.progress().newest_sent().unwrap().version, "18");
}

/// Evidence that nothing more comes wakes clients of the wildcard, and is news to those alone that wait for it.
#[test]
fn a_client_that_holds_all_there_is_does_not_fall_behind_when_the_set_is_known_to_be_whole() {
    let mut world = World::new();
    let settled = Change { wildcard_known: Some(Completeness::Settled), ..Change::default() };
    world.set(&["a"], "17");
    let cds = TypeUrl::from(Kind::Cluster);
    world.writer.apply(&cds, settled, world.now).unwrap();
    world.ack_next();
    let complete = Change { wildcard_known: Some(Completeness::Complete), ..Change::default() };
    world.writer.apply(&cds, complete.clone(), world.now).unwrap();
    assert!(matches!(world.session.next(world.now, Upstream::Answering), NextStep::Wait(_)));
    world.progress.as_mut().unwrap().refresh(&world.session.types()[0]);
    assert_eq!((world.state(), world.progress().lag()), (ClientState::Synced, 0));
    world.set(&["a"], "18");
    world.writer.apply(&cds, complete, world.now).unwrap();
    assert_eq!(world.state(), ClientState::Behind);
}

/// However many others were rejected and mended since.
#[test]
fn a_rejection_that_stands_is_not_forgotten() {
    let mut world = World::new();
    world.set(&["a", "b", "c"], "1");
    world.ack_next();
    world.set(&["b"], "2");
    world.nack_next();
    for round in 0..10 {
        for (version, answer) in [(10, World::nack as fn(&mut World, &Outgoing)), (11, World::ack)] {
            world.set(&["c"], &(version + 2 * round).to_string());
            let sent = world.send();
            answer(&mut world, &sent);
            assert_eq!(world.state(), ClientState::Rejected);
        }
        assert_eq!(world.states(["a", "b", "c"]), ["synced", "rejected", "synced"]);
        let standing = world.progress().standing_rejection().unwrap();
        assert_eq!(&*standing.delivery.version, "2");
        assert_eq!(world.progress().rejected_names(standing, 8), Some(vec!["b".into()]));
    }
    world.set(&["b"], "4");
    world.ack_next();
    assert_eq!(world.state(), ClientState::Synced);
}

#[test]
fn of_many_rejections_that_stand_none_is_forgotten() {
    let names: Vec<_> = (0..10).map(|number| number.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let all: Vec<_> = names.iter().copied().chain(["good"]).collect();
    let mut world = World::of(&all);
    world.set(&all, "1");
    world.ack_next();
    for (at, name) in names.iter().enumerate() {
        world.set(&[name], "2");
        world.nack_next();
        if at == 0 {
            world.set(&["good"], "2");
            world.ack_next();
        }
    }
    assert_eq!(world.states(["0", "4", "9"]), ["rejected"; 3]);
    assert_eq!(world.states(["good"]), ["synced"], "it was accepted between two of them");
    for (at, name) in names.iter().enumerate().rev() {
        assert_eq!(world.state(), ClientState::Rejected, "{at} are left");
        world.set(&[name], "3");
        let sent = world.send();
        world.ack(&sent);
    }
    assert_eq!(world.state(), ClientState::Synced);
}

/// A slow client is sent the next change after a time. What it says of the one before counts.
#[test]
fn an_answer_that_is_late_is_to_what_it_answers() {
    let error = Status { code: 13, message: "no".to_owned() };
    for (first, second, states) in [
        (Some(&error), None, ["synced", "rejected", "synced"]),
        (None, Some(&error), ["synced", "synced", "rejected"]),
        (None, None, ["synced"; 3]),
        (Some(&error), Some(&error), ["synced", "rejected", "rejected"]),
    ] {
        let mut world = World::new();
        world.set(&["a", "b", "c"], "17");
        world.ack_next();
        world.set(&["b"], "18");
        let slow = world.send();
        world.set(&["c"], "19");
        world.now += std::time::Duration::from_secs(60);
        let newest = world.send();
        assert_eq!(world.states(["a", "b", "c"]), ["synced", "stale", "stale"]);
        world.answer_late(&slow, first.cloned());
        let b = if first.is_some() { "rejected" } else { "synced" };
        assert_eq!(world.states(["a", "b", "c"]), ["synced", b, "stale"]);
        match second {
            Some(_) => world.nack(&newest),
            None => world.ack(&newest),
        }
        assert_eq!(world.states(["a", "b", "c"]), states);
        let is_rejected = first.or(second).is_some();
        assert_eq!(world.state() == ClientState::Rejected, is_rejected);
        if let (Some(_), None) = (first, second) {
            assert_eq!(&*world.progress().newest_rejection().unwrap().delivery.version, "18");
        }
    }
}

/// Its resources stand between those of others in the order of changes.
#[test]
fn a_client_of_few_among_many_stays_rejected() {
    let mut world = World::of(&["x", "y"]);
    let others: Vec<_> = (0..1_000).map(|number| number.to_string()).collect();
    let mut all: Vec<_> = others.iter().map(String::as_str).collect();
    all.extend(["x"]);
    world.set(&all, "17");
    world.nack_next();
    world.set(&["y"], "18");
    world.ack_next();
    assert_eq!(world.states(["x", "y"]), ["rejected", "synced"]);
    assert_eq!(world.state(), ClientState::Rejected);
    world.set(&["x"], "19");
    world.ack_next();
    assert_eq!(world.state(), ClientState::Synced);
}

/// A client of `a` and `b` that accepted both, and rejects a change of `b`.
fn rejecting_b() -> World {
    let mut world = World::of(&["a", "b"]);
    world.set(&["a", "b"], "17");
    world.ack_next();
    world.set(&["b"], "18");
    world.nack_next();
    world
}

fn unsubscribe(world: &mut World, name: &str) {
    world.request(|request| request.resource_names_unsubscribe = vec![name.to_owned()]);
    let view = &world.session.types()[0];
    world.progress.as_mut().unwrap().refresh(view);
}

/// It does not run what it rejected, and does not wait for anything in its place.
#[test]
fn a_client_that_lets_go_of_what_it_rejected_rejects_nothing() {
    let mut world = rejecting_b();
    unsubscribe(&mut world, "a");
    assert_eq!(world.state(), ClientState::Rejected);
    unsubscribe(&mut world, "b");
    assert_eq!(world.state(), ClientState::Synced);

    let mut world = rejecting_b();
    unsubscribe(&mut world, "b");
    assert_eq!(world.state(), ClientState::Synced);

    let mut world = World::of(&["a"]);
    world.set(&["a"], "1");
    world.nack_next();
    unsubscribe(&mut world, "a");
    assert_eq!(world.state(), ClientState::Synced);
}

#[test]
fn a_client_that_lets_go_of_one_of_two_things_that_it_rejected_rejects_the_other() {
    let mut world = rejecting_b();
    world.set(&["a"], "19");
    world.nack_next();
    unsubscribe(&mut world, "a");
    assert_eq!(world.state(), ClientState::Rejected);
    unsubscribe(&mut world, "b");
    assert_eq!(world.state(), ClientState::Synced);
}

#[test]
fn the_first_response_that_is_rejected_names_nothing() {
    let mut world = World::new();
    world.set(&["a"], "1");
    world.nack_next();
    let rejection = world.progress().newest_rejection().unwrap();
    assert_eq!(world.progress().rejected_names(rejection, 8), None);
    assert_eq!(world.states(["a"]), ["rejected"]);
}

#[test]
fn a_client_that_has_gone_leaves_nothing_behind() {
    let mut world = World::new();
    world.set(&["a"], "1");
    world.send();
    drop(world.session.leave());
    assert!(world.progress().upgrade().is_none());
    assert_eq!(world.progress().lag(), 0);
}

/// An addition goes out before a removal that happened with it, and is answered by itself.
#[test]
fn a_rejected_addition_stays_rejected_when_a_removal_follows_it() {
    let mut world = World::new();
    world.set(&["x"], "1");
    let first = world.send();
    world.ack(&first);
    world.request(|request| {
        request.type_url = TypeUrl::from(Kind::Route).as_str().to_owned();
        request.resource_names_subscribe = vec!["r".to_owned()];
    });
    world.set(&["y"], "2");
    let at = world.progress().upgrade().unwrap().of().snapshot().generation();
    let removal = Op::Remove { view: View::Wildcard, name: "x".into() };
    let change = Change { ops: vec![removal], ..Change::default() };
    world.writer.apply(&Kind::Cluster.into(), change, world.now).unwrap();
    let removed_at = at.next();
    let states = |world: &World| {
        let of =
            |name: &str, at, is_removal| match world.progress().change_state(&name.into(), at, is_removal) {
                ResourceState::Synced => "synced",
                ResourceState::Rejected(_) => "rejected",
                ResourceState::NotSent => "not sent",
                ResourceState::Stale | ResourceState::Unknown => "other",
            };
        (of("y", at, false), of("x", removed_at, true))
    };
    let additions = world.send();
    world.nack(&additions);
    assert_eq!(states(&world), ("rejected", "not sent"));
    world.now += std::time::Duration::from_secs(60);
    let removals = world.send();
    world.ack(&removals);
    assert_eq!(states(&world), ("rejected", "synced"));
}

/// A client that came back with what it holds lacks nothing: the relay lacks the word of the control plane.
#[test]
fn a_client_that_came_back_resumes_until_its_versions_are_compared() {
    let mut world = World::returning(&["*"], &[("a", "17")]);
    world.set_of(&["a"], "17", Completeness::Settled);
    assert!(!matches!(world.session.next(world.now, Upstream::Answering), NextStep::Send(_)));
    assert_eq!((world.state(), world.states(["a"])), (ClientState::Resuming, ["unknown"]));
    world.set_of(&[], "17", Completeness::Complete);
    world.ack_next();
    assert_eq!((world.state(), world.states(["a"])), (ClientState::Synced, ["synced"]));
}
