//! Requests in JSON: bounded, read alike with and without the whole of their node, and answered without a panic.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deltafan::cache::{Cache, Limits};
use deltafan::identity::{Peer, Source};
use deltafan::json::read;
use deltafan::resource::Kind;
use deltafan::subscription::{Poll, PollHistory, SessionConfig, Upstream};

const MAX_NAMES: usize = 20;
/// Parts that a request may have beside its names.
const OTHERS: usize = 1 << 16;

pub(crate) fn run(data: &[u8]) {
    let (part, whole) = (read(data, MAX_NAMES, false), read(data, MAX_NAMES, true));
    for error in [&part, &whole].into_iter().filter_map(|read| read.as_ref().err()) {
        assert!(error.to_string().len() < 2000, "{error}");
    }
    let Ok(mut whole) = whole else { return };
    let part = part.expect("less of it is read, and fewer faults are seen");
    if let Some(node) = &mut whole.node {
        (node.locality, node.metadata) = (None, Default::default());
    }
    assert_eq!(part, whole);
    let (names, located) = (part.resource_names.len(), part.resource_locators.len());
    assert!(names + located <= (MAX_NAMES + OTHERS).min(data.len()));

    let (cache, _writer) = Cache::new(Limits { encoded_bytes: 0, ..Limits::default() });
    let rules =
        Arc::new(SessionConfig { max_names: MAX_NAMES, max_name_bytes: 100, ..SessionConfig::default() });
    let (memory, now) = (PollHistory::default(), Instant::now());
    let hold = Duration::from_millis(800);
    let Ok(poll) = Poll::new(
        &cache,
        &rules,
        &memory,
        Kind::Cluster,
        part,
        (&Peer::unproven(Source::Unix), None),
        hold,
        now,
    ) else {
        return;
    };
    assert!(names + located <= MAX_NAMES);
    poll.next(now, Upstream::Answering);
    let answered = poll.expire(now + hold, Upstream::Away);
    drop((answered, poll));
    assert!(cache.types().iter().all(|of| of.cohorts() == 0), "a poll that ended leaves nothing behind");
}
