//! Orders of the rollout guard as text, for the file.
//!
//! Owns the form. An order that cannot be read is dropped: the change that it kept back is tried again.

use serde::{Deserialize, Serialize};

use crate::cache::{Note, OrderKind, StandingOrder};
use crate::resource::{Name, TypeUrl};

#[derive(Debug, Serialize, Deserialize)]
struct StoredOrder {
    order: String,
    type_url: String,
    parameters: Vec<(String, String)>,
    name: Option<String>,
    /// Hexadecimal.
    digest: Option<String>,
    version: Option<String>,
    at: u64,
    by: String,
}

/// One line; empty without orders.
pub(super) fn text(orders: &[StandingOrder]) -> String {
    if orders.is_empty() {
        return String::new();
    }
    let stored = orders.iter().map(|of| StoredOrder {
        order: of.kind.label().to_owned(),
        type_url: of.type_url.as_str().to_owned(),
        parameters: of.parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        name: of.name.as_ref().map(Name::to_string),
        digest: of.digest.map(|digest| format!("{digest:x}")),
        version: of.version.as_deref().map(str::to_owned),
        at: of.note.at,
        by: of.note.by.to_string(),
    });
    serde_json::to_string(&stored.collect::<Vec<_>>()).unwrap_or_default()
}

pub(super) fn read(text: &str) -> Vec<StandingOrder> {
    let stored: Vec<StoredOrder> = serde_json::from_str(text).unwrap_or_default();
    let order = |of: StoredOrder| {
        Some(StandingOrder {
            kind: OrderKind::ALL.into_iter().find(|kind| kind.label() == of.order)?,
            type_url: TypeUrl::from(&*of.type_url),
            parameters: of.parameters.into_iter().collect(),
            name: of.name.as_deref().map(Name::from),
            digest: of.digest.map(|text| u128::from_str_radix(&text, 16)).transpose().ok()?,
            version: of.version.map(Into::into),
            note: Note { at: of.at, by: of.by.into() },
        })
    };
    stored.into_iter().filter_map(order).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Kind, Parameters};

    #[test]
    fn orders_read_back() {
        let order = |kind, name: Option<&str>, digest, version: Option<&str>| StandingOrder {
            kind,
            type_url: Kind::Cluster.into(),
            parameters: [("a", "b")].into_iter().collect::<Parameters>(),
            name: name.map(Name::from),
            digest,
            version: version.map(Into::into),
            note: Note { at: 1_700_000_000, by: "10.0.0.1 (alice)".into() },
        };
        let orders = [
            order(OrderKind::Hold, None, None, None),
            order(OrderKind::Discard, Some("x\n\"y"), Some(u128::MAX), None),
            order(OrderKind::Restore, Some("x"), None, Some("7")),
        ];
        assert_eq!(read(&text(&orders)), orders);
        assert!(!text(&orders).contains('\n'));
        assert_eq!((text(&[]), read(""), read("no JSON")), (String::new(), vec![], vec![]));
    }
}
