//! Clients and rejections as JSON, for operators.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::admin_query::{LookError, PAGE, Query};
use super::client_record::{Record, RecordState};
use super::nacks::NackEntry;
use super::registry::{Fleet, NAMES};
use crate::fairness::lower_thread_priority;
use crate::resource::{Kind, Name, TypeUrl};
use crate::subscription::{ClientState, Delivery, Rejection, TypeProgress};

/// Names on the page of one client.
const LISTED: usize = 1_000;

#[derive(Debug, Serialize)]
pub struct ClientPage {
    open: usize,
    states: BTreeMap<&'static str, usize>,
    clients: Vec<ClientReport>,
    /// `after` of the next page.
    next: Option<u64>,
}

#[derive(Debug, Serialize)]
struct ClientReport {
    id: u64,
    node: NodeReport,
    transport: &'static str,
    peer: String,
    /// Authenticated identity.
    identity: Option<String>,
    connection: u64,
    /// `None` in the group of the relay's own node.
    group: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<String, String>,
    open_seconds: f64,
    state: Option<&'static str>,
    types: Vec<TypeReport>,
}

#[derive(Debug, Serialize)]
struct NodeReport {
    id: String,
    cluster: String,
    user_agent: String,
}

#[derive(Debug, Default, Serialize)]
struct TypeReport {
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    state: &'static str,
    wildcard: bool,
    names: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    listed: Vec<String>,
    sent: Option<DeliveryReport>,
    acked: Option<DeliveryReport>,
    rejected: Option<RejectionReport>,
    /// In generations.
    lag: u64,
    /// Version that the client of a poll holds.
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<String>,
}

#[derive(Debug, Serialize)]
struct DeliveryReport {
    version: String,
    generation: u64,
    seconds_ago: f64,
}

#[derive(Debug, Serialize)]
struct RejectionReport {
    #[serde(flatten)]
    delivery: DeliveryReport,
    code: i32,
    text: String,
}

#[derive(Debug, Serialize)]
struct NackPage {
    /// Clients and types with a remembered rejection.
    remembered: usize,
    nacks: Vec<NackReport>,
    next: Option<u64>,
}

#[derive(Debug, Serialize)]
struct NackReport {
    node: NodeReport,
    peer: String,
    client: u64,
    /// Client's state now; `None` if it is gone.
    state: Option<&'static str>,
    #[serde(rename = "type")]
    kind: &'static str,
    type_url: String,
    #[serde(flatten)]
    rejection: RejectionReport,
    /// Names changed since the last ACK, some of many; `None` if everything was new.
    changed: Option<Vec<String>>,
    count: u64,
}

/// Seconds since `at`, cut to milliseconds.
pub fn seconds(at: Instant, now: Instant) -> f64 {
    let millis = now.saturating_duration_since(at).as_millis();
    millis as f64 / 1_000.0
}

fn delivery(delivery: &Delivery, now: Instant) -> DeliveryReport {
    let seconds_ago = seconds(delivery.at, now);
    DeliveryReport {
        version: delivery.version.to_string(),
        generation: delivery.generation.get(),
        seconds_ago,
    }
}

fn rejection(rejection: &Rejection, now: Instant) -> RejectionReport {
    let (code, text) = (rejection.code, rejection.text.to_string());
    RejectionReport { delivery: delivery(&rejection.delivery, now), code, text }
}

fn progress(progress: &TypeProgress, lists: bool, now: Instant) -> TypeReport {
    let audience = progress.upgrade();
    let subscription = audience.as_ref().map(|audience| audience.subscription());
    let names = subscription.map_or(&[][..], |subscription| subscription.names());
    let listed = names.iter().take(if lists { LISTED } else { 0 }).map(Name::to_string).collect();
    TypeReport {
        kind: progress.type_url().kind().short(),
        type_url: progress.type_url().as_str().to_owned(),
        state: progress.state().label(),
        wildcard: subscription.is_some_and(|subscription| subscription.wildcard),
        names: names.len(),
        listed,
        sent: progress.newest_sent().map(|sent| delivery(sent, now)),
        acked: progress.newest_acked().map(|acked| delivery(&acked, now)),
        rejected: progress.standing_rejection().map(|standing| rejection(standing, now)),
        lag: progress.lag(),
        held: None,
    }
}

fn report(record: &Record, state: &RecordState, lists: bool, now: Instant) -> ClientReport {
    let mut types: Vec<_> = state.types.iter().map(|of| progress(of, lists, now)).collect();
    types.extend(state.poll.as_ref().map(|poll| TypeReport {
        kind: poll.type_url.kind().short(),
        type_url: poll.type_url.as_str().to_owned(),
        state: poll.state().label(),
        wildcard: poll.wildcard,
        names: poll.names,
        held: Some(poll.version.to_string()),
        ..TypeReport::default()
    }));
    let text = |text: &str| text.to_owned();
    ClientReport {
        id: record.id,
        node: node(state.client.as_deref()),
        transport: record.transport,
        peer: record.peer.source.to_string(),
        identity: record.peer.certificate.as_ref().map(|certificate| text(certificate.identity())),
        connection: record.connection,
        group: state.group.as_ref().map(ToString::to_string),
        parameters: state.parameters.iter().map(|(key, value)| (text(key), text(value))).collect(),
        open_seconds: seconds(record.opened, now),
        state: state.client_state(None).map(ClientState::label),
        types,
    }
}

fn node(client: Option<&crate::subscription::Client>) -> NodeReport {
    let text = |of: fn(&crate::subscription::Client) -> &String| client.map(of).cloned().unwrap_or_default();
    NodeReport {
        id: text(|client| &client.node_id),
        cluster: text(|client| &client.cluster),
        user_agent: text(|client| &client.user_agent),
    }
}

#[derive(Clone, Debug, Default)]
pub struct ClientFigures {
    /// In the order of [`ClientState::ALL`].
    pub states: [usize; ClientState::ALL.len()],
    pub lag: u64,
    pub unanswered: Duration,
}

/// Figures by kind of type, including zeros.
pub fn figures(fleet: &Fleet, now: Instant) -> BTreeMap<Kind, ClientFigures> {
    let kinds = Kind::KNOWN.into_iter().chain([Kind::Other]);
    let mut figures: BTreeMap<_, ClientFigures> =
        kinds.map(|kind| (kind, ClientFigures::default())).collect();
    for record in fleet.after(0) {
        let state = record.state();
        for progress in &state.types {
            let of = figures.entry(progress.type_url().kind()).or_default();
            of.states[progress.state() as usize] += 1;
            of.lag = of.lag.max(progress.lag());
            let since = progress.unanswered_since();
            let unanswered = since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
            of.unanswered = of.unanswered.max(unanswered);
        }
        if let Some(poll) = &state.poll {
            figures.entry(poll.type_url.kind()).or_default().states[poll.state() as usize] += 1;
        }
    }
    figures
}

/// Page of matching clients. Lowers the priority of its thread.
///
/// # Errors
///
/// [`LookError`] if the query is wrong.
pub fn clients(fleet: &Fleet, query: &str, now: Instant) -> Result<ClientPage, LookError> {
    let query = Query::parse(query, &["node", "type", "state", "asks_for", "limit", "after"])?;
    let (node, only, wanted) = (query.pattern("node"), query.type_url()?, query.state()?);
    let (limit, after) = (query.limit(PAGE)?, query.after()?);
    let mut page = ClientPage { open: fleet.len(), states: BTreeMap::new(), clients: Vec::new(), next: None };
    let is_one = |node_id: &str| node.as_ref().is_none_or(|node| node.matches(node_id));
    let copy = |record: Arc<Record>| Some((record.copy_if(is_one)?, record));
    let copies: Vec<(RecordState, Arc<Record>)> = fleet.after(0).filter_map(copy).collect();
    lower_thread_priority();
    for (state, record) in copies {
        let its_state = state.client_state(only.as_ref());
        if (only.is_some() && its_state.is_none()) || (wanted.is_some() && its_state != wanted) {
            continue;
        }
        if !query.get("asks_for").is_none_or(|name| asks_for(&state, only.as_ref(), name)) {
            continue;
        }
        *page.states.entry(its_state.map_or("new", ClientState::label)).or_default() += 1;
        if record.id <= after {
            continue;
        }
        if page.clients.len() < limit {
            let mut client = report(&record, &state, false, now);
            if let Some(type_url) = &only {
                client.types.retain(|of| of.type_url == type_url.as_str());
            }
            page.clients.push(client);
        } else if let Some(last) = page.clients.last() {
            page.next = Some(last.id);
        }
    }
    Ok(page)
}

/// Whether a client asks for a name: by name, collection or wildcard membership. Unknown for a poll.
fn asks_for(state: &RecordState, only: Option<&TypeUrl>, name: &str) -> bool {
    let types = state.types.iter().filter(|progress| only.is_none_or(|only| only == progress.type_url()));
    let mut audiences = types.filter_map(TypeProgress::upgrade);
    audiences.any(|audience| {
        let subscription = audience.subscription();
        let is_member = || audience.of().snapshot().get(name).is_some_and(|entry| entry.is_member());
        subscription.contains(name) || subscription.covers(name) || (subscription.wildcard && is_member())
    })
}

pub fn client(fleet: &Fleet, id: u64, now: Instant) -> Option<impl Serialize + use<>> {
    let record = fleet.get(id)?;
    let state = record.copy_if(|_| true)?;
    Some(report(&record, &state, true, now))
}

/// Page of matching rejections, newest first.
///
/// # Errors
///
/// [`LookError`] if the query is wrong.
pub fn nacks(fleet: &Fleet, query: &str, now: Instant) -> Result<impl Serialize + use<>, LookError> {
    let query = Query::parse(query, &["node", "type", "limit", "after"])?;
    let (node, only, limit) = (query.pattern("node"), query.type_url()?, query.limit(PAGE)?);
    let before = Some(query.after()?).filter(|after| *after > 0).unwrap_or(u64::MAX);
    let (remembered, found, next) = {
        let nacks = fleet.nacks().lock();
        let is_one = |(_, entry): &(u64, &NackEntry)| {
            let nack = &entry.newest;
            node.as_ref().is_none_or(|node| node.matches(&nack.client.node_id))
                && only.as_ref().is_none_or(|only| *only == nack.type_url)
        };
        let mut matching = nacks.before(before).filter(is_one).peekable();
        let mut found: Vec<(u64, NackEntry)> = Vec::new();
        while found.len() < limit
            && let Some((number, entry)) = matching.next()
        {
            found.push((number, entry.clone()));
        }
        let next = matching.peek().and_then(|_| found.last().map(|(number, _)| *number));
        (nacks.len(), found, next)
    };
    let nacks = found.iter().map(|(_, entry)| nack(fleet, entry, now)).collect();
    Ok(NackPage { remembered, nacks, next })
}

fn nack(fleet: &Fleet, entry: &NackEntry, now: Instant) -> NackReport {
    let nack = &*entry.newest;
    let type_url: &TypeUrl = &nack.type_url;
    let client = fleet.get(nack.id).and_then(|record| record.copy_if(|_| true));
    let state = client.as_ref().and_then(|client| client.client_state(Some(type_url)));
    // The newest NACK may be resolved while an older one still counts.
    let progress =
        client.as_ref().and_then(|client| client.types.iter().find(|of| of.type_url() == type_url));
    let progress = progress.filter(|progress| progress.state() == ClientState::Rejected);
    let standing = progress.and_then(|progress| Some((progress, progress.standing_rejection()?)));
    let standing = standing.filter(|(_, standing)| standing.delivery != nack.delivery);
    let (rejection, changed) = match standing {
        Some((progress, standing)) => (rejection(standing, now), progress.rejected_names(standing, NAMES)),
        None => {
            let (delivery, text) = (delivery(&nack.delivery, now), nack.text.to_string());
            (RejectionReport { delivery, code: nack.code, text }, nack.changed.clone())
        }
    };
    NackReport {
        node: node(Some(&nack.client)),
        peer: nack.peer.to_string(),
        client: nack.id,
        state: state.map(ClientState::label),
        kind: type_url.kind().short(),
        type_url: type_url.as_str().to_owned(),
        rejection,
        changed: changed.map(|names| names.iter().map(Name::to_string).collect()),
        count: entry.count,
    }
}
