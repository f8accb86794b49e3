//! State of the upstream connection, for observers.
//!
//! Owns the effect of each connection event. Pure, as [`Mux`](super::Mux) is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Refusal, ServerId, Unanswered};
use crate::cache::Protocol;

/// Age of a connection after which silent types no longer hold up relays behind this one.
const SILENT_TYPES: Duration = Duration::from_secs(60);
/// Time in which three losses of a connection or stream make it unsteady.
const UNSTEADY: Duration = Duration::from_secs(300);

/// State of the upstream connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpstreamState {
    /// Whether the connection stands, answered or not.
    pub connected: bool,
    /// Number of the server in use, in the order of preference.
    pub server: usize,
    /// Protocol of the streams on this connection.
    pub protocol: Option<Protocol>,
    /// Whether anything was received on this connection.
    pub answered: bool,
    /// Whether the control plane is a relay that reported, on this connection, to be cut off.
    pub origin_is_cut_off: bool,
    /// Whether that held on the last connection, without a report since: until then answers do not
    /// end staleness.
    awaits_word: bool,
    /// Start of the present connection, or time of its loss.
    pub since: Instant,
    /// Time of the last accepted response, on any connection.
    pub last_answer: Option<Instant>,
    /// Unanswered subscriptions of this connection, at the last evaluation.
    pub unanswered: Unanswered,
    /// Whether there was one. By then a server would have rejected the stream.
    pub looked: bool,
    /// Start of staleness: the connection is lost, or nothing is answered on it.
    pub stale_since: Option<Instant>,
    /// Types with a rejected response that nothing usable has replaced.
    pub refusals: Vec<Refusal>,
    /// Age of restored resources at the start; `None` if there are none.
    pub restored: Option<Duration>,
    /// Server of everything that is held; `None` if there were several, or none yet.
    pub source: Option<ServerId>,
    /// Last error of any server; kept while connected, for operators.
    pub last_error: Option<String>,
    /// Last error of each server, by its number.
    pub errors: BTreeMap<usize, String>,
    /// Times of the last losses, the newest first.
    lost_at: [Option<Instant>; 3],
    started: Instant,
}

impl UpstreamState {
    /// Creates the state before the first attempt to connect.
    pub fn new(now: Instant) -> Self {
        Self {
            connected: false,
            server: 0,
            protocol: None,
            answered: false,
            origin_is_cut_off: false,
            awaits_word: false,
            since: now,
            last_answer: None,
            unanswered: Unanswered::default(),
            looked: false,
            stale_since: Some(now),
            refusals: Vec::new(),
            restored: None,
            source: None,
            last_error: None,
            errors: BTreeMap::new(),
            lost_at: [None; 3],
            started: now,
        }
    }

    /// Notes restored resources of this age.
    pub const fn restored(&mut self, age: Duration) {
        self.restored = Some(age);
    }

    /// Age of the restored resources at the start, until the first answer.
    fn age_at_start(&self) -> Duration {
        self.restored.filter(|_| self.last_answer.is_none()).unwrap_or_default()
    }

    /// Time since the last answer; before the first, the age of restored resources, or the time
    /// since the start.
    pub fn silent_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last_answer.unwrap_or(self.started)) + self.age_at_start()
    }

    /// Time since the last answer; before the first, the age of restored resources. `None` without
    /// either.
    pub fn answered_ago(&self, now: Instant) -> Option<Duration> {
        (self.last_answer.is_some() || self.restored.is_some()).then(|| self.silent_for(now))
    }

    /// Time for which the served resources may have been out of date.
    pub fn stale_for(&self, now: Instant) -> Duration {
        let Some(since) = self.stale_since else { return Duration::ZERO };
        // Once nothing was missed, restored resources are as good as new.
        let before = if since == self.started { self.age_at_start() } else { Duration::ZERO };
        now.saturating_duration_since(since) + before
    }

    /// Time since the held resources were known to be current; `None` without any answer.
    pub fn current_ago(&self, now: Instant) -> Option<Duration> {
        self.answered_ago(now).map(|_| self.stale_for(now))
    }

    /// [`stale_for`](Self::stale_for), but zero without any answer, as nothing is held.
    pub fn held_stale_for(&self, now: Instant) -> Duration {
        self.current_ago(now).unwrap_or_default()
    }

    /// Wait for the first answer; zero after it, and while nothing is requested.
    pub fn first_answer_awaited_for(&self, now: Instant) -> Duration {
        if self.answered_ago(now).is_none() { self.stale_for(now) } else { Duration::ZERO }
    }

    /// Notes a connection.
    pub const fn connected(&mut self, now: Instant) {
        self.connected = true;
        self.answered = false;
        self.origin_is_cut_off = false;
        self.since = now;
    }

    /// Notes an accepted response. Returns whether more than the time changed.
    pub fn accepted(&mut self, now: Instant) -> bool {
        let is_first = self.last_answer.replace(now).is_none();
        let is_current = !self.origin_is_cut_off && !self.awaits_word;
        let was_stale = is_current && self.stale_since.take().is_some();
        was_stale || is_first
    }

    /// Notes whether the control plane of an upstream relay answers it. Returns whether that
    /// changed.
    pub fn origin_reported(&mut self, is_answered: bool, now: Instant) -> bool {
        if is_answered {
            let was_held_up = self.origin_is_cut_off || self.awaits_word;
            self.stale_since = self.stale_since.filter(|_| !was_held_up);
        } else {
            self.stale_since.get_or_insert(now);
        }
        self.awaits_word = false;
        std::mem::replace(&mut self.origin_is_cut_off, !is_answered) == is_answered
    }

    /// Notes that the control plane is no relay, or reports nothing: its answers count. Returns
    /// whether that changed anything.
    pub fn origin_has_no_word(&mut self) -> bool {
        let awaited = std::mem::take(&mut self.awaits_word);
        if awaited && self.answered {
            self.stale_since = None;
        }
        awaited
    }

    /// Whether relays behind this one may take its silence for an answer.
    /// In the first 60 s of a connection all requested types must be answered: a returning relay
    /// requests them one after the other, as its clients come. Later no type counts, or clients
    /// could hold up relays with types that nobody has.
    pub fn vouches(&self, now: Instant) -> bool {
        let is_complete = self.unanswered.silent.is_empty() || now >= self.since + SILENT_TYPES;
        self.answered && !self.origin_is_cut_off && self.looked && is_complete
    }

    /// Whether the last three connections or streams ended within five minutes.
    pub fn is_unsteady(&self, now: Instant) -> bool {
        self.lost_at[2].is_some_and(|third| now.saturating_duration_since(third) < UNSTEADY)
    }

    /// Notes a lost or failed connection or stream.
    pub fn lost(&mut self, error: String, now: Instant) {
        if self.connected {
            self.lost_at.rotate_right(1);
            self.lost_at[0] = Some(now);
        }
        self.errors.insert(self.server, error.clone());
        self.last_error = Some(error);
        self.disconnected(now);
    }

    /// Notes a change of the server. `fault` is that of the connected one; other faults are known
    /// already.
    pub fn changed_to(&mut self, server: usize, fault: Option<String>) {
        if let Some(fault) = fault.filter(|_| self.connected) {
            self.errors.insert(self.server, fault.clone());
            self.last_error = Some(fault);
        }
        self.server = server;
    }

    /// Notes that no connection stands, without a fault of the server.
    pub fn disconnected(&mut self, now: Instant) {
        if std::mem::take(&mut self.connected) {
            self.since = now;
        }
        self.awaits_word |= self.origin_is_cut_off;
        (self.answered, self.origin_is_cut_off) = (false, false);
        self.protocol = None;
        self.unanswered = Unanswered::default();
        self.looked = false;
        self.stale_since.get_or_insert(now);
    }

    /// Notes the unanswered subscriptions of the connection. Returns whether anything changed.
    pub fn look(&mut self, unanswered: Unanswered) -> bool {
        let before = self.stale_since;
        if !self.answered && !self.origin_is_cut_off {
            // Without unanswered requests nothing is missed.
            self.stale_since = unanswered.since.map(|asked| before.unwrap_or(asked));
        }
        let is_first = !std::mem::replace(&mut self.looked, true);
        let changed = is_first || self.unanswered != unanswered || self.stale_since != before;
        self.unanswered = unanswered;
        changed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::resource::Kind;

    fn unanswered(since: Instant) -> Unanswered {
        Unanswered { count: 1, since: Some(since), ..Unanswered::default() }
    }

    #[test]
    fn an_origin_is_unsteady_for_five_minutes_after_the_first_of_three_losses() {
        let start = Instant::now();
        let at = |second| start + Duration::from_secs(second);
        let mut state = UpstreamState::new(start);
        let mut lose = |second| {
            state.connected(at(second));
            state.lost("reset".to_owned(), at(second));
            state.lost("connection refused".to_owned(), at(second));
            state.is_unsteady(at(second))
        };
        assert_eq!([lose(0), lose(100), lose(299)], [false, false, true], "attempts that fail are no losses");
        assert!(state.is_unsteady(at(299)) && !state.is_unsteady(at(300)));
    }

    #[test]
    fn a_server_that_is_left_has_the_fault_itself() {
        let now = Instant::now();
        let mut state = UpstreamState::new(now);
        state.connected(now);
        state.changed_to(1, Some("silent".to_owned()));
        state.disconnected(now);
        assert_eq!(state.errors, BTreeMap::from([(0, "silent".to_owned())]));
        state.lost("connection refused".to_owned(), now);
        state.changed_to(0, Some("silent".to_owned()));
        assert_eq!(state.errors[&1], "connection refused", "it says more");
        state.connected(now);
        state.changed_to(1, None);
        assert!(!state.errors.contains_key(&0) || state.errors[&0] == "silent");
    }

    #[test]
    fn a_connection_on_which_nothing_is_answered_is_as_stale_as_none() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let stale = |state: &UpstreamState, at| state.stale_for(after(at)).as_secs();
        let mut state = UpstreamState::new(start);
        assert_eq!(stale(&state, 5), 5, "never reached");
        state.connected(after(5));
        assert_eq!(stale(&state, 6), 6, "until it is known what is asked");
        state.look(unanswered(after(5)));
        assert_eq!(stale(&state, 7), 7);
        assert!(state.accepted(after(8)));
        state.answered = true;
        assert_eq!((stale(&state, 9), state.silent_for(after(9)).as_secs()), (0, 1));
        // One name that is never answered does not make the rest stale.
        state.look(unanswered(after(5)));
        assert_eq!(stale(&state, 20), 0);

        state.lost("gone".to_owned(), after(20));
        assert_eq!(stale(&state, 30), 10);
        state.connected(after(30));
        state.look(unanswered(after(30)));
        assert_eq!(stale(&state, 40), 20, "since the loss: nothing was received since");
        state.look(Unanswered::default());
        assert_eq!(stale(&state, 50), 0, "versions were told, and silence is the answer");
        assert_eq!(state.silent_for(after(50)).as_secs(), 42);
    }

    /// A client can bring that about with a node that the origin does not know.
    #[test]
    fn an_origin_that_never_answered_leaves_nothing_stale() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let seen = |state: &UpstreamState, at| {
            let at = after(at);
            (state.held_stale_for(at).as_secs(), state.first_answer_awaited_for(at).as_secs())
        };
        let mut state = UpstreamState::new(start);
        state.connected(start);
        state.look(unanswered(start));
        assert_eq!(seen(&state, 70), (0, 70));
        state.lost("refused".to_owned(), after(70));
        state.connected(after(71));
        assert_eq!(seen(&state, 80), (0, 80), "one wait over all connections");
        state.look(Unanswered::default());
        assert_eq!(seen(&state, 90), (0, 0), "nothing is asked");
        state.look(unanswered(after(90)));
        state.accepted(after(100));
        state.answered = true;
        assert_eq!(seen(&state, 110), (0, 0));
        state.lost("gone".to_owned(), after(110));
        assert_eq!(seen(&state, 120), (10, 0), "something is held");

        let mut state = UpstreamState::new(start);
        state.restored(Duration::from_secs(60));
        assert_eq!(seen(&state, 5), (65, 0), "what an earlier process left is as old as it was");
        state.connected(after(6));
        state.look(Unanswered::default());
        state.lost("gone".to_owned(), after(10));
        assert_eq!(seen(&state, 15), (5, 0), "versions were told, and silence was the answer");
    }

    /// A quiet control plane says nothing for hours, and what it said is current.
    #[test]
    fn what_is_held_is_current_until_the_connection_is_lost() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let current = |state: &UpstreamState, at| state.current_ago(after(at)).map(|ago| ago.as_secs());
        let mut state = UpstreamState::new(start);
        assert_eq!(current(&state, 1), None);
        state.connected(after(1));
        state.accepted(after(2));
        state.answered = true;
        assert_eq!(current(&state, 40), Some(0));
        state.lost("gone".to_owned(), after(40));
        assert_eq!((current(&state, 43), state.silent_for(after(43)).as_secs()), (Some(3), 41));
    }

    #[test]
    fn words_of_a_relay_that_is_cut_off_from_its_control_plane_are_stale() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut state = UpstreamState::new(start);
        state.connected(start);
        state.accepted(start);
        assert!(!state.origin_reported(true, start) && state.origin_reported(false, after(1)));
        state.accepted(after(2));
        assert_eq!(state.stale_for(after(5)).as_secs(), 4, "what it says meanwhile is no newer");
        assert!(!state.origin_reported(false, after(6)) && state.origin_reported(true, after(7)));
        assert_eq!(state.stale_for(after(8)), Duration::ZERO);
        state.origin_reported(false, after(9));
        state.lost("gone".to_owned(), after(10));
        assert!(!state.origin_is_cut_off && state.stale_for(after(11)).as_secs() == 2);
    }

    /// Its responses are passed over, and nothing is asked for any more: what is held is as old as before.
    #[test]
    fn a_relay_that_is_cut_off_and_is_asked_nothing_is_stale() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut state = UpstreamState::new(start);
        state.connected(start);
        state.accepted(start);
        state.lost("gone".to_owned(), after(1));
        state.connected(after(2));
        state.origin_reported(false, after(3));
        state.look(unanswered(after(2)));
        assert_eq!(state.stale_for(after(5)).as_secs(), 4);
        state.look(Unanswered::default());
        assert_eq!(state.stale_for(after(6)).as_secs(), 5);
        state.origin_reported(true, after(7));
        state.look(Unanswered::default());
        assert_eq!(state.stale_for(after(8)), Duration::ZERO);
    }

    #[test]
    fn a_relay_that_was_cut_off_is_stale_over_a_reconnect_until_its_word() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let again = || {
            let mut state = UpstreamState::new(start);
            state.connected(start);
            state.accepted(start);
            state.origin_reported(false, after(1));
            state.lost("gone".to_owned(), after(2));
            state.connected(after(3));
            state.accepted(after(4));
            state.answered = true;
            state
        };
        let mut state = again();
        assert_eq!(state.stale_for(after(5)).as_secs(), 4, "its word may come yet");
        state.origin_reported(false, after(6));
        assert_eq!(state.stale_for(after(7)).as_secs(), 6);
        let mut state = again();
        state.origin_reported(true, after(5));
        assert_eq!(state.stale_for(after(6)), Duration::ZERO);
        let mut state = again();
        assert!(state.origin_has_no_word() && !state.origin_has_no_word());
        assert_eq!(state.stale_for(after(6)), Duration::ZERO, "a control plane in its place");
    }

    #[test]
    fn a_type_without_an_answer_holds_up_relays_in_the_first_minute_of_a_connection() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let silent = |since: Instant| Unanswered {
            silent: BTreeMap::from([(Kind::Cluster.into(), since)]),
            ..unanswered(since)
        };
        let mut state = UpstreamState::new(start);
        state.connected(start);
        state.answered = true;
        assert!(!state.vouches(start), "it is not known yet what it leaves unanswered");
        state.look(silent(after(1)));
        assert!(!state.vouches(after(2)));
        assert!(state.vouches(after(60)), "it may never answer for the type");
        state.look(Unanswered::default());
        assert!(state.vouches(after(3)));
        // A pause of the process, or a new stream, moves the time at which the type was asked for.
        state.look(silent(after(9)));
        assert!(!state.vouches(after(10)));
        state.look(silent(after(70)));
        assert!(state.vouches(after(71)), "a client asks for a type that nobody has");
        state.origin_reported(false, after(72));
        assert!(!state.vouches(after(100)));
        state.lost("gone".to_owned(), after(101));
        assert!(!state.vouches(after(102)));
    }

    #[test]
    fn watchers_are_not_woken_by_each_response() {
        let now = Instant::now();
        let mut state = UpstreamState::new(now);
        state.connected(now);
        let accepted: Vec<bool> = (0..3).map(|_| state.accepted(now)).collect();
        assert_eq!(accepted, [true, false, false]);
        let looks = [unanswered(now), unanswered(now), Unanswered::default()].map(|look| state.look(look));
        assert_eq!(looks, [true, false, true]);
    }
}
