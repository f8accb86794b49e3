//! `ResourceName`: a name with constraints.

use bytes::{Bytes, BytesMut};

use super::wire::{self, MalformedError};
use super::{ConstraintError, Constraints, Name};

// Field numbers.
const NAMED_NAME: u8 = 1;
const NAMED_CONSTRAINTS: u8 = 2;

/// Name, and the constraints or the reason why they cannot be read.
type ReadName<'a> = (&'a str, Result<Option<Constraints>, ConstraintError>);

/// Reads an `envoy.service.discovery.v3.ResourceName`.
///
/// # Errors
///
/// [`MalformedError`] if the bytes are malformed. Unreadable constraints are part of the result.
pub fn parse_resource_name(message: &[u8]) -> Result<ReadName<'_>, MalformedError> {
    let (mut name, mut constraints) = ("", Ok(None));
    let mut constrained = false;
    for field in wire::fields(message) {
        let field = field?;
        match u8::try_from(field.number) {
            Ok(NAMED_NAME) => name = field.text()?,
            // Repeated constraints would have to be merged.
            Ok(NAMED_CONSTRAINTS) if constrained => constraints = Err(ConstraintError::Malformed),
            Ok(NAMED_CONSTRAINTS) => {
                constrained = true;
                constraints = Constraints::parse(field.bytes()?);
            }
            _ => {}
        }
    }
    Ok((name, constraints))
}

/// Encodes an `envoy.service.discovery.v3.ResourceName`.
pub fn resource_name(name: &Name, constraints: Option<&Constraints>) -> Bytes {
    let name = name.as_str().as_bytes();
    let constraints = constraints.map(|constraints| &constraints.encoded()[..]).unwrap_or_default();
    let mut out = BytesMut::with_capacity(wire::field_len(name.len()) + wire::field_len(constraints.len()));
    wire::put_field(&mut out, NAMED_NAME, name);
    wire::put_field(&mut out, NAMED_CONSTRAINTS, constraints);
    out.freeze()
}
