//! A client that says exactly what a test tells it to, over a real connection.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use deltafan::grpc::BytesCodec;
use deltafan::proto::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse, Node, Status,
};
use deltafan::resource::Envelope;
use http::uri::PathAndQuery;
use prost::Message;
use tokio::sync::mpsc;
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint};

pub use crate::PATIENCE;

/// Long enough for what must not happen to have happened.
pub const MOMENT: Duration = Duration::from_millis(300);

pub const SOTW_ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
pub const DELTA_ADS: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
pub const DELTA_CLUSTERS: &str = "/envoy.service.cluster.v3.ClusterDiscoveryService/DeltaClusters";
pub const SOTW_CLUSTERS: &str = "/envoy.service.cluster.v3.ClusterDiscoveryService/StreamClusters";

pub const CDS: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub const EDS: &str = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
pub const LDS: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub const SDS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret";

pub async fn connect(server: &str) -> Channel {
    Endpoint::from_shared(server.to_owned()).unwrap().connect().await.unwrap()
}

/// Connects from this address.
pub async fn connect_from(server: &str, address: IpAddr) -> Channel {
    let endpoint = Endpoint::from_shared(server.to_owned()).unwrap().local_address(Some(address));
    endpoint.connect().await.unwrap()
}

pub fn node(id: &str) -> Node {
    Node { id: id.to_owned(), cluster: "test".to_owned(), ..Node::default() }
}

/// A request of this node for these names.
pub fn subscription(id: &str, type_url: &str, names: &[&str]) -> DeltaDiscoveryRequest {
    DeltaDiscoveryRequest {
        node: Some(node(id)),
        type_url: type_url.to_owned(),
        resource_names_subscribe: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DeltaDiscoveryRequest::default()
    }
}

/// A first request over state of the world.
pub fn sotw_subscription(id: &str, type_url: &str, names: &[&str]) -> DiscoveryRequest {
    DiscoveryRequest {
        node: Some(node(id)),
        type_url: type_url.to_owned(),
        resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
        ..DiscoveryRequest::default()
    }
}

/// A stream that is open.
#[derive(Debug)]
pub struct Stream<Q> {
    requests: Option<mpsc::Sender<Q>>,
    responses: tonic::Streaming<Bytes>,
}

impl<Q: Message + 'static> Stream<Q> {
    pub async fn open(channel: &Channel, method: &'static str) -> Self {
        Self::open_with(channel, method, MetadataMap::new()).await
    }

    /// Opens a stream with these headers.
    pub async fn open_with(channel: &Channel, method: &'static str, headers: MetadataMap) -> Self {
        Self::call(channel, method, headers).await.unwrap()
    }

    /// Opens a stream, if the server takes it.
    pub async fn try_open(channel: &Channel, method: &'static str) -> Option<Self> {
        Self::call(channel, method, MetadataMap::new()).await.ok()
    }

    async fn call(
        channel: &Channel,
        method: &'static str,
        headers: MetadataMap,
    ) -> Result<Self, tonic::Status> {
        let (requests, mut outgoing) = mpsc::channel::<Q>(64);
        let stream = futures_util::stream::poll_fn(move |cx| {
            outgoing.poll_recv(cx).map(|next| Some(message_bytes(&next?)))
        });
        let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(256 << 20);
        grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(method);
        let request = tonic::Request::from_parts(headers, tonic::Extensions::default(), stream);
        let responses = grpc.streaming(request, path, BytesCodec).await?.into_inner();
        Ok(Self { requests: Some(requests), responses })
    }

    pub async fn send(&self, request: Q) {
        self.requests.as_ref().unwrap().send(request).await.unwrap();
    }

    /// Whether the stream is still there to take a request.
    pub async fn try_send(&self, request: Q) -> bool {
        self.requests.as_ref().unwrap().send(request).await.is_ok()
    }

    /// Waits for the end, whatever comes before.
    pub async fn end_of_any_kind(&mut self) {
        while let Ok(Some(_)) = self.responses.message().await {}
    }

    /// No more requests.
    pub fn half_close(&mut self) {
        self.requests = None;
    }

    /// The next message, the end, or the status that is not OK.
    pub async fn next_message(&mut self) -> Result<Option<Bytes>, tonic::Status> {
        tokio::time::timeout(PATIENCE, self.responses.message()).await.expect("an answer in time")
    }

    /// Waits for the end and returns its status.
    pub async fn end(&mut self) -> tonic::Status {
        match self.next_message().await {
            Ok(None) => tonic::Status::ok(""),
            Ok(Some(message)) => panic!("a response of {} bytes instead of the end", message.len()),
            Err(status) => status,
        }
    }

    /// Nothing comes for a moment.
    pub async fn silence(&mut self) {
        if let Ok(next) = tokio::time::timeout(MOMENT, self.responses.message()).await {
            panic!("something came: {next:?}");
        }
    }
}

pub type Delta = Stream<DeltaDiscoveryRequest>;
pub type Sotw = Stream<DiscoveryRequest>;

impl Delta {
    /// Opens a stream, and asks for these names.
    pub async fn asking(channel: &Channel, id: &str, type_url: &str, names: &[&str]) -> Self {
        let stream = Self::open(channel, DELTA_ADS).await;
        stream.subscribe(id, type_url, names).await;
        stream
    }

    /// The next response, which it ACKs.
    pub async fn take(&mut self) -> DeltaDiscoveryResponse {
        let response = self.response().await;
        self.ack(&response).await;
        response
    }

    pub async fn subscribe(&self, id: &str, type_url: &str, names: &[&str]) {
        self.send(subscription(id, type_url, names)).await;
    }

    pub async fn response(&mut self) -> DeltaDiscoveryResponse {
        let message = self.next_message().await.expect("no error").expect("a response, not the end");
        DeltaDiscoveryResponse::decode(message).unwrap()
    }

    /// The next response, however long it takes; `None` at the end of the stream, however it ends.
    pub async fn next_response(&mut self) -> Option<DeltaDiscoveryResponse> {
        let message = self.responses.message().await.ok().flatten()?;
        Some(DeltaDiscoveryResponse::decode(message).unwrap())
    }

    pub async fn ack(&self, response: &DeltaDiscoveryResponse) {
        self.answer(response, None).await;
    }

    pub async fn nack(&self, response: &DeltaDiscoveryResponse) {
        self.nack_saying(response, "rejected by the test").await;
    }

    pub async fn nack_saying(&self, response: &DeltaDiscoveryResponse, text: &str) {
        self.answer(response, Some(Status { code: 13, message: text.to_owned() })).await;
    }

    async fn answer(&self, response: &DeltaDiscoveryResponse, error_detail: Option<Status>) {
        self.send(DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            error_detail,
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }
}

impl Sotw {
    /// Opens a stream, and asks for these names.
    pub async fn asking(channel: &Channel, id: &str, type_url: &str, names: &[&str]) -> Self {
        let stream = Self::open(channel, SOTW_ADS).await;
        stream.subscribe(id, type_url, names).await;
        stream
    }

    pub async fn subscribe(&self, id: &str, type_url: &str, names: &[&str]) {
        self.send(sotw_subscription(id, type_url, names)).await;
    }

    pub async fn response(&mut self) -> DiscoveryResponse {
        let message = self.next_message().await.expect("no error").expect("a response, not the end");
        DiscoveryResponse::decode(message).unwrap()
    }

    pub async fn ack(&self, response: &DiscoveryResponse, names: &[&str]) {
        self.send(DiscoveryRequest {
            type_url: response.type_url.clone(),
            version_info: response.version_info.clone(),
            response_nonce: response.nonce.clone(),
            resource_names: names.iter().map(|name| (*name).to_owned()).collect(),
            ..DiscoveryRequest::default()
        })
        .await;
    }
}

/// Message for [`BytesCodec`].
pub fn message_bytes(message: &impl Message) -> Bytes {
    message.encode_to_vec().into()
}

/// A unary call: the message, or the status.
pub async fn unary<Q: Message + 'static>(
    channel: &Channel,
    method: &'static str,
    request: Q,
) -> Result<Bytes, tonic::Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone()).max_decoding_message_size(usize::MAX);
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let request = tonic::Request::new(message_bytes(&request));
    let call = grpc.unary(request, PathAndQuery::from_static(method), BytesCodec);
    let answer = tokio::time::timeout(PATIENCE, call).await.expect("an answer in time");
    answer.map(tonic::Response::into_inner)
}

/// The names of the resources of a delta response.
pub fn names(response: &DeltaDiscoveryResponse) -> Vec<String> {
    let type_url = response.type_url.as_str().into();
    let envelopes = response.resources.iter().map(|resource| Envelope::parse(resource, &type_url).unwrap());
    envelopes.map(|envelope| envelope.name.to_owned()).collect()
}

/// The versions of the resources of a delta response, by their names.
pub fn versions(response: &DeltaDiscoveryResponse) -> BTreeMap<String, String> {
    let type_url = response.type_url.as_str().into();
    let envelopes = response.resources.iter().map(|resource| Envelope::parse(resource, &type_url).unwrap());
    envelopes.map(|envelope| (envelope.name.to_owned(), envelope.version.to_owned())).collect()
}
