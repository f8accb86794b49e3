//! A light xDS client: subscribes once, and remembers what it was sent and accepted. It can come back with that.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use deltafan::{
    grpc::BytesCodec,
    proto::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node,
        Status as Fault,
    },
    resource::{Envelope, TypeUrl, wire},
};
use deltafan_test_support::client::message_bytes;
use http::uri::PathAndQuery;
use parking_lot::Mutex;
use prost::Message;
use tokio::{runtime::Handle, sync::mpsc, task::AbortHandle};
use tokio_stream::{StreamExt as _, wrappers::UnboundedReceiverStream};
use tonic::{Request, Status, Streaming, client::Grpc, transport::Channel};

use crate::fixture::{
    Transport,
    resources::{CLUSTER, ENDPOINTS, LISTENER, ROUTES, SCOPED_ROUTES},
};

/// How soon a client connects again that does.
const RECONNECT: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(crate) struct Subscription {
    pub(crate) type_url: &'static str,
    /// Empty for all.
    pub(crate) names: BTreeSet<String>,
}

/// How a client appears and behaves. Usually it accepts everything, and ends with its streams.
#[derive(Clone)]
pub(crate) struct Habits {
    pub(crate) node_id: String,
    /// Tells from an encoded Any if it is rejected, and its whole response with it.
    pub(crate) rejects: fn(&[u8]) -> bool,
    pub(crate) reconnects: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self { node_id: "fleet".to_owned(), rejects: |_| false, reconnects: false }
    }
}

impl Subscription {
    pub(crate) fn is_for(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.contains("*") || self.names.contains(name)
    }
}

pub(crate) struct Client {
    transport: Transport,
    held: Arc<Mutex<Held>>,
    task: AbortHandle,
}

/// Resources and versions that a client holds.
#[derive(Clone, Default)]
pub(crate) struct Held {
    /// The encoded Any of each resource, by type and name.
    resources: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    /// The version of each of them, over delta.
    versions: BTreeMap<String, HashMap<String, String>>,
    /// The version of each type, over state of the world.
    type_versions: BTreeMap<String, String>,
    /// Names that were taken away from it at any time, by type.
    lost: BTreeMap<String, BTreeSet<String>>,
    rejections: usize,
    failure: Option<String>,
}

impl Client {
    pub(crate) fn start(
        runtime: &Handle,
        server: SocketAddr,
        transport: Transport,
        subscriptions: &[Subscription],
    ) -> Self {
        Self::come_back(runtime, server, transport, subscriptions, Held::default())
    }

    /// Starts one with habits of its own.
    pub(crate) fn start_with(
        runtime: &Handle,
        server: SocketAddr,
        transport: Transport,
        subscriptions: &[Subscription],
        habits: Habits,
    ) -> Self {
        Self::launch(runtime, server, transport, subscriptions, (habits, Held::default()))
    }

    /// Starts one that has been here before and left with `held`.
    pub(crate) fn come_back(
        runtime: &Handle,
        server: SocketAddr,
        transport: Transport,
        subscriptions: &[Subscription],
        held: Held,
    ) -> Self {
        Self::launch(runtime, server, transport, subscriptions, (Habits::default(), held))
    }

    fn launch(
        runtime: &Handle,
        server: SocketAddr,
        transport: Transport,
        subscriptions: &[Subscription],
        (habits, held): (Habits, Held),
    ) -> Self {
        let held = Arc::new(Mutex::new(Held { failure: None, ..held }));
        // One stream for everything, or one for each type.
        let streams: Vec<_> = if transport.is_aggregated() {
            vec![Stream { path: AGGREGATED.path(transport), subscriptions: subscriptions.to_vec() }]
        } else {
            let own = |subscription: &Subscription| Stream {
                path: service(subscription.type_url).path(transport),
                subscriptions: vec![subscription.clone()],
            };
            subscriptions.iter().map(own).collect()
        };
        let shared = Arc::clone(&held);
        let task = runtime.spawn(async move {
            while let Err(status) = run(server, transport, &streams, (&habits, &shared)).await {
                if !habits.reconnects {
                    shared.lock().failure = Some(status.to_string());
                    return;
                }
                tokio::time::sleep(RECONNECT).await;
            }
        });
        Self { transport, held, task: task.abort_handle() }
    }

    pub(crate) fn transport(&self) -> Transport {
        self.transport
    }

    pub(crate) fn names(&self, type_url: &str) -> BTreeSet<String> {
        let held = self.held.lock();
        held.resources.get(type_url).into_iter().flat_map(BTreeMap::keys).cloned().collect()
    }

    pub(crate) fn resource(&self, type_url: &str, name: &str) -> Option<Vec<u8>> {
        self.held.lock().resources.get(type_url)?.get(name).cloned()
    }

    /// Names of a type that were taken away from it at any time.
    pub(crate) fn lost(&self, type_url: &str) -> BTreeSet<String> {
        self.held.lock().lost.get(type_url).cloned().unwrap_or_default()
    }

    pub(crate) fn held(&self) -> Held {
        self.held.lock().clone()
    }

    /// How many responses it has rejected.
    pub(crate) fn rejections(&self) -> usize {
        self.held.lock().rejections
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.held.lock().failure.clone()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.task.abort();
    }
}

struct Service {
    name: &'static str,
    sotw: &'static str,
    delta: &'static str,
}

const AGGREGATED: Service = Service {
    name: "discovery.v3.AggregatedDiscoveryService",
    sotw: "StreamAggregatedResources",
    delta: "DeltaAggregatedResources",
};

fn service(type_url: &str) -> Service {
    let (name, sotw, delta) = match type_url {
        CLUSTER => ("cluster.v3.ClusterDiscoveryService", "StreamClusters", "DeltaClusters"),
        ENDPOINTS => ("endpoint.v3.EndpointDiscoveryService", "StreamEndpoints", "DeltaEndpoints"),
        LISTENER => ("listener.v3.ListenerDiscoveryService", "StreamListeners", "DeltaListeners"),
        ROUTES => ("route.v3.RouteDiscoveryService", "StreamRoutes", "DeltaRoutes"),
        other => panic!("no service for {other}"),
    };
    Service { name, sotw, delta }
}

impl Service {
    fn path(&self, transport: Transport) -> PathAndQuery {
        let method = if transport.is_delta() { self.delta } else { self.sotw };
        format!("/envoy.service.{}/{method}", self.name).parse().unwrap()
    }
}

struct Stream {
    path: PathAndQuery,
    subscriptions: Vec<Subscription>,
}

async fn run(
    server: SocketAddr,
    transport: Transport,
    streams: &[Stream],
    client: (&Habits, &Mutex<Held>),
) -> Result<(), Status> {
    let endpoint = Channel::from_shared(format!("http://{server}")).unwrap();
    let channel = endpoint.connect().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let each = streams.iter().map(|stream| {
        let channel = channel.clone();
        async move {
            if transport.is_delta() {
                delta(channel, stream, client).await
            } else {
                sotw(channel, stream, client).await
            }
        }
    });
    futures_util::future::try_join_all(each).await.map(drop)
}

/// Opens a stream; the requests in the channel are its first ones.
async fn open<Q: Message + 'static>(
    channel: Channel,
    path: &PathAndQuery,
    requests: mpsc::UnboundedReceiver<Q>,
) -> Result<Streaming<Bytes>, Status> {
    let mut client = Grpc::new(channel);
    client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
    let outgoing = UnboundedReceiverStream::new(requests).map(|request| message_bytes(&request));
    Ok(client.streaming(Request::new(outgoing), path.clone(), BytesCodec).await?.into_inner())
}

fn read<R: Message + Default>(message: Bytes) -> Result<R, Status> {
    R::decode(message).map_err(|error| Status::internal(error.to_string()))
}

async fn sotw(
    channel: Channel,
    stream: &Stream,
    (habits, held): (&Habits, &Mutex<Held>),
) -> Result<(), Status> {
    let (requests, outgoing) = mpsc::unbounded_channel();
    let names = |type_url: &str| {
        let found = stream.subscriptions.iter().find(|subscription| subscription.type_url == type_url);
        found.map(|subscription| subscription.names.iter().cloned().collect()).unwrap_or_default()
    };
    for subscription in &stream.subscriptions {
        let version = held.lock().type_versions.get(subscription.type_url).cloned();
        let request = DiscoveryRequest {
            node: Some(habits.node()),
            version_info: version.unwrap_or_default(),
            type_url: subscription.type_url.to_owned(),
            resource_names: names(subscription.type_url),
            ..DiscoveryRequest::default()
        };
        requests.send(request).expect("the call is about to begin");
    }
    let mut responses = open(channel, &stream.path, outgoing).await?;
    while let Some(message) = responses.message().await? {
        let response: DiscoveryResponse = read(message)?;
        let error_detail = habits.fault(response.resources.iter().map(AsRef::as_ref));
        let mut held = held.lock();
        if error_detail.is_some() {
            held.rejections += 1;
        } else {
            held.type_versions.insert(response.type_url.clone(), response.version_info.clone());
            let Held { resources, lost, .. } = &mut *held;
            let resources = resources.entry(response.type_url.clone()).or_default();
            if [CLUSTER, LISTENER, SCOPED_ROUTES].contains(&response.type_url.as_str()) {
                // These three come whole: what is missing is gone.
                let before = std::mem::take(resources);
                resources.extend(named(&response));
                let gone = before.into_keys().filter(|name| !resources.contains_key(name));
                lost.entry(response.type_url.clone()).or_default().extend(gone);
            } else {
                resources.extend(named(&response));
            }
        }
        let answer = DiscoveryRequest {
            version_info: held.type_versions.get(&response.type_url).cloned().unwrap_or_default(),
            response_nonce: response.nonce,
            error_detail,
            resource_names: names(&response.type_url),
            type_url: response.type_url,
            ..DiscoveryRequest::default()
        };
        // A closed call shows in the next response.
        requests.send(answer).ok();
    }
    Err(Status::aborted("the server ended the stream"))
}

async fn delta(
    channel: Channel,
    stream: &Stream,
    (habits, held): (&Habits, &Mutex<Held>),
) -> Result<(), Status> {
    let (requests, outgoing) = mpsc::unbounded_channel();
    for subscription in &stream.subscriptions {
        let versions = held.lock().versions.get(subscription.type_url).cloned();
        let request = DeltaDiscoveryRequest {
            node: Some(habits.node()),
            initial_resource_versions: versions.unwrap_or_default(),
            type_url: subscription.type_url.to_owned(),
            resource_names_subscribe: subscription.names.iter().cloned().collect(),
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(request).expect("the call is about to begin");
    }
    let mut responses = open(channel, &stream.path, outgoing).await?;
    while let Some(message) = responses.message().await? {
        let response: DeltaDiscoveryResponse = read(message)?;
        let type_url = TypeUrl::from(response.type_url.as_str());
        let sent: Vec<_> =
            response.resources.iter().map(|each| Envelope::parse(each, &type_url).unwrap()).collect();
        let error_detail = habits.fault(sent.iter().filter_map(|each| each.body));
        let mut held = held.lock();
        let Held { resources, versions, lost, rejections, .. } = &mut *held;
        let resources = resources.entry(response.type_url.clone()).or_default();
        let versions = versions.entry(response.type_url.clone()).or_default();
        // As with Envoy, also those of a response that it rejects.
        for name in &response.removed_resources {
            if resources.remove(name).is_some() {
                lost.entry(response.type_url.clone()).or_default().insert(name.clone());
            }
            versions.remove(name);
        }
        if error_detail.is_some() {
            *rejections += 1;
        } else {
            for Envelope { version, name, body, .. } in sent {
                versions.insert(name.to_owned(), version.to_owned());
                resources.insert(name.to_owned(), body.unwrap_or_default().to_vec());
            }
        }
        let answer = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        // A closed call shows in the next response.
        requests.send(answer).ok();
    }
    Err(Status::aborted("the server ended the stream"))
}

impl Habits {
    fn node(&self) -> Node {
        Node { id: self.node_id.clone(), cluster: "edge".to_owned(), ..Node::default() }
    }

    /// Why these contents are rejected, if they are.
    fn fault<'a>(&self, mut contents: impl Iterator<Item = &'a [u8]>) -> Option<Fault> {
        let is_bad = contents.any(|content| (self.rejects)(content));
        is_bad.then(|| Fault { code: 13, message: "rejected by the test".to_owned() })
    }
}

/// The encoded Any of each resource, with its name.
fn named(response: &DiscoveryResponse) -> impl Iterator<Item = (String, Vec<u8>)> {
    response.resources.iter().map(|any| (name_in(any), any.to_vec()))
}

/// Name of the resource in an Any: the first field of each type of the tests.
pub(crate) fn name_in(any: &[u8]) -> String {
    let field = |message, number| {
        let field = wire::fields(message).map(Result::unwrap).find(|field| field.number == number);
        field.unwrap().bytes().unwrap()
    };
    String::from_utf8(field(field(any, 2), 1).to_vec()).unwrap()
}
