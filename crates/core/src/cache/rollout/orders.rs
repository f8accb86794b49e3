//! Orders of operators, and those that stand.
//!
//! An order keeps clients on an earlier state until it is released, or until the origin replaces the content that it is about.
//! Knows no clock: an order brings its time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::trial::Place;
use crate::resource::{Name, Parameters, Resource, TypeUrl};

/// An operator's decision.
#[derive(Clone, Debug)]
pub enum Order {
    /// No client is sent changes of a type, or of all guarded ones, canaries included.
    Hold(Option<TypeUrl>, Note),
    /// Ends what holds a type, or all: orders, and a failed trial as a whole. What waited is tried; a failed trial spreads.
    Release(Option<TypeUrl>),
    /// Gives up what is held of a type, or all: it never spreads, and does not hold up other changes. Ends holds of the type.
    Discard(Option<TypeUrl>, Note),
    /// Clients are sent earlier states, until the origin sends something newer.
    Restore(Vec<EarlierState>, Note),
}

/// Time and author of an order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Note {
    /// Seconds since 1970.
    pub at: u64,
    pub by: Arc<str>,
}

#[derive(Clone, Debug)]
pub struct EarlierState {
    pub type_url: TypeUrl,
    pub parameters: Parameters,
    pub name: Name,
    /// `None`: the resource did not exist.
    pub resource: Option<Arc<Resource>>,
    /// Whether it is a member of the wildcard set.
    pub is_member: bool,
}

/// Order in force: a type on hold, or content of the origin that clients do not get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StandingOrder {
    pub kind: OrderKind,
    pub type_url: TypeUrl,
    pub parameters: Parameters,
    /// `None` if it is about the type.
    pub name: Option<Name>,
    /// Content that clients do not get; `None` for a removal.
    pub digest: Option<u128>,
    /// Version that they have instead, if restored; `None` if the resource did not exist.
    pub version: Option<Arc<str>>,
    pub note: Note,
}

crate::labelled! {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum OrderKind {
        Hold = "hold",
        Discard = "discard",
        Restore = "restore",
    }
}

#[derive(Debug, Default)]
pub(super) struct StandingOrders {
    pub(super) types: BTreeMap<TypeUrl, StandingOrder>,
    pub(super) contents: BTreeMap<Place, StandingOrder>,
}

impl StandingOrders {
    /// Content of a name that clients do not get.
    pub(super) fn kept_back(&self, place: &Place) -> Option<Option<u128>> {
        self.contents.get(place).map(|order| order.digest)
    }

    pub(super) fn holds(&self, type_url: &TypeUrl) -> bool {
        self.types.contains_key(type_url)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &StandingOrder> {
        self.types.values().chain(self.contents.values())
    }

    /// Whether a release ends some of a type, or any.
    pub(super) fn has_some_of(&self, of: Option<&TypeUrl>) -> bool {
        let mut ended = self.all().filter(|order| order.kind != OrderKind::Discard);
        ended.any(|order| of.is_none_or(|of| *of == order.type_url))
    }

    pub(super) fn insert(&mut self, order: StandingOrder) {
        let type_url = order.type_url.clone();
        match order.name.clone() {
            None => self.types.insert(type_url, order),
            Some(name) => self.contents.insert(((type_url, order.parameters.clone()), name), order),
        };
    }

    pub(super) fn keep_back(
        &mut self,
        place: Place,
        digest: Option<u128>,
        version: Option<Arc<str>>,
        of: (OrderKind, &Note),
    ) {
        let ((type_url, parameters), name) = place;
        let (name, (kind, note)) = (Some(name), of);
        self.insert(StandingOrder { kind, type_url, parameters, name, digest, version, note: note.clone() });
    }
}
