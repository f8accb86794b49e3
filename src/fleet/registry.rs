//! Records of all streams and polls, updated by their connections.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use super::nacks::{Nack, Nacks};
use crate::cache::Withheld;
use crate::identity::Peer;
use crate::node_group::GroupKey;
use crate::proto;
use crate::resource::{Parameters, TypeUrl};
use crate::subscription::{
    Audience, Client, ClientState, Delivery, Outgoing, REJECTION_TEXT, Session, TypeProgress,
};

/// Names listed for a rejection.
pub(super) const NAMES: usize = 8;
/// Records copied under the lock, which blocks opening and ending streams.
const COPIED: usize = 512;

#[derive(Clone, Debug)]
pub struct PollRequest {
    /// Version that the client holds; empty for none.
    pub version: Box<str>,
    pub audience: Audience,
}

#[derive(Debug)]
pub(super) struct Record {
    pub(super) id: u64,
    /// `delta`, `sotw` or `rest`.
    pub(super) transport: &'static str,
    pub(super) opened: Instant,
    pub(super) peer: Arc<Peer>,
    pub(super) connection: u64,
    state: Mutex<RecordState>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct RecordState {
    /// `None` before the first request.
    pub(super) client: Option<Arc<Client>>,
    /// `None` in the group of the relay's own node.
    pub(super) group: Option<Box<GroupKey>>,
    pub(super) parameters: Parameters,
    /// In the order of the session.
    pub(super) types: Vec<TypeProgress>,
    pub(super) poll: Option<Box<PollRequest>>,
}

impl Record {
    pub(super) fn state(&self) -> MutexGuard<'_, RecordState> {
        self.state.lock()
    }

    /// Copies the state if the node ID matches, so that the connection does not wait for the rest.
    pub(super) fn copy_if(&self, is_one: impl FnOnce(&str) -> bool) -> Option<RecordState> {
        let state = self.state.lock();
        let node_id = state.client.as_ref().map_or("", |client| &client.node_id);
        is_one(node_id).then(|| state.clone())
    }
}

impl RecordState {
    fn follow(&mut self, session: &Session) {
        for (at, state) in session.types().iter().enumerate() {
            match self.types.get_mut(at) {
                Some(progress) if progress.type_url() == state.type_url() => progress.refresh(state),
                _ => {
                    // Most streams have one type, or a few.
                    self.types.reserve_exact(1);
                    self.types.insert(at, TypeProgress::new(state));
                }
            }
        }
    }

    pub(super) fn find(&mut self, type_url: &TypeUrl) -> Option<&mut TypeProgress> {
        self.types.iter_mut().find(|progress| progress.type_url() == type_url)
    }

    pub(super) fn of_type(&self, only: Option<&TypeUrl>) -> impl Iterator<Item = &TypeProgress> {
        self.types.iter().filter(move |progress| only.is_none_or(|only| only == progress.type_url()))
    }

    pub(super) fn poll_of_type(&self, only: Option<&TypeUrl>) -> Option<&PollRequest> {
        self.poll.as_deref().filter(|poll| only.is_none_or(|only| only == poll.type_url()))
    }

    /// State of the client for one type, or the first that counts of all its types.
    pub(super) fn client_state(&self, only: Option<&TypeUrl>, withheld: &Withheld) -> Option<ClientState> {
        let poll = self.poll_of_type(only).map(|poll| poll.state(withheld));
        self.of_type(only).map(|progress| progress.state(withheld)).chain(poll).min()
    }
}

impl PollRequest {
    pub(super) fn type_url(&self) -> &TypeUrl {
        self.audience.of().type_url()
    }

    /// State while the poll is held: it has what its store has, if anything.
    pub(super) fn state(&self, withheld: &Withheld) -> ClientState {
        if self.version.is_empty() {
            ClientState::Waiting
        } else if self.audience.is_held_back(withheld) {
            ClientState::HeldBack
        } else {
            ClientState::Synced
        }
    }
}

#[derive(Debug, Default)]
pub struct Fleet {
    open: Mutex<BTreeMap<u64, Arc<Record>>>,
    newest: AtomicU64,
    pub(super) nacks: Mutex<Nacks>,
}

impl Fleet {
    /// Adds a stream or poll until the guard is dropped.
    pub fn open(
        self: &Arc<Self>,
        transport: &'static str,
        peer: Arc<Peer>,
        connection: u64,
        now: Instant,
    ) -> Registration {
        let id = self.newest.fetch_add(1, Ordering::Relaxed) + 1;
        let state = Mutex::default();
        let record = Arc::new(Record { id, transport, opened: now, peer, connection, state });
        self.open.lock().insert(id, Arc::clone(&record));
        Registration { record, fleet: Arc::clone(self) }
    }

    /// Logs due rejections. Call it every few seconds.
    pub fn log_rejections(&self, now: Instant) {
        let due = self.nacks.lock().due(now);
        for summary in due {
            let first = &*summary.first;
            // Fields, not the message: tracing escapes them.
            tracing::warn!(
                clients = summary.clients,
                nacks = summary.nacks,
                type_url = first.type_url.as_str(),
                version = &*first.delivery.version,
                changed = names(first),
                code = first.code,
                text = &*first.text,
                node = first.client.node_id,
                cluster = first.client.cluster,
                peer = %first.peer,
                "{} {} {} (NACK); node and text are of the first",
                if summary.clients == 1 {
                    "1 client rejects".to_owned()
                } else {
                    format!("{} clients reject", summary.clients)
                },
                first.type_url.kind().short(),
                version(&first.delivery),
            );
        }
    }

    /// Connection number and node ID.
    pub fn connection_of(&self, id: u64) -> Option<(u64, String)> {
        let record = self.get(id)?;
        let node = record.state().client.as_ref().map(|client| client.node_id.clone());
        Some((record.connection, node.unwrap_or_default()))
    }

    pub(super) fn len(&self) -> usize {
        self.open.lock().len()
    }

    pub(super) fn get(&self, id: u64) -> Option<Arc<Record>> {
        self.open.lock().get(&id).cloned()
    }

    /// Records behind this number, in order of opening. Streams open and end meanwhile.
    pub(super) fn after(&self, id: u64) -> impl Iterator<Item = Arc<Record>> {
        let mut last = Some(id);
        let chunks = std::iter::from_fn(move || {
            let from = last?.checked_add(1)?;
            let chunk: Vec<_> =
                self.open.lock().range(from..).take(COPIED).map(|(_, one)| Arc::clone(one)).collect();
            last = chunk.last().map(|record| record.id);
            (!chunk.is_empty()).then_some(chunk)
        });
        chunks.flatten()
    }
}

fn names(nack: &Nack) -> Option<String> {
    let names = nack.changed.as_ref()?.iter().map(|name| name.as_str());
    Some(names.collect::<Vec<_>>().join(", "))
}

/// For a message, which tracing does not escape.
fn version(delivery: &Delivery) -> String {
    match &*delivery.version {
        // The control plane gives no version.
        "" => format!("at generation {}", delivery.generation),
        version => version.chars().take(60).flat_map(char::escape_debug).collect(),
    }
}

/// Place of a stream or poll in the registry, updated by its connection. Removed on drop.
#[derive(Debug)]
pub struct Registration {
    record: Arc<Record>,
    fleet: Arc<Fleet>,
}

impl Registration {
    /// Follows a request that asked for something, or the first.
    pub fn follow_request(&self, session: &Session, group: Option<&GroupKey>) {
        let mut state = self.record.state();
        if state.client.is_none() {
            state.client = session.client().cloned();
            state.group = group.cloned().map(Box::new);
            state.parameters = session.given_parameters().clone();
        }
        state.follow(session);
    }

    /// Follows an evaluation without a response: the session may have moved on.
    pub fn follow(&self, session: &Session) {
        self.record.state().follow(session);
    }

    pub fn sent(&self, session: &Session, outgoing: &mut Outgoing, now: Instant) {
        let mut state = self.record.state();
        let sent = session.types().iter().find(|state| *state.type_url() == outgoing.type_url);
        if let Some((progress, sent)) = state.find(&outgoing.type_url).zip(sent) {
            progress.sent(sent, outgoing.system_version.take(), now);
        }
        state.follow(session);
    }

    /// Notes an ACK of the newest response for the type at this place of the session. Returns how long it
    /// took.
    pub fn acked_at(&self, at: usize, now: Instant) -> Option<Duration> {
        self.record.state().types.get_mut(at)?.acked(now)
    }

    /// As [`acked_at`](Self::acked_at), by type.
    pub fn acked(&self, type_url: &TypeUrl, now: Instant) -> Option<Duration> {
        self.record.state().find(type_url)?.acked(now)
    }

    /// Notes an ACK of the response before the newest one.
    pub fn acked_late(&self, type_url: &TypeUrl, now: Instant) {
        if let Some(progress) = self.record.state().find(type_url) {
            progress.acked_late(now);
        }
    }

    /// Notes a NACK of the newest response, or with `is_late` of the one before.
    pub fn rejected(
        &self,
        session: &Session,
        type_url: &TypeUrl,
        error: &proto::Status,
        is_late: bool,
        now: Instant,
    ) {
        let Some(client) = session.client().cloned() else { return };
        let message = &error.message[..error.message.floor_char_boundary(REJECTION_TEXT)];
        let text: Arc<str> = type_url.rejection_text(message).into();
        let rejection = {
            let mut state = self.record.state();
            let Some(progress) = state.find(type_url) else { return };
            let text = Arc::clone(&text);
            let rejection = progress.rejected(error, text, is_late, now);
            let delivery = rejection.map(|rejection| rejection.delivery.clone());
            let names = || progress.rejected_names(progress.newest_rejection()?, NAMES);
            delivery.map(|delivery| (delivery, names()))
        };
        let Some((delivery, changed)) = rejection else { return };
        let nack = Nack {
            id: self.record.id,
            client,
            peer: Arc::clone(&self.record.peer),
            type_url: type_url.clone(),
            delivery,
            code: error.code,
            text,
            changed,
        };
        self.fleet.nacks.lock().insert(Arc::new(nack));
    }

    pub fn polled(&self, client: Arc<Client>, group: Option<&GroupKey>, request: PollRequest) {
        let mut state = self.record.state();
        state.client = Some(client);
        state.group = group.cloned().map(Box::new);
        state.poll = Some(Box::new(request));
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.fleet.open.lock().remove(&self.record.id);
    }
}
