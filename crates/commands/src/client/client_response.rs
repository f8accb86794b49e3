//! Responses of all transports in one form.

use anyhow::{Context as _, bail};
use bytes::Bytes;
use deltafan_core::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryResponse};
use deltafan_core::resource::{Constraints, Envelope, SotwElement, TypeUrl, normal_form};
use prost::Message as _;

use super::subscribed_names::Subscription;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// State of the world: the response's version, unless the resource has its own.
    pub version: String,
    /// Encoded `google.protobuf.Any`.
    pub body: Bytes,
    /// Part of a variant's identity (R-DP-06).
    pub constraints: Option<Constraints>,
    /// Other names of the resource (R-Delta-21).
    pub aliases: Vec<String>,
}

/// Resource that the server lacks: a name, or one variant of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gone {
    pub(crate) name: String,
    pub(crate) constraints: Option<Constraints>,
}

impl Gone {
    /// Whether it is the variant that the client holds.
    pub(crate) fn is(&self, held: Option<&Constraints>) -> bool {
        self.constraints.as_ref() == held
    }
}

/// Names are normalized: a server may use several spellings (R-XT-01).
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) found: Vec<(String, Found)>,
    pub(crate) removed: Vec<Gone>,
    /// Aliases without a resource (R-Delta-22).
    pub(crate) unresolved: Vec<String>,
    /// Whether it has all resources of the type.
    pub(crate) is_full: bool,
    /// Whether its resources have versions of their own.
    pub(crate) is_delta: bool,
    pub(crate) version: String,
    pub(crate) nonce: String,
    pub(crate) type_url: TypeUrl,
    /// Message size.
    pub(crate) bytes: usize,
}

impl Update {
    /// Reads a delta response.
    pub(crate) fn of_delta(message: Bytes) -> anyhow::Result<Self> {
        let bytes = message.len();
        let response =
            DeltaDiscoveryResponse::decode(message).context("the server sent no DeltaDiscoveryResponse")?;
        let type_url = TypeUrl::from(response.type_url.as_str());
        let (mut found, mut unresolved) = (Vec::with_capacity(response.resources.len()), Vec::new());
        for resource in &response.resources {
            let envelope =
                Envelope::parse(resource, &type_url).context("the server sent a faulty resource")?;
            let aliases: Vec<String> = envelope.aliases().map(str::to_owned).collect();
            let Some(body) = envelope.body else {
                // Without this alias it is a heartbeat.
                if aliases.iter().any(|alias| alias == envelope.name) {
                    unresolved.push(normal(envelope.name));
                }
                continue;
            };
            let (version, body) = (envelope.version.to_owned(), resource.slice_ref(body));
            let constraints = envelope.constraints.clone().ok().flatten();
            found.push((normal(envelope.name), Found { version, body, constraints, aliases }));
        }
        let plain = response.removed_resources.iter();
        let plain = plain.map(|name| Gone { name: normal(name), constraints: None });
        let variants = response.removed_resource_names.into_iter().filter_map(|removed| {
            // The client never held a resource with unreadable constraints.
            let constraints = Constraints::parse(&removed.dynamic_parameter_constraints).ok()?;
            Some(Gone { name: normal(&removed.name), constraints })
        });
        let removed = plain.chain(variants).collect();
        let (version, nonce) = (response.system_version_info, response.nonce);
        Ok(Self {
            found,
            removed,
            unresolved,
            is_full: false,
            is_delta: true,
            version,
            nonce,
            type_url,
            bytes,
        })
    }

    /// Reads a state-of-the-world response, or a REST-JSON one in binary form. `implied` replaces a missing
    /// type.
    pub(crate) fn of_sotw(message: Bytes, implied: Option<&TypeUrl>) -> anyhow::Result<Self> {
        let bytes = message.len();
        let response = DiscoveryResponse::decode(message).context("the server sent no DiscoveryResponse")?;
        let type_url = match implied {
            Some(implied) if response.type_url.is_empty() => implied.clone(),
            _ => TypeUrl::from(response.type_url.as_str()),
        };
        let mut found = Vec::with_capacity(response.resources.len());
        for resource in &response.resources {
            let element =
                SotwElement::parse(resource, &type_url).context("the server sent a faulty resource")?;
            let (own, body, aliases) = match element.wrapper() {
                Some(wrapper) => {
                    (wrapper.version, wrapper.body, wrapper.aliases().map(str::to_owned).collect())
                }
                None => ("", Some(&resource[..]), Vec::new()),
            };
            let Some(body) = body else { continue };
            let version = if own.is_empty() { &response.version_info } else { own }.to_owned();
            let body = resource.slice_ref(body);
            found.push((normal(element.name()), Found { version, body, constraints: None, aliases }));
        }
        let is_full = type_url.kind().full_state();
        let (version, nonce) = (response.version_info, response.nonce);
        let (removed, unresolved) = (Vec::new(), Vec::new());
        Ok(Self { found, removed, unresolved, is_full, is_delta: false, version, nonce, type_url, bytes })
    }

    /// Whether missing resources do not exist. Proves nothing for names: a relay may not know them yet, and
    /// resources may come under other spellings or in collections.
    pub(crate) fn is_whole(&self, asked: &Subscription) -> bool {
        self.is_full && asked.names.is_empty()
    }

    /// Fails if the response has another type.
    pub(crate) fn expect_type(self, asked: &TypeUrl) -> anyhow::Result<Self> {
        if self.type_url != *asked {
            bail!("the server sent a response of `{}`; `{asked}` was requested", self.type_url);
        }
        Ok(self)
    }

    pub(crate) fn delta_ack(&self) -> Bytes {
        let ack = DeltaDiscoveryRequest {
            type_url: self.type_url.as_str().to_owned(),
            response_nonce: self.nonce.clone(),
            ..DeltaDiscoveryRequest::default()
        };
        ack.encode_to_vec().into()
    }
}

fn normal(name: &str) -> String {
    normal_form(name).into_owned()
}

#[cfg(test)]
impl Update {
    /// Response with these resources (name, version, body) and removals.
    pub(crate) fn of_test(
        kind: deltafan_core::resource::Kind,
        is_delta: bool,
        found: &[(&str, &str, &str)],
        removed: &[&str],
    ) -> Self {
        let found = found.iter().map(|(name, version, body)| {
            let (version, body) = ((*version).to_owned(), body.as_bytes().to_vec().into());
            (normal(name), Found { version, body, constraints: None, aliases: Vec::new() })
        });
        let removed = removed.iter().map(|name| Gone { name: normal(name), constraints: None });
        Self {
            found: found.collect(),
            removed: removed.collect(),
            unresolved: Vec::new(),
            is_full: !is_delta && kind.full_state(),
            is_delta,
            version: String::new(),
            nonce: String::new(),
            type_url: kind.into(),
            bytes: 0,
        }
    }
}
