//! A small blocking HTTP client for admin pages and control APIs.

use std::{sync::LazyLock, time::Duration};

use serde_json::Value;

static AGENT: LazyLock<ureq::Agent> = LazyLock::new(|| {
    ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(5)))
        // A connection of its own for each request: the servers come and go on the same ports.
        .max_idle_connections(0)
        .build()
        .new_agent()
});

pub(crate) fn get(url: &str) -> Result<String, String> {
    text(AGENT.get(url).call(), url)
}

/// Gets a page from a virtual host.
pub(crate) fn get_from(url: &str, host: &str) -> Result<String, String> {
    text(AGENT.get(url).header("host", host).call(), url)
}

pub(crate) fn get_json(url: &str) -> Result<Value, String> {
    serde_json::from_str(&get(url)?).map_err(|error| format!("{url}: {error}"))
}

pub(crate) fn put(url: &str, body: &Value) -> Result<String, String> {
    text(AGENT.put(url).send(body.to_string()), url)
}

pub(crate) fn post(url: &str) -> Result<String, String> {
    text(AGENT.post(url).send_empty(), url)
}

pub(crate) fn delete(url: &str) -> Result<String, String> {
    text(AGENT.delete(url).call(), url)
}

fn text(
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    url: &str,
) -> Result<String, String> {
    response
        .and_then(|mut response| response.body_mut().with_config().limit(64 << 20).read_to_string())
        .map_err(|error| format!("{url}: {error}"))
}
