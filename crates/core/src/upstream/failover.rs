//! Choice among several servers, in order of preference (R-Up-08).
//!
//! Owns which server is used, and when to change. Knows no connections. With one server it decides
//! nothing.
//!
//! - A server is silent without a connection, while its streams fail, and while nothing has come on
//!   the connection though something was asked for.
//! - After [`after`](FailoverTimes::after) of silence the next server is used, and after the last
//!   the first. A more preferred server that answers its probe goes before. A connection opened
//!   late has half of that time to answer.
//! - A more preferred server that answers its probe for
//!   [`return_after`](FailoverTimes::return_after) is used again.
//! - If no server answers, the time of connected servers doubles with each round, up to 8 times:
//!   each change asks for everything anew.
//! - A relay that is cut off from its control plane counts as silent once any control plane has answered
//!   at first hand: its resources may be older than those held. If all are cut off, the time
//!   doubles up to 64 times.
//! - An empty relay may fill itself from a relay that is cut off.
//!
//! Example: servers A, B and C; A is lost at 0 s. B is used from 10 s on. A answers its probe from
//! 60 s on, and is used from 90 s on.

use std::time::{Duration, Instant};

use super::quiet_clock::{QuietClock, QuietInstant};

/// Times of a choice among servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailoverTimes {
    /// Silence after which the next server is used.
    pub after: Duration,
    /// Time for which a more preferred server must answer before it is used again.
    pub return_after: Duration,
}

impl Default for FailoverTimes {
    fn default() -> Self {
        Self { after: Duration::from_secs(10), return_after: Duration::from_secs(30) }
    }
}

/// Condition of the server in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerCondition {
    /// No connection, or no stream on it.
    Away,
    /// Connected, something requested, nothing received.
    Silent,
    /// Connected, nothing requested.
    Idle,
    /// Responses have come on the connection.
    Answers {
        /// Whether they are those of a live control plane, and not of a relay that is cut off or
        /// unknown.
        first_hand: bool,
    },
    /// A relay that is cut off from its own control plane.
    CutOff,
}

/// Change to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The server in use was silent for too long.
    Next {
        /// Number of the server to use.
        to: usize,
        /// Time without an answer.
        silent_for: Duration,
    },
    /// A more preferred server answers again.
    Back {
        /// Number of the server to use.
        to: usize,
    },
}

impl Change {
    /// Number of the server to use.
    pub const fn to(self) -> usize {
        match self {
            Self::Next { to, .. } | Self::Back { to } => to,
        }
    }
}

/// Choice among servers, by their numbers in the list.
#[derive(Debug)]
pub struct Failover {
    times: FailoverTimes,
    servers: usize,
    active: usize,
    condition: ServerCondition,
    silent_since: Option<QuietInstant>,
    /// Start of the present condition.
    steady_since: Option<QuietInstant>,
    /// Start of the answers of each server to its probes. Only more preferred ones are probed.
    answering: Vec<Option<QuietInstant>>,
    /// Changes to a next server since the last answer.
    vain: u32,
    /// Whether a control plane ever answered at first hand.
    first_hand: bool,
    /// Time of the last response that came through this relay.
    looped_at: Option<QuietInstant>,
    clock: QuietClock,
}

/// Doublings of the time of silent servers, and of relays that are cut off.
const SILENT_DOUBLINGS: u32 = 3;
const CUT_OFF_DOUBLINGS: u32 = 6;

impl Failover {
    /// Creates the choice among this many servers. The first one is in use.
    pub fn new(servers: usize, times: FailoverTimes) -> Self {
        Self {
            times,
            servers,
            active: 0,
            condition: ServerCondition::Away,
            silent_since: None,
            steady_since: None,
            answering: vec![None; servers],
            vain: 0,
            first_hand: false,
            looped_at: None,
            clock: QuietClock::default(),
        }
    }

    /// Number of the server in use.
    pub const fn active(&self) -> usize {
        self.active
    }

    /// Silence after which the next server is used.
    pub const fn after(&self) -> Duration {
        self.times.after
    }

    /// Whether there are several servers.
    pub const fn has_choice(&self) -> bool {
        self.servers > 1
    }

    /// Whether responses of a relay that is cut off are ignored, since a control plane was received at
    /// first hand. A single server is never ignored.
    pub const fn passes_over_cut_off(&self) -> bool {
        self.first_hand && self.has_choice()
    }

    /// Evaluates the condition of the server in use. Returns the change that is due.
    pub fn look(&mut self, condition: ServerCondition, now: Instant) -> Option<Change> {
        if !self.has_choice() {
            return None;
        }
        let now = self.clock.at(now);
        self.see(condition, now);
        let change = self.back(now).or_else(|| self.next(now));
        if let Some(change) = change {
            self.change(change);
        }
        change
    }

    fn see(&mut self, condition: ServerCondition, now: QuietInstant) {
        let is_loop = self.looped_at.is_some_and(|at| now < at + self.times.after);
        let condition = match condition {
            ServerCondition::Answers { .. } | ServerCondition::Idle if is_loop => ServerCondition::Away,
            ServerCondition::CutOff if !self.first_hand => ServerCondition::Answers { first_hand: false },
            condition => condition,
        };
        let before = std::mem::replace(&mut self.condition, condition);
        if std::mem::discriminant(&before) != std::mem::discriminant(&condition) {
            self.steady_since = None;
        }
        let steady_since = *self.steady_since.get_or_insert(now);
        let is_steady = now >= steady_since + self.times.after;
        match condition {
            ServerCondition::Answers { first_hand } => {
                self.first_hand |= first_hand;
                self.silent_since = None;
                // A relay may say only after its first response that it is cut off.
                if first_hand || is_steady {
                    self.vain = 0;
                }
            }
            // A server that accepts connections and closes them is idle for moments.
            ServerCondition::Idle if is_steady => self.silent_since = None,
            ServerCondition::Idle => {}
            ServerCondition::Away | ServerCondition::CutOff | ServerCondition::Silent => {
                self.silent_since.get_or_insert(now);
            }
        }
    }

    /// Notes a response that came through this relay itself (R-Relay-24). The server counts as
    /// silent for [`after`](FailoverTimes::after).
    pub fn looped(&mut self, now: Instant) {
        self.looped_at = Some(self.clock.at(now));
    }

    /// Notes that resources of an earlier process are held. A relay that is cut off may have older
    /// ones.
    pub const fn restored(&mut self) {
        self.first_hand = true;
    }

    /// Notes whether a more preferred server answers its probe.
    pub fn probed(&mut self, server: usize, answers: bool, now: Instant) {
        if server >= self.active {
            return;
        }
        match answers {
            true => _ = self.answering[server].get_or_insert_with(|| self.clock.at(now)),
            false => self.answering[server] = None,
        }
    }

    /// Excludes time from silence: a pause of the process, or a transfer under way.
    pub fn excuse(&mut self, time: Duration) {
        self.clock.excuse(time);
    }

    /// Time of the next change if nothing happens before.
    pub fn deadline(&self) -> Option<Instant> {
        let backs = self.answering.iter().flatten().map(|since| *since + self.times.return_after);
        self.next_at().into_iter().chain(backs).min().map(|at| self.clock.when(at))
    }

    fn next_at(&self) -> Option<QuietInstant> {
        let since = self.silent_since?;
        let rounds = self.vain / u32::try_from(self.servers).unwrap_or(u32::MAX).max(1);
        let grown = |doublings: u32| self.times.after.saturating_mul(1 << rounds.min(doublings));
        match self.condition {
            ServerCondition::Answers { .. } | ServerCondition::Idle => None,
            ServerCondition::Away => Some(since + self.times.after),
            ServerCondition::Silent => {
                let asked = self.steady_since? + self.times.after / 2;
                Some((since + grown(SILENT_DOUBLINGS)).max(asked))
            }
            ServerCondition::CutOff => Some(since + grown(CUT_OFF_DOUBLINGS)),
        }
    }

    fn back(&self, now: QuietInstant) -> Option<Change> {
        let is_due =
            |since: &Option<QuietInstant>| since.is_some_and(|since| since + self.times.return_after <= now);
        self.answering.iter().position(is_due).map(|to| Change::Back { to })
    }

    fn next(&self, now: QuietInstant) -> Option<Change> {
        let silent_for = now.since(self.silent_since?);
        if self.next_at()? > now {
            return None;
        }
        let answering = self.answering.iter().position(Option::is_some);
        Some(match answering {
            Some(to) => Change::Back { to },
            None => Change::Next { to: (self.active + 1) % self.servers, silent_for },
        })
    }

    fn change(&mut self, change: Change) {
        self.active = change.to();
        self.condition = ServerCondition::Away;
        (self.silent_since, self.steady_since) = (None, None);
        self.looped_at = None;
        self.answering[self.active..].fill(None);
        if matches!(change, Change::Next { .. }) {
            self.vain = self.vain.saturating_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three servers by default, looked at as a shell does: whenever it is due.
    struct Fixture {
        failover: Failover,
        start: Instant,
        now: Instant,
        condition: ServerCondition,
    }

    impl Fixture {
        fn new(servers: usize) -> Self {
            let start = Instant::now();
            let failover = Failover::new(servers, FailoverTimes::default());
            Self { failover, start, now: start, condition: ServerCondition::Away }
        }

        fn see(&mut self, condition: ServerCondition) -> Option<Change> {
            self.condition = condition;
            self.failover.look(condition, self.now)
        }

        /// Lets time pass; returns the changes with the second of each.
        fn pass(&mut self, seconds: u64) -> Vec<(u64, Change)> {
            let end = self.now + Duration::from_secs(seconds);
            let mut changes = Vec::new();
            let mut looks = 0;
            while let Some(at) = self.failover.deadline().filter(|at| *at <= end) {
                looks += 1;
                assert!(looks < 10_000, "always due");
                self.now = self.now.max(at);
                if let Some(change) = self.failover.look(self.condition, self.now) {
                    changes.push(((self.now - self.start).as_secs(), change));
                    self.see(ServerCondition::Away);
                }
            }
            self.now = end;
            changes
        }

        fn probed(&mut self, server: usize, answers: bool) {
            self.failover.probed(server, answers, self.now);
            let change = self.failover.look(self.condition, self.now);
            assert_eq!(change, None, "at once");
        }
    }

    const HEARD: ServerCondition = ServerCondition::Answers { first_hand: true };

    fn next(to: usize, seconds: u64) -> Change {
        Change::Next { to, silent_for: Duration::from_secs(seconds) }
    }

    #[test]
    fn one_server_is_never_left_and_never_looked_at() {
        let mut fixture = Fixture::new(1);
        for condition in [
            ServerCondition::Away,
            ServerCondition::Silent,
            ServerCondition::Idle,
            HEARD,
            ServerCondition::CutOff,
        ] {
            assert_eq!(fixture.see(condition), None);
            assert_eq!(fixture.failover.deadline(), None);
        }
        assert!(fixture.pass(1_000).is_empty());
    }

    #[test]
    fn r_up_08_a_server_that_is_away_is_left_after_a_while_and_the_first_one_comes_after_the_last() {
        let mut fixture = Fixture::new(3);
        fixture.see(ServerCondition::Away);
        assert_eq!(fixture.pass(35), [(10, next(1, 10)), (20, next(2, 10)), (30, next(0, 10))]);
    }

    #[test]
    fn r_up_08_a_server_that_is_connected_and_silent_is_left_and_one_that_is_asked_nothing_is_not() {
        let mut fixture = Fixture::new(2);
        fixture.see(ServerCondition::Idle);
        assert!(fixture.pass(100).is_empty());
        fixture.see(ServerCondition::Silent);
        assert_eq!(fixture.pass(12), [(110, next(1, 10))]);
        // An answer ends it.
        fixture.see(ServerCondition::Silent);
        fixture.pass(9);
        fixture.see(HEARD);
        assert!(fixture.pass(1_000).is_empty());
    }

    #[test]
    fn a_server_that_comes_back_late_has_time_to_answer() {
        let mut fixture = Fixture::new(2);
        fixture.see(ServerCondition::Away);
        fixture.pass(9);
        fixture.see(ServerCondition::Silent);
        assert!(fixture.pass(4).is_empty(), "it was asked 4 s ago");
        fixture.see(HEARD);
        assert!(fixture.pass(60).is_empty());
    }

    #[test]
    fn a_server_that_takes_connections_and_ends_them_is_left() {
        for condition in [ServerCondition::Idle, ServerCondition::Silent] {
            let mut fixture = Fixture::new(2);
            let mut changes = Vec::new();
            for _ in 0..6 {
                changes.extend(fixture.see(ServerCondition::Away));
                changes.extend(fixture.pass(1).into_iter().map(|(_, change)| change));
                changes.extend(fixture.see(condition));
                changes.extend(fixture.pass(1).into_iter().map(|(_, change)| change));
            }
            assert!(matches!(changes[..], [Change::Next { to: 1, .. }]), "{changes:?}");
        }
    }

    #[test]
    fn r_up_08_a_more_preferred_server_is_used_again_once_it_has_answered_for_a_while() {
        let mut fixture = Fixture::new(3);
        fixture.see(ServerCondition::Away);
        assert_eq!(fixture.pass(21).len(), 2);
        fixture.see(HEARD);
        fixture.probed(1, true);
        fixture.pass(10);
        fixture.probed(0, true);
        fixture.pass(10);
        // The second one fails for a moment; the first one is due before it.
        fixture.probed(1, false);
        fixture.probed(1, true);
        assert_eq!(fixture.pass(21), [(61, Change::Back { to: 0 })]);
        assert_eq!(fixture.failover.active(), 0);
        fixture.see(HEARD);
        assert_eq!(fixture.failover.deadline(), None, "nothing is measured while the first one answers");
    }

    #[test]
    fn a_preferred_server_that_answers_goes_before_the_next_one() {
        let mut fixture = Fixture::new(3);
        fixture.see(ServerCondition::Away);
        fixture.pass(11);
        fixture.pass(5);
        fixture.probed(0, true);
        assert_eq!(fixture.pass(10), [(20, Change::Back { to: 0 })]);
    }

    #[test]
    fn a_pause_of_the_process_and_a_response_on_its_way_are_no_silence_and_no_answer() {
        let mut fixture = Fixture::new(2);
        let pause = Duration::from_secs(3_600);
        fixture.see(ServerCondition::Silent);
        fixture.pass(5);
        fixture.now += pause;
        fixture.failover.excuse(pause);
        assert_eq!(fixture.see(fixture.condition), None);
        assert_eq!(fixture.pass(7), [(3_610, next(1, 10))]);
        fixture.see(HEARD);
        fixture.probed(0, true);
        fixture.pass(10);
        fixture.now += pause;
        fixture.failover.excuse(pause);
        assert_eq!(fixture.see(fixture.condition), None, "the first one answered for 10 s");
        assert!(fixture.pass(15).is_empty());
        assert_eq!(fixture.pass(10).len(), 1);
    }

    #[test]
    fn servers_that_are_all_silent_are_changed_ever_more_seldom() {
        let mut fixture = Fixture::new(2);
        let mut changes = Vec::new();
        for second in 0..600 {
            fixture.see(ServerCondition::Silent);
            if !fixture.pass(1).is_empty() {
                changes.push(second);
            }
        }
        let waits: Vec<u64> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.last().is_some_and(|last| (79..=82).contains(last)), "{waits:?}");
        assert!(changes.len() <= 12, "{changes:?}");
    }

    #[test]
    fn an_empty_relay_fills_itself_from_one_that_is_cut_off_and_one_that_has_heard_leaves_it() {
        let mut fixture = Fixture::new(2);
        fixture.see(ServerCondition::Away);
        fixture.pass(11);
        fixture.see(ServerCondition::CutOff);
        assert!(!fixture.failover.passes_over_cut_off());
        assert!(fixture.pass(1_000).is_empty(), "there is nothing better");
        fixture.see(ServerCondition::Answers { first_hand: false });
        fixture.see(ServerCondition::CutOff);
        assert!(fixture.pass(100).is_empty(), "its word on its control plane came after its first response");
        fixture.see(HEARD);
        fixture.see(ServerCondition::CutOff);
        assert!(fixture.failover.passes_over_cut_off());
        assert_eq!(fixture.pass(12).len(), 1);
    }

    #[test]
    fn r_relay_24_a_server_whose_responses_come_round_a_loop_is_left_though_it_answers_between_them() {
        let mut fixture = Fixture::new(2);
        let mut changes = Vec::new();
        for _ in 0..12 {
            changes.extend(fixture.see(HEARD));
            changes.extend(fixture.pass(1).into_iter().map(|(_, change)| change));
            fixture.failover.looped(fixture.now);
            changes.extend(fixture.see(ServerCondition::Away));
        }
        assert!(matches!(changes[..], [Change::Next { to: 1, .. }]), "{changes:?}");
    }

    #[test]
    fn a_relay_that_began_from_its_snapshot_leaves_a_sibling_that_is_cut_off() {
        let mut fixture = Fixture::new(2);
        fixture.failover.restored();
        fixture.see(ServerCondition::CutOff);
        assert_eq!(fixture.pass(12).len(), 1);
    }

    #[test]
    fn relays_that_are_all_cut_off_are_changed_ever_more_seldom() {
        let mut fixture = Fixture::new(2);
        fixture.see(HEARD);
        let mut changes = Vec::new();
        fixture.see(ServerCondition::CutOff);
        for second in 0..4_000 {
            if !fixture.pass(1).is_empty() {
                changes.push(second);
                // The next one answers from its cache, before it says that it is cut off.
                fixture.see(ServerCondition::Answers { first_hand: false });
                fixture.see(ServerCondition::CutOff);
            }
        }
        let waits: Vec<u64> = changes.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.last().is_some_and(|last| *last >= 600), "{waits:?}");
    }
}
