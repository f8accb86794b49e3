//! What files mean, what is wrong with wrong ones, and that the documentation tells the truth.

mod changes;
mod hostile;
mod messages;
mod reference;
mod round_trip;
mod scopes;
mod units;

use super::Config;

/// The least that a file needs; one line, so that what a test appends starts on line 2.
const UPSTREAM: &str = "upstream: {servers: [{uri: \"http://cp:18000\"}]}\n";

/// What is printed for a wrong file called `f`.
fn refused(text: &str) -> String {
    Config::parse(text, "f").unwrap_err().to_string()
}

/// The same for a wrong part after a right `upstream`.
fn refused_part(text: &str) -> String {
    refused(&format!("{UPSTREAM}{text}"))
}
