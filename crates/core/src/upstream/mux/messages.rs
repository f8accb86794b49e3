//! Protocol of the control plane: responses in it, and as increments.

use std::borrow::Cow;

use super::super::refusal;
use super::super::response::{self, DecodedResponse, ResponseError};
use super::super::sotw::{Reading, SotwStream};
use crate::RelayIdentity;
use crate::proto::{DeltaDiscoveryResponse, DiscoveryResponse};
use crate::resource::TypeUrl;

/// Response as received.
#[derive(Debug)]
pub(super) enum Incoming {
    Delta(DeltaDiscoveryResponse),
    Sotw(DiscoveryResponse),
}

impl Incoming {
    pub(super) fn type_url(&self) -> TypeUrl {
        TypeUrl::from(match self {
            Self::Delta(response) => response.type_url.as_str(),
            Self::Sotw(response) => response.type_url.as_str(),
        })
    }

    pub(super) fn nonce(&self) -> &str {
        match self {
            Self::Delta(response) => &response.nonce,
            Self::Sotw(response) => &response.nonce,
        }
    }

    /// `control_plane.identifier`: the servers through which the response came; may be empty.
    pub(super) fn identifier(&self) -> &str {
        let control_plane = match self {
            Self::Delta(response) => &response.control_plane,
            Self::Sotw(response) => &response.control_plane,
        };
        let identifier = control_plane.as_ref().map_or("", |control_plane| &control_plane.identifier);
        &identifier[..identifier.floor_char_boundary(RelayIdentity::MAX_BYTES)]
    }

    /// Works out the changes since the last response on the stream.
    pub(super) fn into_increments(
        self,
        sotw: Option<&mut SotwStream>,
        type_url: &TypeUrl,
    ) -> Result<Increments, ResponseError> {
        match (self, sotw) {
            (Self::Sotw(response), Some(sotw)) => sotw.read(response, type_url).map(Increments::Sotw),
            (Self::Delta(response), _) => Ok(Increments::Delta(response)),
            (Self::Sotw(_), None) => Err(ResponseError::new("the stream has ended")),
        }
    }
}

/// Response as increments.
#[derive(Debug)]
pub(super) enum Increments {
    Delta(DeltaDiscoveryResponse),
    Sotw(Reading),
}

impl Increments {
    /// Names in a rejected response. In SotW the next response replaces it, whatever its names.
    pub(super) fn names(&self) -> impl Iterator<Item = Cow<'_, str>> {
        let delta = match self {
            Self::Delta(response) => Some(response),
            Self::Sotw(_) => None,
        };
        delta.into_iter().flat_map(refusal::names)
    }

    pub(super) fn read(
        &self,
        type_url: &TypeUrl,
        tells_errors: bool,
    ) -> Result<DecodedResponse<'_>, ResponseError> {
        match self {
            Self::Delta(response) => response::read(response, type_url, tells_errors),
            Self::Sotw(Reading { response, is_whole, .. }) => {
                let mut reading = response::read(response, type_url, tells_errors)?;
                reading.is_whole = *is_whole;
                Ok(reading)
            }
        }
    }
}
