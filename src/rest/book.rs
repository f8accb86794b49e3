//! Answers as JSON, and what they are put together from.
//!
//! The JSON of a resource is made once per version and shared by all answers; an answer is made once per version of the whole
//! ([`SetVersion`]) and shared by all clients that are given it and ask for the same, through the same parameters and rules. Both
//! are kept within a budget, and what is not found is made again.
//!
//! Invariant: no client is given an answer that was made for one that may see something else, whatever versions look like: a
//! version is a hash over texts that clients choose, so that it alone is no key.

use std::fmt;
use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use moka::policy::EvictionPolicy;
use xxhash_rust::xxh3;

use crate::cache::{SetContents, SetVersion};
use crate::descriptors::{DescriptorError, Descriptors};
use crate::resource::{Name, NameForm, Resource, TypeUrl};

/// Resources from this size on are shared, not copied.
const SHARED: usize = 32 << 10;
/// How much of both ends of a shared resource is copied, so that no chunk around it is tiny.
const ENDS: usize = 4 << 10;
/// Blocks of copied resources are closed when they are as large.
const BLOCK: usize = 256 << 10;
/// An answer for which nobody has asked for so long is not kept: there are as many as there are lists of names.
const UNASKED: Duration = Duration::from_secs(60);
/// Bodies of this many bytes are written without asking for another thread.
const AT_ONCE: usize = 64 << 10;

/// A DiscoveryResponse as proto3 JSON. Cheap to clone.
#[derive(Clone)]
pub struct Answer {
    /// Its `version_info`.
    pub version: SetVersion,
    chunks: Arc<[Bytes]>,
}

impl fmt::Debug for Answer {
    /// Without the text: there may be a Secret in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Answer").field("version", &self.version).field("bytes", &self.len()).finish()
    }
}

impl Answer {
    /// The text, in order.
    pub fn chunks(&self) -> &[Bytes] {
        &self.chunks
    }

    /// The length of the text in bytes.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(Bytes::len).sum()
    }

    /// Never: an answer names at least its version.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Why there is no answer. The origin's resource, and the operator's to mend; never the client's fault.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unwritable {
    /// A type somewhere in the resource is not known here (R-REST-11).
    #[error(
        "resource `{name}` cannot be written as JSON: {error}; put the file descriptor set of that type into `rest.descriptor_sets`"
    )]
    UnknownType {
        /// The resource's name.
        name: Name,
        /// Tells what is missing.
        error: DescriptorError,
    },
    /// It is no valid message of its type, or one that JSON has no form for.
    #[error("resource `{name}` cannot be written as JSON: {error}")]
    Broken {
        /// The resource's name.
        name: Name,
        /// Tells what is wrong.
        error: DescriptorError,
    },
    /// The thread that wrote it failed.
    #[error("an answer could not be written, which is a fault of deltafan")]
    Failed,
}

type OfResource = moka::sync::Cache<u128, Result<Bytes, DescriptorError>, foldhash::fast::RandomState>;
/// By version, and by a hash of all else that the answer depends on, with a secret of this process.
type OfAnswer = moka::future::Cache<(u128, u64), Answer, foldhash::fast::RandomState>;

/// Result in place of the answer that was looked for. It is given to all requests that wait for that, and not kept: under the
/// version that was looked for, it would be wrong for ever.
#[derive(Clone, Debug)]
enum Instead {
    /// The answer of a newer state.
    Newer(Answer),
    /// None.
    None(Unwritable),
}

/// Writes answers and shares them.
#[derive(Debug)]
pub struct Book {
    descriptors: Descriptors,
    resources: OfResource,
    answers: OfAnswer,
    secret: RandomState,
    resources_written: AtomicU64,
    answers_written: AtomicU64,
}

impl Book {
    /// With these descriptors, and so many bytes for what is shared.
    pub fn new(descriptors: Descriptors, budget: u64) -> Arc<Self> {
        let weight = |len: usize| u32::try_from(len + 128).unwrap_or(u32::MAX);
        let resources = moka::sync::Cache::builder()
            .max_capacity(budget / 2)
            .weigher(move |_, json: &Result<Bytes, _>| weight(json.as_ref().map_or(0, Bytes::len)))
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(foldhash::fast::RandomState::default());
        let answers = moka::future::Cache::builder()
            .max_capacity(budget / 2)
            .weigher(move |_, answer: &Answer| weight(answer.len()))
            .time_to_idle(UNASKED)
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(foldhash::fast::RandomState::default());
        Arc::new(Self {
            descriptors,
            resources,
            answers,
            secret: RandomState::new(),
            resources_written: AtomicU64::new(0),
            answers_written: AtomicU64::new(0),
        })
    }

    /// Lets go of answers for which nobody asks any more. To be called now and then.
    pub async fn tidy(&self) {
        self.answers.run_pending_tasks().await;
    }

    /// How many resources were written as JSON.
    pub fn resources_written(&self) -> u64 {
        self.resources_written.load(Ordering::Relaxed)
    }

    /// How many answers were put together.
    pub fn answers_written(&self) -> u64 {
        self.answers_written.load(Ordering::Relaxed)
    }

    /// The answer of this version, or of the one that `found` has by now. If many clients ask for the same at the same time, it
    /// is made once; the others wait without holding a thread. `asked` is all that `found` depends on beside the state: an answer
    /// made for one client is given to those whose `asked` is equal.
    pub async fn answer(
        self: &Arc<Self>,
        type_url: &TypeUrl,
        version: SetVersion,
        asked: &(impl Hash + Sync),
        found: impl FnOnce() -> SetContents,
    ) -> Result<Answer, Unwritable> {
        let write = async {
            match self.write(type_url, found).await {
                Ok(answer) if answer.version == version => Ok(answer),
                Ok(newer) => Err(Instead::Newer(newer)),
                Err(error) => Err(Instead::None(error)),
            }
        };
        let key = (version.bits(), self.secret.hash_one(asked));
        let made = self.answers.try_get_with(key, write).await;
        made.or_else(|instead| match &*instead {
            Instead::Newer(answer) => Ok(answer.clone()),
            Instead::None(error) => Err(error.clone()),
        })
    }

    async fn write(
        self: &Arc<Self>,
        type_url: &TypeUrl,
        found: impl FnOnce() -> SetContents,
    ) -> Result<Answer, Unwritable> {
        let found = found();
        let size: usize = found.resources.iter().map(|resource| resource.body().len()).sum();
        if size <= AT_ONCE && self.descriptors.are_unpacked() {
            return self.put_together(type_url, &found);
        }
        // This takes milliseconds, in which nobody else's connection should wait.
        let (book, type_url) = (Arc::clone(self), type_url.clone());
        let writing = tokio::task::spawn_blocking(move || book.put_together(&type_url, &found));
        writing.await.unwrap_or(Err(Unwritable::Failed))
    }

    fn put_together(&self, type_url: &TypeUrl, found: &SetContents) -> Result<Answer, Unwritable> {
        let is_located = |resource: &Resource| {
            found.asked.as_ref().is_some_and(|asked| asked.locates(resource.name().as_str()))
        };
        let text = |resource: &Arc<Resource>| match is_located(resource) {
            true => self.wrapped(resource),
            false => self.resource(resource),
        };
        let texts: Vec<Bytes> = found.resources.iter().map(text).collect::<Result<_, _>>()?;
        self.answers_written.fetch_add(1, Ordering::Relaxed);
        // Only what this relay has known as long as any client is said of a response (R-REST-12).
        let mut pages = Pages::default();
        // Debug output of a type URL would do, but only JSON's own escapes are JSON.
        let type_url = serde_json::Value::from(type_url.as_str());
        let version = found.version;
        pages.copy(
            format!("{{\"versionInfo\":\"{version}\",\"typeUrl\":{type_url},\"resources\":[").as_bytes(),
        );
        for (at, text) in texts.iter().enumerate() {
            if at > 0 {
                pages.copy(b",");
            }
            pages.add(text);
        }
        pages.copy(b"]}");
        Ok(Answer { version, chunks: pages.close() })
    }

    fn resource(&self, resource: &Resource) -> Result<Bytes, Unwritable> {
        self.any(resource, resource.digest(), resource.body())
    }

    /// JSON of a resource that was asked for by locator: wrapped, with its constraints (R-DP-07, R-DP-11).
    fn wrapped(&self, resource: &Resource) -> Result<Bytes, Unwritable> {
        let any = resource.wrapped(NameForm::Locator(resource.name()));
        self.any(resource, xxh3::xxh3_128(&any), &any)
    }

    fn any(&self, resource: &Resource, key: u128, any: &[u8]) -> Result<Bytes, Unwritable> {
        let made = self.resources.get_with(key, || {
            self.resources_written.fetch_add(1, Ordering::Relaxed);
            let mut json = Vec::with_capacity(2 * any.len());
            self.descriptors.write_json(any, &mut json)?;
            json.shrink_to_fit();
            Ok(json.into())
        });
        let name = || resource.name().clone();
        made.map_err(|error| match error {
            DescriptorError::UnknownType(_) => Unwritable::UnknownType { name: name(), error },
            _ => Unwritable::Broken { name: name(), error },
        })
    }
}

/// Chunks out of copied and shared text. None but the last is tiny: HTTP/2 peers count tiny DATA frames.
#[derive(Debug, Default)]
struct Pages {
    done: Vec<Bytes>,
    open: BytesMut,
}

impl Pages {
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
        // The last few bytes go with what came before them.
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
mod tests {
    use super::*;
    use crate::resource::{Envelope, Kind};

    /// A resource of a type that can be written, or of one that nobody knows.
    fn found(version: &str, type_name: &str) -> SetContents {
        let type_url = TypeUrl::from(Kind::Cluster);
        let inner = format!("type.googleapis.com/{type_name}");
        let detail = [&[10, inner.len() as u8], inner.as_bytes()].concat();
        // Cluster.metadata.typed_filter_metadata["x"], an Any.
        let pair = [&[10, 1, b'x', 18, detail.len() as u8][..], &detail].concat();
        let metadata = [&[18, pair.len() as u8][..], &pair].concat();
        let cluster = [&[0xca, 1, metadata.len() as u8][..], &metadata].concat();
        let url = type_url.as_str();
        let any = [&[10, url.len() as u8], url.as_bytes(), &[18, cluster.len() as u8], &cluster].concat();
        let sent = [&[18, 0x80 | (any.len() & 0x7f) as u8, (any.len() >> 7) as u8], &any[..], &[26, 1, b'a']]
            .concat();
        let resource = Envelope::parse(&sent, &type_url).unwrap().encode(&type_url, "a".into()).unwrap();
        SetContents { version: version.parse().unwrap(), resources: vec![Arc::new(resource)], asked: None }
    }

    #[tokio::test]
    async fn nothing_is_kept_under_a_version_that_it_does_not_have() {
        let [old, new] = ["1", "2"].map(|digit| digit.repeat(32));
        let type_url = TypeUrl::from(Kind::Cluster);
        let book = Book::new(Descriptors::default(), 1 << 20);
        let ask =
            async |found: SetContents| book.answer(&type_url, old.parse().unwrap(), &(), || found).await;

        // A state that cannot be written came between looking and writing, and went again.
        let error = ask(found(&new, "no.such.Type")).await.expect_err("an unknown type");
        assert!(error.to_string().contains("no.such.Type"), "{error}");
        let newer = ask(found(&new, "google.protobuf.Empty")).await.expect("it can be written");
        assert_eq!(newer.version.to_string(), new);
        let answer = ask(found(&old, "google.protobuf.Empty")).await.expect("it can be written");
        assert_eq!(answer.version.to_string(), old);
        assert_eq!(book.answers_written(), 2);
        // A type without a special form has no `value`.
        let text = String::from_utf8(answer.chunks().concat()).unwrap();
        assert!(text.contains(r#"{"x":{"@type":"type.googleapis.com/google.protobuf.Empty"}}"#), "{text}");

        ask(found(&old, "no.such.Type")).await.expect("it is kept now");
    }
    #[tokio::test]
    async fn what_is_made_for_one_is_not_given_to_who_asks_for_something_else() {
        let [old, new] = ["1", "2"].map(|digit| digit.repeat(32));
        let type_url = TypeUrl::from(Kind::Cluster);
        let book = Book::new(Descriptors::default(), 1 << 20);
        let ask = async |asked: &str, of: &str| {
            let found = found(of, "google.protobuf.Empty");
            book.answer(&type_url, old.parse().unwrap(), &asked, || found).await.expect("it can be written")
        };
        // Neither what is kept nor, below, what was newer than the version that both looked for.
        ask("one", &old).await;
        ask("other", &old).await;
        assert_eq!(book.answers_written(), 2);
        ask("one", &old).await;
        assert_eq!(book.answers_written(), 2);

        let shown = format!("{:?}", ask("one", &old).await);
        assert!(shown.contains(&old) && !shown.contains("resources"), "{shown}");
        let (one, other) = tokio::join!(ask("third", &new), ask("fourth", &old));
        assert_eq!([one, other].map(|answer| answer.version.to_string()), [new, old]);
    }
}
