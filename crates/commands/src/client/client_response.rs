//! Responses of all transports in one form.

use std::collections::HashSet;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use deltafan_core::proto::{DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryResponse};
use deltafan_core::resource::{Envelope, SotwElement, TypeUrl, normal_form};
use prost::Message as _;

use super::subscribed_names::Subscription;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// State of the world: the response's version, unless the resource has its own.
    pub version: String,
    /// Encoded `google.protobuf.Any`.
    pub body: Bytes,
    /// Other names of the resource (R-Delta-21).
    pub aliases: Vec<String>,
}

/// Names are normalized: a server may use several spellings (R-XT-01).
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) found: Vec<(String, Found)>,
    /// Names without a resource, aliases too (R-Delta-22). A removed variant that another one replaces is not among
    /// them: both come in one response (R-DP-13).
    pub(crate) removed: Vec<String>,
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
        let mut found = Vec::with_capacity(response.resources.len());
        let mut removed = response.removed_resources;
        removed.extend(response.removed_resource_names.into_iter().map(|removed| removed.name));
        for resource in &response.resources {
            let envelope =
                Envelope::parse(resource, &type_url).context("the server sent a faulty resource")?;
            let aliases: Vec<String> = envelope.aliases().map(str::to_owned).collect();
            if let Some(body) = envelope.body {
                let (version, body) = (envelope.version.to_owned(), resource.slice_ref(body));
                found.push((normal(envelope.name), Found { version, body, aliases }));
            } else if aliases.iter().any(|alias| alias == envelope.name) {
                // Without this alias it is a heartbeat.
                removed.push(envelope.name.to_owned());
            }
        }
        let names: HashSet<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        let removed = removed.iter().map(|name| normal(name));
        let removed = removed.filter(|name| !names.contains(name.as_str())).collect();
        let (version, nonce) = (response.system_version_info, response.nonce);
        Ok(Self { found, removed, is_delta: true, version, nonce, type_url, bytes })
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
            found.push((normal(element.name()), Found { version, body, aliases }));
        }
        let (version, nonce) = (response.version_info, response.nonce);
        Ok(Self { found, removed: Vec::new(), is_delta: false, version, nonce, type_url, bytes })
    }

    /// Whether missing resources do not exist. Proves nothing for names: a relay may not know them yet, and
    /// resources may come under other spellings or in collections.
    pub(crate) fn is_whole(&self, asked: &Subscription) -> bool {
        !self.is_delta && self.type_url.kind().full_state() && asked.names.is_empty()
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
mod tests {
    use bytes::BytesMut;
    use deltafan_core::proto::ResourceName;
    use deltafan_core::resource::{Kind, wire};

    use super::*;

    impl Update {
        /// Response with these resources (name, version, body) and removals.
        pub(crate) fn of_test(
            kind: Kind,
            is_delta: bool,
            found: &[(&str, &str, &str)],
            removed: &[&str],
        ) -> Self {
            let found = found.iter().map(|(name, version, body)| {
                let (version, body) = ((*version).to_owned(), body.as_bytes().to_vec().into());
                (normal(name), Found { version, body, aliases: Vec::new() })
            });
            Self {
                found: found.collect(),
                removed: removed.iter().map(|name| normal(name)).collect(),
                is_delta,
                version: String::new(),
                nonce: String::new(),
                type_url: kind.into(),
                bytes: 0,
            }
        }
    }

    /// Encoded `Resource`.
    fn resource(name: &str, alias: &str, has_body: bool) -> Bytes {
        let mut out = BytesMut::new();
        let mut any = BytesMut::new();
        wire::put_field(&mut any, 1, TypeUrl::from(Kind::VirtualHost).as_str().as_bytes());
        for (number, text) in
            [(2, if has_body { &any[..] } else { &[] }), (3, name.as_bytes()), (4, alias.as_bytes())]
        {
            wire::put_field(&mut out, number, text);
        }
        out.freeze()
    }

    #[test]
    fn removed_are_names_and_aliases_without_a_resource() {
        let gone = |name: &str| ResourceName { name: name.to_owned(), ..ResourceName::default() };
        let response = DeltaDiscoveryResponse {
            type_url: TypeUrl::from(Kind::VirtualHost).as_str().to_owned(),
            resources: vec![
                resource("a", "", true),
                resource("b", "", false),
                resource("alias", "alias", false),
            ],
            removed_resources: vec!["c".to_owned()],
            removed_resource_names: vec![gone("a"), gone("d")],
            ..DeltaDiscoveryResponse::default()
        };
        let update = Update::of_delta(response.encode_to_vec().into()).unwrap();
        assert_eq!(update.found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(update.removed, ["c", "d", "alias"], "neither the other variant of `a` nor the heartbeat");
    }
}
