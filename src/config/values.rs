//! Values of several sections: addresses, paths, types.
//!
//! Owns their reading and printing; knows no key.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::errors::{PEM, near, quoted};
use super::notation::Written;
use crate::node_field::{NodeField, NodeFieldError};
use crate::resource::{Kind, TypeUrl};

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

/// A short name or a type URL.
impl Written for TypeUrl {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        let names = Kind::short_names();
        Self::from_user(text)
            .map_err(|_| format!("{} is not a type; write a type URL or one of {names}", quoted(text)))
    }

    fn text(&self) -> String {
        self.user_text().to_owned()
    }
}
