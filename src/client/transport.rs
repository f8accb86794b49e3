//! Transports of xDS, by the names of the command line.

/// Transport of xDS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Transport {
    /// Delta ADS, over gRPC.
    #[default]
    Delta,
    /// State-of-the-world ADS, over gRPC.
    Sotw,
    /// REST-JSON long polls, over HTTP/1.1.
    Rest,
}
