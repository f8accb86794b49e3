//! Clients and rejections as JSON, for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::json;

use super::nacks::Nack;
use super::registry::{NAMES, PollRequest, Record, RecordState};
use super::view::{
    DeliveryRow, Document, LookError, NodeRow, Page, Query, RejectionRow, TypeName, View, document, row,
    seconds,
};
use crate::cache::{Protocol, Withheld};
use crate::fairness::lower_thread_priority;
use crate::resource::{Kind, Name, TypeUrl};
use crate::subscription::{ClientState, Rejection, TypeProgress, USER_AGENT};
use crate::telemetry;

/// Names on the page of one client.
const LISTED: usize = 1_000;

row! {
    struct ClientRow(
        record: &Record, of: &RecordState, kept: &Withheld, only: Option<&TypeUrl>, names: usize, now: Instant
    ) {
        id: u64 = record.id,
        node: NodeRow = of.client.as_deref().map(NodeRow::new).unwrap_or_default(),
        transport: &'static str = record.transport,
        peer: String = record.peer.source.to_string(),
        /// Authenticated.
        identity: Option<String> = record.peer.certificate.as_ref().map(|it| it.identity().to_owned()),
        connection: u64 = record.connection,
        /// `None` in the group of the relay's own node.
        group: Option<String> = of.group.as_ref().map(ToString::to_string),
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        parameters: BTreeMap<String, String> =
            of.parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        open_seconds: f64 = seconds(record.opened, now),
        state: Option<&'static str> = of.client_state(None, kept).map(ClientState::label),
        types: Vec<TypeRow> = of.of_type(only).map(|progress| TypeRow::new(progress, kept, names, now))
            .chain(of.poll_of_type(only).map(|poll| TypeRow::of_poll(poll, kept))).collect(),
    }
}

row! {
    #[derive(Default)]
    struct TypeRow(progress: &TypeProgress, kept: &Withheld, most: usize, now: Instant)
    where
        audience = progress.upgrade(),
        subscription = audience.as_ref().map(|audience| audience.subscription()),
        all = subscription.map_or(&[][..], |subscription| subscription.names()),
    {
        #[serde(flatten)]
        name: TypeName = TypeName::new(progress.type_url()),
        state: &'static str = progress.state(kept).label(),
        wildcard: bool = subscription.is_some_and(|subscription| subscription.wildcard),
        names: usize = all.len(),
        #[serde(skip_serializing_if = "Vec::is_empty")]
        listed: Vec<String> = all.iter().take(most).map(Name::to_string).collect(),
        sent: Option<DeliveryRow> = progress.newest_sent().map(|sent| DeliveryRow::new(sent, now)),
        acked: Option<DeliveryRow> = progress.newest_acked().map(|acked| DeliveryRow::new(&acked, now)),
        rejected: Option<RejectionRow> =
            progress.standing_rejection().map(|it| RejectionRow::new(&it.delivery, it.code, &it.text, now)),
        /// In generations.
        lag: u64 = progress.lag(),
        /// Version that the client of a poll holds.
        #[serde(skip_serializing_if = "Option::is_none")]
        held: Option<String> = None,
    }
}

impl TypeRow {
    fn of_poll(poll: &PollRequest, kept: &Withheld) -> Self {
        let subscription = poll.audience.subscription();
        Self {
            name: TypeName::new(poll.type_url()),
            state: poll.state(kept).label(),
            wildcard: subscription.wildcard,
            names: subscription.names().len(),
            held: Some(poll.version.to_string()),
            ..Self::default()
        }
    }
}

row! {
    struct NackRow(nack: &Nack, times: u64, client: Option<RecordState>, kept: &Withheld, now: Instant)
    where
        only = Some(&nack.type_url),
        // The newest NACK may be resolved while an older one still counts.
        standing = client.as_ref().and_then(|client| standing(client.of_type(only).next()?, nack, kept)),
    {
        node: NodeRow = NodeRow::new(&nack.client),
        peer: String = nack.peer.to_string(),
        client: u64 = nack.id,
        /// Client's state now; `None` if it is gone.
        state: Option<&'static str> =
            client.as_ref().and_then(|client| client.client_state(only, kept)).map(ClientState::label),
        #[serde(flatten)]
        name: TypeName = TypeName::new(&nack.type_url),
        #[serde(flatten)]
        rejection: RejectionRow = match standing {
            Some((_, it)) => RejectionRow::new(&it.delivery, it.code, &it.text, now),
            None => RejectionRow::new(&nack.delivery, nack.code, &nack.text, now),
        },
        /// Names changed since the last ACK, some of many; `None` if everything was new.
        changed: Option<Vec<String>> = match standing {
            Some((progress, it)) => progress.rejected_names(it, NAMES),
            None => nack.changed.clone(),
        }.map(|names| names.iter().map(Name::to_string).collect()),
        count: u64 = times,
    }
}

/// Older rejection that still counts.
fn standing<'p>(
    progress: &'p TypeProgress,
    newest: &Nack,
    kept: &Withheld,
) -> Option<(&'p TypeProgress, &'p Rejection)> {
    let it = progress.standing_rejection().filter(|_| progress.state(kept) == ClientState::Rejected)?;
    (it.delivery != newest.delivery).then_some((progress, it))
}

impl View<'_> {
    /// Reports clients by kind of type, including zeros.
    pub fn report_clients(&self) {
        let kept = self.withheld();
        let mut streams = Protocol::ALL.map(|protocol| (protocol.label(), 0));
        let mut figures: BTreeMap<Kind, ([usize; ClientState::ALL.len()], u64, Duration, usize)> =
            Kind::ALL.map(|kind| (kind, Default::default())).into();
        for record in self.fleet.after(0) {
            let of_transport = streams.iter_mut().filter(|(transport, _)| *transport == record.transport);
            of_transport.for_each(|(_, count)| *count += 1);
            let state = record.state();
            for progress in &state.types {
                let (states, lag, unanswered, _) = figures.entry(progress.type_url().kind()).or_default();
                states[progress.state(&kept) as usize] += 1;
                *lag = progress.lag().max(*lag);
                let since = progress.unanswered_since();
                *unanswered = since
                    .map_or(*unanswered, |since| self.now.saturating_duration_since(since).max(*unanswered));
            }
            if let Some(poll) = &state.poll {
                let (states, _, _, polls) = figures.entry(poll.type_url().kind()).or_default();
                states[poll.state(&kept) as usize] += 1;
                *polls += 1;
            }
        }
        for (transport, count) in streams {
            telemetry::set(telemetry::STREAMS, &[("transport", transport)], f64::from(count));
        }
        for (kind, (states, lag, unanswered, polls)) in figures {
            let of_type = ("type", kind.short());
            for (state, clients) in ClientState::ALL.into_iter().zip(states) {
                let labels = &[of_type, ("state", state.label())];
                telemetry::set(telemetry::CLIENTS, labels, clients as f64);
            }
            telemetry::set(telemetry::MAX_LAG, &[of_type], lag as f64);
            telemetry::set(telemetry::MAX_UNANSWERED, &[of_type], unanswered.as_secs_f64());
            telemetry::set(telemetry::HELD_POLLS, &[of_type], polls as f64);
        }
    }

    /// Page of matching clients. Lowers the priority of its thread.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is wrong.
    pub fn clients(&self, query: &str) -> Document {
        let query = Query::parse(query, &["node", "type", "state", "asks_for", "limit", "after"])?;
        let (node, only, wanted) = (query.pattern("node"), query.type_url()?, query.state()?);
        let mut page = Page::new("clients", &query)?;
        let (open, mut states) = (self.fleet.len(), BTreeMap::<_, usize>::new());
        let copy = |record: Arc<Record>| Some((record.copy_if(|node_id| node.matches(node_id))?, record));
        let copies: Vec<(RecordState, Arc<Record>)> = self.fleet.after(0).filter_map(copy).collect();
        let kept = self.withheld();
        lower_thread_priority();
        let shared = shared_node_ids(&copies, self.now);
        for (of, record) in &copies {
            let state = of.client_state(only.as_ref(), &kept);
            let is_one = (only.is_none() || state.is_some()) && (wanted.is_none() || state == wanted);
            if is_one && query.get("asks_for").is_none_or(|name| asks_for(of, only.as_ref(), name)) {
                *states.entry(state.map_or("new", ClientState::label)).or_default() += 1;
                page.offer(record.id, || ClientRow::new(record, of, &kept, only.as_ref(), 0, self.now));
            }
        }
        let shown: Vec<&str> = shared.iter().take(NAMES).copied().collect();
        let shared = json!({"count": shared.len(), "some": shown});
        page.figures = vec![("open", json!(open)), ("states", json!(states)), ("shared_node_ids", shared)];
        document(&page)
    }

    /// A client with the names that it asks for.
    ///
    /// # Errors
    ///
    /// [`LookError`] if it is not connected.
    pub fn client(&self, id: &str) -> Document {
        let record = id.parse().ok().and_then(|id| self.fleet.get(id)).ok_or_else(LookError::no_client)?;
        let state = record.copy_if(|_| true).ok_or_else(LookError::no_client)?;
        document(&ClientRow::new(&record, &state, &self.withheld(), None, LISTED, self.now))
    }

    /// Page of matching rejections, newest first.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is wrong.
    pub fn nacks(&self, query: &str) -> Document {
        let query = Query::parse(query, &["node", "type", "limit", "after"])?;
        let (node, only) = (query.pattern("node"), query.type_url()?);
        let mut page = Page::new("nacks", &query)?;
        let found: Vec<_> = {
            let nacks = self.fleet.nacks.lock();
            page.figures = vec![("remembered", json!(nacks.len()))];
            let is_one = |nack: &Nack| {
                node.matches(&nack.client.node_id) && only.as_ref().is_none_or(|only| *only == nack.type_url)
            };
            let matching = nacks.before(page.downwards()).filter(|(_, entry)| is_one(&entry.newest));
            matching.map(|(number, of)| (number, Arc::clone(&of.newest), of.count)).collect()
        };
        let kept = self.withheld();
        for (number, nack, count) in found {
            let client = || self.fleet.get(nack.id).and_then(|record| record.copy_if(|_| true));
            page.offer(number, || NackRow::new(&nack, count, client(), &kept, self.now));
        }
        document(&page)
    }
}

/// Age of a stream before which it may be of a client that moves to another connection.
const SETTLED: Duration = Duration::from_secs(60);

/// Node IDs of several clients: each asks for the same type on connections of its own. Replicas of a relay
/// share theirs.
fn shared_node_ids(all: &[(RecordState, Arc<Record>)], now: Instant) -> BTreeSet<&str> {
    let (mut connections, mut shared) = (BTreeMap::new(), BTreeSet::new());
    for (of, record) in all {
        let Some(client) = of.client.as_deref().filter(|client| client.user_agent != USER_AGENT) else {
            continue;
        };
        if client.node_id.is_empty() || now.saturating_duration_since(record.opened) < SETTLED {
            continue;
        }
        for progress in &of.types {
            let first =
                connections.entry((&*client.node_id, progress.type_url())).or_insert(record.connection);
            if *first != record.connection {
                shared.insert(&*client.node_id);
            }
        }
    }
    shared
}

/// Whether a client asks for a name: by name, collection or wildcard membership. Unknown for a poll.
fn asks_for(state: &RecordState, only: Option<&TypeUrl>, name: &str) -> bool {
    state.of_type(only).filter_map(TypeProgress::upgrade).any(|audience| {
        let subscription = audience.subscription();
        let is_member = || audience.of().snapshot().get(name).is_some_and(|entry| entry.is_member());
        subscription.contains(name) || subscription.covers(name) || (subscription.wildcard && is_member())
    })
}

#[cfg(test)]
mod tests {
    use super::super::registry::Fleet;
    use super::*;
    use crate::cache::{Cache, Limits, Protocol};
    use crate::identity::{Peer, Source};
    use crate::proto::{DeltaDiscoveryRequest, Node};
    use crate::subscription::{Session, SessionConfig};

    #[test]
    fn a_node_id_of_two_clients_is_told_once_neither_is_a_reconnect() {
        let (cache, _writer) = Cache::new(Limits::default());
        let (fleet, now) = (Arc::new(Fleet::default()), Instant::now());
        let mut open = Vec::new();
        for (node_id, user_agent, kind, connection) in [
            ("twice", "envoy", Kind::Cluster, 1),
            ("twice", "envoy", Kind::Cluster, 2),
            // Streams of one client for several types.
            ("once", "envoy", Kind::Cluster, 3),
            ("once", "envoy", Kind::Listener, 4),
            ("relay", USER_AGENT, Kind::Cluster, 5),
            ("relay", USER_AGENT, Kind::Cluster, 6),
        ] {
            let rules = Arc::new(SessionConfig::default());
            let mut session = Session::new(Arc::clone(&cache), rules, Protocol::Delta, None, now);
            let node =
                Node { id: node_id.to_owned(), user_agent_name: user_agent.to_owned(), ..Node::default() };
            let type_url = TypeUrl::from(kind).as_str().to_owned();
            let request =
                DeltaDiscoveryRequest { node: Some(node), type_url, ..DeltaDiscoveryRequest::default() };
            session.on_delta_request(request, Default::default(), now).expect("a request");
            let registration = fleet.open("delta", Arc::new(Peer::unproven(Source::Unix)), connection, now);
            registration.heard(&session, None);
            open.push((session, registration));
        }
        let copies = fleet.after(0).filter_map(|record| Some((record.copy_if(|_| true)?, record)));
        let copies: Vec<_> = copies.collect();
        assert_eq!(shared_node_ids(&copies, now), BTreeSet::new());
        assert_eq!(shared_node_ids(&copies, now + SETTLED), BTreeSet::from(["twice"]));
    }
}
