//! The errors that an update tells, and their encoding.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::BytesMut;

use super::super::origin_error::OriginError;
use super::super::position::Class;
use crate::resource::Name;
/// The errors of an update.
#[derive(Debug, Default)]
pub(in crate::cache) struct Errors {
    pub(in crate::cache) told: Vec<(Name, Arc<OriginError>)>,
    /// Those that stand for removals.
    pub(in crate::cache) lost: Vec<(Name, Arc<OriginError>)>,
    /// Names whose errors are told in another response.
    pub(in crate::cache) later: Vec<Name>,
}

impl Errors {
    /// As elements of this number, for clients that spell some names in their own way.
    pub(in crate::cache) fn encode(
        &self,
        class: Class,
        number: u8,
        spelled: Option<&BTreeMap<Name, Name>>,
    ) -> BytesMut {
        let mut out = BytesMut::new();
        let lost = self.lost.iter().filter(|_| class == Class::Both);
        for (name, failure) in self.told.iter().chain(lost) {
            let name = spelled.and_then(|spelled| spelled.get(name)).unwrap_or(name);
            failure.put(&mut out, number, name.as_str());
        }
        out
    }

    /// Whether the error of this name is among them.
    pub(in crate::cache) fn tell(&self, name: &Name) -> bool {
        self.told.iter().chain(&self.lost).any(|(told, _)| told == name)
    }

    pub(in crate::cache) fn weight(&self) -> usize {
        self.told.iter().chain(&self.lost).map(|(name, failure)| size(name, failure)).sum()
    }
}

/// Approximate size of an error on the wire, in bytes.
pub(in crate::cache) fn size(name: &Name, failure: &OriginError) -> usize {
    name.as_str().len() + failure.message().len() + 16
}
