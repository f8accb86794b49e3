//! Limits that peers reach, with their names in metrics and in the configuration; and enums with labels.

/// Declares an enum whose variants have labels, for metrics, files and operators: `ALL` in the order of declaration, and
/// `label`.
#[macro_export]
macro_rules! labelled {
    ($(#[$about:meta])* $visible:vis enum $name:ident { $($(#[$help:meta])* $variant:ident = $label:literal,)+ }) => {
        $(#[$about])*
        $visible enum $name {
            $($(#[$help])* $variant,)+
        }

        impl $name {
            $visible const ALL: [Self; [$($label),+].len()] = [$(Self::$variant),+];

            $visible const fn label(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.label())
            }
        }
    };
}

labelled! {
    /// Limit that caused a refusal or a disconnect. Its label is the value of the metric label `reason`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum Limit {
        /// Connections of all listeners.
        Connections = "max_connections",
        /// Connections from one address.
        ConnectionsPerAddress = "max_connections_per_address",
        /// Connections of one identity.
        ConnectionsPerIdentity = "max_connections_per_identity",
        /// Streams of one connection.
        Streams = "max_streams_per_connection",
        /// Bytes of one request.
        RequestBytes = "max_request_bytes",
        /// Bytes of incomplete requests of one connection.
        BufferedPerConnection = "max_buffered_request_bytes_per_connection",
        /// Bytes of incomplete requests of all connections.
        Buffered = "max_buffered_request_bytes",
        /// Bytes of the versions that clients of one connection bring.
        VersionsPerConnection = "max_initial_version_bytes_per_connection",
        /// Bytes of the versions that all clients bring.
        Versions = "max_initial_version_bytes",
        /// Bytes of large messages that are being sent.
        Unsent = "max_unsent_bytes",
        /// Names of one type and stream.
        Names = "max_names",
        /// Names of all types and streams of one connection.
        NamesPerConnection = "max_names_per_connection",
        /// Bytes of one name.
        NameBytes = "max_name_bytes",
        /// Bytes of all names and locators of one type and stream.
        SubscriptionBytes = "max_subscription_bytes",
        /// Dynamic parameters of one locator, or sets of them of one stream.
        Parameters = "parameters",
        /// Views through dynamic parameters, of all clients.
        ParameterSets = "max_parameter_sets",
        /// Types of one stream; of all streams, types that the control plane does not have.
        Types = "types",
        /// Node groups that clients make.
        Groups = "groups_max",
        /// Polls of one address.
        Polls = "max_polls_per_peer",
        /// Time until the first request.
        FirstRequest = "first_request_timeout",
        /// Time until the first answer, while more clients come than can be answered at once.
        FirstAnswer = "first_answer",
        /// Time that a request or response may stand still.
        Stall = "stall_timeout",
        /// Time without a stream.
        Idle = "idle_timeout",
        /// Time without an ACK or NACK.
        Unacked = "unacked_timeout",
        /// Memory above which new clients are refused.
        MemoryRefuse = "memory_refuse_above",
        /// Memory above which connections are closed.
        MemoryClose = "memory_close_above",
    }
}

impl Limit {
    /// Configuration key that raises it, or a note that there is none.
    pub fn key(self) -> String {
        let (section, key) = match self {
            Self::Parameters | Self::Types | Self::FirstAnswer => return "none: it is fixed".to_owned(),
            Self::ParameterSets => ("cache", self.label()),
            Self::Groups => ("groups", "max"),
            Self::Polls => ("rest", self.label()),
            Self::MemoryRefuse => ("downstream.memory", "refuse_above"),
            Self::MemoryClose => ("downstream.memory", "close_above"),
            _ => ("downstream", self.label()),
        };
        format!("{section}.{key}")
    }

    /// Whether it ends what a peer left idle. No client is refused by it.
    pub const fn is_for_silence(self) -> bool {
        matches!(self, Self::FirstRequest | Self::Stall | Self::Idle | Self::Unacked)
    }
}

/// Whether a client with this result of the handshake was refused for a fault that somebody has to
/// correct. Port scanners and health checks cause the others.
pub fn is_tls_refusal(result: &str) -> bool {
    !matches!(result, "ok" | "closed" | "left" | "draining" | "timeout" | "protocol")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::Limit;

    #[test]
    fn each_limit_has_a_label_of_its_own_that_ends_as_its_key() {
        let labels: HashSet<_> = Limit::ALL.map(Limit::label).into();
        assert_eq!(labels.len(), Limit::ALL.len());
        for (limit, place) in Limit::ALL.into_iter().zip(0..) {
            assert_eq!(limit as usize, place);
            let key = limit.key();
            let tail = key.rsplit('.').next().expect("a word");
            assert!(key.starts_with("none") || limit.label().ends_with(tail), "{limit:?}");
        }
    }
}
