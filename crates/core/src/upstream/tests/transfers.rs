//! Responses on their way: time that is no silence.

use super::*;
use crate::cache::Completeness;

const SECOND: Duration = Duration::from_secs(1);

/// A relay that has heard these members, and a client that may hold more.
fn waiting(version: &str, names: &[&str]) -> Fixture {
    let mut fixture = Fixture::asking("a", CDS, &["*"]);
    fixture.ask_for_proof(CDS);
    let answer = names.iter().fold(Answer::of(CDS, "1"), |answer, name| answer.set(name, version));
    fixture.hear(Primary, &answer);
    fixture.requests(Primary);
    fixture
}

impl Fixture {
    /// Lets one second pass after the other, as the shell does while a response is on its way, until this holds. Returns how many.
    fn transfer(&mut self, seconds: u32, until: impl Fn(&Self) -> bool) -> u32 {
        for second in 0..seconds {
            if until(self) {
                return second;
            }
            self.now += SECOND;
            self.mux.transferred(SECOND, true, self.now);
            self.pass(0);
            self.requests(Primary);
        }
        seconds
    }
}

fn is_complete(fixture: &Fixture) -> bool {
    fixture.snapshot(CDS).completeness() == Completeness::Complete
}

#[test]
fn nothing_is_complete_while_a_response_is_on_its_way() {
    let mut fixture = waiting("", &["c1"]);
    assert_eq!(fixture.transfer(300, is_complete), 300);
    assert!(!fixture.snapshot(CDS).wildcard_known());
    fixture.mux.transferred(Duration::ZERO, false, fixture.now);
    fixture.pass(89_000);
    assert!(!is_complete(&fixture));
    fixture.pass(1_100);
    assert!(is_complete(&fixture));
}

#[test]
fn a_link_that_is_always_full_keeps_nobody_waiting_for_ever() {
    for version in ["", "v1"] {
        let mut fixture = waiting(version, &["c1", "c2"]);
        let seconds = fixture.transfer(1_200, |fixture| fixture.snapshot(CDS).wildcard_known());
        assert!((600..620).contains(&seconds), "known after {seconds} s");
    }
}
