//! Record of one stream or poll.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};

use crate::identity::Peer;
use crate::node_group::GroupKey;
use crate::resource::{Parameters, TypeUrl};
use crate::subscription::{Client, ClientState, Session, TypeProgress};

#[derive(Clone, Debug)]
pub struct PollRequest {
    pub type_url: TypeUrl,
    /// Version that the client holds; empty for none.
    pub version: Box<str>,
    pub wildcard: bool,
    pub names: usize,
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
    pub(super) fn new(
        id: u64,
        transport: &'static str,
        peer: Arc<Peer>,
        connection: u64,
        now: Instant,
    ) -> Self {
        Self { id, transport, opened: now, peer, connection, state: Mutex::default() }
    }

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
    pub(super) fn follow(&mut self, session: &Session) {
        for (at, view) in session.views().enumerate() {
            match self.types.get_mut(at) {
                Some(progress) if progress.type_url() == view.type_url() => progress.refresh(view),
                _ => {
                    // Most streams have one type, or a few.
                    self.types.reserve_exact(1);
                    self.types.insert(at, TypeProgress::new(view));
                }
            }
        }
    }

    pub(super) fn find(&mut self, type_url: &TypeUrl) -> Option<&mut TypeProgress> {
        self.types.iter_mut().find(|progress| progress.type_url() == type_url)
    }

    /// State of the client for one type, or the first that counts of all its types.
    pub(super) fn client_state(&self, only: Option<&TypeUrl>) -> Option<ClientState> {
        let is_one = |type_url: &TypeUrl| only.is_none_or(|only| only == type_url);
        let types = self.types.iter().filter(|progress| is_one(progress.type_url()));
        let poll = self.poll.as_ref().filter(|poll| is_one(&poll.type_url));
        types.map(TypeProgress::state).chain(poll.map(|poll| poll.state())).min()
    }
}

impl PollRequest {
    /// State while the poll is held: waiting, or up to date.
    pub(super) fn state(&self) -> ClientState {
        if self.version.is_empty() { ClientState::Waiting } else { ClientState::Synced }
    }
}
