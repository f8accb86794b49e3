//! Responses of each transport in one form.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use prost::Message as _;

use super::request::Subscription;
use crate::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryResponse};
use crate::resource::{Constraints, Envelope, SotwElement, TypeUrl};

/// A resource that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its version. In state of the world that is the version of the response, unless the resource has one of its own.
    pub version: String,
    /// The encoded `google.protobuf.Any`.
    pub body: Bytes,
    /// Constraints of a variant, which are a part of its identity (R-DP-06).
    pub constraints: Option<Constraints>,
}

/// Resource that the server says does not exist: that of a name, or one variant of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) name: String,
    pub(crate) constraints: Option<Constraints>,
}

impl Gone {
    /// Whether it is what a client holds by that name.
    pub(crate) fn is(&self, held: Option<&Constraints>) -> bool {
        self.constraints.as_ref() == held
    }
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) found: Vec<(String, Found)>,
    pub(crate) removed: Vec<Gone>,
    /// Whether it has all resources of the type that there are for this client.
    pub(crate) is_full: bool,
    /// Whether its resources have versions of their own.
    pub(crate) is_delta: bool,
    pub(crate) version: String,
    pub(crate) nonce: String,
    pub(crate) type_url: TypeUrl,
}

impl Update {
    /// Reads a delta response.
    ///
    /// # Errors
    ///
    /// Fault of the server.
    pub(crate) fn of_delta(message: Bytes) -> anyhow::Result<Self> {
        let response =
            DeltaDiscoveryResponse::decode(message).context("the server sent no DeltaDiscoveryResponse")?;
        let type_url = TypeUrl::from(response.type_url.as_str());
        let mut found = Vec::with_capacity(response.resources.len());
        for resource in &response.resources {
            let envelope =
                Envelope::parse(resource, &type_url).context("the server sent a faulty resource")?;
            let Some(body) = envelope.body else { continue };
            let (version, body) = (envelope.version.to_owned(), resource.slice_ref(body));
            let constraints = envelope.constraints.clone().ok().flatten();
            found.push((envelope.name.to_owned(), Found { version, body, constraints }));
        }
        let plain = response.removed_resources.into_iter().map(|name| Gone { name, constraints: None });
        let variants = response.removed_resource_names.into_iter().filter_map(|removed| {
            // Constraints that are none are of no resource that was taken.
            let constraints = Constraints::parse(&removed.dynamic_parameter_constraints).ok()?;
            Some(Gone { name: removed.name, constraints })
        });
        let removed = plain.chain(variants).collect();
        let (version, nonce) = (response.system_version_info, response.nonce);
        Ok(Self { found, removed, is_full: false, is_delta: true, version, nonce, type_url })
    }

    /// Reads a response of state of the world, or of REST-JSON in its binary form. One that does not say its type is of the
    /// `implied` one.
    ///
    /// # Errors
    ///
    /// Fault of the server.
    pub(crate) fn of_sotw(message: Bytes, implied: Option<&TypeUrl>) -> anyhow::Result<Self> {
        let response = DiscoveryResponse::decode(message).context("the server sent no DiscoveryResponse")?;
        let type_url = match implied {
            Some(implied) if response.type_url.is_empty() => implied.clone(),
            _ => TypeUrl::from(response.type_url.as_str()),
        };
        let mut found = Vec::with_capacity(response.resources.len());
        for resource in &response.resources {
            let element =
                SotwElement::parse(resource, &type_url).context("the server sent a faulty resource")?;
            let (own, body) = match element.wrapper() {
                Some(wrapper) => (wrapper.version, wrapper.body),
                None => ("", Some(&resource[..])),
            };
            let Some(body) = body else { continue };
            let version = if own.is_empty() { &response.version_info } else { own }.to_owned();
            let found_one = Found { version, body: resource.slice_ref(body), constraints: None };
            found.push((element.name().to_owned(), found_one));
        }
        let is_full = type_url.kind().full_state();
        let (version, nonce) = (response.version_info, response.nonce);
        Ok(Self { found, removed: Vec::new(), is_full, is_delta: false, version, nonce, type_url })
    }

    /// Whether what it lacks does not exist. Of names that were asked for it says nothing: a server may not have heard of them yet, as
    /// a relay, or have them under another spelling or as members of a collection.
    pub(crate) fn is_whole(&self, asked: &Subscription) -> bool {
        self.is_full && asked.names.is_empty()
    }

    /// Fails on a response of another type than the one that was asked for.
    pub(crate) fn expect_type(self, asked: &TypeUrl) -> anyhow::Result<Self> {
        if self.type_url != *asked {
            bail!("the server sent a response of `{}`; asked for was `{asked}`", self.type_url);
        }
        Ok(self)
    }

    /// ACK of a delta response.
    pub(crate) fn delta_ack(&self) -> Bytes {
        let ack = DeltaDiscoveryRequest {
            type_url: self.type_url.as_str().to_owned(),
            response_nonce: self.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        ack.encode_to_vec().into()
    }
}
