//! Names that most of these tests use.

pub(crate) use bytes::Bytes;
pub(crate) use deltafan::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, Node};
pub(crate) use deltafan::resource::{Kind, TypeUrl};
pub(crate) use deltafan_test_support::client::{
    CDS, DELTA_ADS, DELTA_CLUSTERS, Delta, EDS, MOMENT, PATIENCE, SDS, SOTW_ADS, Sotw, connect, names, node,
    sotw_subscription, subscription, unary, versions,
};
pub(crate) use deltafan_test_support::eventually;
pub(crate) use deltafan_test_support::http1::Http1;
pub(crate) use deltafan_test_support::origin::{
    Origin, OriginStream, changes, clusters_at, resource, response,
};
pub(crate) use deltafan_test_support::process::{Process, clusters, relay, relay_and_origin};
pub(crate) use prost::Message as _;
pub(crate) use serde_json::{Value as Json, json};
pub(crate) use std::collections::{BTreeMap, BTreeSet};
pub(crate) use std::time::{Duration, Instant};
pub(crate) use tonic::Code;
