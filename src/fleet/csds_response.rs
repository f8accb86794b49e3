//! Client status discovery service (CSDS) without transport: states of resources at clients.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Instant, UNIX_EPOCH};

use bytes::Bytes;
use prost::Message as _;

use super::admin_query::LookError;
use super::client_record::{PollRequest, Record, RecordState};
use super::config_dump::shown_body;
use super::node_matcher::NodeMatchers;
use super::registry::Fleet;
use crate::cache::{Snapshot, VisibleState};
use crate::descriptors::Descriptors;
use crate::fairness::lower_thread_priority;
use crate::proto::status::{
    ClientConfig, ClientResourceStatus, ClientStatusRequest, ClientStatusResponse, ConfigStatus,
    GenericXdsConfig, Node, Timestamp, UpdateFailureState,
};
use crate::resource::{Name, Resource};
use crate::subscription::{Audience, ClientState, Delivery, ResourceState, TypeProgress};
use crate::utc::WallClock;

/// Bytes.
const LARGEST: usize = 64 << 20;

const TOO_LARGE: LookError = LookError::TooLarge(
    "the response would be larger than 64 MiB; name clients in `node_matchers`, or set `exclude_resource_contents`",
);

fn timestamp(clock: WallClock, at: Instant) -> Timestamp {
    let since = clock.at(at).duration_since(UNIX_EPOCH).unwrap_or_default();
    // Both fit until the year 292,277,026,596.
    Timestamp {
        seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(since.subsec_nanos()).unwrap_or_default(),
    }
}

/// Each body is decoded once for all clients.
struct Bodies<'d> {
    descriptors: &'d Descriptors,
    /// By address of the resource, which is kept alive so that no other gets that address.
    shown: HashMap<*const Resource, (Arc<Resource>, Result<Bytes, String>)>,
}

impl Bodies<'_> {
    /// Without sensitive values, or why it cannot be shown.
    fn of(&mut self, resource: &Arc<Resource>) -> Result<Bytes, String> {
        let read = || {
            let body = shown_body(resource, |body| self.descriptors.redacted_any(body));
            (Arc::clone(resource), body.map(Bytes::from))
        };
        self.shown.entry(Arc::as_ptr(resource)).or_insert_with(read).1.clone()
    }
}

/// Response to an encoded request. Lowers the priority of its thread.
///
/// # Errors
///
/// [`LookError`] if the request cannot be read or answered.
pub fn client_status(fleet: &Fleet, descriptors: &Descriptors, request: &[u8]) -> Result<Vec<u8>, LookError> {
    let request = ClientStatusRequest::decode(request)
        .map_err(|error| LookError::Wrong(format!("the request is no ClientStatusRequest: {error}")))?;
    let matchers = NodeMatchers::new(&request.node_matchers)?;
    let clock = WallClock::get();
    let mut response = ClientStatusResponse::default();
    let mut bodies =
        (!request.exclude_resource_contents).then(|| Bodies { descriptors, shown: HashMap::new() });
    let (mut places, mut bytes) = (HashMap::new(), 0);
    let copy = |record: Arc<Record>| {
        let state = record.copy_if(|node_id| matchers.matches(node_id))?;
        Some((state.client.clone()?, state, record))
    };
    let copies: Vec<_> = fleet.after(0).filter_map(copy).collect();
    lower_thread_priority();
    for (client, state, record) in copies {
        let RecordState { types, poll, group, .. } = state;
        // A client may have a stream for each type.
        let at = *places.entry((record.connection, Arc::clone(&client))).or_insert_with(|| {
            let group = group.map(|group| format!(", node group {group}")).unwrap_or_default();
            response.config.push(ClientConfig {
                node: Some(Node {
                    id: client.node_id.clone(),
                    cluster: client.cluster.clone(),
                    user_agent_name: client.user_agent.clone(),
                }),
                generic_xds_configs: Vec::new(),
                client_scope: format!("{}{group}", scope(&record)),
            });
            response.config.len() - 1
        });
        let configs = &mut response.config[at].generic_xds_configs;
        let mut add = |config: GenericXdsConfig| {
            // Prefixes and node are small beside it.
            bytes += config.encoded_len() + 16;
            configs.push(config);
            if bytes > LARGEST { Err(TOO_LARGE) } else { Ok(()) }
        };
        for progress in &types {
            add_resources(progress, bodies.as_mut(), clock, &mut add)?;
        }
        poll.iter().map(|poll| poll_config(poll)).try_for_each(&mut add)?;
    }
    Ok(response.encode_to_vec())
}

fn scope(record: &Record) -> String {
    format!("{} from {}, connection {}", record.transport, record.peer, record.connection)
}

/// A held poll: one version of everything it asks for.
fn poll_config(poll: &PollRequest) -> GenericXdsConfig {
    let (config, client) = match poll.state() {
        ClientState::Synced => (ConfigStatus::Synced, ClientResourceStatus::ClientAcked),
        _ => (ConfigStatus::NotSent, ClientResourceStatus::ClientRequested),
    };
    GenericXdsConfig {
        type_url: poll.type_url.as_str().to_owned(),
        version_info: poll.version.to_string(),
        config_status: config.into(),
        client_status: client.into(),
        ..GenericXdsConfig::default()
    }
}

fn add_resources(
    progress: &TypeProgress,
    bodies: Option<&mut Bodies<'_>>,
    clock: WallClock,
    add: &mut impl FnMut(GenericXdsConfig) -> Result<(), LookError>,
) -> Result<(), LookError> {
    let Some(audience) = progress.upgrade() else { return Ok(()) };
    let snapshot = audience.of().snapshot();
    // Never show the body of a Secret.
    let mut bodies = bodies.filter(|_| !progress.type_url().is_secret());
    for (name, seen) in snapshot.seen_through(audience.subscription()) {
        let mut config = GenericXdsConfig {
            type_url: progress.type_url().as_str().to_owned(),
            name: name.to_string(),
            ..GenericXdsConfig::default()
        };
        let resource = seen.present();
        let config = match resource {
            Some(resource) => {
                resource.version().clone_into(&mut config.version_info);
                match bodies.as_mut().map(|bodies| bodies.of(resource)) {
                    None => {}
                    Some(Ok(body)) => config.xds_config = body,
                    Some(Err(details)) => {
                        config.error_state = Some(UpdateFailureState { details, ..Default::default() });
                    }
                }
                present(config, progress, &audience, &snapshot, name, clock)
            }
            None => missing(config, progress, &snapshot, name, seen),
        };
        add(config)?;
    }
    Ok(())
}

fn present(
    mut config: GenericXdsConfig,
    progress: &TypeProgress,
    audience: &Audience,
    snapshot: &Snapshot,
    name: &Name,
    clock: WallClock,
) -> GenericXdsConfig {
    let at = |delivery: Option<&Delivery>| delivery.map(|one| timestamp(clock, one.at));
    let (status, client, last_updated) = match progress.resource_state(audience, snapshot, name) {
        ResourceState::Unknown => (ConfigStatus::Unknown, ClientResourceStatus::ClientUnknown, None),
        ResourceState::Synced => {
            (ConfigStatus::Synced, ClientResourceStatus::ClientAcked, at(progress.newest_acked().as_ref()))
        }
        ResourceState::NotSent => (ConfigStatus::NotSent, ClientResourceStatus::ClientRequested, None),
        ResourceState::Stale => {
            (ConfigStatus::Stale, ClientResourceStatus::ClientRequested, at(progress.newest_sent()))
        }
        ResourceState::Rejected(rejection) => {
            config.error_state = Some(UpdateFailureState {
                last_update_attempt: Some(timestamp(clock, rejection.delivery.at)),
                details: rejection.text.to_string(),
                version_info: rejection.delivery.version.to_string(),
            });
            (ConfigStatus::Error, ClientResourceStatus::ClientNacked, None)
        }
    };
    GenericXdsConfig { config_status: status.into(), client_status: client.into(), last_updated, ..config }
}

/// State of a name that the control plane reports as missing, or not at all.
fn missing(
    config: GenericXdsConfig,
    progress: &TypeProgress,
    snapshot: &Snapshot,
    name: &Name,
    seen: VisibleState<'_>,
) -> GenericXdsConfig {
    let is_told = progress.state() == ClientState::Synced;
    let (status, client) = match seen {
        VisibleState::Absent if is_told => (ConfigStatus::Synced, ClientResourceStatus::ClientDoesNotExist),
        VisibleState::Absent => (ConfigStatus::Unknown, ClientResourceStatus::ClientDoesNotExist),
        VisibleState::Failed | VisibleState::Unresolved(_) => {
            (ConfigStatus::NotSent, ClientResourceStatus::ClientReceivedError)
        }
        _ => (ConfigStatus::NotSent, ClientResourceStatus::ClientRequested),
    };
    let failure = snapshot.get(name.as_str()).and_then(|entry| entry.failure());
    let error_state = failure
        .map(|failure| UpdateFailureState { details: failure.message().to_owned(), ..Default::default() });
    GenericXdsConfig { config_status: status.into(), client_status: client.into(), error_state, ..config }
}
