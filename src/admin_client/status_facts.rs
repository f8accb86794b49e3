//! Answers of the admin address for a status.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value as Json;

use super::admin_connection::AdminClient;
use super::prometheus_text::Metrics;

/// A page that an older relay lacks is `null`.
#[derive(Debug)]
pub(super) struct Facts {
    /// An error is the reason against sending clients there.
    pub(super) ready: Result<(), String>,
    pub(super) upstreams: Json,
    /// A page of clients without any client.
    pub(super) clients: Json,
    pub(super) nacks: Json,
    pub(super) rollout: Json,
    pub(super) metrics: Metrics,
    /// Seconds since 1970.
    pub(super) now: f64,
}

impl Facts {
    /// Asks a relay.
    ///
    /// # Errors
    ///
    /// Relay that does not answer.
    pub(super) async fn of(relay: &mut AdminClient) -> anyhow::Result<Self> {
        Ok(Self {
            ready: relay.ready().await?,
            upstreams: relay.json_or_null("/upstreams").await?,
            clients: relay.json_or_null("/clients?limit=0").await?,
            // The newest that counts is among them, unless many of departed clients followed.
            nacks: relay.json_or_null("/nacks?limit=1000").await?,
            rollout: relay.json_or_null("/rollout").await?,
            metrics: Metrics::read(&relay.text("/metrics").await?),
            now: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        })
    }
}
