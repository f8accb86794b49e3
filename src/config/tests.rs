//! Values that files are read as, messages for wrong files, and pages that follow from the declarations.

mod changes;
mod groups;
mod hostile;
mod messages;
mod pages;
mod reference;
mod round_trip;
mod scopes;

use std::path::Path;

use super::{Config, ConfigError, UnknownKeys};

/// The least that a file needs; one line, so that what a test appends starts on line 2.
const UPSTREAM: &str = "upstream: {servers: [{uri: \"http://cp:18000\"}]}\n";

/// Reads a file.
fn load(path: &Path) -> Result<Config, ConfigError> {
    Config::parse_file(&Config::read(path)?, path, UnknownKeys::Refuse).map(|(config, _)| config)
}

/// The message for a wrong file called `f`.
fn refused(text: &str) -> String {
    Config::parse(text, "f").unwrap_err().to_string()
}

/// The message for a wrong part after a right `upstream`.
fn refused_part(text: &str) -> String {
    refused(&format!("{UPSTREAM}{text}"))
}
