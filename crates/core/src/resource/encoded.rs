//! One version of one resource, encoded once for both protocols.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use xxhash_rust::xxh3;

mod derived_resource;
mod resource_head;

use super::name::parse_resource_name;
use super::referenced_names::eds_service;
use super::wire::{self, MalformedError};
use super::{ConstraintError, Constraints, Name, Parameters, TypeUrl};

pub use derived_resource::VersionForm;
pub use resource_head::NameForm;

// Field numbers of envoy.service.discovery.v3.Resource.
pub(super) const RESOURCE_VERSION: u32 = 1;
pub(super) const RESOURCE_BODY: u32 = 2;
pub(super) const RESOURCE_NAME: u32 = 3;
const RESOURCE_ALIASES: u32 = 4;
pub(super) const RESOURCE_TTL: u32 = 6;
const RESOURCE_CACHE_CONTROL: u32 = 7;
const RESOURCE_RESOURCE_NAME: u32 = 8;
/// `resources` of DiscoveryResponse and DeltaDiscoveryResponse, and `resource` of Resource. As the
/// numbers are equal, one encoding serves both protocols.
const RESOURCES: u8 = 2;
/// Type of a state-of-the-world element that wraps its resource (R-SotW-22, R-SotW-23).
pub(super) const WRAPPER: &str = "type.googleapis.com/envoy.service.discovery.v3.Resource";
/// Body with the location of the resource (R-XT-07).
const REDIRECT: &str = "type.googleapis.com/xds.core.v3.ResourceLocator";

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvelopeError {
    #[error("a resource could not be decoded")]
    Malformed,
    #[error("a resource has no name")]
    NoName,
    /// See R-DP-08.
    #[error("resource `{0}` has both `name` and `resource_name`; only one may be set")]
    TwoNames(String),
    /// See R-Up-13.
    #[error("resource `{name}` is a `{found}` in a response of `{expected}`")]
    WrongType { name: String, found: String, expected: String },
}

impl<E: Into<MalformedError>> From<E> for EnvelopeError {
    fn from(_: E) -> Self {
        Self::Malformed
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<'a> {
    pub name: &'a str,
    /// May be empty (R-Up-17).
    pub version: &'a str,
    /// Encoded `google.protobuf.Any`. `None` for a heartbeat, an unresolved alias or the old form
    /// of "does not exist" (R-TTL-02, R-Delta-22, R-Up-16).
    pub body: Option<&'a [u8]>,
    pub has_aliases: bool,
    /// Whether proxies must not keep the body (R-XT-09).
    pub do_not_cache: bool,
    /// Lifetime, unless it comes again (R-TTL-01).
    pub ttl: Option<Duration>,
    /// Which clients it is for, if not all (R-DP-03). If that cannot be read, the resource is
    /// useless, but its response is not (R-DP-02).
    pub constraints: Result<Option<Constraints>, ConstraintError>,
    /// Only control planes that know constraints use `resource_name`.
    pub by_resource_name: bool,
    /// Suffix of its version for clients: equal versions of two servers may mean different
    /// contents.
    pub mark: &'a str,
    /// Whether its body is the location of the resource (R-XT-07).
    is_redirect: bool,
    pub(super) whole: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Parses a `Resource` and checks it against the type of the response.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`] if the bytes are malformed, or the name is missing or the type wrong.
    pub fn parse(bytes: &'a [u8], expected: &TypeUrl) -> Result<Self, EnvelopeError> {
        let mut name = "";
        let mut resource_name: Option<&[u8]> = None;
        let mut version = "";
        let mut body = None;
        let mut has_aliases = false;
        let mut do_not_cache = false;
        let mut ttl = None;
        for field in wire::fields(bytes) {
            let field = field?;
            match field.number {
                RESOURCE_VERSION => version = field.text()?,
                // Repeated fields would have to be merged.
                RESOURCE_BODY if body.is_some() => return Err(EnvelopeError::Malformed),
                RESOURCE_BODY => body = Some(field.bytes()?),
                RESOURCE_NAME => name = field.text()?,
                RESOURCE_ALIASES => has_aliases = !field.text()?.is_empty() || has_aliases,
                RESOURCE_CACHE_CONTROL => {
                    do_not_cache = CacheControl::decode(field.bytes()?)?.do_not_cache;
                }
                RESOURCE_TTL => ttl = Some(duration(field.bytes()?)?),
                RESOURCE_RESOURCE_NAME => resource_name = Some(field.bytes()?),
                _ => {}
            }
        }
        let mut constraints = Ok(None);
        let by_resource_name = resource_name.is_some();
        if let Some(inner) = resource_name {
            if !name.is_empty() {
                return Err(EnvelopeError::TwoNames(name.to_owned()));
            }
            (name, constraints) = parse_resource_name(inner)?;
        }
        if name.is_empty() {
            return Err(EnvelopeError::NoName);
        }
        let mut is_redirect = false;
        if let Some(any) = body {
            let (found, _) = any_parts(any)?;
            // Only xdstp names may be redirected (R-XT-07).
            is_redirect = found == REDIRECT && name.starts_with("xdstp://") && expected.as_str() != REDIRECT;
            if found != expected.as_str() && !is_redirect {
                return Err(EnvelopeError::WrongType {
                    name: name.to_owned(),
                    found: found.to_owned(),
                    expected: expected.as_str().to_owned(),
                });
            }
        }
        Ok(Self {
            name,
            version,
            body,
            has_aliases,
            do_not_cache,
            ttl,
            constraints,
            by_resource_name,
            mark: "",
            is_redirect,
            whole: bytes,
        })
    }

    /// Name in a `Resource` that may be malformed.
    pub fn name_in(bytes: &'a [u8]) -> Option<&'a str> {
        let named = |field: wire::Field<'a>| match field.number {
            RESOURCE_NAME => field.text().ok(),
            RESOURCE_RESOURCE_NAME => Some(parse_resource_name(field.bytes().ok()?).ok()?.0),
            _ => None,
        };
        wire::fields(bytes).map_while(Result::ok).filter_map(named).find(|name| !name.is_empty())
    }

    pub fn aliases(&self) -> impl Iterator<Item = &'a str> {
        aliases_in(self.whole)
    }

    /// Copies the resource, as a slice would pin the whole response. `None` without a body.
    pub fn encode(&self, type_url: &TypeUrl, name: Name) -> Option<Resource> {
        self.body.map(|any| self.copy(type_url, name, any))
    }

    /// Copies an alias that leads to nothing (R-Delta-22).
    pub fn encode_unresolved(&self, type_url: &TypeUrl, name: Name) -> Resource {
        self.copy(type_url, name, &[])
    }

    fn copy(&self, type_url: &TypeUrl, name: Name, any: &[u8]) -> Resource {
        let is_resolved = self.body.is_some();
        let body_hash = xxh3::xxh3_64(any);
        let own_version = self.version.is_empty() && is_resolved;
        let mark = if self.version.is_empty() { "" } else { self.mark };
        let version: Cow<'_, str> = if own_version {
            format!("h:{body_hash:016x}").into()
        } else if mark.is_empty() {
            self.version.into()
        } else {
            format!("{}{mark}", self.version).into()
        };

        // All other fields stay as they came. The TTL does not: the rest of it is computed when
        // sent, to clients that support it (R-TTL-07, R-TTL-09).
        let kept = |number| {
            !matches!(
                number,
                RESOURCE_VERSION | RESOURCE_BODY | RESOURCE_NAME | RESOURCE_TTL | RESOURCE_RESOURCE_NAME
            )
        };
        let others = || wire::fields(self.whole).flatten().filter(|field| kept(field.number));
        let others_len: usize = others().map(|field| field.raw.len()).sum();
        let rest = others_len + if is_resolved { wire::field_len(any.len()) } else { 0 };
        let mut out = begin_entry(&name, &version, rest);
        let rest_at = out.len();
        for field in others() {
            out.extend_from_slice(field.raw);
        }
        let mut sotw_at = out.len();
        if is_resolved {
            wire::put_header(&mut out, RESOURCE_BODY as u8, any.len());
        }
        let body_at = out.len();
        out.extend_from_slice(any);
        if self.is_redirect {
            // Unwrapped it would be a body of another type (R-SotW-22).
            sotw_at = out.len();
        }

        let constraints = self.constraints.clone().ok().flatten();
        Resource {
            digest: digest(name.as_str(), constraints.as_ref(), &version, body_hash),
            eds_service: eds_service(type_url.kind(), any, &name),
            name,
            constraints,
            own_version,
            form: if is_resolved { Form::Whole } else { Form::Unresolved },
            has_aliases: self.has_aliases,
            layout: Layout::new(version.len(), mark.len(), [rest_at, sotw_at, body_at]),
            entry: out.freeze(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    Whole,
    /// An alias that leads to nothing (R-Delta-22).
    Unresolved,
    /// Only a hash, as the bytes must not be kept (R-XT-09).
    Dropped,
}

/// Places in an [entry](Resource::delta_entry), in 32 bits: a gRPC message is no longer than 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Layout {
    /// Length of the version, which ends at `rest_at`.
    version: u32,
    /// Bytes at the end of the version that the origin does not know.
    mark: u32,
    /// Start of the fields after name and version.
    rest_at: u32,
    sotw_at: u32,
    body_at: u32,
}

impl Layout {
    fn new(version: usize, mark: usize, starts: [usize; 3]) -> Self {
        let short = |bytes: usize| u32::try_from(bytes).unwrap_or(u32::MAX);
        let [rest_at, sotw_at, body_at] = starts.map(short);
        Self { version: short(version), mark: short(mark), rest_at, sotw_at, body_at }
    }
}

/// One version of one resource, ready for responses.
///
/// `entry` is laid out as `12 len Resource{name, version, …, 12 len Any}`. The whole is an element
/// of `DeltaDiscoveryResponse.resources`; its tail is an element of `DiscoveryResponse.resources`.
/// Without a body it is the version and a hash.
#[derive(Clone, PartialEq, Eq)]
pub struct Resource {
    name: Name,
    constraints: Option<Constraints>,
    own_version: bool,
    form: Form,
    has_aliases: bool,
    entry: Bytes,
    layout: Layout,
    digest: u128,
    eds_service: Option<Name>,
}

impl Resource {
    pub const fn name(&self) -> &Name {
        &self.name
    }

    /// Clients that it is for; `None` for all (R-DP-03). With the name this is its identity
    /// (R-DP-06).
    pub const fn constraints(&self) -> Option<&Constraints> {
        self.constraints.as_ref()
    }

    pub fn matches(&self, parameters: &Parameters) -> bool {
        self.constraints.as_ref().is_none_or(|constraints| constraints.matches(parameters))
    }

    /// Version of the origin, perhaps with a [mark](Envelope::mark); without one, `h:` and a hash
    /// of the body.
    pub fn version(&self) -> &str {
        let end = self.layout.rest_at as usize;
        str::from_utf8(&self.entry[end - self.layout.version as usize..end]).unwrap_or_default()
    }

    /// Version of the origin, and the [mark](Envelope::mark) of the server and of the body.
    fn split_version(&self) -> (&str, &str) {
        let version = self.version();
        let parts = version.len().checked_sub(self.layout.mark as usize);
        parts.and_then(|at| version.split_at_checked(at)).unwrap_or_default()
    }

    /// Version that the origin knows; `None` if the relay made it up (R-Up-17).
    pub fn origin_version(&self) -> Option<&str> {
        (!self.own_version).then(|| self.split_version().0)
    }

    /// End of the version that the origin does not know.
    pub(crate) fn version_mark(&self) -> &str {
        self.split_version().1
    }

    /// Element of `DeltaDiscoveryResponse.resources`.
    pub const fn delta_entry(&self) -> &Bytes {
        &self.entry
    }

    /// Element of `DiscoveryResponse.resources`.
    pub fn sotw_entry(&self) -> &[u8] {
        &self.entry[self.layout.sotw_at as usize..]
    }

    /// [`delta_entry`](Self::delta_entry), and the start of [`sotw_entry`](Self::sotw_entry) in it.
    pub const fn sotw_tail(&self) -> (&Bytes, usize) {
        (&self.entry, self.layout.sotw_at as usize)
    }

    pub fn body(&self) -> &[u8] {
        &self.entry[self.layout.body_at as usize..]
    }

    /// Type URL of the body; empty without one.
    pub fn type_url(&self) -> &str {
        any_parts(self.body()).unwrap_or_default().0
    }

    /// Hash of name, constraints, version and body: its share of the digest of a set (R-Relay-11).
    /// Sums of these do not depend on order. Relays with equal bytes agree on it (R-REST-07).
    /// The body counts because the versions of a counting origin begin anew when it restarts. The
    /// mark of a body (`body_mark`) does not count.
    pub const fn digest(&self) -> u128 {
        self.digest
    }

    /// Hash of name and constraints. A [digest](Self::digest) would let its readers test guesses at
    /// a body. So would a hash of the version, which may be a hash of the body.
    pub fn identity_digest(&self) -> u128 {
        digest(self.name.as_str(), self.constraints.as_ref(), "", 0)
    }

    /// Name of an EDS cluster's endpoints (R-ADS-05).
    pub const fn eds_service(&self) -> Option<&Name> {
        self.eds_service.as_ref()
    }

    pub const fn form(&self) -> Form {
        self.form
    }

    pub fn aliases(&self) -> impl Iterator<Item = &str> {
        wire::payloads(&self.entry, RESOURCES.into()).filter(|_| self.has_aliases).flat_map(aliases_in)
    }

    /// Whether it has no SotW form: it has no body of its type.
    pub const fn is_delta_only(&self) -> bool {
        self.layout.sotw_at as usize == self.entry.len()
    }

    /// Copy without the body, which must not be kept (R-XT-09). It can recognize the resource.
    #[must_use]
    pub fn dropped(&self) -> Self {
        let version = self.version().as_bytes();
        let entry = Bytes::from([version, &self.entry_hash()].concat());
        let starts = [version.len(), entry.len(), entry.len()];
        Self {
            form: Form::Dropped,
            has_aliases: false,
            name: self.name.clone(),
            layout: Layout::new(version.len(), self.layout.mark as usize, starts),
            entry,
            eds_service: None,
            constraints: self.constraints.clone(),
            ..*self
        }
    }

    fn rest(&self) -> &[u8] {
        &self.entry[self.layout.rest_at as usize..]
    }

    fn entry_hash(&self) -> [u8; 16] {
        xxh3::xxh3_128(self.rest()).to_le_bytes()
    }

    /// Whether a client with `other` lacks nothing of this one, apart from marks: two servers may
    /// give equal versions.
    pub fn same_content(&self, other: &Self) -> bool {
        self.name == other.name
            && self.own_version == other.own_version
            && self.origin_version() == other.origin_version()
            && (!self.own_version || self.version() == other.version())
            && self.constraints == other.constraints
            && match (self.form, other.form) {
                (Form::Dropped, Form::Whole) => self.rest() == &other.entry_hash()[..],
                (Form::Whole, Form::Dropped) => other.rest() == &self.entry_hash()[..],
                _ => self.rest() == other.rest(),
            }
    }
}

impl fmt::Debug for Resource {
    /// Without the body: it may be a Secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource")
            .field("name", &self.name)
            .field("version", &self.version())
            .field("bytes", &self.entry.len())
            .finish_non_exhaustive()
    }
}

/// `rest`: bytes after name and version.
fn begin_entry(name: &Name, version: &str, rest: usize) -> BytesMut {
    let optional = |len: usize| if len == 0 { 0 } else { wire::field_len(len) };
    let inner = wire::field_len(name.as_str().len()) + optional(version.len()) + rest;
    let mut out = BytesMut::with_capacity(wire::field_len(inner));
    wire::put_header(&mut out, RESOURCES, inner);
    wire::put_field(&mut out, RESOURCE_NAME as u8, name.as_str().as_bytes());
    wire::put_field(&mut out, RESOURCE_VERSION as u8, version.as_bytes());
    out
}

fn aliases_in(resource: &[u8]) -> impl Iterator<Item = &str> {
    wire::payloads(resource, RESOURCE_ALIASES).filter_map(|alias| std::str::from_utf8(alias).ok())
}

/// `envoy.service.discovery.v3.Resource.CacheControl`
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct CacheControl {
    #[prost(bool, tag = "1")]
    do_not_cache: bool,
}

fn digest(name: &str, constraints: Option<&Constraints>, version: &str, body_hash: u64) -> u128 {
    let mut hasher = xxh3::Xxh3::new();
    hasher.update(&(name.len() as u64).to_le_bytes());
    hasher.update(name.as_bytes());
    hasher.update(version.as_bytes());
    if let Some(constraints) = constraints {
        hasher.update(constraints.encoded());
    }
    hasher.update(&body_hash.to_le_bytes());
    hasher.digest128()
}

/// A negative duration counts as zero.
fn duration(message: &[u8]) -> Result<Duration, MalformedError> {
    let time = prost_types::Duration::decode(message)?;
    let nanos = u64::try_from(time.nanos).unwrap_or_default();
    let seconds = Duration::from_secs(u64::try_from(time.seconds).unwrap_or_default());
    Ok(seconds.saturating_add(Duration::from_nanos(nanos)))
}

/// Type URL and value of a `google.protobuf.Any`.
pub(super) fn any_parts(any: &[u8]) -> Result<(&str, &[u8]), MalformedError> {
    let (mut url, mut value): (&str, &[u8]) = ("", &[]);
    for field in wire::fields(any) {
        let field = field?;
        match field.number {
            1 => url = field.text()?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    Ok((url, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Kind;
    use super::*;

    fn field(number: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = BytesMut::new();
        wire::put_header(&mut out, number, payload.len());
        out.extend_from_slice(payload);
        out.to_vec()
    }

    fn any(url: &str, value: &[u8]) -> Vec<u8> {
        [field(1, url.as_bytes()), field(2, value)].concat()
    }

    fn cds() -> TypeUrl {
        Kind::Cluster.into()
    }

    #[test]
    fn one_allocation_serves_both_protocols_and_keeps_unknown_fields() {
        let body = any(cds().as_str(), b"\xfa\x01\x03abc");
        let metadata = field(9, b"\x0a\x01m");
        let unknown = [0xfa, 0x06, 0x02, b'h', b'i'];
        let ttl = field(6, &[8, 5]);
        let sent = [field(1, b"7"), field(2, &body), metadata.clone(), ttl, field(3, b"a"), unknown.to_vec()]
            .concat();
        let envelope = Envelope::parse(&sent, &cds()).expect("a good envelope");
        let resource = envelope.encode(&cds(), "a".into()).expect("it has a body");

        assert_eq!(resource.body(), body);
        assert_eq!(resource.sotw_entry(), field(2, &body));
        let inner = [field(3, b"a"), field(1, b"7"), metadata, unknown.to_vec(), field(2, &body)].concat();
        assert_eq!(resource.delta_entry().as_ref(), field(2, &inner), "all but the ttl goes along");
    }

    #[test]
    fn r_up_13_envelope_faults_are_told_apart() {
        let body = any("type.googleapis.com/x.Y", b"");
        let parse = |bytes: &[u8]| Envelope::parse(bytes, &cds()).map(|_| ()).expect_err("a fault");
        assert_eq!(parse(&field(2, &[])), EnvelopeError::NoName);
        assert_eq!(parse(b"\x0b"), EnvelopeError::Malformed);
        let both = [field(3, b"a"), field(8, &field(1, b"a"))].concat();
        assert_eq!(parse(&both), EnvelopeError::TwoNames("a".into()));
        let wrong = parse(&[field(3, b"a"), field(2, &body)].concat());
        assert!(matches!(wrong, EnvelopeError::WrongType { .. }), "{wrong:?}");
    }

    #[test]
    fn r_up_17_a_missing_version_is_made_from_the_body_and_kept_from_the_origin() {
        let body = any(cds().as_str(), b"");
        let sent = [field(2, &body), field(3, b"a")].concat();
        let resource =
            Envelope::parse(&sent, &cds()).expect("good").encode(&cds(), "a".into()).expect("a body");
        assert!(resource.version().starts_with("h:"));
        assert_eq!(resource.origin_version(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_refused_without_a_panic(bytes: Vec<u8>) {
            if let Ok(envelope) = Envelope::parse(&bytes, &cds()) {
                let name = Name::from(envelope.name);
                let _resource = envelope.encode(&cds(), name);
            }
        }
    }
}
