//! Rejected response of one type, until its content is replaced.
//!
//! After a NACK a delta control plane sends nothing again by itself: go-control-plane notes
//! resources as sent when it sends them. So a refusal ends once each of its names was in an
//! accepted response, or is unwanted. A SotW response replaces the one before. A new stream starts
//! over.
//!
//! Owns the names, and the end of a refusal. Knows no requests.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use super::response::{DecodedResponse, ResponseError};
use crate::proto::DeltaDiscoveryResponse;
use crate::resource::{Envelope, TypeUrl, normal_form};

/// Most bytes of names to wait for.
const NAME_BYTES: usize = 64 << 10;

/// Type with a rejected response that nothing has replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The type.
    pub type_url: TypeUrl,
    /// Time of the first such response.
    pub since: Instant,
    /// Fault of the newest one, as in the NACK.
    pub fault: Arc<str>,
}

#[derive(Debug)]
pub(super) struct Refused {
    since: Instant,
    fault: Arc<str>,
    /// Empty if none can be read: then the next response of the type ends it.
    names: HashSet<Box<str>>,
}

impl Refused {
    pub(super) fn new(now: Instant) -> Self {
        Self { since: now, fault: Arc::default(), names: HashSet::new() }
    }

    /// Adds the fault and the names of a response.
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

    pub(super) fn ends_with(&mut self, reading: &DecodedResponse<'_>) -> bool {
        if reading.is_whole || self.names.is_empty() {
            return true;
        }
        let sent = reading.resources.iter().map(|received| &received.name);
        let removed = reading.removed.iter().map(|removed| &removed.name);
        let reported = reading.reports.iter().map(|report| &report.name);
        for name in sent.chain(removed).chain(reported) {
            self.names.remove(&**name);
        }
        self.names.is_empty()
    }

    /// Whether it had names, and all are unwanted.
    pub(super) fn is_unwanted(&mut self, is_wanted: impl Fn(&str) -> bool) -> bool {
        let had_names = !self.names.is_empty();
        self.names.retain(|name| is_wanted(name));
        had_names && self.names.is_empty()
    }

    pub(super) fn of(&self, type_url: &TypeUrl) -> Refusal {
        Refusal { type_url: type_url.clone(), since: self.since, fault: Arc::clone(&self.fault) }
    }
}

/// Names in a response, in normal form, as far as they can be read.
pub(super) fn names(response: &DeltaDiscoveryResponse) -> impl Iterator<Item = Cow<'_, str>> {
    let sent = response.resources.iter().filter_map(|bytes| Envelope::name_in(bytes));
    let removed = response.removed_resources.iter().map(String::as_str);
    let variants = response.removed_resource_names.iter().map(|removed| removed.name.as_str());
    sent.chain(removed).chain(variants).map(normal_form)
}
