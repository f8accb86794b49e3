//! Requests that a page of another site made a browser send.
//!
//! With DNS rebinding, a site's name leads to a relay that the operator's browser reaches and the site does
//! not. The browser takes the relay for that site, so its page can read answers and give orders. Such a
//! request has the site's name in `host`, which no page can change.

use std::net::IpAddr;

use http::{HeaderValue, Request, Version, header};

/// Contain nothing of clients or the control plane: probes and Prometheus may use any name.
const OPEN_PAGES: [&str; 3] = ["/ready", "/healthz", "/metrics"];

/// Suffixes that no site on the internet has.
const PRIVATE: [&str; 4] = [".localhost", ".local", ".internal", ".svc"];

/// Refuses requests that a page of another site may have caused; `hosts` are our names.
///
/// # Errors
///
/// Name of a site that may be one, with the remedy.
pub(super) fn check<B>(request: &Request<B>, hosts: &[String]) -> Result<(), String> {
    // Browsers speak HTTP/2 over TLS only.
    if request.version() > Version::HTTP_11 || OPEN_PAGES.contains(&request.uri().path()) {
        return Ok(());
    }
    // A person typed the address, or this program asks: no page can set a `sec-` header.
    if request.headers().get("sec-fetch-site").is_some_and(|site| site == "none") {
        return Ok(());
    }
    let host = request.headers().get(header::HOST).map_or(Some(""), |host: &HeaderValue| host.to_str().ok());
    if host.is_some_and(|host| is_own(name_of(host), hosts)) {
        return Ok(());
    }
    let host: String = host.unwrap_or("no text").chars().take(100).flat_map(char::escape_debug).collect();
    Err(format!(
        "`{host}` may be the name of another site, whose pages must not use this address (DNS rebinding); use the IP address of the \
         relay, or list the name in `admin.hosts`\n"
    ))
}

/// Host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn is_own(name: &str, hosts: &[String]) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    address.parse::<IpAddr>().is_ok()
        || !name.contains('.')
        || PRIVATE.iter().any(|end| name.ends_with(end))
        || hosts.iter().any(|own| own.eq_ignore_ascii_case(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(path: &str, version: Version, headers: &[(&str, &str)]) -> Request<()> {
        let request = Request::builder().uri(path).version(version);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(()).unwrap()
    }

    fn is_allowed(host: &str) -> bool {
        check(&request("/clients", Version::HTTP_11, &[("host", host)]), &["relay.example.com".to_owned()])
            .is_ok()
    }

    #[test]
    fn a_name_that_a_site_can_have_is_refused() {
        for host in [
            "127.0.0.1:15000",
            "10.0.0.7",
            "[::1]:15000",
            "localhost:15000",
            "LOCALHOST",
            "relay",
            "relay-0.relay.edge.svc.cluster.local:15000",
            "relay.edge.svc",
            "relay.corp.internal.:15000",
            "relay.example.com:15000",
            "Relay.Example.COM",
        ] {
            assert!(is_allowed(host), "{host}");
        }
        for host in [
            "evil.example.com:15000",
            "evil.com",
            "relay.example.com.evil.com",
            "127.0.0.1.evil.com",
            "local.evil.com",
            "x.relay.example.com",
            "evil.com:x",
            "1.2.3.4.5",
        ] {
            assert!(!is_allowed(host), "{host}");
        }
    }

    #[test]
    fn requests_that_no_page_can_make_are_allowed() {
        let evil = ("host", "evil.com");
        let is_allowed =
            |path, version, headers: &[(&str, &str)]| check(&request(path, version, headers), &[]).is_ok();
        assert!(!is_allowed("/clients", Version::HTTP_11, &[evil]));
        assert!(!is_allowed("/clients", Version::HTTP_11, &[evil, ("sec-fetch-site", "same-origin")]));
        assert!(is_allowed("/clients", Version::HTTP_11, &[evil, ("sec-fetch-site", "none")]));
        assert!(is_allowed("/clients", Version::HTTP_2, &[evil]));
        assert!(is_allowed("/clients", Version::HTTP_10, &[]));
        for path in OPEN_PAGES {
            assert!(is_allowed(path, Version::HTTP_11, &[evil]), "{path}");
        }
    }
}
