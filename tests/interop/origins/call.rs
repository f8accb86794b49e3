//! Streams to a control plane that may say nothing at all, not even that it takes the call.

use std::time::Duration;

use deltafan::{
    grpc::BytesCodec,
    proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse},
};
use deltafan_test_support::client::{DELTA_ADS, SOTW_ADS, message_bytes, names, sotw_subscription};
use http::uri::PathAndQuery;
use prost::Message;
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::timeout,
};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{client::Grpc, transport::Channel};

use super::MARK;
use crate::fleet::client::name_in;

/// After so many responses to one step there is no end to them.
const ENDLESS: usize = 10;

/// A stream of requests and their responses. Dropping it ends the stream.
pub(super) struct Call<Q, R> {
    requests: UnboundedSender<Q>,
    pub(super) responses: UnboundedReceiver<R>,
}

pub(super) type Delta = Call<DeltaDiscoveryRequest, DeltaDiscoveryResponse>;
pub(super) type Sotw = Call<DiscoveryRequest, DiscoveryResponse>;

impl<Q: Message + 'static, R: Message + Default + 'static> Call<Q, R> {
    fn start(channel: Channel, method: &'static str) -> Self {
        let (requests, outgoing) = unbounded_channel();
        let (incoming, responses) = unbounded_channel();
        tokio::spawn(async move {
            let mut grpc = Grpc::new(channel);
            grpc.ready().await?;
            let outgoing = UnboundedReceiverStream::new(outgoing).map(|request: Q| message_bytes(&request));
            let outgoing = tonic::Request::new(outgoing);
            let path = PathAndQuery::from_static(method);
            let call = grpc.streaming(outgoing, path, BytesCodec).await?;
            let mut call = call.into_inner();
            while let Some(response) = call.message().await? {
                if incoming.send(R::decode(response)?).is_err() {
                    break;
                }
            }
            anyhow::Ok(())
        });
        Self { requests, responses }
    }
}

impl Sotw {
    /// Names in the first response to a stream's first request, in words.
    pub(super) async fn first(channel: Channel, type_url: &str, asked: &[&str], silence: Duration) -> String {
        let mut call = Self::start(channel, SOTW_ADS);
        let request = DiscoveryRequest {
            resource_names: asked.iter().map(|name| (*name).to_owned()).collect(),
            ..sotw_subscription("asking", type_url, &[])
        };
        call.requests.send(request).unwrap();
        match timeout(silence, call.responses.recv()).await {
            Err(_) => "silence".to_owned(),
            Ok(None) => "the end of the stream".to_owned(),
            Ok(Some(response)) => {
                in_words(response.resources.iter().map(|any| name_in(any)).collect(), Vec::new())
            }
        }
    }
}

impl Delta {
    pub(super) fn open(channel: Channel) -> Self {
        Self::start(channel, DELTA_ADS)
    }

    /// Sends a request, and leaves an empty one of the same type.
    pub(super) fn send(&self, request: &mut DeltaDiscoveryRequest) {
        let next = DeltaDiscoveryRequest { type_url: request.type_url.clone(), ..Default::default() };
        self.requests.send(std::mem::replace(request, next)).unwrap();
    }

    /// Everything that comes until nothing comes any more, in words; all of it is accepted.
    pub(super) async fn heard(&mut self, silence: Duration) -> String {
        let mut heard = Vec::new();
        while let Ok(response) = timeout(silence, self.responses.recv()).await {
            let Some(response) = response else { return "the end of the stream".to_owned() };
            heard.push(in_words(names(&response), response.removed_resources.clone()));
            if heard.len() == ENDLESS {
                return format!("{} without end", heard[0]);
            }
            let DeltaDiscoveryResponse { type_url, nonce: response_nonce, .. } = response;
            let ack = DeltaDiscoveryRequest { type_url, response_nonce, ..Default::default() };
            self.requests.send(ack).unwrap();
        }
        if heard.is_empty() { "silence".to_owned() } else { heard.join("; ") }
    }
}

fn in_words(mut words: Vec<String>, mut removed: Vec<String>) -> String {
    words.sort();
    removed.sort();
    words.extend(removed.iter().map(|name| format!("−{name}")));
    if words.is_empty() { "an empty response".to_owned() } else { words.join(" ").replace(MARK, "mark") }
}
