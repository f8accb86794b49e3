//! SotW responses of one type, as increments.

use std::borrow::Cow;

use bytes::Bytes;
use foldhash::HashSet;
use prost::Message as _;

use super::super::response::{self, DecodedResponse, ProtocolError, ResponseError};
use super::{Delivered, SotwStream, TypeState, Variants};
use crate::proto::{DeltaDiscoveryResponse, DiscoveryResponse, ResourceName};
use crate::resource::{
    Collection, Constraints, Kind, Name, NameMap, SotwElement, TypeUrl, normal_form, take_out,
};

/// Increments of a response; in SotW, until it is [accepted](SotwStream::accept).
#[derive(Debug, Default)]
pub(in crate::upstream) struct Reading {
    /// New resources and removals.
    pub(in crate::upstream) response: DeltaDiscoveryResponse,
    /// Whether the response held all members of the wildcard set: missing members are gone, even
    /// those of earlier streams.
    pub(in crate::upstream) is_whole: bool,
    /// Whether it seems to hold only changes, and not the state. The next stream will tell.
    pub(in crate::upstream) is_partial: bool,
    has_heartbeats: bool,
    version: String,
    delivered: NameMap<Variants>,
    /// Listed names that came or have an error, and those known to be gone.
    came: Vec<Name>,
    gone: Vec<Name>,
    /// Names with the old form of "does not exist" (R-Up-16).
    denied: Vec<Name>,
}

impl Reading {
    /// Takes it apart, as a whole or not at all.
    pub(in crate::upstream) fn decode(
        &self,
        type_url: &TypeUrl,
        tells_errors: bool,
    ) -> Result<DecodedResponse<'_>, ResponseError> {
        let mut decoded = response::read(&self.response, type_url, tells_errors)?;
        decoded.is_whole = self.is_whole;
        Ok(decoded)
    }
}

/// A delta response is one already.
impl From<DeltaDiscoveryResponse> for Reading {
    fn from(response: DeltaDiscoveryResponse) -> Self {
        Self { response, ..Self::default() }
    }
}

/// Decodes a message in the form of delta; its resources stay bytes, of SotW elements.
pub(in crate::upstream) fn decode(message: Bytes) -> Result<DeltaDiscoveryResponse, ProtocolError> {
    let DiscoveryResponse { version_info, resources, type_url, nonce, control_plane, resource_errors } =
        DiscoveryResponse::decode(message).map_err(|_| ProtocolError::Undecodable)?;
    Ok(DeltaDiscoveryResponse {
        system_version_info: version_info,
        resources,
        type_url,
        nonce,
        control_plane,
        resource_errors,
        ..DeltaDiscoveryResponse::default()
    })
}

impl SotwStream {
    /// Takes a response of a requested type apart, as a whole or not at all.
    pub(in crate::upstream) fn read(
        &mut self,
        response: DeltaDiscoveryResponse,
        type_url: &TypeUrl,
    ) -> Result<Reading, ResponseError> {
        let state = self.types.entry(type_url.clone()).or_default();
        state.nonce.clone_from(&response.nonce);
        state.responses += 1;
        let owed_answer = std::mem::replace(&mut state.owes_answer, true);
        let reading = state.read(response, type_url);
        // Some control planes send heartbeats without waiting for an ACK (R-TTL-08). So neither
        // these nor the next response show that a list was read.
        if reading.as_ref().is_ok_and(|reading| reading.has_heartbeats) {
            state.responses -= 1;
            state.owes_answer = owed_answer;
        }
        reading
    }

    /// Accepts a response: it is the state from now on.
    pub(in crate::upstream) fn accept(&mut self, type_url: &TypeUrl, reading: Reading) {
        if let Some(state) = self.types.get_mut(type_url) {
            state.accept(reading);
        }
    }
}

/// Progress through the elements of a response.
struct Elements<'a> {
    state: &'a TypeState,
    is_same_version: bool,
    resources: Vec<Bytes>,
    delivered: NameMap<Variants>,
    /// Identities that came.
    came: HashSet<(Cow<'a, str>, Option<Constraints>)>,
    /// Names that must not count as gone: they came with invalid constraints, or with an error.
    spared: HashSet<Cow<'a, str>>,
    /// Aliases and collections of the resources.
    answered: HashSet<Cow<'a, str>>,
    has_heartbeats: bool,
    /// Number of unchanged resources.
    repeats: usize,
    denied: Vec<Name>,
}

impl TypeState {
    fn read(&self, response: DeltaDiscoveryResponse, type_url: &TypeUrl) -> Result<Reading, ResponseError> {
        let version = response.system_version_info.clone();
        let is_same_version = !self.version.is_empty() && self.version == version;
        let mut elements = Elements {
            state: self,
            is_same_version,
            resources: Vec::new(),
            delivered: NameMap::default(),
            came: HashSet::default(),
            spared: HashSet::default(),
            answered: HashSet::default(),
            has_heartbeats: false,
            repeats: 0,
            denied: Vec::new(),
        };
        for bytes in &response.resources {
            elements.add(SotwElement::parse(bytes, type_url).map_err(ResponseError::new)?)?;
        }
        let in_error = response.resource_errors.iter().filter_map(|error| error.resource_name.as_ref());
        elements.spared.extend(in_error.map(|named| normal_form(&named.name)));
        let is_partial = self.full_state && elements.is_partial(type_url);
        let is_state = self.full_state && !elements.has_heartbeats && !is_partial;
        let (mut removed, mut variants) = Default::default();
        let mut gone = Vec::new();
        if is_state {
            gone = elements.find_gone(&mut removed, &mut variants);
        }
        let came = elements.came.iter().map(|(name, _)| name).chain(&elements.spared);
        let came =
            came.filter_map(|name| self.names.get_key_value(&**name)).map(|(name, _)| name.clone()).collect();
        let Elements { resources, mut delivered, spared, denied, has_heartbeats, .. } = elements;
        if is_state {
            // A spared resource may be held from an earlier stream: a later state without it
            // removes it.
            let unknown = || Delivered { constraints: None, hash: 0, is_retold: true };
            for name in spared.iter().filter(|name| self.covers(name)) {
                let known = self.delivered.get(&**name).cloned();
                let kept = known.unwrap_or_else(|| Variants::from_iter([unknown()]));
                delivered.entry(Name::from(&**name)).or_insert(kept);
            }
        }
        Ok(Reading {
            is_whole: is_state && self.wildcard,
            is_partial,
            has_heartbeats,
            version,
            delivered,
            came,
            gone,
            denied,
            response: DeltaDiscoveryResponse {
                resources,
                removed_resources: removed,
                removed_resource_names: variants,
                ..response
            },
        })
    }

    fn accept(&mut self, reading: Reading) {
        let Reading { response, version, delivered, came, gone, denied, .. } = reading;
        let is_news = !response.resources.is_empty()
            || !response.removed_resources.is_empty()
            || !response.removed_resource_names.is_empty();
        if is_news {
            self.told_version = None;
        }
        self.version = version;
        for name in &response.removed_resources {
            take_out(&mut self.delivered, &Name::normal(name));
        }
        for ResourceName { name, .. } in &response.removed_resource_names {
            take_out(&mut self.delivered, &Name::normal(name));
        }
        for name in &denied {
            take_out(&mut self.delivered, name);
        }
        for (name, variants) in delivered {
            let known = self.delivered.entry(name).or_default();
            known.retain(|known| variants.iter().all(|new| new.constraints != known.constraints));
            known.extend(variants);
        }
        for (names, is_absent) in [(came, false), (gone, true)] {
            for name in names {
                if let Some(listed) = self.names.get_mut(&name) {
                    listed.is_absent = is_absent;
                }
            }
        }
    }
}

impl<'a> Elements<'a> {
    /// Adds an element if it is new or changed.
    fn add(&mut self, element: SotwElement<'a>) -> Result<(), ResponseError> {
        let name = normal_form(element.name());
        let envelope = element.wrapper();
        let constraints = match envelope.map(|envelope| &envelope.constraints) {
            Some(Ok(constraints)) => constraints.clone(),
            Some(Err(_)) => {
                self.spared.insert(name);
                self.resources.push(element.as_delta(""));
                return Ok(());
            }
            None => None,
        };
        if !self.came.insert((name.clone(), constraints.clone())) {
            return Err(ResponseError::new(format_args!(
                "resource `{}` is in one response twice",
                element.name()
            )));
        }
        if let Some(envelope) = envelope.filter(|envelope| envelope.has_aliases) {
            self.answered.extend(envelope.aliases().map(normal_form));
        }
        self.answered.extend(Collection::covering(&name).map(Cow::Owned));
        let known = self.state.delivered(&name, constraints.as_ref());
        let has_aliases = envelope.is_some_and(|envelope| envelope.has_aliases);
        let has_ttl = envelope.is_some_and(|envelope| envelope.ttl.is_some());
        let Some(hash) = element.content_hash() else {
            // Without a TTL it is a heartbeat that ends one, or the old form of "does not exist" (R-TTL-02, R-Up-16).
            let ends_ttl = self.is_same_version && known.is_some_and(|known| known.is_retold);
            let is_heartbeat = !has_aliases && (has_ttl || ends_ttl);
            self.has_heartbeats |= is_heartbeat;
            if !is_heartbeat && !has_aliases {
                self.denied.push(Name::from(&*name));
            }
            let version = known.filter(|_| is_heartbeat).map(|known| version_text(known.hash));
            self.resources.push(element.as_delta(&version.unwrap_or_default()));
            return Ok(());
        };
        let is_retold = has_aliases || has_ttl;
        let is_repeated = known.is_some_and(|known| known.hash == hash);
        self.repeats += usize::from(is_repeated);
        if !is_repeated || is_retold || known.is_some_and(|known| known.is_retold) {
            self.resources.push(element.as_delta(&version_text(hash)));
        }
        if self.state.covers(&name) {
            let name = self
                .state
                .delivered
                .get_key_value(&*name)
                .map_or_else(|| Name::from(&*name), |(name, _)| name.clone());
            self.delivered.entry(name).or_default().push(Delivered { constraints, hash, is_retold });
        }
        Ok(())
    }

    /// Whether it may hold only changes: go-control-plane's LinearCache sends no more on a live
    /// stream (O7), beside rewritten resources. So a response is doubtful if it lacks as many
    /// resources as it repeats; for scoped routes, if it lacks any. The first one is always the
    /// state.
    fn is_partial(&self, type_url: &TypeUrl) -> bool {
        if self.state.responses <= 1 || self.has_heartbeats {
            return false;
        }
        let came: HashSet<&str> = self.came.iter().map(|(name, _)| &**name).collect();
        let is_missing = |name: &&Name| !came.contains(name.as_str()) && !self.spared.contains(name.as_str());
        let missing = self.state.delivered.keys().filter(is_missing).count();
        missing > 0 && (self.repeats <= missing || type_url.kind() == Kind::ScopedRoute)
    }

    /// Finds the resources that are missing from a state, and the read names without any. Returns
    /// these names.
    fn find_gone(&self, removed: &mut Vec<String>, variants: &mut Vec<ResourceName>) -> Vec<Name> {
        let mut gone = Vec::new();
        let is_there = |name: &str, constraints: &Option<Constraints>| {
            self.came.contains(&(Cow::Borrowed(name), constraints.clone())) || self.spared.contains(name)
        };
        for (name, known) in &self.state.delivered {
            let missing = known.iter().filter(|known| !is_there(name.as_str(), &known.constraints));
            for Delivered { constraints, .. } in missing {
                let name = name.as_str().to_owned();
                match constraints {
                    None => removed.push(name),
                    Some(constraints) => variants.push(ResourceName {
                        name,
                        dynamic_parameter_constraints: constraints.encoded().clone(),
                    }),
                }
            }
        }
        let came: HashSet<&str> = self.came.iter().map(|(name, _)| &**name).collect();
        for (name, listed) in &self.state.names {
            let text = name.as_str();
            if came.contains(text) || self.spared.contains(text) || self.answered.contains(text) {
                continue;
            }
            let was_delivered = self.state.delivered.contains_key(name);
            if was_delivered || (!listed.is_absent && listed.reflected_in <= self.state.responses) {
                gone.push(name.clone());
                if !was_delivered {
                    removed.push(text.to_owned());
                }
            }
        }
        gone
    }
}

/// Version of a resource for clients.
fn version_text(hash: u128) -> String {
    format!("{hash:032x}")
}
