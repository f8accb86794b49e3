//! Values of several sections: addresses, paths, types.
//!
//! Owns their reading and printing; knows no key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::errors::{PEM, near, quoted};
use super::notation::{Notation, Written};
use super::place::Place;
use super::schema::Printed;
use crate::node_field::{NodeField, NodeFieldError};
use crate::resource::Kind;

impl Written for SocketAddr {
    /// Names are refused: they may resolve differently at the next start.
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        let forms = "write IP:PORT, for example 127.0.0.1:15010 or [::1]:15010";
        text.parse().map_err(|_| format!("{} is not an address; {forms}", quoted(text)))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

impl Written for PathBuf {
    /// Absolute, so that a printed path is valid anywhere.
    fn parse(text: &str, base: &Path) -> Result<Self, String> {
        if text.is_empty() {
            return Err("a path must not be empty".to_owned());
        }
        // No message may repeat a key.
        if text.contains(PEM) {
            return Err(
                "has the text of a key or certificate; write the path of a file that holds it".to_owned()
            );
        }
        std::path::absolute(base.join(text)).map_err(|error| format!("{}: {error}", quoted(text)))
    }

    /// A non-Unicode path prints with replacement characters; it still works.
    fn text(&self) -> String {
        self.to_string_lossy().into_owned()
    }
}

/// End of a message about a text that is no field of a client, other than these.
pub(super) fn no_field(error: NodeFieldError, except: &[NodeField], text: &str) -> String {
    let names = NodeField::NAMED.iter().filter(|(_, field)| !except.contains(field)).map(|(name, _)| *name);
    match (error, near(names.clone(), text)) {
        (NodeFieldError::EmptyKey, _) => "has an empty key in its path".to_owned(),
        (NodeFieldError::Unknown, Some(name)) => format!("is no field of a client; did you mean `{name}`?"),
        (NodeFieldError::Unknown, None) => {
            let (metadata, names) = (NodeField::METADATA, names.collect::<Vec<_>>().join(", "));
            format!("is no field of a client; write {metadata}PATH or one of {names}")
        }
    }
}

/// A type URL or a short name. Unknown types are allowed (R-EP-06).
#[derive(Debug)]
pub(super) struct TypeName;

impl Notation<String> for TypeName {
    fn read(place: &Place<'_>) -> Option<String> {
        place.parsed(|word| {
            let text = word.text;
            if let Some(url) = Kind::of_short(text).and_then(Kind::url) {
                return Ok(url.to_owned());
            }
            let is_url =
                text.split_once('/').is_some_and(|(host, name)| !host.is_empty() && !name.is_empty());
            if is_url && text.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Ok(text.to_owned());
            }
            Err(format!("{} is not a type; write a type URL or one of {}", quoted(text), Kind::short_names()))
        })
    }

    /// The short name where there is one.
    fn print(url: &String) -> Option<Printed> {
        let name = match Kind::of_url(url) {
            Kind::Other => url.as_str(),
            kind => kind.short(),
        };
        Some(Printed::Value(name.into()))
    }
}
