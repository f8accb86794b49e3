//! Clients and rejections as JSON, for operators.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;
use serde_json::json;

use super::nacks::Nack;
use super::registry::{NAMES, PollRequest, Record, RecordState};
use super::view::{
    DeliveryRow, Document, LookError, Page, Query, RejectionRow, View, document, row, seconds,
};
use crate::cache::{Protocol, Withheld};
use crate::fairness::lower_thread_priority;
use crate::resource::{Kind, Name, TypeUrl};
use crate::subscription::{Client, ClientState, Rejection, TypeProgress, USER_AGENT};

/// Names on the page of one client.
const LISTED: usize = 1_000;

row! {
    struct ClientRow(
        record: &Record, of: &RecordState, kept: &Withheld, only: Option<&TypeUrl>, names: usize, now: Instant
    ) {
        id: u64 = record.id,
        node: Arc<Client> = of.client.clone().unwrap_or_default(),
        transport: &'static str = record.transport,
        peer: String = record.peer.source.to_string(),
        /// Authenticated.
        identity: Option<String> = record.peer.certificate.as_ref().map(|it| it.identity().to_owned()),
        connection: u64 = record.connection,
        /// `None` in the group of the relay's own node.
        group: Option<String> = of.group.as_ref().map(ToString::to_string),
        parameters: BTreeMap<String, String> =
            of.parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        open_seconds: f64 = seconds(record.opened, now),
        state: Option<ClientState> = of.client_state(None, kept),
        types: Vec<TypeRow> = of.of_type(only).map(|progress| TypeRow::new(progress, kept, names, now))
            .chain(of.poll_of_type(only).map(|poll| TypeRow::of_poll(poll, kept))).collect(),
    }
}

row! {
    struct TypeRow(progress: &TypeProgress, kept: &Withheld, most: usize, now: Instant)
    where
        audience = progress.upgrade(),
        subscription = audience.as_ref().map(|audience| audience.subscription()),
        all = subscription.map_or(&[][..], |subscription| subscription.names()),
    {
        #[serde(flatten)]
        type_url: TypeUrl = progress.type_url().clone(),
        state: ClientState = progress.state(kept),
        wildcard: bool = subscription.is_some_and(|subscription| subscription.wildcard),
        names: usize = all.len(),
        listed: Vec<Name> = all.iter().take(most).cloned().collect(),
        sent: Option<DeliveryRow> = progress.newest_sent().map(|sent| DeliveryRow::new(sent, now)),
        acked: Option<DeliveryRow> = progress.newest_acked().map(|acked| DeliveryRow::new(&acked, now)),
        rejected: Option<RejectionRow> =
            progress.standing_rejection().map(|it| RejectionRow::new(&it.delivery, it.code, &it.text, now)),
        /// In generations.
        lag: u64 = progress.lag(),
        /// Version that the client of a poll holds.
        held: Option<Box<str>> = None,
    }
}

impl TypeRow {
    fn of_poll(poll: &PollRequest, kept: &Withheld) -> Self {
        let subscription = poll.audience.subscription();
        Self {
            type_url: poll.type_url().clone(),
            state: poll.state(kept),
            wildcard: subscription.wildcard,
            names: subscription.names().len(),
            listed: Vec::new(),
            sent: None,
            acked: None,
            rejected: None,
            lag: 0,
            held: Some(poll.version.clone()),
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
        node: Arc<Client> = Arc::clone(&nack.client),
        peer: String = nack.peer.to_string(),
        client: u64 = nack.id,
        /// Client's state now; `None` if it is gone.
        state: Option<ClientState> = client.as_ref().and_then(|client| client.client_state(only, kept)),
        #[serde(flatten)]
        type_url: TypeUrl = nack.type_url.clone(),
        #[serde(flatten)]
        rejection: RejectionRow = match standing {
            Some((_, it)) => RejectionRow::new(&it.delivery, it.code, &it.text, now),
            None => RejectionRow::new(&nack.delivery, nack.code, &nack.text, now),
        },
        /// Names changed since the last ACK, some of many; `None` if everything was new.
        changed: Option<Vec<Name>> = match standing {
            Some((progress, it)) => progress.rejected_names(it, NAMES),
            None => nack.changed.clone(),
        },
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

/// Clients of a kind of type.
#[derive(Clone, Copy, Debug, Default)]
pub struct KindFigures {
    /// In the order of [`ClientState::ALL`].
    pub states: [usize; ClientState::ALL.len()],
    /// Largest, in generations.
    pub lag: u64,
    /// Longest wait for an answer of a client.
    pub unanswered: Duration,
    pub held_polls: usize,
}

/// Streams and held polls.
#[derive(Debug, Default, Serialize)]
pub struct ClientFigures {
    pub open: usize,
    /// Those that match, by state.
    pub states: BTreeMap<&'static str, usize>,
    pub shared_node_ids: SharedIds,
}

/// Node IDs that several clients have.
#[derive(Debug, Default, Serialize)]
pub struct SharedIds {
    pub count: usize,
    pub some: Vec<String>,
}

impl View<'_> {
    /// Clients by kind of type, and streams by transport, including zeros.
    pub fn figures(&self) -> (BTreeMap<Kind, KindFigures>, [(&'static str, u32); 2]) {
        let kept = self.withheld();
        let mut streams = Protocol::ALL.map(|protocol| (protocol.label(), 0));
        let mut figures: BTreeMap<Kind, KindFigures> =
            Kind::ALL.map(|kind| (kind, Default::default())).into();
        for record in self.fleet.after(0) {
            let of_transport = streams.iter_mut().filter(|(transport, _)| *transport == record.transport);
            of_transport.for_each(|(_, count)| *count += 1);
            let state = record.state();
            for progress in &state.types {
                let of = figures.entry(progress.type_url().kind()).or_default();
                of.states[progress.state(&kept) as usize] += 1;
                of.lag = of.lag.max(progress.lag());
                let waits =
                    progress.unanswered_since().map(|since| self.now.saturating_duration_since(since));
                of.unanswered = of.unanswered.max(waits.unwrap_or_default());
            }
            if let Some(poll) = &state.poll {
                let of = figures.entry(poll.type_url().kind()).or_default();
                of.states[poll.state(&kept) as usize] += 1;
                of.held_polls += 1;
            }
        }
        (figures, streams)
    }

    /// Page of matching clients. Lowers the priority of its thread.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is wrong.
    pub fn clients(&self, query: &str) -> Document {
        let (mut page, figures) = self.client_page(query, lower_thread_priority)?;
        page.figures = json!(figures);
        document(&page)
    }

    /// Figures of all clients.
    pub fn client_figures(&self) -> ClientFigures {
        self.client_page("limit=0", || {}).map(|(_, figures)| figures).unwrap_or_default()
    }

    /// Calls `on_unlocked` once it holds no lock any more.
    fn client_page(
        &self,
        query: &str,
        on_unlocked: fn(),
    ) -> Result<(Page<ClientRow>, ClientFigures), LookError> {
        let query = Query::parse(query, &["node", "type", "state", "asks_for", "limit", "after"])?;
        let (node, only, wanted) = (query.pattern("node")?, query.type_url()?, query.state()?);
        let mut page = Page::new("clients", &query)?;
        let (open, mut states) = (self.fleet.len(), BTreeMap::<_, usize>::new());
        let copy = |record: Arc<Record>| Some((record.copy_if(|node_id| node.is_match(node_id))?, record));
        let copies: Vec<(RecordState, Arc<Record>)> = self.fleet.after(0).filter_map(copy).collect();
        let kept = self.withheld();
        on_unlocked();
        let shared = shared_node_ids(&copies, self.now);
        for (of, record) in &copies {
            let state = of.client_state(only.as_ref(), &kept);
            let is_one = (only.is_none() || state.is_some()) && (wanted.is_none() || state == wanted);
            if is_one && query.get("asks_for").is_none_or(|name| asks_for(of, only.as_ref(), name)) {
                *states.entry(state.map_or("new", ClientState::label)).or_default() += 1;
                page.offer(record.id, || ClientRow::new(record, of, &kept, only.as_ref(), 0, self.now));
            }
        }
        let some = shared.iter().take(NAMES).map(|id| (*id).to_owned()).collect();
        let shared_node_ids = SharedIds { count: shared.len(), some };
        Ok((page, ClientFigures { open, states, shared_node_ids }))
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
        document(&self.nack_page(query)?)
    }

    /// Newest rejection that stands, in words, unless many of departed clients followed.
    pub fn newest_rejection(&self) -> Option<String> {
        let page = self.nack_page("").ok()?;
        let is_standing = |nack: &&NackRow| nack.state == Some(ClientState::Rejected);
        let NackRow { type_url, node, rejection, .. } = page.rows.iter().find(is_standing)?;
        Some(format!(
            "{} {} by {}: {}",
            type_url.kind().short(),
            rejection.delivery.label(),
            node.node_id,
            rejection.text
        ))
    }

    fn nack_page(&self, query: &str) -> Result<Page<NackRow>, LookError> {
        let query = Query::parse(query, &["node", "type", "limit", "after"])?;
        let (node, only) = (query.pattern("node")?, query.type_url()?);
        let mut page = Page::new("nacks", &query)?;
        let found: Vec<_> = {
            let nacks = self.fleet.nacks.lock();
            page.figures = json!({ "remembered": nacks.len() });
            let is_one = |nack: &Nack| {
                node.is_match(&nack.client.node_id) && only.as_ref().is_none_or(|only| *only == nack.type_url)
            };
            let matching = nacks.before(page.downwards()).filter(|(_, entry)| is_one(&entry.newest));
            matching.map(|(number, of)| (number, Arc::clone(&of.newest), of.count)).collect()
        };
        let kept = self.withheld();
        for (number, nack, count) in found {
            let client = || self.fleet.get(nack.id).and_then(|record| record.copy_if(|_| true));
            page.offer(number, || NackRow::new(&nack, count, client(), &kept, self.now));
        }
        Ok(page)
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
            registration.follow_request(&session, None);
            open.push((session, registration));
        }
        let copies = fleet.after(0).filter_map(|record| Some((record.copy_if(|_| true)?, record)));
        let copies: Vec<_> = copies.collect();
        assert_eq!(shared_node_ids(&copies, now), BTreeSet::new());
        assert_eq!(shared_node_ids(&copies, now + SETTLED), BTreeSet::from(["twice"]));
    }
}
