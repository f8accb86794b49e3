//! Task of a directory of resource files in place of a control plane.
//!
//! Passes a [`Directory`]'s files and the clients' requests to the core's [`DirectoryMirror`].

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::wait::{next_interest, next_tuning, now, sleep_until};
use super::{DirectoryMirror, Tuned};
use crate::cache::Writer;
use crate::directory::{Directory, Scan};

/// Source that fills a cache from a directory.
#[derive(Debug)]
pub struct DirectorySource {
    mirror: DirectoryMirror,
    state: watch::Sender<Arc<Scan>>,
    tuned: watch::Receiver<Tuned>,
}

impl DirectorySource {
    /// Creates a source that does nothing until [`run`](Self::run).
    pub fn new(writer: Writer, tuned: watch::Receiver<Tuned>) -> Self {
        Self { mirror: DirectoryMirror::new(writer), state: watch::Sender::default(), tuned }
    }

    /// The last reading that was applied.
    pub fn state(&self) -> watch::Receiver<Arc<Scan>> {
        self.state.subscribe()
    }

    /// Follows the directory until `shutdown`.
    pub async fn run(mut self, directory: Directory, shutdown: CancellationToken) {
        shutdown.run_until_cancelled(self.follow(directory)).await;
    }

    async fn follow(&mut self, mut directory: Directory) {
        let cache = Arc::clone(self.mirror.cache());
        loop {
            tokio::select! {
                scan = directory.next() => self.take(scan),
                interest = next_interest(&cache, None) => {
                    self.mirror.on_interest(interest, now());
                    tokio::task::yield_now().await;
                }
                // Other settings mean nothing here: a directory settles at once and has no resource errors.
                (tuning, limits) = next_tuning(&mut self.tuned) => {
                    self.mirror.set_eds_repush(tuning.eds_repush);
                    cache.set_limits(&limits);
                }
                () = sleep_until(self.mirror.next_deadline()) => self.mirror.on_deadline(now()),
            }
        }
    }

    fn take(&mut self, scan: Arc<Scan>) {
        let known = self.state.borrow().failures.clone();
        for failure in scan.failures.iter().filter(|failure| !known.contains(failure)) {
            tracing::warn!(file = failure.file, "{}", failure.message);
        }
        // Clients may hold resources of an unreadable file, and would delete those missing from an update
        // (R-Relay-04).
        if !scan.is_whole && known != scan.failures {
            tracing::warn!(
                files = scan.failures.len(),
                "files of the directory were never readable: clients that hold nothing are served the others, all other clients wait until these are corrected or removed"
            );
        }
        self.mirror.on_reading(&scan.resources, scan.is_whole, now());
        self.state.send_replace(scan);
    }
}

#[cfg(test)]
mod tests {
    use super::super::Tuning;
    use super::*;
    use crate::cache::{Cache, Completeness, Limits};
    use crate::resource::Kind;

    fn tuned() -> watch::Receiver<Tuned> {
        watch::channel((Tuning::default(), Limits::default())).1
    }

    #[tokio::test]
    async fn what_is_missing_is_unknown_before_each_file_was_read_once() {
        let files = tempfile::tempdir().expect("a directory");
        let cluster = |name: &str| {
            format!(
                "resources:\n- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: {name}\n"
            )
        };
        std::fs::write(files.path().join("a.yaml"), cluster("a")).expect("a file");
        std::fs::write(files.path().join("b.yaml"), "resources: [").expect("a file");
        let (cache, writer) = Cache::new(Limits::default());
        let source = DirectorySource::new(writer, tuned());
        let mut state = source.state();
        let stop = CancellationToken::new();
        let task =
            tokio::spawn(source.run(Directory::open(files.path()).expect("a directory"), stop.clone()));
        state.wait_for(|state| state.failures.len() == 1).await.expect("it runs");
        assert!(!state.borrow().is_whole);
        let of = cache.of(&Kind::Cluster.into()).expect("few types");
        assert_eq!((of.snapshot().completeness(), of.snapshot().member_count()), (Completeness::Presumed, 1));
        std::fs::write(files.path().join("b.yaml"), cluster("b")).expect("a file");
        state.wait_for(|state| state.is_whole).await.expect("it runs");
        assert_eq!(of.snapshot().member_count(), 2);
        stop.cancel();
        task.await.expect("no panic");
    }

    #[tokio::test]
    async fn a_directory_is_followed() {
        let files = tempfile::tempdir().expect("a directory");
        let (cache, writer) = Cache::new(Limits::default());
        let source = DirectorySource::new(writer, tuned());
        let mut state = source.state();
        let stop = CancellationToken::new();
        let directory = Directory::open(files.path()).expect("a directory");
        let task = tokio::spawn(source.run(directory, stop.clone()));
        state.wait_for(|state| state.is_whole).await.expect("it runs");
        let of = cache.of(&Kind::Cluster.into()).expect("few types");
        let text =
            "resources:\n- \"@type\": type.googleapis.com/envoy.config.cluster.v3.Cluster\n  name: c1\n";
        std::fs::write(files.path().join("clusters.yaml"), text).expect("a file");
        state.wait_for(|state| state.resources.len() == 1).await.expect("it runs");
        assert_eq!(of.snapshot().member_count(), 1);
        std::fs::write(files.path().join("broken.yaml"), "resources: [").expect("a file");
        state.wait_for(|state| state.failures.len() == 1).await.expect("it runs");
        assert_eq!(of.snapshot().member_count(), 1);
        stop.cancel();
        task.await.expect("no panic");
    }
}
