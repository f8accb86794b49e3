//! One running node group, and its start.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::origin::Origin;
use super::rule_figures::RuleFigures;
use crate::cache::{Budget, Cache, RolloutSettings};
use crate::limit::Limit;
use crate::node_group::{GroupKey, GroupNode};
use crate::pool::Tenant;
use crate::proto::Node;
use crate::snapshot::{self, Disk, GroupId, LiveGroup, Restore, StoredGroup, node_digest};
use crate::subscription::SessionError;
use crate::upstream::{
    Client, Counters, DirectorySource, Mux, NodeBudget, Representative, Servers, Settings, Stay, Tuned,
};

/// Upstream event counters, under their metric names.
pub type Events = [(&'static str, u64); Counters::NAMES.len()];

/// Running node group.
#[derive(Debug)]
pub struct Group {
    cache: Arc<Cache>,
    origin: Origin,
    /// `None` for a directory.
    source: Option<Source>,
}

/// Client of the control plane.
#[derive(Debug)]
struct Source {
    counters: Arc<Counters>,
    /// `id` of the relay's node for the group.
    node_id: Box<str>,
    representative: Option<Arc<Representative>>,
    stop: CancellationToken,
    /// Tasks that have not begun.
    waiting: Mutex<Option<(Client, CancellationToken)>>,
    saved: Option<Saved>,
}

/// Place of a group in the snapshot.
#[derive(Clone, Debug)]
struct Saved {
    disk: Arc<Disk>,
    id: GroupId,
    /// Digest of the node shown to the control plane.
    node: u128,
}

impl Saved {
    /// Gives the client the stored content, later if the file cannot be read now.
    async fn load(self, client: &mut Client) {
        let (disk, id, node) = (Arc::clone(&self.disk), self.id.clone(), self.node);
        let restore = |loaded, client: &mut Client| self.restore(loaded, client);
        snapshot::load(move || disk.load(&id, node).ok(), restore).await(client);
    }

    fn restore(self, loaded: Option<StoredGroup>, client: &mut Client) {
        if let Some(loaded) = loaded {
            loaded.restore(client);
        }
        self.disk.note_read(self.id, client.cache());
    }
}

/// Node of a client of a [`GroupNode::Client`] group, as sent, with its stay.
pub(super) type Visitor = Option<(Bytes, Stay)>;

/// Node of a client, kept only if its group `lends` nodes.
pub(super) fn visitor(lends: bool, stay: Stay, raw: impl FnOnce() -> Bytes) -> Result<Visitor, SessionError> {
    let node = lends.then(raw);
    if node.as_ref().is_none_or(|node| node.len() <= Representative::MAX_BYTES) {
        return Ok(node.map(|node| (node, stay)));
    }
    let limit = Representative::MAX_BYTES;
    let message = format!("`node` is longer than {limit} bytes, and may be lent to its node group");
    Err(SessionError::invalid(message))
}

impl Group {
    /// Creates the own group of a directory, which fills the cache.
    pub fn of_directory(cache: Arc<Cache>, source: &DirectorySource) -> Arc<Self> {
        let origin = Origin::Directory { state: source.state() };
        Arc::new(Self { cache, origin, source: None })
    }

    /// Cache of the group.
    pub const fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Source of its resources.
    pub const fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Notes a client. Returns the number under which it leaves.
    ///
    /// # Errors
    ///
    /// [`SessionError`] if the group has no node to show, and no room for the client's.
    pub(super) fn arrive(
        &self,
        visitor: Visitor,
        tenant: Option<&Tenant>,
    ) -> Result<Option<u64>, SessionError> {
        let representative = self.source.as_ref().and_then(|source| source.representative.as_ref());
        let lent = representative.zip(visitor);
        let arrived =
            lent.map(|(representative, (node, stay))| representative.arrive(node, tenant, stay)).transpose();
        arrived.map_err(|full| SessionError::over(Limit::Groups, full.to_string()))
    }

    pub(super) fn leave(&self, number: Option<u64>) {
        let representative = self.source.as_ref().and_then(|source| source.representative.as_ref());
        if let (Some(representative), Some(number)) = (representative, number) {
            representative.leave(number);
        }
    }

    /// Starts the control plane client, once.
    pub(super) fn begin(&self) {
        let Some(source) = &self.source else { return };
        let Some((mut client, failed)) = source.waiting.lock().take() else { return };
        let stop = source.stop.clone();
        // The own group's content was read, or is tried again by its client.
        let saved = source.saved.clone().filter(|saved| saved.id != GroupId::own());
        let stopped = stop.clone();
        let run = async move {
            if let Some(saved) = saved {
                saved.load(&mut client).await;
            }
            client.run(stopped).await;
        };
        spawn_essential(run, stop, failed);
    }

    /// Group for the snapshot; `None` for a directory.
    pub(super) fn live(&self, now: Instant) -> Option<LiveGroup> {
        let saved = self.source.as_ref()?.saved.as_ref()?;
        let state = self.origin.state()?;
        Some(LiveGroup {
            id: saved.id.clone(),
            cache: Arc::clone(&self.cache),
            node: saved.node,
            server: state.source.as_ref().map_or_else(String::new, ToString::to_string),
            current: state.current_ago(now),
        })
    }

    pub(super) fn stop(&self) {
        if let Some(source) = &self.source {
            source.stop.cancel();
        }
    }

    pub(super) fn events(&self) -> Option<Events> {
        self.source.as_ref().map(|source| source.counters.all())
    }

    /// Node shown to the control plane; `None` before a client lends one.
    pub fn shown_node(&self) -> Option<ShownNode> {
        self.source.as_ref()?.node()
    }

    pub(super) fn count(&self, figures: &mut RuleFigures, now: Instant) {
        if let Some(state) = self.origin.state() {
            figures.add(&state, now);
        }
    }

    /// Whether its content would be lost for now: its control plane is away, or has not answered on this
    /// connection.
    pub(super) fn is_irreplaceable(&self) -> bool {
        let is_away = self.origin.state().is_some_and(|state| !state.answered || state.origin_is_cut_off);
        is_away && self.cache.types().iter().any(|of| of.snapshot().holds_anything())
    }
}

/// Node shown to the control plane for a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownNode {
    /// Its `id`.
    pub id: String,
    /// Time of choice, for a client's node.
    pub of_client_since: Option<Instant>,
}

impl Source {
    fn node(&self) -> Option<ShownNode> {
        let Some(representative) = &self.representative else {
            return Some(ShownNode { id: self.node_id.to_string(), of_client_since: None });
        };
        let (node, since) = representative.shown()?;
        let id = Node::decode(node).map(|node| node.id).unwrap_or_default();
        Some(ShownNode { id, of_client_since: Some(since) })
    }
}

/// Starter of new groups.
#[derive(Debug)]
pub struct Starter {
    /// Settings of all groups; the node differs.
    pub settings: Settings,
    pub servers: Arc<Servers>,
    pub budget: Budget,
    /// Memory for nodes of [`GroupNode::Client`].
    pub nodes: Arc<NodeBudget>,
    pub tuned: watch::Receiver<Tuned>,
    /// `None` without a snapshot.
    pub disk: Option<Arc<Disk>>,
    /// Guard of changes, if any.
    pub rollout: Option<RolloutSettings>,
    /// Groups run until then.
    pub stop: CancellationToken,
    /// Cancelled by a task that ends early.
    pub failed: CancellationToken,
}

impl Starter {
    /// Creates the own group, and runs it with restored content.
    pub fn own(&self, restore: Option<Restore>) -> Arc<Group> {
        let node = self.settings.node.clone();
        let saved = self.saved(GroupId::own(), node_digest(&node));
        let group = self.make(node, saved, None, |mut client| {
            if let Some(restore) = restore {
                restore(&mut client);
            }
            client
        });
        group.begin();
        group
    }

    /// Creates a group, idle until it [begins](Group::begin).
    pub(super) fn start(&self, key: &GroupKey, node: GroupNode) -> Arc<Group> {
        let (node, representative) = match node {
            GroupNode::Made(node) => (*node, None),
            // For log lines; the control plane receives the client's bytes.
            GroupNode::Client => {
                let representative = Arc::new(Representative::new(Arc::clone(&self.nodes)));
                (Node { id: key.to_string(), ..Node::default() }, Some(representative))
            }
        };
        // Any of a group's clients stands for it.
        let digest = if representative.is_some() { 0 } else { node_digest(&node) };
        let saved = self.saved(GroupId::of(key), digest);
        tracing::debug!(group = %key, "making a node group");
        let of_group = |client: Client| client.of_group(key.rule().into(), representative.clone());
        self.make(node, saved, representative.clone(), of_group)
    }

    fn saved(&self, id: GroupId, node: u128) -> Option<Saved> {
        self.disk.as_ref().map(|disk| Saved { disk: Arc::clone(disk), id, node })
    }

    fn make(
        &self,
        node: Node,
        saved: Option<Saved>,
        representative: Option<Arc<Representative>>,
        prepare: impl FnOnce(Client) -> Client,
    ) -> Arc<Group> {
        let mut tuned = self.tuned.clone();
        let (tuning, limits) = *tuned.borrow_and_update();
        let (cache, writer) = Cache::guarded(limits, &self.budget, self.rollout.clone());
        let node_id = node.id.as_str().into();
        let mut mux = Mux::new(writer, Settings { node, ..self.settings.clone() });
        mux.tune(tuning);
        let client = prepare(Client::on(mux, Arc::clone(&self.servers), tuned));
        let origin = Origin::Server { state: client.state(), servers: Arc::clone(&self.servers) };
        let source = Source {
            counters: Arc::clone(client.counters()),
            node_id,
            representative,
            stop: self.stop.child_token(),
            waiting: Mutex::new(Some((client, self.failed.clone()))),
            saved,
        };
        Arc::new(Group { cache, origin, source: Some(source) })
    }

    pub(super) fn connections(&self) -> usize {
        self.servers.connections()
    }
}

/// Runs a task that must not end before `stop`; cancels `failed` if it does, also by a panic.
pub fn spawn_essential(
    task: impl Future<Output = ()> + Send + 'static,
    stop: CancellationToken,
    failed: CancellationToken,
) {
    let failed = failed.drop_guard();
    tokio::spawn(async move {
        task.await;
        if stop.is_cancelled() {
            failed.disarm();
        }
    });
}
