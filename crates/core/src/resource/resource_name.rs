//! Name of a resource with the constraints of the clients that it is for: `envoy.service.discovery.v3.ResourceName`.

use bytes::{Bytes, BytesMut};

use super::wire::{self, MalformedError};
use super::{ConstraintError, Constraints, Name};

// Field numbers.
const NAMED_NAME: u8 = 1;
const NAMED_CONSTRAINTS: u8 = 2;

/// Content of a `ResourceName`: the name, and the constraints or why they are not to be understood.
type ReadName<'a> = (&'a str, Result<Option<Constraints>, ConstraintError>);

/// Reads an `envoy.service.discovery.v3.ResourceName`.
///
/// # Errors
///
/// [`MalformedError`] if the bytes are no such message. Constraints that cannot be read are part of the result.
pub fn parse_resource_name(message: &[u8]) -> Result<ReadName<'_>, MalformedError> {
    let (mut name, mut constraints) = ("", Ok(None));
    let mut constrained = false;
    for field in wire::fields(message) {
        let field = field?;
        match u8::try_from(field.number) {
            Ok(NAMED_NAME) => name = field.text()?,
            // Sent twice they would have to be merged; nobody does that.
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

/// An encoded `envoy.service.discovery.v3.ResourceName`.
pub fn resource_name(name: &Name, constraints: Option<&Constraints>) -> Bytes {
    let name = name.as_str().as_bytes();
    let constraints = constraints.map(|constraints| &constraints.encoded()[..]).unwrap_or_default();
    let mut out = BytesMut::with_capacity(wire::field_len(name.len()) + wire::field_len(constraints.len()));
    wire::put_field(&mut out, NAMED_NAME, name);
    wire::put_field(&mut out, NAMED_CONSTRAINTS, constraints);
    out.freeze()
}
