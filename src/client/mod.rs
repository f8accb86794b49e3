//! An xDS client for people: `deltafan get`.
//!
//! Owns one request to any xDS server and the showing of its answer. It shares the envelope's parser with the relay, how
//! servers are connected to, and the feature by which a relay knows it, and nothing else.

mod show;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::uri::PathAndQuery;
use prost::Message as _;
use tokio::sync::mpsc;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

pub use show::{Format, show};

use crate::config::ClientTls;
use crate::grpc::RawCodec;
use crate::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, Node, ResourceLocator};
use crate::resource::{Envelope, Name, Parameters, TypeUrl};
use crate::subscription::OBSERVER;
use crate::tls::client::ClientFiles;
use crate::upstream::{Target, Transport, dial};

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources";
/// Nothing more has come for this long: the answer to a wildcard is taken for complete, as the protocol has no mark
/// for its end (R-Up-22).
const QUIET: Duration = Duration::from_millis(300);

/// Request, and the server that it goes to.
#[derive(Clone, Debug)]
pub struct Query {
    /// An `http://` or `https://` address, or `unix:` and the path of a socket.
    pub server: String,
    /// How an `https://` server is verified, and what is shown to it.
    pub tls: Option<ClientTls>,
    /// The type.
    pub type_url: TypeUrl,
    /// The names, or none for all.
    pub names: BTreeSet<String>,
    /// With which dynamic parameters; with any, names are asked for by locators (TP2).
    pub parameters: Parameters,
    /// Node to introduce oneself as.
    pub node: Node,
    /// Whether a relay is to subscribe to what is asked for. If not, it shows what it holds (see [`OBSERVER`]).
    pub subscribe: bool,
    /// How long to wait for the whole answer.
    pub timeout: Duration,
}

/// A resource that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its version.
    pub version: String,
    /// The encoded `google.protobuf.Any`.
    pub body: Bytes,
}

/// Result of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// Resources that exist.
    pub found: BTreeMap<String, Found>,
    /// Names that were asked for and do not exist.
    pub absent: BTreeSet<String>,
    /// Names that were asked for and were not answered in time.
    pub unanswered: BTreeSet<String>,
    /// The words with which the server ended the stream before it had answered all.
    pub reason: Option<String>,
}

/// Asks over a delta stream and waits for the whole answer.
///
/// # Errors
///
/// Server that cannot be reached or speaks no xDS, with the remedy where there is one.
pub async fn get(query: Query) -> anyhow::Result<Answer> {
    let (endpoint, way) = server(&query)?;
    let connected = dial(endpoint, way).await.map_err(anyhow::Error::msg);
    let channel = connected.with_context(|| format!("could not connect to {}", query.server))?;
    let mut answer = Answer { unanswered: query.names.clone(), ..Answer::default() };
    let ask = ask(channel, &query, &mut answer);
    match tokio::time::timeout(query.timeout, ask).await {
        Ok(result) => result?,
        Err(_) if query.names.is_empty() => {
            bail!("{} has not answered within {:?}", query.server, query.timeout)
        }
        Err(_) => {}
    }
    Ok(answer)
}

/// Where the server is, and how it is reached.
fn server(query: &Query) -> anyhow::Result<(Endpoint, Target)> {
    let transport = Transport { connect_timeout: query.timeout, ..Transport::default() };
    let secure = query.server.get(..6).is_some_and(|scheme| scheme.eq_ignore_ascii_case("https:"));
    if query.tls.is_some() && !secure {
        bail!(
            "{} is not spoken to over TLS, as the options for certificates ask; use https://HOST:PORT",
            query.server
        );
    }
    if let Some(path) = query.server.strip_prefix("unix:") {
        return Ok((transport.endpoint("http://localhost")?, Target::Unix(path.into())));
    }
    let endpoint = transport.endpoint(&query.server)?;
    if !secure {
        return Ok((endpoint, Target::Cleartext));
    }
    let tls = ClientFiles::new(query.tls.clone().unwrap_or_default(), endpoint.uri())?.read()?;
    Ok((endpoint, Target::Tls(Arc::new(tls))))
}

async fn ask(channel: Channel, query: &Query, answer: &mut Answer) -> anyhow::Result<()> {
    let names = if query.names.is_empty() {
        vec![Name::WILDCARD.to_owned()]
    } else {
        query.names.iter().cloned().collect()
    };
    let (requests, mut outgoing) = mpsc::channel::<DeltaDiscoveryRequest>(1);
    let mut first = DeltaDiscoveryRequest {
        node: Some(node(query)),
        type_url: query.type_url.as_str().to_owned(),
        ..DeltaDiscoveryRequest::default()
    };
    if query.parameters.is_empty() {
        first.resource_names_subscribe = names;
    } else {
        let pairs: HashMap<String, String> =
            query.parameters.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        let locator = |name| ResourceLocator { name, dynamic_parameters: pairs.clone() };
        first.resource_locators_subscribe = names.into_iter().map(locator).collect();
    }
    requests.send(first).await.context("the stream ended before it began")?;
    let stream = futures_util::stream::poll_fn(move |cx| outgoing.poll_recv(cx));

    let mut grpc = tonic::client::Grpc::new(channel).max_decoding_message_size(256 << 20);
    grpc.ready().await.context("the connection was lost")?;
    let path = PathAndQuery::from_static(METHOD);
    let codec = RawCodec::<DeltaDiscoveryRequest>::default();
    let response = grpc.streaming(tonic::Request::new(stream), path, codec).await;
    let mut responses = response.map_err(refused)?.into_inner();

    let mut first = true;
    while first || query.names.is_empty() || !answer.unanswered.is_empty() {
        let next = if first || !query.names.is_empty() {
            responses.message().await
        } else {
            let Ok(next) = tokio::time::timeout(QUIET, responses.message()).await else { break };
            next
        };
        let message = match next {
            Ok(Some(message)) => message,
            Ok(None) => bail!("the server ended the stream"),
            // A relay has said all that it holds.
            Err(status) if status.code() == Code::Unavailable && !query.names.is_empty() => {
                answer.reason = Some(refused(status).to_string());
                break;
            }
            Err(status) => return Err(refused(status)),
        };
        first = false;
        let response =
            DeltaDiscoveryResponse::decode(message).context("the server sent no DeltaDiscoveryResponse")?;
        let ack = DeltaDiscoveryRequest {
            type_url: response.type_url.clone(),
            response_nonce: response.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        take(response, query, answer)?;
        requests.send(ack).await.context("the server ended the stream")?;
    }
    Ok(())
}

fn node(query: &Query) -> Node {
    let mut node = query.node.clone();
    if !query.subscribe {
        node.client_features.push(OBSERVER.to_owned());
    }
    node
}

fn refused(status: tonic::Status) -> anyhow::Error {
    anyhow::anyhow!("the server answered {:?}: {}", status.code(), status.message())
}

fn take(response: DeltaDiscoveryResponse, query: &Query, answer: &mut Answer) -> anyhow::Result<()> {
    for resource in &response.resources {
        let envelope =
            Envelope::parse(resource, &query.type_url).context("the server sent a faulty resource")?;
        let Some(body) = envelope.body else { continue };
        answer.unanswered.remove(envelope.name);
        answer.absent.remove(envelope.name);
        let found = Found { version: envelope.version.to_owned(), body: Bytes::copy_from_slice(body) };
        answer.found.insert(envelope.name.to_owned(), found);
    }
    let variants = response.removed_resource_names.into_iter().map(|removed| removed.name);
    for name in response.removed_resources.into_iter().chain(variants) {
        answer.unanswered.remove(&name);
        answer.found.remove(&name);
        if query.names.contains(&name) {
            answer.absent.insert(name);
        }
    }
    Ok(())
}
