//! Rows and pages of the JSON for operators.
//!
//! Owns how documents name a type, a node, a delivery and a time.

use std::time::{Duration, Instant};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use serde_json::Value as Json;

use super::admin_query::{LookError, Query};
use crate::resource::{Name, Parameters, TypeUrl};
use crate::subscription::{Client, Delivery};

/// Rows of a page that says nothing of its size.
const ROWS: usize = 1_000;

/// Declares a row: fields in their order, each with its value.
macro_rules! row {
    (
        $(#[$about:meta])*
        $visible:vis struct $row:ident($($from:ident: $of:ty),+)
        $(where $($name:ident = $init:expr,)+)?
        {
            $($(#[$attribute:meta])* $field:ident: $type:ty = $value:expr,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, serde::Serialize)]
        $visible struct $row {
            $($(#[$attribute])* $field: $type,)+
        }

        impl $row {
            $visible fn new($($from: $of),+) -> Self {
                $($(let $name = $init;)+)?
                Self { $($field: $value),+ }
            }
        }
    };
}

pub(super) use row;

row! {
    #[derive(Default)]
    pub(super) struct TypeName(of: &TypeUrl) {
        r#type: &'static str = of.kind().short(),
        type_url: String = of.as_str().to_owned(),
    }
}

row! {
    pub(super) struct NameRow(of: &TypeUrl, its_name: &Name) {
        #[serde(flatten)]
        kind: TypeName = TypeName::new(of),
        name: String = its_name.to_string(),
    }
}

row! {
    #[derive(Default)]
    pub(super) struct NodeRow(client: &Client) {
        id: String = client.node_id.clone(),
        cluster: String = client.cluster.clone(),
        user_agent: String = client.user_agent.clone(),
    }
}

row! {
    pub(super) struct DeliveryRow(of: &Delivery, now: Instant) {
        version: String = of.version.to_string(),
        generation: u64 = of.generation.get(),
        seconds_ago: f64 = seconds(of.at, now),
    }
}

row! {
    pub(super) struct RejectionRow(of: &Delivery, its_code: i32, its_text: &str, now: Instant) {
        #[serde(flatten)]
        delivery: DeliveryRow = DeliveryRow::new(of, now),
        code: i32 = its_code,
        text: String = its_text.to_owned(),
    }
}

/// Seconds since `at`, cut to milliseconds.
pub fn seconds(at: Instant, now: Instant) -> f64 {
    let millis = now.saturating_duration_since(at).as_millis();
    millis as f64 / 1_000.0
}

pub(super) fn in_seconds(time: Option<Duration>) -> Option<f64> {
    time.map(|time| time.as_secs_f64())
}

/// `None` if there are none.
pub(super) fn text_of(parameters: &Parameters) -> Option<String> {
    (!parameters.is_empty()).then(|| parameters.to_string())
}

/// Part of a list, with figures of the whole.
#[derive(Debug)]
pub(super) struct Page<Row> {
    pub(super) figures: Vec<(&'static str, Json)>,
    /// Name of the rows.
    name: &'static str,
    rows: Vec<Row>,
    limit: usize,
    after: u64,
    /// Place of the newest row.
    last: u64,
    /// `after` of the next page.
    next: Option<u64>,
}

impl<Row> Page<Row> {
    pub(super) fn new(name: &'static str, query: &Query<'_>) -> Result<Self, LookError> {
        let (limit, after) = (query.limit(ROWS)?, query.after()?);
        Ok(Self { figures: Vec::new(), name, rows: Vec::new(), limit, after, last: after, next: None })
    }

    /// For places that become smaller. Returns the one that the page is behind.
    pub(super) fn downwards(&mut self) -> u64 {
        Some(std::mem::take(&mut self.after)).filter(|after| *after > 0).unwrap_or(u64::MAX)
    }

    /// Adds a row if its place is on this page.
    pub(super) fn offer(&mut self, place: u64, row: impl FnOnce() -> Row) {
        if place <= self.after {
            return;
        }
        if self.rows.len() < self.limit {
            self.last = place;
            self.rows.push(row());
        } else if self.limit > 0 {
            self.next = Some(self.last);
        }
    }
}

impl<Row: Serialize> Serialize for Page<Row> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.figures.iter().try_for_each(|(name, figure)| map.serialize_entry(name, figure))?;
        map.serialize_entry(self.name, &self.rows)?;
        map.serialize_entry("next", &self.next)?;
        map.end()
    }
}
