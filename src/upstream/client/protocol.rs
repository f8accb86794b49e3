//! Protocol of a connection, where the relay finds out which one the control plane speaks.
//!
//! Owns when state of the world takes the place of delta. The control plane says that it does not implement delta (UNIMPLEMENTED), or
//! it resets the stream, as one does that panics. A reset may have other reasons: a control plane that restarts behind a proxy, or
//! is overloaded, resets streams too. So state of the world is tried, and once that is answered delta again: a control plane that
//! resets it then is well, and does not speak it. What was found out holds for the connection. The next one begins with delta: the
//! server may have been replaced.

use super::super::StreamId;
use super::super::wait::now;
use super::Client;
use super::conversation::{Conversation, Delta};
use super::ended::Ended;
use crate::cache::Protocol;

const LACKS_DELTA: &str = "does not implement delta ADS (UNIMPLEMENTED)";
const RESETS_DELTA: &str = "resets each delta stream";

impl Client {
    /// Goes on with state of the world if a stream ended because the server may not speak delta. Returns any other end.
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

    /// Tries delta once more where state of the world was answered, and delta may have been reset for another reason.
    pub(super) fn try_delta_again(&mut self, talk: &mut Conversation) {
        if talk.delta == Delta::Doubtful && talk.protocol() == Protocol::Sotw && talk.answered {
            self.speak(Protocol::Delta, talk);
        }
    }

    /// Opens the streams anew in another protocol.
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
