//! Reading a response: its usable parts, or the fault for which it is rejected.
//!
//! Owns the checks of the envelope (R-Up-13). Knows nothing of subscriptions, and looks into no
//! resource (R-Up-14): faults have names and types, never content.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use foldhash::{HashSet, HashSetExt};
use prost::Message;

use super::quiet_clock::QuietInstant;
use crate::RelayIdentity;
use crate::cache::{Nonce, OriginError, Resend};
use crate::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, ResourceName};
use crate::resource::{Collection, Constraints, Envelope, Name, Parameters, Resource, TypeUrl, normal_form};

/// Most characters of a fault in a NACK, as it contains names.
const FAULT_CHARS: usize = 500;
/// google.rpc.Code
const OK: i32 = 0;

/// Kind of log line about a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Complaint {
    /// Response that was rejected.
    Refused,
    /// Error of a resource that the control plane reported.
    Reported,
    /// Unusable resource in an accepted response.
    Unusable,
}

/// Protocol error that cannot be answered with a NACK: the stream has to end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// There is no nonce for a NACK.
    #[error(
        "the control plane sent a message that is no discovery response: check that the URI is that of an ADS server"
    )]
    Undecodable,
    /// ACKs pile up.
    #[error("the control plane sends responses but does not read their ACKs: {0} bytes of ACKs wait")]
    AcksUnread(usize),
    /// The relay asks itself, perhaps through other relays (R-Relay-24).
    #[error(
        "its response comes from this relay itself, through `{}`: the relays form a loop; take one of them out of `upstream.servers`",
        .0.escape_debug()
    )]
    Loop(String),
}

/// Text of a NACK.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ResponseError(String);

impl ResponseError {
    pub(super) fn new(text: impl ToString) -> Self {
        Self(text.to_string().chars().take(FAULT_CHARS).collect())
    }

    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

/// Decodes a message; its resources stay bytes.
pub(super) fn decode(message: Bytes) -> Result<DeltaDiscoveryResponse, ProtocolError> {
    DeltaDiscoveryResponse::decode(message).map_err(|_| ProtocolError::Undecodable)
}

/// `control_plane.identifier`: the servers through which a response came; may be empty.
pub(super) fn identifier(response: &DeltaDiscoveryResponse) -> &str {
    let control_plane = response.control_plane.as_ref();
    let identifier = control_plane.map_or("", |control_plane| &control_plane.identifier);
    &identifier[..identifier.floor_char_boundary(RelayIdentity::MAX_BYTES)]
}

/// Version of the end mark, which no resource has.
const NO_VERSION: &str = "none";

/// Adds the end mark to a first request, so that the control plane marks the end of its answer.
/// `by_name`: it must be subscribed to, as claims count for subscribed names only.
pub(super) fn ask_for_end(request: &mut DeltaDiscoveryRequest, by_name: bool) {
    request.initial_resource_versions.insert(Name::END_MARK.to_owned(), NO_VERSION.to_owned());
    if by_name {
        request.resource_names_subscribe.push(Name::END_MARK.to_owned());
    }
}

#[derive(Debug)]
pub(super) struct DecodedResponse<'a> {
    /// Resources that exist.
    pub(super) resources: Vec<ReceivedResource<'a>>,
    /// Identities that do not exist.
    pub(super) removed: Vec<Removed<'a>>,
    /// Errors of names, in place of resources.
    pub(super) reports: Vec<ErrorReport<'a>>,
    /// Whether clients receive errors (R-Err-07).
    pub(super) tells_errors: bool,
    pub(super) system_version: &'a str,
    /// Whether more of the answer follows, if it came from a relay.
    pub(super) is_part: bool,
    /// Whether it is the SotW state of the wildcard set: held members that no response on the
    /// stream mentioned are gone.
    pub(super) is_whole: bool,
    /// Whether it answers the end mark, and so ends the first answer.
    pub(super) answers_end_mark: bool,
    /// Whether it removes variants.
    names_variants: bool,
}

impl<'a> DecodedResponse<'a> {
    /// Whether it can only come from a control plane that knows locators.
    pub(super) fn knows_locators(&self) -> bool {
        self.names_variants || self.resources.iter().any(|received| received.envelope.by_resource_name)
    }

    /// Marks the versions of a server, as another server may give them to other content.
    pub(super) fn mark(&mut self, mark: &'a str) {
        self.resources.iter_mut().for_each(|received| received.envelope.mark = mark);
    }

    /// Keeps the parts about awaited names, or members of awaited collections. `asked` returns the
    /// time of the request for an awaited name. Names in `ended` that it does not mention do not
    /// exist.
    pub(super) fn retain_answers(
        &mut self,
        ended: &'a BTreeSet<Name>,
        asked: impl Fn(&str) -> Option<QuietInstant>,
    ) {
        let mut said = HashSet::new();
        let mut is_awaited = |name: &str| {
            let names = Collection::covering(name).into_iter().chain([name.to_owned()]);
            let awaited: Vec<_> = names.filter(|name| asked(name).is_some()).collect();
            let is_awaited = !awaited.is_empty();
            said.extend(awaited);
            is_awaited
        };
        self.resources.retain(|received| {
            let aliases = received.envelope.aliases().map(normal_form);
            let names = std::iter::once(received.name.clone()).chain(aliases);
            names.filter(|name| is_awaited(name)).count() > 0
        });
        self.removed.retain(|removed| is_awaited(&removed.name));
        self.reports.retain(|report| is_awaited(&report.name));
        self.answers_end_mark = false;
        let absent =
            ended.iter().map(Name::as_str).filter(|name| asked(name).is_some() && !said.contains(*name));
        self.removed.extend(absent.map(|name| Removed {
            name: name.into(),
            constraints: None,
            covered: false,
            asked: None,
        }));
        self.removed.iter_mut().for_each(|removed| removed.asked = asked(&removed.name));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty() && self.removed.is_empty() && self.reports.is_empty()
    }

    /// Whether any part is for some clients only.
    pub(super) fn has_variants(&self) -> bool {
        self.resources.iter().any(|received| received.constraints().is_some())
            || self.removed.iter().any(|removed| removed.constraints.is_some())
    }
}

/// Resource in a response.
#[derive(Debug)]
pub(super) struct ReceivedResource<'a> {
    /// Name in normal form.
    pub(super) name: Cow<'a, str>,
    pub(super) envelope: Envelope<'a>,
    /// Whether it answers a subscription.
    pub(super) answers: bool,
    /// Whether a subscription covers it.
    pub(super) covered: bool,
    encoded: Option<Arc<Resource>>,
}

impl ReceivedResource<'_> {
    /// Constraints; `None` if it is for everybody, or they are invalid.
    pub(super) fn constraints(&self) -> Option<&Constraints> {
        self.envelope.constraints.as_ref().ok()?.as_ref()
    }

    /// Whether it is usable (R-DP-02).
    pub(super) const fn is_understood(&self) -> bool {
        self.envelope.constraints.is_ok()
    }

    /// Whether it is for clients with these parameters.
    pub(super) fn matches(&self, parameters: &Parameters) -> bool {
        self.is_understood() && self.constraints().is_none_or(|constraints| constraints.matches(parameters))
    }

    /// Whether it has the identity of a resource of the same name (R-DP-06).
    pub(super) fn is_variant_of(&self, held: &Resource) -> bool {
        self.constraints() == held.constraints()
    }

    /// Reason why it came.
    pub(super) const fn resend(&self) -> Resend {
        if self.answers { Resend::Answer } else { Resend::Unsolicited }
    }

    /// Encodes it once for all topics; `None` without a body.
    pub(super) fn encode(&mut self, type_url: &TypeUrl, name: &Name) -> Option<Arc<Resource>> {
        if self.encoded.is_none() {
            self.encoded = self.envelope.encode(type_url, name.clone()).map(Arc::new);
        }
        self.encoded.clone()
    }
}

/// Identity that does not exist.
#[derive(Debug)]
pub(super) struct Removed<'a> {
    /// Name in normal form.
    pub(super) name: Cow<'a, str>,
    pub(super) constraints: Option<Constraints>,
    /// Whether a subscription covers it.
    pub(super) covered: bool,
    /// Time of the request that it answers, if several topics ask: without constraints it does not
    /// say for which topic there is nothing.
    pub(super) asked: Option<QuietInstant>,
}

/// Takes a response apart, as a whole or not at all.
pub(super) fn read<'a>(
    response: &'a DeltaDiscoveryResponse,
    type_url: &TypeUrl,
    tells_errors: bool,
) -> Result<DecodedResponse<'a>, ResponseError> {
    let plain = response.removed_resources.iter().map(|name| (name, None));
    let variant = |removed: &'a ResourceName| {
        // A variant with invalid constraints is not held.
        let constraints = Constraints::parse(&removed.dynamic_parameter_constraints).ok()?;
        Some((&removed.name, constraints))
    };
    let mut gone: Vec<_> = plain.chain(response.removed_resource_names.iter().filter_map(variant)).collect();
    let mut answers_end_mark = false;
    gone.retain(|(name, _)| {
        let is_end_mark = *name == Name::END_MARK;
        answers_end_mark |= is_end_mark;
        !is_end_mark
    });
    let gone_as_spelled: HashSet<(&str, Option<&Constraints>)> =
        gone.iter().map(|(name, constraints)| (name.as_str(), constraints.as_ref())).collect();

    let mut resources = Vec::with_capacity(response.resources.len());
    for bytes in &response.resources {
        let envelope = Envelope::parse(bytes, type_url).map_err(ResponseError::new)?;
        // istiod makes an empty resource of each unknown name of endpoints and routes.
        if envelope.name == Name::END_MARK {
            answers_end_mark = true;
            continue;
        }
        let name = normal_form(envelope.name);
        resources.push(ReceivedResource { name, envelope, answers: false, covered: false, encoded: None });
    }
    let mut seen = HashSet::with_capacity(resources.len());
    for received in resources.iter().filter(|received| received.is_understood()) {
        let identity = (&*received.name, received.constraints());
        if gone_as_spelled.contains(&(received.envelope.name, received.constraints())) {
            return Err(ResponseError::new(format_args!(
                "resource `{}` is both sent and removed in one response",
                received.envelope.name
            )));
        }
        if !seen.insert(identity) {
            return Err(ResponseError::new(format_args!(
                "resource `{}` is in one response twice",
                received.envelope.name
            )));
        }
    }
    // A name that is sent in one spelling and removed in another exists (O9).
    let removed = gone.into_iter().map(|(name, constraints)| (normal_form(name), constraints));
    let removed = removed.filter(|(name, constraints)| !seen.contains(&(&**name, constraints.as_ref())));
    let removed = removed
        .map(|(name, constraints)| Removed { name, constraints, covered: false, asked: None })
        .collect();
    let mut reports = reports(response, &seen)?;
    answers_end_mark |= reports.iter().any(|report| report.name == Name::END_MARK);
    reports.retain(|report| report.name != Name::END_MARK);
    let system_version = &response.system_version_info;
    let is_part = response.nonce.as_bytes().last() == Some(&Nonce::MORE);
    let names_variants = !response.removed_resource_names.is_empty();
    Ok(DecodedResponse {
        resources,
        removed,
        reports,
        tells_errors,
        system_version,
        is_part,
        is_whole: false,
        answers_end_mark,
        names_variants,
    })
}

/// Error of a name, in place of a resource (R-Err-01).
#[derive(Debug)]
pub(super) struct ErrorReport<'a> {
    /// Name in normal form.
    pub(super) name: Cow<'a, str>,
    /// Constraints of the variant, if any.
    pub(super) constraints: Option<Constraints>,
    pub(super) failure: Arc<OriginError>,
    /// Whether a subscription covers it.
    pub(super) covered: bool,
}

impl ErrorReport<'_> {
    /// Whether it is for clients with these parameters.
    pub(super) fn matches(&self, parameters: &Parameters) -> bool {
        self.constraints.as_ref().is_none_or(|constraints| constraints.matches(parameters))
    }

    /// Logs it, without the message, which may hold anything.
    pub(super) fn complain(&self, type_url: &TypeUrl, node: &dyn fmt::Display, suppressed: u64) {
        let name = clipped(&self.name);
        let code = self.failure.code();
        tracing::warn!(%type_url, %node, name, code, suppressed, "the control plane reports an error of a resource");
    }
}

/// Shortens a name for the log.
pub(super) fn clipped(name: &str) -> String {
    name.chars().take(FAULT_CHARS).collect()
}

/// Reads the errors of a response, all or none. A name may have both a removal and an error
/// (R-Err-07).
fn reports<'a>(
    response: &'a DeltaDiscoveryResponse,
    sent: &HashSet<(&str, Option<&Constraints>)>,
) -> Result<Vec<ErrorReport<'a>>, ResponseError> {
    let report = |error: &'a crate::proto::ResourceError| {
        let named = error.resource_name.as_ref().filter(|named| !named.name.is_empty());
        let Some(ResourceName { name, dynamic_parameter_constraints }) = named else {
            return Err(ResponseError::new("a resource error has no name"));
        };
        let Some(status) = error.error_detail.as_ref().filter(|status| status.code != OK) else {
            return Err(ResponseError::new(format_args!(
                "the error of resource `{name}` is none: its code is OK"
            )));
        };
        // Invalid constraints must not match every client (R-DP-02).
        let Ok(constraints) = Constraints::parse(dynamic_parameter_constraints) else { return Ok(None) };
        let normal = normal_form(name);
        if sent.contains(&(&*normal, constraints.as_ref())) {
            return Err(ResponseError::new(format_args!(
                "resource `{name}` is both sent and in error in one response"
            )));
        }
        let failure = Arc::new(OriginError::new(status.code, &status.message));
        Ok(Some(ErrorReport { name: normal, constraints, failure, covered: false }))
    };
    response.resource_errors.iter().filter_map(|error| report(error).transpose()).collect()
}
