//! Responses of long polls as JSON, shared by clients.
//!
//! A response is made once per [`SetVersion`] and shared by clients with equal request, parameters and rules.
//! Responses are kept within a budget while clients ask for them, and remade when missing.
//!
//! Not in the core, because it needs a runtime: equal requests wait for one writer, a thread writes large
//! responses one at a time, and unused ones expire by the clock.
//!
//! Invariant: no client receives a response made for different rights. A version is a hash over texts that
//! clients choose, so it alone is no key.

use std::hash::{BuildHasher as _, Hash, RandomState};
use std::sync::Arc;
use std::time::Duration;

use moka::policy::EvictionPolicy;
use tokio::sync::Semaphore;

use crate::cache::{SetContents, SetVersion};
use crate::descriptors::Descriptors;
use crate::json::{JsonError, JsonResponse, JsonWriter};
use crate::resource::TypeUrl;

/// Time after which an unused response is dropped: there are as many as lists of names.
const IDLE: Duration = Duration::from_secs(60);

/// By version, and by a hash of all other inputs, keyed with a secret of this process.
type Responses = moka::future::Cache<(u128, u64), JsonResponse, foldhash::fast::RandomState>;

#[derive(Debug)]
pub struct ResponseCache {
    writer: Arc<JsonWriter>,
    /// Permit to write a large response: one at a time.
    writing: Arc<Semaphore>,
    responses: Responses,
    secret: RandomState,
}

impl ResponseCache {
    /// Creates a cache with these descriptors, a byte budget for the JSON of resources and responses, and the
    /// largest response in bytes.
    pub fn new(descriptors: Descriptors, budget: u64, limit: usize) -> Arc<Self> {
        let responses = moka::future::Cache::builder()
            .max_capacity(budget / 2)
            .weigher(|_, response: &JsonResponse| u32::try_from(response.bytes() + 128).unwrap_or(u32::MAX))
            .time_to_idle(IDLE)
            .eviction_policy(EvictionPolicy::lru())
            .build_with_hasher(foldhash::fast::RandomState::default());
        let writer = Arc::new(JsonWriter::new(descriptors, budget / 2, limit));
        Arc::new(Self { writer, writing: Arc::new(Semaphore::new(1)), responses, secret: RandomState::new() })
    }

    /// Drops unused responses. Call it periodically.
    pub async fn tidy(&self) {
        self.responses.run_pending_tasks().await;
    }

    /// Returns the writer, with its counts.
    pub fn writer(&self) -> &JsonWriter {
        &self.writer
    }

    /// Returns the response of this version, or of the version that `found` has by now. Concurrent requests
    /// share one writer and wait without a thread. `asked` is every input of `found` beside the state;
    /// clients with equal `asked` share a response.
    ///
    /// # Errors
    ///
    /// A resource that has no JSON.
    pub async fn response(
        &self,
        type_url: &TypeUrl,
        version: SetVersion,
        asked: &(impl Hash + Sync),
        found: impl FnOnce() -> SetContents,
    ) -> Result<JsonResponse, JsonError> {
        let key = (version.bits(), self.secret.hash_one(asked));
        let write = async { self.write(type_url, found()).await };
        let made = self.responses.try_get_with(key, write).await.map_err(|error| (*error).clone())?;
        if made.version != version {
            // It would stay wrong under that version.
            self.responses.invalidate(&key).await;
        }
        Ok(made)
    }

    async fn write(&self, type_url: &TypeUrl, found: SetContents) -> Result<JsonResponse, JsonError> {
        if !self.writer.is_slow(&found) {
            return self.writer.write(type_url, &found);
        }
        let (writer, type_url) = (Arc::clone(&self.writer), type_url.clone());
        // Held until the thread is done, even if the clients are gone.
        let permit = Arc::clone(&self.writing).acquire_owned().await;
        let writing = tokio::task::spawn_blocking(move || {
            let response = writer.write(&type_url, &found);
            drop(permit);
            response
        });
        writing.await.unwrap_or(Err(JsonError::Failed))
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
        SetContents {
            version: SetVersion::parse(version).unwrap(),
            resources: vec![Arc::new(resource)],
            asked: None,
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_under_a_version_that_it_does_not_have() {
        let [old, new] = ["1", "2"].map(|digit| digit.repeat(32));
        let type_url = TypeUrl::from(Kind::Cluster);
        let cache = ResponseCache::new(Descriptors::default(), 1 << 20, 1 << 20);
        let ask = async |found: SetContents| {
            cache.response(&type_url, SetVersion::parse(&old).unwrap(), &(), || found).await
        };

        // A state that cannot be written came between looking and writing, and went again.
        let error = ask(found(&new, "no.such.Type")).await.expect_err("an unknown type");
        assert!(error.to_string().contains("no.such.Type"), "{error}");
        let newer = ask(found(&new, "google.protobuf.Empty")).await.expect("it can be written");
        assert_eq!(newer.version.to_string(), new);
        let response = ask(found(&old, "google.protobuf.Empty")).await.expect("it can be written");
        assert_eq!(response.version.to_string(), old);
        assert_eq!(cache.writer().responses_written(), 2);
        // A type without a special form has no `value`.
        let text = String::from_utf8(response.chunks().concat()).unwrap();
        assert!(text.contains(r#"{"x":{"@type":"type.googleapis.com/google.protobuf.Empty"}}"#), "{text}");

        ask(found(&old, "no.such.Type")).await.expect("it is kept now");
    }

    #[tokio::test]
    async fn a_response_that_is_too_long_is_refused() {
        let type_url = TypeUrl::from(Kind::Cluster);
        let version = "1".repeat(32);
        for limit in [20, 600] {
            let cache = ResponseCache::new(Descriptors::default(), 1 << 20, limit);
            let found = || {
                let mut found = found(&version, "google.protobuf.Empty");
                found.resources = vec![Arc::clone(&found.resources[0]); 20];
                found
            };
            let answer = cache.response(&type_url, SetVersion::parse(&version).unwrap(), &(), found).await;
            let error = answer.expect_err("it is longer").to_string();
            assert!(
                error.contains(&format!("with resource `a` the answer takes more than {limit} bytes")),
                "{error}"
            );
            assert!(error.contains("raise `downstream.max_unsent_bytes`"), "{error}");
        }
    }

    #[tokio::test]
    async fn large_responses_are_written_one_at_a_time() {
        let type_url = TypeUrl::from(Kind::Cluster);
        let version = "1".repeat(32);
        let cache = ResponseCache::new(Descriptors::default(), 1 << 20, 1 << 20);
        let found = || {
            let mut found = found(&version, "google.protobuf.Empty");
            found.resources = vec![Arc::clone(&found.resources[0]); 2_000];
            found
        };
        let other = Arc::clone(&cache.writing).acquire_owned().await.unwrap();
        let mut waiting =
            Box::pin(cache.response(&type_url, SetVersion::parse(&version).unwrap(), &(), found));
        tokio::time::timeout(Duration::from_millis(50), &mut waiting).await.expect_err("another is written");
        drop(other);
        waiting.await.expect("it can be written");
    }

    #[tokio::test]
    async fn a_response_is_given_only_to_clients_that_ask_for_the_same() {
        let [old, new] = ["1", "2"].map(|digit| digit.repeat(32));
        let type_url = TypeUrl::from(Kind::Cluster);
        let cache = ResponseCache::new(Descriptors::default(), 1 << 20, 1 << 20);
        let ask = async |asked: &str, of: &str| {
            let found = found(of, "google.protobuf.Empty");
            cache
                .response(&type_url, SetVersion::parse(&old).unwrap(), &asked, || found)
                .await
                .expect("it can be written")
        };
        // Neither what is kept nor, below, what was newer than the version that both looked for.
        ask("one", &old).await;
        ask("other", &old).await;
        assert_eq!(cache.writer().responses_written(), 2);
        ask("one", &old).await;
        assert_eq!(cache.writer().responses_written(), 2);

        let shown = format!("{:?}", ask("one", &old).await);
        assert!(!shown.contains("resources"), "{shown}");
        let (one, other) = tokio::join!(ask("third", &new), ask("fourth", &old));
        assert_eq!([one, other].map(|response| response.version.to_string()), [new, old]);
    }
}
