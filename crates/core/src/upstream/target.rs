//! Part of a type that a stream is to carry, and the form of its requests.

use foldhash::HashMap;

use super::Settings;
use super::probe::locator;
use super::quiet_clock::Moment;
use crate::cache::{Snapshot, View};
use crate::proto::{DeltaDiscoveryRequest, ResourceLocator};
use crate::resource::{Form, Name, Parameters, Resource, has_other_spellings};

pub(super) struct Target<'a> {
    pub(super) is_wanted: bool,
    /// Parameters of the requests.
    pub(super) parameters: &'a Parameters,
    /// Whether nothing of the type was requested on this stream, and this has no parameters.
    pub(super) fresh: bool,
    /// Whether versions can be claimed: in a first request (R-Delta-05).
    pub(super) tells_versions: bool,
    /// Bytes of names in a request.
    pub(super) room: usize,
    /// Whether this is the first request for the type on this stream, with any parameters.
    pub(super) is_first: bool,
    /// Whether a request without names asks for everything.
    pub(super) has_legacy_wildcard: bool,
    /// Whether the wildcard must wait for another stream: on this one it was requested already.
    pub(super) wildcard_waits: bool,
    /// Whether the type is also requested with other parameters.
    pub(super) beside: bool,
    /// SotW: no versions are claimed, and each request repeats all names.
    pub(super) speaks_sotw: bool,
    /// Resources of the topic to fetch anew, whatever their version.
    pub(super) outdated: HashMap<(View, Name), bool>,
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a Settings,
    pub(super) moment: Moment,
}

impl Target<'_> {
    /// Adds a name to a request. Returns the bytes that it takes.
    pub(super) fn subscribe(&self, name: &str, request: &mut DeltaDiscoveryRequest) -> usize {
        let lists = (&mut request.resource_names_subscribe, &mut request.resource_locators_subscribe);
        self.put(name, lists)
    }

    pub(super) fn unsubscribe(&self, name: &str, request: &mut DeltaDiscoveryRequest) -> usize {
        let lists = (&mut request.resource_names_unsubscribe, &mut request.resource_locators_unsubscribe);
        self.put(name, lists)
    }

    fn put(&self, name: &str, (names, locators): (&mut Vec<String>, &mut Vec<ResourceLocator>)) -> usize {
        if self.parameters.is_empty() {
            names.push(name.to_owned());
            return name.len() + 4;
        }
        locators.push(locator(name, self.parameters));
        name.len() + 8 + self.parameters.iter().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>()
    }

    /// Version of a held resource to claim. Versions go by names alone (R-DP-14), and belong to one
    /// server (R-Up-04). Excluded are versions that were reused for other content, and names with
    /// other spellings: some control planes would remove the spelling that they do not know (O9).
    pub(super) fn claim<'r>(&self, view: View, held: &'r Resource) -> Option<&'r str> {
        let is_outdated =
            || !self.outdated.is_empty() && self.outdated.contains_key(&(view, held.name().clone()));
        held.origin_version().filter(|_| {
            !held.is_reused_version()
                && !has_other_spellings(held.name().as_str())
                && held.constraints().is_none()
                && !is_outdated()
        })
    }

    /// Name and version to claim for a held resource. Aliases have no version, and dropped bodies
    /// are not held (R-Up-03).
    pub(super) fn version_held(&self, name: &str) -> Option<(String, String)> {
        let held = self.snapshot.held(View::Named, name).filter(|held| held.form() == Form::Whole)?;
        Some((held.name().to_string(), self.claim(View::Named, held)?.to_owned()))
    }
}
