//! The first requests of a client.

use std::collections::HashMap;

use deltafan::proto::{DeltaDiscoveryRequest, DiscoveryRequest, Node};
use prost::Message as _;

use super::origin::FIRST_VERSION;
use super::shape::{Load, Transport};

/// One request for each type.
pub(crate) fn first_requests(load: &Load, client: usize, pool: &[String]) -> Vec<Vec<u8>> {
    let node = Node { id: format!("load-{client}"), cluster: load.cluster_of(client), ..Node::default() };
    let request = |(at, kind): (usize, &super::shape::Kind)| {
        // Only the first request of a stream has to name the node.
        let node = (at == 0).then(|| node.clone());
        let type_url = kind.type_url().to_owned();
        let names = load.names_of(client, at, pool);
        match load.transport {
            Transport::Delta => DeltaDiscoveryRequest {
                node,
                type_url,
                resource_names_subscribe: names,
                initial_resource_versions: held(load, pool),
                ..DeltaDiscoveryRequest::default()
            }
            .encode_to_vec(),
            Transport::Sotw => {
                DiscoveryRequest { node, type_url, resource_names: names, ..DiscoveryRequest::default() }
                    .encode_to_vec()
            }
        }
    };
    load.kinds.iter().enumerate().map(request).collect()
}

fn held(load: &Load, pool: &[String]) -> HashMap<String, String> {
    if !load.held {
        return HashMap::new();
    }
    pool.iter().map(|name| (name.clone(), FIRST_VERSION.to_string())).collect()
}
