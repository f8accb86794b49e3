//! Moments as people and programs read them: in UTC, by RFC 3339.

use std::time::SystemTime;

use prost_types::Timestamp;

/// To the second: `2026-05-04T10:00:00Z`.
pub(crate) fn seconds(at: SystemTime) -> String {
    Timestamp { nanos: 0, ..at.into() }.to_string()
}

/// To the millisecond: `2026-05-04T10:00:00.250Z`.
pub(crate) fn milliseconds(at: SystemTime) -> String {
    let Timestamp { seconds, nanos } = at.into();
    Timestamp { seconds, nanos: nanos - nanos % 1_000_000 }.to_string()
}
