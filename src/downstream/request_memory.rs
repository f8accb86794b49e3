//! Memory of requests, counted for each connection and for all, and the versions taken out of arriving ones.
//!
//! Owns two pools. The first is for requests that are incomplete or wait. A request that arrives whole and is
//! handled at once is never counted. The second is for the versions that clients claim to hold, until they
//! are compared with the cache. Versions of removed names count until the client received the removal.
//! Without limits a connection could take the largest request for each stream. The share of one peer follows from the rule of
//! the [pool](crate::pool).
//!
//! A client of a large wildcard set sends tens of megabytes of
//! versions. They are compacted entry by entry as they arrive. All other fields are kept as they
//! came, within `max_request_bytes`. Malformed bytes are kept too, for the decoder to refuse.

use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut as _, BytesMut};

use super::connection::{Charge, Connection, Usage};
use super::grpc_status::report;
use crate::limit::Limit;
use crate::pool::{Pool, Share};
use crate::resource::wire::{self, MalformedError};
use crate::subscription::{ByteCharge, Versions};

/// Pool of one kind of memory.
#[derive(Debug)]
pub struct RequestMemory {
    usage: Usage,
    /// Limits to report, for all connections and for each.
    reported: [Limit; 2],
    pool: Arc<Pool>,
    limit: usize,
    limit_per_connection: usize,
}

impl RequestMemory {
    /// Creates the pool for incomplete requests. Limits are in bytes, for all connections and for each.
    pub fn new(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        let reported = [Limit::Buffered, Limit::BufferedPerConnection];
        Arc::new(Self { usage: Usage::Requests, reported, pool: Arc::default(), limit, limit_per_connection })
    }

    /// Creates the pool for claimed versions, as [`new`](Self::new) does for requests.
    pub fn versions(limit: usize, limit_per_connection: usize) -> Arc<Self> {
        let reported = [Limit::Versions, Limit::VersionsPerConnection];
        Arc::new(Self { usage: Usage::Versions, reported, pool: Arc::default(), limit, limit_per_connection })
    }
}

/// Bytes of one request; given back on drop.
#[derive(Debug)]
pub(super) struct MemoryShare {
    of: Arc<RequestMemory>,
    of_all: Share,
    of_connection: Charge,
    /// Time at which the incomplete message began to arrive.
    pub(super) since: Option<Instant>,
}

impl MemoryShare {
    pub(super) fn new(of: &Arc<RequestMemory>, connection: &Arc<Connection>) -> Self {
        let of_all = of.pool.share(connection.tenant());
        Self { of: Arc::clone(of), of_all, of_connection: Charge::new(connection, of.usage), since: None }
    }

    /// Sets its bytes. After an error the caller drops the request and this share.
    pub(super) fn set(&mut self, bytes: usize) -> Result<(), Limit> {
        let [limit, limit_per_connection] = self.of.reported;
        if self.of_connection.total_with(bytes) > self.of.limit_per_connection {
            return Err(limit_per_connection);
        }
        if !self.of_all.set(bytes, self.of.limit) {
            return Err(limit);
        }
        self.of_connection.set(bytes);
        Ok(())
    }
}

impl ByteCharge for MemoryShare {
    fn charge(&mut self, bytes: usize) -> bool {
        let charged = self.set(bytes);
        if let Err(limit) = charged {
            report(
                limit,
                self.of_connection.connection.whom(),
                "more `initial_resource_versions` than are held; all is sent as if there were none",
            );
        }
        charged.is_ok()
    }
}

/// Field number of `initial_resource_versions`.
const VERSIONS: u8 = 5;
/// Longest header of a field in bytes: a tag, and a length or number.
const HEADER: usize = 20;

/// Error: the rest of the request exceeds the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLargeError;

/// Pool and connection that the versions of a stream are charged to.
#[derive(Debug)]
pub(super) struct Payer {
    pub(super) of: Arc<RequestMemory>,
    pub(super) connection: Arc<Connection>,
}

/// Parser of the requests of one stream.
#[derive(Debug)]
pub(super) struct VersionExtractor {
    payer: Option<Payer>,
    /// Start of a field that arrives in pieces.
    partial: Vec<u8>,
    /// Whether bytes came that cannot be parsed: the rest of the request is kept.
    is_unreadable: bool,
    versions: Option<Box<Versions>>,
}

enum Header {
    Incomplete,
    /// Lengths of the header and of the payload behind it.
    Field {
        is_version: bool,
        header: usize,
        payload: usize,
    },
    Unreadable,
}

impl VersionExtractor {
    pub(super) const fn new(payer: Option<Payer>) -> Self {
        Self { payer, partial: Vec::new(), is_unreadable: false, versions: None }
    }

    /// Parses more of a request. Kept bytes go to `kept`, up to `limit` bytes.
    pub(super) fn push(
        &mut self,
        piece: &[u8],
        kept: &mut BytesMut,
        limit: usize,
    ) -> Result<(), TooLargeError> {
        if self.partial.is_empty() {
            let rest = self.take_fields(piece, kept, limit)?;
            self.partial.extend_from_slice(rest);
            return Ok(());
        }
        let mut bytes = std::mem::take(&mut self.partial);
        bytes.extend_from_slice(piece);
        let rest = self.take_fields(&bytes, kept, limit)?.len();
        if rest > 0 {
            bytes.drain(..bytes.len() - rest);
            self.partial = bytes;
        }
        Ok(())
    }

    /// Takes whole fields, and returns the rest.
    fn take_fields<'b>(
        &mut self,
        mut bytes: &'b [u8],
        kept: &mut BytesMut,
        limit: usize,
    ) -> Result<&'b [u8], TooLargeError> {
        while !bytes.is_empty() {
            let field = if self.is_unreadable { Header::Unreadable } else { read_header(bytes) };
            let (is_version, header, length) = match field {
                Header::Incomplete => break,
                // An entry that alone exceeds the limit is not taken as a version.
                Header::Field { is_version, header, payload } => {
                    (is_version && payload <= limit, header, header.saturating_add(payload))
                }
                Header::Unreadable => {
                    self.is_unreadable = true;
                    (false, 0, bytes.len())
                }
            };
            let has_room = kept.len().saturating_add(length) <= limit;
            if !is_version && !has_room {
                return Err(TooLargeError);
            }
            let Some((field, rest)) = bytes.split_at_checked(length) else { break };
            bytes = rest;
            if is_version && self.take_version(&field[header..]) {
                continue;
            }
            if !has_room {
                return Err(TooLargeError);
            }
            kept.put_slice(field);
        }
        Ok(bytes)
    }

    /// Takes an entry, unless it is malformed.
    fn take_version(&mut self, entry: &[u8]) -> bool {
        let payer = self.payer.as_ref();
        let versions = self.versions.get_or_insert_with(|| {
            let share = payer.map(|payer| MemoryShare::new(&payer.of, &payer.connection));
            Box::new(share.map_or_else(Versions::default, |share| Versions::within(Box::new(share))))
        });
        if versions.is_over() {
            return true;
        }
        let read = read_version(entry);
        read.is_ok_and(|(name, version)| {
            versions.add(name, version);
            true
        })
    }

    /// Ends a request. A cut-off field goes to `kept`, which the decoder then refuses.
    pub(super) fn end(&mut self, kept: &mut BytesMut) {
        kept.put_slice(&std::mem::take(&mut self.partial));
        self.is_unreadable = false;
    }

    pub(super) fn take_versions(&mut self) -> Versions {
        self.versions.take().map(|versions| *versions).unwrap_or_default()
    }

    /// Bytes kept of an incomplete field.
    pub(super) const fn partial_bytes(&self) -> usize {
        self.partial.capacity()
    }
}

/// Whether a whole request has versions, or cannot be parsed.
pub(super) fn has_versions(message: &[u8]) -> bool {
    wire::fields(message).any(|field| !field.is_ok_and(|field| field.number != u32::from(VERSIONS)))
}

/// Parses the tag at the start of these bytes, and the length or number behind it.
fn read_header(bytes: &[u8]) -> Header {
    let unless_full = if bytes.len() < HEADER { Header::Incomplete } else { Header::Unreadable };
    let Some((tag, rest)) = wire::varint(bytes) else { return unless_full };
    let (number, number_or_length) = (tag >> 3, wire::varint(rest));
    let field = |rest: &[u8], payload| {
        let is_version = tag & 7 == 2 && number == u64::from(VERSIONS);
        Header::Field { is_version, header: bytes.len() - rest.len(), payload }
    };
    match (tag & 7, number_or_length) {
        _ if number == 0 || tag > u64::from(u32::MAX) => Header::Unreadable,
        (0, Some((_, rest))) => field(rest, 0),
        (1, _) => field(rest, 8),
        (5, _) => field(rest, 4),
        (2, Some((length, rest))) => {
            usize::try_from(length).map_or(Header::Unreadable, |payload| field(rest, payload))
        }
        (0 | 2, None) => unless_full,
        _ => Header::Unreadable,
    }
}

/// Parses an entry of the map: a name and its version.
fn read_version(entry: &[u8]) -> Result<(&str, &str), MalformedError> {
    let (mut name, mut version) = ("", "");
    for field in wire::fields(entry) {
        let field = field?;
        match field.number {
            1 => name = field.text()?,
            2 => version = field.text()?,
            _ => {}
        }
    }
    Ok((name, version))
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use bytes::Bytes;
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;
    use crate::proto::DeltaDiscoveryRequest;

    const LIMIT: usize = 10_000;

    /// Extracts from a request that arrives in pieces of these lengths.
    fn extract(request: &[u8], cuts: &[usize]) -> Result<(Bytes, Versions), TooLargeError> {
        let (mut extractor, mut kept, mut rest) = (VersionExtractor::new(None), BytesMut::new(), request);
        for cut in cuts.iter().chain(&[usize::MAX]) {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            extractor.push(piece, &mut kept, LIMIT)?;
            rest = after;
        }
        extractor.end(&mut kept);
        Ok((kept.freeze(), extractor.take_versions()))
    }

    /// Decodes a request after extraction, with its versions put back.
    fn read(request: &[u8], cuts: &[usize]) -> Option<DeltaDiscoveryRequest> {
        // The request is shorter than the limit: one that seems too large is cut off.
        let (kept, versions) = extract(request, cuts).ok()?;
        let mut request = DeltaDiscoveryRequest::decode(kept).ok()?;
        let versions = versions.iter().map(|(name, version)| (name.to_owned(), version.to_owned()));
        request.initial_resource_versions.extend(versions);
        Some(request)
    }

    proptest! {
        #[test]
        fn a_request_is_the_same_however_it_is_cut(
            held in proptest::collection::hash_map("[a-z]{0,200}", "[0-9]{0,9}", 0..20),
            names in proptest::collection::vec("[a-z]{0,200}", 0..5),
            unknown in proptest::option::of(any::<(u64, u32, u64)>()),
            cuts in proptest::collection::vec(0_usize..60, 0..80),
            breaks in proptest::option::of((any::<proptest::sample::Index>(), any::<u8>())),
            end in proptest::option::of(any::<proptest::sample::Index>()),
        ) {
            let request = DeltaDiscoveryRequest {
                type_url: "t/x".to_owned(),
                resource_names_subscribe: names,
                initial_resource_versions: held,
                response_nonce: "n".to_owned(),
                ..Default::default()
            };
            let mut bytes = BytesMut::from(&request.encode_to_vec()[..]);
            if let Some((number, fixed, long)) = unknown {
                bytes.put_u8(12 << 3);
                wire::encode_varint(number, &mut bytes);
                bytes.put_u8(13 << 3 | 5);
                bytes.put_u32(fixed);
                bytes.put_u8(14 << 3 | 1);
                bytes.put_u64(long);
            }
            if let Some(end) = end {
                bytes.truncate(end.index(bytes.len() + 1));
            }
            if let Some((at, byte)) = breaks.filter(|_| !bytes.is_empty()) {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let mut decoded = DeltaDiscoveryRequest::decode(&bytes[..]).ok();
            if let Some(decoded) = &mut decoded {
                decoded.initial_resource_versions.remove("");
            }
            prop_assert_eq!(read(&bytes, &cuts), decoded);
        }
    }

    #[test]
    fn versions_are_taken_out_and_all_else_is_kept_and_bounded() {
        let held: HashMap<String, String> =
            (0..5000).map(|n| (format!("{n:0>80}"), "1".to_owned())).collect();
        let request = |names: usize| DeltaDiscoveryRequest {
            type_url: "t/x".to_owned(),
            resource_names_subscribe: (0..names).map(|n| format!("{n:0>98}")).collect(),
            initial_resource_versions: held.clone(),
            ..Default::default()
        };
        let (kept, versions) = extract(&request(99).encode_to_vec(), &[1000; 500]).expect("9.9 kB are kept");
        assert_eq!((kept.len(), versions.len()), (9905, 5000));
        assert!(extract(&request(100).encode_to_vec(), &[1000; 500]).is_err(), "10.005 kB");
        let long = DeltaDiscoveryRequest { type_url: "t".repeat(LIMIT), ..Default::default() };
        assert!(extract(&long.encode_to_vec()[..3], &[]).is_err(), "before it comes");
        let long = [("n".repeat(LIMIT), "1".to_owned())];
        let long = DeltaDiscoveryRequest { initial_resource_versions: long.into(), ..Default::default() };
        assert!(extract(&long.encode_to_vec()[..3], &[]).is_err(), "before it comes");
    }

    #[test]
    fn fields_without_a_payload_and_broken_versions_are_bounded_too() {
        let number = [12 << 3, 1];
        let empty = [13 << 3 | 2, 0];
        let no_text = [VERSIONS << 3 | 2, 3, 0x0a, 1, 0xff];
        for field in [&number[..], &empty, &no_text] {
            let as_many = LIMIT / field.len();
            for cuts in [&[][..], &[1; 99]] {
                let (kept, _) = extract(&field.repeat(as_many), cuts).expect("as much as is allowed");
                assert_eq!(kept.len(), LIMIT);
                assert!(extract(&field.repeat(as_many + 1), cuts).is_err(), "{field:?}");
            }
        }
    }
}
