//! REST-JSON without its HTTP: DiscoveryRequests read from proto3 JSON, and DiscoveryResponses
//! written as JSON.
//!
//! Owns the form of requests and responses, and that the JSON of a resource is made once per
//! version, within a budget. Knows nothing of polls, sockets or clients; has no clock. A relay that speaks only gRPC
//! makes no JSON. The program shares whole responses: their clients wait for the same.
//!
//! Field names are read in both spellings (R-REST-03). Unknown fields, which newer clients may
//! have, are skipped. `null` is the same as no field.
//!
//! Invariants:
//! - A peer's request is bounded in size, depth and number of parts before it is parsed. Parts that
//!   are not read are not built: `extensions` and `error_detail` are skipped, and no `Any` in them
//!   is read. So are `locality` and `metadata`, unless the operator's rules may need them
//!   (R-DP-17).
//! - A response is whole or an error; none lacks a part.

use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use moka::policy::EvictionPolicy;
use prost::Message as _;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use xxhash_rust::xxh3;

use crate::cache::{SetContents, SetVersion};
use crate::descriptors::{BoundsError, DescriptorError, Descriptors, check_bounds};
use crate::fairness::QUICK_JSON_BYTES;
use crate::proto;
use crate::resource::{Name, NameForm, Resource, TypeUrl};

const OTHER_VALUES: usize = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum JsonRequestError {
    #[error("the body is empty; send a DiscoveryRequest as JSON, at least {{}}")]
    Empty,
    #[error("the body is not UTF-8: {0}")]
    NotText(#[from] std::str::Utf8Error),
    #[error("the body is refused: {0}")]
    OutOfBounds(#[from] BoundsError),
    #[error("the body is no DiscoveryRequest in proto3 JSON: {0}")]
    Malformed(String),
}

impl From<serde_json::Error> for JsonRequestError {
    fn from(error: serde_json::Error) -> Self {
        // It may quote the request.
        let text = error.to_string();
        if text.len() <= 400 {
            return Self::Malformed(text);
        }
        let start: String = text.chars().take(200).collect();
        Self::Malformed(format!("{start}… at line {} column {}", error.line(), error.column()))
    }
}

/// Reads a request for about `max_names` names at most. Large, seldom needed parts of the node are
/// read only with `whole_node`.
///
/// # Errors
///
/// [`JsonRequestError`] for a body that is no such request, or too large.
pub fn read(
    body: &[u8],
    max_names: usize,
    whole_node: bool,
) -> Result<proto::DiscoveryRequest, JsonRequestError> {
    let text = std::str::from_utf8(body)?;
    if text.trim_ascii().is_empty() {
        return Err(JsonRequestError::Empty);
    }
    check_bounds(body, max_names.saturating_add(OTHER_VALUES))?;
    let mut json = serde_json::Deserializer::from_str(text);
    let Object(request) = Object::<Request<'_>>::deserialize(&mut json)?;
    json.end()?;
    request.read(whole_node)
}

/// A message from an object. `derive` alone would accept a list too.
struct Object<M>(M);

impl<'de, M: Deserialize<'de>> Deserialize<'de> for Object<M> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields<M>(PhantomData<M>);

        impl<'de, M: Deserialize<'de>> Visitor<'de> for Fields<M> {
            type Value = Object<M>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a message as an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, fields: A) -> Result<Object<M>, A::Error> {
                M::deserialize(MapAccessDeserializer::new(fields)).map(Object)
            }
        }

        deserializer.deserialize_map(Fields(PhantomData))
    }
}

/// REST-JSON has no nonces and no rejections (R-REST-02).
#[derive(serde::Deserialize)]
struct Request<'a> {
    #[serde(alias = "versionInfo")]
    version_info: Option<String>,
    #[serde(borrow)]
    node: Option<Object<Node<'a>>>,
    #[serde(alias = "resourceNames")]
    resource_names: Option<Vec<String>>,
    #[serde(alias = "typeUrl")]
    type_url: Option<String>,
    #[serde(alias = "resourceLocators")]
    resource_locators: Option<Vec<Object<Locator>>>,
}

#[derive(serde::Deserialize)]
struct Locator {
    name: Option<String>,
    #[serde(alias = "dynamicParameters")]
    dynamic_parameters: Option<HashMap<String, String>>,
}

#[derive(serde::Deserialize)]
struct Node<'a> {
    id: Option<String>,
    cluster: Option<String>,
    #[serde(alias = "userAgentName")]
    user_agent_name: Option<String>,
    #[serde(borrow)]
    locality: Option<&'a RawValue>,
    #[serde(borrow)]
    metadata: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct Locality {
    region: Option<String>,
    zone: Option<String>,
    #[serde(alias = "subZone")]
    sub_zone: Option<String>,
}

impl Request<'_> {
    fn read(self, whole_node: bool) -> Result<proto::DiscoveryRequest, JsonRequestError> {
        let locator = |Object(Locator { name, dynamic_parameters })| proto::ResourceLocator {
            name: name.unwrap_or_default(),
            dynamic_parameters: dynamic_parameters.unwrap_or_default(),
        };
        Ok(proto::DiscoveryRequest {
            version_info: self.version_info.unwrap_or_default(),
            node: self.node.map(|Object(node)| node.read(whole_node)).transpose()?,
            resource_names: self.resource_names.unwrap_or_default(),
            type_url: self.type_url.unwrap_or_default(),
            resource_locators: self.resource_locators.into_iter().flatten().map(locator).collect(),
            ..proto::DiscoveryRequest::default()
        })
    }
}

impl Node<'_> {
    fn read(self, whole: bool) -> Result<proto::Node, serde_json::Error> {
        let [id, cluster, user_agent_name] =
            [self.id, self.cluster, self.user_agent_name].map(Option::unwrap_or_default);
        let mut node = proto::Node { id, cluster, user_agent_name, ..proto::Node::default() };
        if let Some(locality) = self.locality.filter(|_| whole) {
            let Object(Locality { region, zone, sub_zone }) = serde_json::from_str(locality.get())?;
            let [region, zone, sub_zone] = [region, zone, sub_zone].map(Option::unwrap_or_default);
            node.locality = Some(proto::Locality { region, zone, sub_zone });
        }
        if let Some(metadata) = self.metadata.filter(|_| whole) {
            node.metadata = proto::structure(&serde_json::from_str(metadata.get())?).encode_to_vec().into();
        }
        Ok(node)
    }
}

/// Least bytes that are shared, not copied.
const SHARED: usize = 32 << 10;
/// Bytes at both ends that are copied, so that no chunk around them is tiny.
const ENDS: usize = 4 << 10;
const BLOCK: usize = 256 << 10;

#[derive(Clone)]
pub struct JsonResponse {
    pub version: SetVersion,
    chunks: Arc<[Bytes]>,
}

impl fmt::Debug for JsonResponse {
    /// Without the text: there may be a Secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JsonResponse").field("version", &self.version).field("bytes", &self.bytes()).finish()
    }
}

impl JsonResponse {
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    pub fn bytes(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }
}

/// The origin's resource is at fault, never the client.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JsonError {
    /// A type in the resource is unknown (R-REST-11).
    #[error(
        "resource `{name}` cannot be written as JSON: {error}; put the file descriptor set of that type into `rest.descriptor_sets`"
    )]
    UnknownType { name: Name, error: DescriptorError },
    #[error("resource `{name}` cannot be written as JSON: {error}")]
    Broken { name: Name, error: DescriptorError },
    #[error(
        "with resource `{name}` the answer takes more than {limit} bytes as JSON; raise `downstream.max_unsent_bytes`, split \
         what is asked for, or use gRPC"
    )]
    TooLarge { name: Name, limit: usize },
    #[error("an answer could not be written, which is a fault of deltafan")]
    Failed,
}

/// By hash of their content.
type ResourceCache = moka::sync::Cache<u128, Result<Bytes, DescriptorError>, foldhash::fast::RandomState>;

#[derive(Debug)]
pub struct JsonWriter {
    descriptors: Descriptors,
    limit: usize,
    resources: ResourceCache,
    resources_written: AtomicU64,
    responses_written: AtomicU64,
}

impl JsonWriter {
    /// Keeps `budget` bytes of JSON and writes responses of up to `limit` bytes.
    pub fn new(descriptors: Descriptors, budget: u64, limit: usize) -> Self {
        let resources = moka::sync::Cache::builder()
            .max_capacity(budget)
            .weigher(|_, json: &Result<Bytes, _>| {
                u32::try_from(json.as_ref().map_or(0, Bytes::len) + 128).unwrap_or(u32::MAX)
            })
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(foldhash::fast::RandomState::default());
        let (resources_written, responses_written) = Default::default();
        Self { descriptors, limit, resources, resources_written, responses_written }
    }

    pub fn resources_written(&self) -> u64 {
        self.resources_written.load(Ordering::Relaxed)
    }

    pub fn responses_written(&self) -> u64 {
        self.responses_written.load(Ordering::Relaxed)
    }

    /// Whether writing would make other connections wait.
    pub fn is_slow(&self, found: &SetContents) -> bool {
        let size: usize = found.resources.iter().map(|resource| resource.body().len()).sum();
        size > QUICK_JSON_BYTES || !self.descriptors.are_unpacked()
    }

    /// Writes a response.
    ///
    /// # Errors
    ///
    /// [`JsonError`] for a resource without JSON.
    pub fn write(&self, type_url: &TypeUrl, found: &SetContents) -> Result<JsonResponse, JsonError> {
        let is_located = |resource: &Resource| {
            found.asked.as_ref().is_some_and(|asked| asked.locates(resource.name().as_str()))
        };
        let text = |resource: &Arc<Resource>| match is_located(resource) {
            true => self.wrapped(resource),
            false => self.resource(resource),
        };
        let (mut texts, mut bytes) = (Vec::with_capacity(found.resources.len()), 0);
        for resource in &found.resources {
            let text = text(resource)?;
            bytes += text.len();
            if bytes > self.limit {
                return Err(JsonError::TooLarge { name: resource.name().clone(), limit: self.limit });
            }
            texts.push(text);
        }
        self.responses_written.fetch_add(1, Ordering::Relaxed);
        // Fields that old clients do not know are left out (R-REST-12).
        let mut chunks = ChunkWriter::default();
        // Only JSON's own escapes are JSON, not those of debug output.
        let type_url = serde_json::Value::from(type_url.as_str());
        let version = found.version;
        chunks.copy(
            format!("{{\"versionInfo\":\"{version}\",\"typeUrl\":{type_url},\"resources\":[").as_bytes(),
        );
        for (at, text) in texts.iter().enumerate() {
            if at > 0 {
                chunks.copy(b",");
            }
            chunks.add(text);
        }
        chunks.copy(b"]}");
        Ok(JsonResponse { version, chunks: chunks.close() })
    }

    fn resource(&self, resource: &Resource) -> Result<Bytes, JsonError> {
        self.any(resource, resource.digest(), resource.body())
    }

    /// Wrapped, with its constraints (R-DP-07, R-DP-11).
    fn wrapped(&self, resource: &Resource) -> Result<Bytes, JsonError> {
        let any = resource.wrapped(NameForm::Locator(resource.name()));
        self.any(resource, xxh3::xxh3_128(&any), &any)
    }

    fn any(&self, resource: &Resource, key: u128, any: &[u8]) -> Result<Bytes, JsonError> {
        let made = self.resources.get_with(key, || {
            self.resources_written.fetch_add(1, Ordering::Relaxed);
            let mut json = Vec::with_capacity(2 * any.len());
            self.descriptors.write_json(any, &mut json)?;
            json.shrink_to_fit();
            Ok(json.into())
        });
        let name = || resource.name().clone();
        made.map_err(|error| match error {
            DescriptorError::UnknownType(_) => JsonError::UnknownType { name: name(), error },
            _ => JsonError::Broken { name: name(), error },
        })
    }
}

/// Chunks of copied and shared text. Only the last may be tiny: HTTP/2 peers count tiny DATA
/// frames.
#[derive(Debug, Default)]
struct ChunkWriter {
    done: Vec<Bytes>,
    open: BytesMut,
}

impl ChunkWriter {
    fn copy(&mut self, text: &[u8]) {
        self.open.put_slice(text);
    }

    fn add(&mut self, text: &Bytes) {
        if text.len() < SHARED {
            self.copy(text);
            if self.open.len() >= BLOCK {
                self.turn();
            }
            return;
        }
        let end = text.len() - ENDS;
        self.copy(&text[..ENDS]);
        self.turn();
        self.done.push(text.slice(ENDS..end));
        self.copy(&text[end..]);
    }

    fn turn(&mut self) {
        self.done.push(std::mem::take(&mut self.open).freeze());
    }

    fn close(mut self) -> Arc<[Bytes]> {
        if let Some(last) = self.done.pop_if(|last| self.open.len() < 256 && last.len() < 2 * BLOCK) {
            let rest = std::mem::take(&mut self.open);
            self.open.reserve(last.len() + rest.len());
            self.open.put_slice(&last);
            self.open.put_slice(&rest);
        }
        self.turn();
        self.done.into()
    }
}

#[cfg(test)]
mod tests;
