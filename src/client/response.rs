//! Responses of each transport in one form.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use prost::Message as _;

use crate::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryResponse};
use crate::resource::{Envelope, SotwElement, TypeUrl};

/// A resource that the server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its version. In state of the world that is the version of the response, unless the resource has one of its own.
    pub version: String,
    /// The encoded `google.protobuf.Any`.
    pub body: Bytes,
}

/// A response.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) found: Vec<(String, Found)>,
    /// Names that the server says do not exist.
    pub(crate) removed: Vec<String>,
    /// Whether names that it lacks do not exist.
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
            found.push((envelope.name.to_owned(), Found { version, body }));
        }
        let variants = response.removed_resource_names.into_iter().map(|removed| removed.name);
        let removed = response.removed_resources.into_iter().chain(variants).collect();
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
            found.push((element.name().to_owned(), Found { version, body: resource.slice_ref(body) }));
        }
        let is_full = type_url.kind().full_state();
        let (version, nonce) = (response.version_info, response.nonce);
        Ok(Self { found, removed: Vec::new(), is_full, is_delta: false, version, nonce, type_url })
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
