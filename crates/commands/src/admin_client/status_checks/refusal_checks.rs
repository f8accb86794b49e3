//! Clients that are refused: by rules, at limits, or because they speak another protocol than the listener.

use std::collections::BTreeMap;

use deltafan_core::limit::{Limit, is_tls_refusal};
use serde_json::json;

use super::super::prometheus_text::Metrics;
use super::{Check, listed};

/// Seconds after a refusal for which clients count as being refused. Envoy and gRPC retry within them.
const REFUSING: f64 = 120.0;

/// Whether a client was refused for this cause just now.
fn is_refusing(metrics: &Metrics, now: f64, cause: &str) -> bool {
    let mut newest = metrics.all("deltafan_last_refusal_timestamp_seconds");
    newest.any(|sample| sample.label("cause") == cause && now - sample.value < REFUSING)
}

/// Refusals by rules, and of clients that speak another protocol than the listener.
pub(super) fn refusals(metrics: &Metrics, now: f64) -> Check {
    let count = |metric, label, is_one: &dyn Fn(&str) -> bool| -> BTreeMap<&str, f64> {
        let samples = metrics.all(metric).filter(|sample| sample.value > 0.0 && is_one(sample.label(label)));
        samples.map(|sample| (sample.label(label), sample.value)).collect()
    };
    // A client is served without hidden names.
    let denied = count("deltafan_denied_total", "what", &|what| !matches!(what, "name" | "wildcard"));
    let tls = count("deltafan_tls_handshakes_total", "result", &is_tls_refusal);
    let http1 = metrics.sum("deltafan_grpc_over_http1_total");
    let figures = json!({"denied": denied, "tls": tls, "grpc_over_http1": http1});
    let listed = |of: &BTreeMap<_, _>| listed(of, |what, count| format!("{what} {count}"));
    let told = [
        ("denied", listed(&denied).map(|of| format!("denied by authorization or groups: {of}"))),
        ("tls", listed(&tls).map(|of| format!("TLS handshakes: {of}"))),
        ("http1", (http1 > 0.0).then(|| format!("gRPC over HTTP/1: {http1}"))),
    ];
    let (mut faults, mut notes) = (Vec::new(), Vec::new());
    for (cause, told) in told {
        let of = if is_refusing(metrics, now, cause) { &mut faults } else { &mut notes };
        of.extend(told);
    }
    if let Some(last) = faults.last_mut() {
        *last += "; the log has the clients and the remedy";
    }
    if let Some(first) = notes.first_mut() {
        first.insert_str(0, "since the start, and not in the last 2 minutes: ");
    }
    Check::of("refusals", faults, notes, "none since the start", figures)
}

pub(super) fn limits(metrics: &Metrics, now: f64) -> Check {
    let mut reached: BTreeMap<&str, f64> = BTreeMap::new();
    for sample in metrics.all("deltafan_refused_total").filter(|sample| sample.value > 0.0) {
        let reason = sample.label("reason");
        // Closing a connection without streams is normal.
        if reason != Limit::Idle.label() {
            *reached.entry(reason).or_default() += sample.value;
        }
    }
    let key = |label: &str| {
        let limit = Limit::ALL.into_iter().find(|limit| limit.label() == label);
        let key = limit.map(Limit::key).filter(|key| !key.contains(' '));
        key.unwrap_or_else(|| label.to_owned())
    };
    let mut told: Vec<String> =
        reached.iter().map(|(reason, count)| format!("{} {count}", key(reason))).collect();
    let failures = metrics.sum("deltafan_accept_failures_total");
    if failures > 0.0 {
        told.push(format!("connections that could not be accepted {failures}"));
    }
    let found: Vec<String> = match told.is_empty() {
        true => Vec::new(),
        false => vec![format!("refused or closed since the start: {}", told.join(", "))],
    };
    let figures = json!({"refused": reached, "accept_failures": failures});
    let (faults, notes) =
        if is_refusing(metrics, now, "limit") { (found, Vec::new()) } else { (Vec::new(), found) };
    Check::of("limits", faults, notes, "none reached since the start", figures)
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn nothing_is_well_while_clients_are_refused() {
        let refused = |seconds_ago: f64| {
            let at = 1_000.0 - seconds_ago;
            let mut metrics = "deltafan_denied_total{what=\"group\"} 3\ndeltafan_denied_total{what=\"name\"} 9\n\
                               deltafan_tls_handshakes_total{result=\"ok\"} 5\ndeltafan_tls_handshakes_total{result=\"expired\"} 2\n\
                               deltafan_grpc_over_http1_total 4\n"
                .to_owned();
            for cause in ["denied", "tls", "http1"] {
                metrics += &format!("deltafan_last_refusal_timestamp_seconds{{cause=\"{cause}\"}} {at}\n");
            }
            let check = refusals(&Metrics::read(&metrics), 1_000.0);
            (check.state, check.finding)
        };
        let told =
            "denied by authorization or groups: group 3; TLS handshakes: expired 2; gRPC over HTTP/1: 4";
        let now = format!("{told}; the log has the clients and the remedy");
        assert_eq!(refused(30.0), (State::Fault, now));
        let over = format!("since the start, and not in the last 2 minutes: {told}");
        assert_eq!(refused(121.0), (State::Note, over));
        let quiet =
            "deltafan_denied_total{what=\"name\"} 9\ndeltafan_tls_handshakes_total{result=\"closed\"} 5";
        assert_eq!(refusals(&Metrics::read(quiet), 1_000.0).state, State::Ok);
    }
}
