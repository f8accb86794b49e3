//! Response of one type that was refused, for as long as what it said is missing.
//!
//! After a NACK a control plane by delta sends nothing again by itself: go-control-plane notes the resources of a response as sent when it
//! sends them. A later response about other resources of the type mends nothing, so a refusal ends once each of its names was spoken of in a
//! response that was accepted, or is wanted no more. A response of state of the world takes the place of the one before it. On a
//! new stream the control plane is told what is held, and begins anew.
//!
//! Owns the names and when a refusal ends. Knows no requests.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::response::{DecodedResponse, ResponseError};
use crate::proto::DeltaDiscoveryResponse;
use crate::resource::{Envelope, TypeUrl, normal_form};

/// Names beyond so many bytes are not waited for.
const NAME_BYTES: usize = 64 << 10;

/// Type of which the origin sent a response that was refused, and nothing yet in its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The type.
    pub type_url: TypeUrl,
    /// When the first such response came.
    pub since: Instant,
    /// The fault of the newest one, as the origin was told it in the NACK.
    pub fault: Arc<str>,
}

/// Refusal and the names that it is about.
#[derive(Debug)]
pub(super) struct Refused {
    since: Instant,
    fault: Arc<str>,
    /// Empty if none can be read: then the next response of the type takes its place.
    names: HashSet<Box<str>>,
}

impl Refused {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, fault: Arc::default(), names: HashSet::new() }
    }

    /// Takes in the fault of a response, and the names in it.
    pub(super) fn add<'a>(&mut self, fault: &ResponseError, names: impl Iterator<Item = Cow<'a, str>>) {
        self.fault = fault.text().into();
        let mut bytes: usize = self.names.iter().map(|name| name.len()).sum();
        for name in names {
            bytes += name.len();
            if bytes > NAME_BYTES {
                break;
            }
            self.names.insert(name.into());
        }
    }

    /// Whether nothing is left of it after an accepted response.
    pub(super) fn ends_with(&mut self, reading: &DecodedResponse<'_>) -> bool {
        if reading.is_whole || self.names.is_empty() {
            return true;
        }
        for heard in &reading.resources {
            self.names.remove(&*heard.name);
        }
        for removed in &reading.removed {
            self.names.remove(&*removed.name);
        }
        for report in &reading.reports {
            self.names.remove(&*report.name);
        }
        self.names.is_empty()
    }

    /// Whether it is about names of which none is wanted any more.
    pub(super) fn is_unwanted(&mut self, is_wanted: impl Fn(&str) -> bool) -> bool {
        let had_names = !self.names.is_empty();
        self.names.retain(|name| is_wanted(name));
        had_names && self.names.is_empty()
    }

    pub(super) fn of(&self, type_url: &TypeUrl) -> Refusal {
        Refusal { type_url: type_url.clone(), since: self.since, fault: Arc::clone(&self.fault) }
    }
}

/// Names in a response, in their normal form, as far as they can be read.
pub(super) fn names(response: &DeltaDiscoveryResponse) -> impl Iterator<Item = Cow<'_, str>> {
    let sent = response.resources.iter().filter_map(|bytes| Envelope::name_in(bytes));
    let removed = response.removed_resources.iter().map(String::as_str);
    let variants = response.removed_resource_names.iter().map(|removed| removed.name.as_str());
    sent.chain(removed).chain(variants).map(normal_form)
}
