//! Responses as JSON.
//!
//! The JSON of a resource is made once per version and shared by all responses, within a budget.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::{BufMut as _, Bytes, BytesMut};
use moka::policy::EvictionPolicy;
use xxhash_rust::xxh3;

use crate::cache::{SetContents, SetVersion};
use crate::descriptors::{DescriptorError, Descriptors};
use crate::fairness::QUICK_JSON_BYTES;
use crate::resource::{Name, NameForm, Resource, TypeUrl};

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
        f.debug_struct("JsonResponse").field("version", &self.version).field("bytes", &self.len()).finish()
    }
}

impl JsonResponse {
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    pub fn len(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
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
        "with resource `{name}` the answer takes more than {limit} bytes to write as JSON; raise `downstream.max_unsent_bytes`, split \
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
            self.descriptors.write_json(any, self.limit, &mut json)?;
            json.shrink_to_fit();
            Ok(json.into())
        });
        let name = || resource.name().clone();
        made.map_err(|error| match error {
            DescriptorError::UnknownType(_) => JsonError::UnknownType { name: name(), error },
            DescriptorError::TooLarge => JsonError::TooLarge { name: name(), limit: self.limit },
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
