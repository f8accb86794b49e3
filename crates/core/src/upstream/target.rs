//! Part of a type that a stream is to carry, and how it is asked for.

use foldhash::HashSet;

use super::Settings;
use super::quiet_clock::Moment;
use super::server::Provenance;
use crate::cache::{Snapshot, View};
use crate::proto::{DeltaDiscoveryRequest, ResourceLocator};
use crate::resource::{Form, Name, Parameters, Resource, has_other_spellings};

/// Part of a type that a stream is to carry.
pub(super) struct Target<'a> {
    /// Whether anything of it is wanted.
    pub(super) is_wanted: bool,
    /// The parameters that it is asked for with.
    pub(super) parameters: &'a Parameters,
    /// Whether nothing of the type was asked for on this stream, so that versions can be told (R-Delta-05).
    pub(super) fresh: bool,
    /// Whether nothing of the type was asked for on this stream, be it with other parameters.
    pub(super) is_first: bool,
    /// Whether a request without names asks for everything.
    pub(super) has_legacy_wildcard: bool,
    /// Whether the wildcard has to wait for another stream: on this one the origin was asked for it already, for others.
    pub(super) wildcard_waits: bool,
    /// Whether others ask for the type with other parameters, and the origin is told so.
    pub(super) beside: bool,
    /// Whether the origin speaks state of the world: it is told no versions, and each request repeats all names.
    pub(super) speaks_sotw: bool,
    /// The versions that others have claimed in the same request, and that hold for everybody.
    pub(super) claimed: &'a std::collections::HashMap<String, String>,
    /// Whether all topics that ask for a name hold this of it: else its version would say nothing (R-DP-14).
    pub(super) is_shared: &'a dyn Fn(View, &Resource) -> bool,
    /// Resources that are to come anew, whatever their version.
    pub(super) refreshed: &'a HashSet<(View, Name)>,
    /// Resources that came from other servers than this one.
    pub(super) provenance: &'a Provenance,
    pub(super) snapshot: &'a Snapshot,
    pub(super) settings: &'a Settings,
    pub(super) moment: Moment,
}

impl Target<'_> {
    /// Whether versions of what is held are told.
    pub(super) const fn tells_versions(&self) -> bool {
        self.fresh && !self.speaks_sotw
    }

    /// Puts a name into a request; returns the bytes that it takes.
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
        let pairs = || self.parameters.iter();
        let dynamic_parameters = pairs().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        locators.push(ResourceLocator { name: name.to_owned(), dynamic_parameters });
        name.len() + 8 + pairs().map(|(key, value)| key.len() + value.len() + 8).sum::<usize>()
    }

    /// Version of a held resource to claim: versions go by names alone (R-DP-14), and belong to the server that gave them (R-Up-04).
    /// One that the origin gave to several contents may be that of another by now. A name that the origin may spell in another way is
    /// not claimed: some compare names byte by byte, and would remove the spelling that they do not know (O9).
    pub(super) fn claim<'r>(&self, view: View, held: &'r Resource) -> Option<&'r str> {
        let is_refreshed =
            || !self.refreshed.is_empty() && self.refreshed.contains(&(view, held.name().clone()));
        held.origin_version().filter(|_| {
            !held.is_reused_version()
                && !has_other_spellings(held.name().as_str())
                && self.provenance.may_claim(view, held)
                && (self.is_shared)(view, held)
                && !is_refreshed()
                && !self.ends_soon(view, held)
        })
    }

    /// Whether the TTL of a resource may end before the origin, which takes it for held, says anything of it. It would have to be
    /// asked for once more then, on a further stream.
    fn ends_soon(&self, view: View, held: &Resource) -> bool {
        let lease = self.snapshot.lease(view, held.name().as_str());
        lease.is_some_and(|lease| lease.until() <= self.moment.now + self.settings.answer_timeout)
    }

    /// Whether others have claimed it, so that it need not come again.
    pub(super) fn is_claimed(&self, held: &Resource) -> bool {
        self.claimed.contains_key(held.name().as_str())
    }

    /// The version under which the origin knows what it sent by this name, with the name under which it knows it: an
    /// alias has no version. What was not kept is not held (R-Up-03).
    pub(super) fn version_held(&self, name: &str) -> Option<(String, String)> {
        let held = self.snapshot.held(View::Named, name).filter(|held| held.form() == Form::Whole)?;
        Some((held.name().to_string(), self.claim(View::Named, held)?.to_owned()))
    }
}
