//! What a client may not do for ever.

use std::time::Duration;

use deltafan::cache::Protocol;
use deltafan::subscription::{Bound, Code, Next};
use proptest::prelude::*;

use super::support::{Bed, Client};

const TIMEOUT: Duration = Duration::from_secs(600);

fn is_closed(client: &mut Client, bed: &Bed) -> bool {
    match client.next(bed) {
        Next::Close(refusal) => {
            assert_eq!((refusal.code, refusal.bound), (Code::ResourceExhausted, Some(Bound::Unacked)));
            true
        }
        Next::Say(_) | Next::Wait(_) => false,
    }
}

/// A client that was told `a` and has not answered.
fn told(bed: &mut Bed, protocol: Protocol) -> Client {
    bed.rules.unacked_timeout = TIMEOUT;
    bed.origin("cds a:1");
    let mut client = bed.client(protocol, None);
    client.ask_or_change(bed, "cds", "*");
    assert_eq!(client.told(bed), ["cds a:1"]);
    client
}

#[test]
fn r_relay_22_a_client_that_answers_nothing_is_closed_however_much_it_is_told() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut bed = Bed::knowing(&["cds"]);
        let mut client = told(&mut bed, protocol);
        for version in 2..=10 {
            bed.after(TIMEOUT / 10);
            bed.origin(&format!("cds a:{version}"));
            assert_eq!(client.told(&bed).len(), 1, "its gate opens by itself");
        }
        bed.after(TIMEOUT / 10 - Duration::from_millis(1));
        assert!(!is_closed(&mut client, &bed));
        bed.after(Duration::from_millis(1));
        assert!(is_closed(&mut client, &bed));
    }
}

#[test]
fn r_relay_22_any_answer_gives_it_time_and_an_ack_all_of_it() {
    for protocol in [Protocol::Sotw, Protocol::Delta] {
        let mut bed = Bed::knowing(&["cds"]);
        let mut client = told(&mut bed, protocol);
        let first = client.newest("cds").clone();
        bed.after(TIMEOUT / 2);
        bed.origin("cds a:2");
        let second = client.poll(&bed).unwrap();
        bed.after(TIMEOUT / 2 - Duration::from_secs(1));
        // Of the one before: it is slow, but it is there.
        client.ack(&bed, &first, &[]);
        bed.after(TIMEOUT - Duration::from_secs(1));
        assert!(!is_closed(&mut client, &bed));
        client.nack(&bed, &second, &[]);
        bed.after(10 * TIMEOUT);
        assert!(!is_closed(&mut client, &bed), "nothing is owed");
    }
}

#[test]
fn r_relay_22_who_lets_go_of_all_owes_no_answer() {
    let mut bed = Bed::knowing(&["cds"]);
    let mut client = told(&mut bed, Protocol::Delta);
    client.change(&bed, "cds", "-*");
    bed.after(2 * TIMEOUT);
    assert!(!is_closed(&mut client, &bed));
}

#[test]
fn r_relay_22_what_the_transport_has_not_taken_need_not_be_answered() {
    let mut bed = Bed::knowing(&["cds"]);
    bed.rules.unacked_timeout = TIMEOUT;
    bed.origin("cds a:1");
    let mut client = bed.delta();
    client.change(&bed, "cds", "*");
    assert!(matches!(client.next(&bed), Next::Say(_)));
    bed.after(2 * TIMEOUT);
    assert!(!is_closed(&mut client, &bed), "that is the transport's fault, which ends by itself");
    client.session.taken(bed.now);
    bed.after(TIMEOUT);
    assert!(is_closed(&mut client, &bed));
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Change,
    Wait(u64),
    Ack,
    Nack,
    AckFirst,
    Repeat,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Change),
        4 => (1_u64..400).prop_map(Step::Wait),
        1 => Just(Step::Ack),
        1 => Just(Step::Nack),
        1 => Just(Step::AckFirst),
        1 => Just(Step::Repeat),
    ]
}

proptest! {
    /// Whatever happens, a stream is closed when its client has answered nothing for so long, and not before.
    #[test]
    fn r_relay_22_a_stream_is_closed_for_want_of_answers_exactly_when_there_are_none(
        steps in prop::collection::vec(any_step(), 0..60),
        is_delta: bool,
    ) {
        let protocol = if is_delta { Protocol::Delta } else { Protocol::Sotw };
        let mut bed = Bed::knowing(&["cds"]);
        let mut client = told(&mut bed, protocol);
        let first = client.newest("cds").clone();
        let (mut newest, mut since, mut version) = (first.clone(), Some(bed.now), 1);
        for step in steps {
            match step {
                Step::Change => {
                    version += 1;
                    bed.origin(&format!("cds a:{version}"));
                }
                Step::Wait(seconds) => bed.after(Duration::from_secs(seconds)),
                Step::Ack => {
                    client.ack(&bed, &newest, &[]);
                    since = None;
                }
                Step::Nack => {
                    client.nack(&bed, &newest, &[]);
                    since = None;
                }
                Step::AckFirst => {
                    client.ack(&bed, &first, &[]);
                    since = since.filter(|_| newest.nonce != first.nonce).map(|_| bed.now);
                }
                // What a client asks for again is no answer, and moves nothing.
                Step::Repeat if is_delta => drop(client.change(&bed, "cds", "-x")),
                Step::Repeat => {}
            }
            let due = since.is_some_and(|since| bed.now >= since + TIMEOUT);
            if due {
                prop_assert!(is_closed(&mut client, &bed));
                break;
            }
            while let Some(next) = client.poll(&bed) {
                newest = next;
                since.get_or_insert(bed.now);
            }
        }
    }
}
