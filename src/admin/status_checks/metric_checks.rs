//! Checks of what only metrics keep: refused clients, the configuration file, certificates.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::check::{Check, Found, State, joined};
use crate::limit::{Limit, is_tls_refusal};
use crate::telemetry::{
    ACCEPT_FAILURES, CONFIG_RESTART, CONFIG_SUCCESSFUL, DENIED, GRPC_OVER_HTTP1, LAST_REFUSAL, REFUSED,
    TLS_EXPIRY, TLS_HANDSHAKES, TLS_SUCCESSFUL,
};
use crate::terminal::age;

/// Seconds after a refusal for which clients count as being refused. Envoy and gRPC retry within them.
const REFUSING: f64 = 120.0;
/// Seconds before a certificate's expiry that are worth a note, as in docs/alerts.md.
const EXPIRES_SOON: f64 = 7.0 * 86_400.0;

type Labels<'t> = BTreeMap<&'t str, &'t str>;

/// Samples of a metric in the text format of Prometheus, as the relay writes it. Labels of interest have no escapes.
fn samples<'t>(text: &'t str, metric: &str) -> Vec<(Labels<'t>, f64)> {
    let sample = |line: &'t str| {
        let (labels, value) = line.strip_prefix(metric)?.rsplit_once(' ')?;
        let labels = if labels.is_empty() { "" } else { labels.strip_prefix('{')?.strip_suffix('}')? };
        let labels = labels.split("\",").filter_map(|label| label.split_once("=\""));
        let labels = labels.map(|(key, value)| (key, value.trim_end_matches('"')));
        Some((labels.collect(), value.parse().ok()?))
    };
    text.lines().filter_map(sample).collect()
}

/// Values above zero, by a label.
fn counts<'t>(text: &'t str, metric: &str, label: &str) -> BTreeMap<&'t str, f64> {
    let samples = samples(text, metric).into_iter().filter(|(_, value)| *value > 0.0);
    samples.map(|(labels, value)| (labels.get(label).copied().unwrap_or_default(), value)).collect()
}

fn total(text: &str, metric: &str) -> f64 {
    samples(text, metric).iter().map(|(_, value)| value).sum()
}

fn listed<K: AsRef<str>>(of: impl IntoIterator<Item = (K, f64)>) -> String {
    joined(of.into_iter().map(|(what, count)| format!("{} {count}", what.as_ref())), ", ")
}

/// Seconds since 1970.
fn unix_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A fault if a client was refused for this cause just now, else a note.
fn refusing(text: &str, cause: &str) -> State {
    let newest = counts(text, LAST_REFUSAL, "cause").get(cause).copied().unwrap_or_default();
    if unix_time() - newest < REFUSING { State::Fault } else { State::Note }
}

/// Refusals by rules, and of clients that speak another protocol than the listener.
pub(super) fn refusals(text: &str) -> Check {
    let mut denied = counts(text, DENIED, "what");
    // A client is served without hidden names.
    denied.retain(|what, _| !matches!(*what, "name" | "wildcard"));
    let mut tls = counts(text, TLS_HANDSHAKES, "result");
    tls.retain(|result, _| is_tls_refusal(result));
    let http1 = total(text, GRPC_OVER_HTTP1);
    let mut found: Found = Vec::new();
    for (cause, is_any, words) in [
        ("denied", !denied.is_empty(), format!("denied by authorization or groups: {}", listed(denied))),
        ("tls", !tls.is_empty(), format!("TLS handshakes: {}", listed(tls))),
        ("http1", http1 > 0.0, format!("gRPC over HTTP/1: {http1}")),
    ] {
        let told = match refusing(text, cause) {
            State::Fault => format!("{words}; the log has the clients and the remedy"),
            _ => format!("{words}, not in the last 2 minutes"),
        };
        if is_any {
            found.push((refusing(text, cause), told));
        }
    }
    Check::of("refusals", found, "none since the start")
}

pub(super) fn limits(text: &str) -> Check {
    let key = |label: &str| {
        let limit = Limit::ALL.into_iter().find(|limit| limit.label() == label);
        limit.map(Limit::key).filter(|key| !key.contains(' ')).unwrap_or_else(|| label.to_owned())
    };
    let mut reached = counts(text, REFUSED, "reason");
    // Closing a connection without streams is normal.
    reached.remove(Limit::Idle.label());
    let failures = Some(total(text, ACCEPT_FAILURES)).filter(|failures| *failures > 0.0);
    let failures = failures.map(|failures| ("connections that could not be accepted".to_owned(), failures));
    let told = listed(reached.into_iter().map(|(reason, count)| (key(reason), count)).chain(failures));
    let mut found = Vec::new();
    if !told.is_empty() {
        found.push((refusing(text, "limit"), format!("refused or closed since the start: {told}")));
    }
    Check::of("limits", found, "none reached since the start")
}

pub(super) fn configuration(text: &str) -> Check {
    let first = |metric| samples(text, metric).first().map(|(_, value)| *value);
    let found = if first(CONFIG_SUCCESSFUL) == Some(0.0) {
        let words = "the file is wrong, and the one before it in force; see `deltafan check` or the log";
        vec![(State::Fault, words.to_owned())]
    } else if first(CONFIG_RESTART) == Some(1.0) {
        vec![(State::Note, "changes wait for a restart; the log names their keys".to_owned())]
    } else {
        Vec::new()
    };
    Check::of("configuration", found, "in force as it is in the file")
}

/// Certificates in force, and files that could not replace them.
pub(super) fn certificates(text: &str) -> Option<Check> {
    let expiries = samples(text, TLS_EXPIRY);
    let (labels, expiry) = expiries.iter().min_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let (left, of) = (expiry - unix_time(), format!("{} of {}", labels.get("which")?, labels.get("of")?));
    let age = |seconds| age(Duration::from_secs_f64(seconds));
    let mut refused = samples(text, TLS_SUCCESSFUL);
    refused.retain(|(_, is_in_force)| *is_in_force == 0.0);
    let refused =
        joined(refused.iter().filter_map(|(labels, _)| Some((*labels.get("of")?).to_owned())), ", ");
    let found = if left <= 0.0 {
        (State::Fault, format!("{of} has expired {} ago", age(-left)))
    } else if !refused.is_empty() {
        let words = "cannot be used, and those before are in force; the log says why";
        (State::Fault, format!("the files of {refused} {words}"))
    } else if left < EXPIRES_SOON {
        (State::Note, format!("{of} expires in {}", age(left)))
    } else {
        (State::Ok, format!("the first to expire is {of}, in {}", age(left)))
    };
    Some(Check::of("certificates", vec![found], ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(check: Check) -> (State, String) {
        (check.state, check.finding)
    }

    #[test]
    fn samples_are_read_with_their_labels() {
        let text = "# HELP b a\nb{c=\"d\",e=\"f, g=1}\"} 2.5\nb{c=\"x\"} 1\nb_c 7\nb 3\nb{c=\"\n";
        let all = samples(text, "b");
        assert_eq!(all.iter().map(|(_, value)| *value).collect::<Vec<_>>(), [2.5, 1.0, 3.0]);
        assert_eq!(all[0].0, Labels::from([("c", "d"), ("e", "f, g=1}")]));
        assert_eq!(total(text, "missing"), 0.0);
    }

    #[test]
    fn nothing_is_well_while_clients_are_refused() {
        let refused = |seconds_ago: f64| {
            let at = unix_time() - seconds_ago;
            let mut text = "deltafan_denied_total{what=\"group\"} 3\ndeltafan_denied_total{what=\"name\"} 9\n\
                            deltafan_tls_handshakes_total{result=\"ok\"} 5\ndeltafan_tls_handshakes_total{result=\"expired\"} 2\n\
                            deltafan_grpc_over_http1_total 4\n\
                            deltafan_refused_total{reason=\"max_connections\"} 5\ndeltafan_refused_total{reason=\"types\"} 1\n\
                            deltafan_refused_total{reason=\"idle_timeout\"} 7\n"
                .to_owned();
            for cause in ["denied", "tls", "http1", "limit"] {
                text += &format!("deltafan_last_refusal_timestamp_seconds{{cause=\"{cause}\"}} {at}\n");
            }
            [told(refusals(&text)), told(limits(&text))]
        };
        let what = [
            "denied by authorization or groups: group 3",
            "TLS handshakes: expired 2",
            "gRPC over HTTP/1: 4",
        ];
        let reached = "refused or closed since the start: downstream.max_connections 5, types 1".to_owned();
        let now = what.map(|what| format!("{what}; the log has the clients and the remedy")).join("; ");
        assert_eq!(refused(30.0), [(State::Fault, now), (State::Fault, reached.clone())]);
        let over = what.map(|what| format!("{what}, not in the last 2 minutes")).join("; ");
        assert_eq!(refused(121.0), [(State::Note, over), (State::Note, reached)]);
        let quiet = "deltafan_denied_total{what=\"name\"} 9\ndeltafan_tls_handshakes_total{result=\"closed\"} 5\n\
                     deltafan_refused_total{reason=\"stall_timeout\"} 0";
        assert_eq!([refusals(quiet).state, limits(quiet).state], [State::Ok; 2]);
    }

    #[test]
    fn files_that_cannot_be_used_are_a_fault() {
        assert_eq!(configuration("deltafan_config_last_reload_successful 0").state, State::Fault);
        assert_eq!(configuration("deltafan_config_restart_pending 1").state, State::Note);
        assert_eq!(configuration("deltafan_config_restart_pending 0").state, State::Ok);
        let expiry = |left: f64| {
            let at = unix_time() + left;
            format!("deltafan_tls_certificate_expiry_seconds{{of=\"a\",which=\"crl\"}} {at}\n")
        };
        let of = |text: &str| told(certificates(text).unwrap());
        assert_eq!(of(&expiry(-60.0)), (State::Fault, "crl of a has expired 60s ago".to_owned()));
        assert_eq!(of(&expiry(60.5)), (State::Note, "crl of a expires in 60s".to_owned()));
        let told = (State::Ok, "the first to expire is crl of a, in 10d".to_owned());
        assert_eq!(of(&expiry(10.5 * 86_400.0)), told);
        let refused = "deltafan_tls_last_reload_successful{of=\"a\"} 0\ndeltafan_tls_last_reload_successful{of=\"b\"} 1";
        let told = "the files of a cannot be used, and those before are in force; the log says why";
        assert_eq!(of(&(expiry(9e6) + refused)), (State::Fault, told.to_owned()));
        assert!(certificates("").is_none());
    }
}
