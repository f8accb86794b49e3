//! The protocol by what RFC 9113 says, and the whole against a client that others wrote.

mod peer;
mod protocol;
mod socket;
