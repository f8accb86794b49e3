//! Detection of the protocol that the control plane speaks, on each connection.
//!
//! Owns when state of the world replaces delta. A control plane without delta sends UNIMPLEMENTED, or it
//! resets the stream, as one that panics does. Resets have other causes too, such as a restart behind a
//! proxy, or overload. So state of the world is tried, and after an answer delta again: a second reset then
//! proves that delta is missing. The finding holds for the connection. The next one begins with delta,
//! because the server may have been replaced.

use super::super::StreamId;
use super::super::wait::now;
use super::Client;
use super::conversation::{Conversation, Delta};
use super::ended::Ended;
use crate::cache::Protocol;

const LACKS_DELTA: &str = "does not implement delta ADS (UNIMPLEMENTED)";
const RESETS_DELTA: &str = "resets each delta stream";

impl Client {
    /// Switches to state of the world if the server may not speak delta. Returns any other end.
    pub(super) fn fall_back(
        &mut self,
        stream: StreamId,
        end: Ended,
        talk: &mut Conversation,
    ) -> Option<Ended> {
        if self.link.options().protocol.is_some() || talk.protocol() != Protocol::Delta {
            return Some(end);
        }
        // A server may reset the second stream because it is one too many.
        talk.delta = match (&end, stream, talk.delta) {
            (Ended::Unfit(_), StreamId::Primary, _) => Delta::Refused(LACKS_DELTA),
            (Ended::Unfit(_), StreamId::Secondary, _) if !talk.answered => Delta::Refused(LACKS_DELTA),
            (Ended::Reset(_), StreamId::Primary, Delta::Possible)
                if !self.link.has_answered_in(Protocol::Sotw) =>
            {
                Delta::Doubtful
            }
            (Ended::Reset(_), StreamId::Primary, _) => Delta::Refused(RESETS_DELTA),
            _ => return Some(end),
        };
        self.speak(Protocol::Sotw, talk);
        None
    }

    /// Retries delta after an answer in state of the world, if the reset may have had another cause.
    pub(super) fn try_delta_again(&mut self, talk: &mut Conversation) {
        if talk.delta == Delta::Doubtful && talk.protocol() == Protocol::Sotw && talk.answered {
            self.speak(Protocol::Delta, talk);
        }
    }

    /// Reopens the streams in another protocol.
    fn speak(&mut self, protocol: Protocol, talk: &mut Conversation) {
        self.mux.closed(StreamId::Primary);
        self.mux.set_protocol(protocol);
        // The protocol is reported with the first answer in it.
        talk.answered = false;
        talk.speak(protocol);
        self.mux.opened(StreamId::Primary, now());
        self.state.send_modify(|state| state.protocol = Some(protocol));
    }
}
