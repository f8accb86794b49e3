//! Addresses of a server, and the order in which they are tried.
//!
//! Owns each address's share of the time, so that one that hangs does not hide the others. After a useless
//! attempt the next one begins with another address. Knows no protocol.
//!
//! Example: a name with three addresses and 5 s. The first accepts the connection and stays silent for its
//! 1.7 s. The second refuses at once. The third has 3.3 s. If it stays silent too, the next attempt begins
//! with the first again.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

/// Least time for an address, if available: a TLS handshake over a slow link takes several round trips.
/// Skipped addresses come first in the next attempt.
const LEAST: Duration = Duration::from_secs(1);

/// Returns the addresses of a server, each once.
///
/// # Errors
///
/// Name without an address.
pub async fn resolve(uri: &Uri) -> Result<Vec<SocketAddr>, String> {
    let host = uri.host().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let is_tls = uri.scheme() == Some(&http::uri::Scheme::HTTPS);
    let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![(address, port).into()]);
    }
    let found = tokio::net::lookup_host((host, port)).await;
    let found = found.map_err(|error| format!("dns error: cannot look up `{host}`: {error}"))?;
    let mut addresses = Vec::new();
    for address in found {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    if addresses.is_empty() { Err(format!("dns error: `{host}` has no address")) } else { Ok(addresses) }
}

/// Failure of all addresses that were tried.
#[derive(Debug)]
pub struct Unreached {
    /// The reason; with several addresses, each with its reason.
    pub why: String,
    pub tried: usize,
    /// Whether no server was reached, and none may have been busy: no connection was established, and
    /// no attempt timed out.
    pub is_refused: bool,
}

/// Tries addresses in turn from the number `first`, until `limit` is over. Each attempt receives its own
/// time. Returns the first success, and the number of its address.
pub(super) async fn try_each<T, F: Future<Output = Result<T, Unreached>>>(
    addresses: &[SocketAddr],
    first: usize,
    limit: Duration,
    attempt: impl Fn(SocketAddr, Duration) -> F,
) -> Result<(T, usize), Unreached> {
    let count = addresses.len();
    if let [address] = addresses {
        return attempt(*address, limit).await.map(|by| (by, 0));
    }
    let begun = Instant::now();
    let (mut reasons, mut is_refused) = (Vec::new(), true);
    for turn in 0..count {
        let left = limit.saturating_sub(begun.elapsed());
        if left.as_millis() == 0 && turn > 0 {
            break;
        }
        let share = left / u32::try_from(count - turn).unwrap_or(u32::MAX);
        let address = (first + turn) % count;
        // Whole milliseconds, for people to read.
        let share = Duration::from_millis(share.max(LEAST).min(left).as_millis() as u64);
        match attempt(addresses[address], share).await {
            Ok(by) => return Ok((by, address)),
            Err(failed) => {
                reasons.push(format!("{}: {}", addresses[address], failed.why));
                is_refused &= failed.is_refused;
            }
        }
    }
    Err(Unreached { why: reasons.join("; "), tried: reasons.len(), is_refused })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(count: u8) -> Vec<SocketAddr> {
        (1..=count).map(|last| SocketAddr::from(([10, 0, 0, last], 1))).collect()
    }

    fn failed(why: &str, is_refused: bool) -> Unreached {
        Unreached { why: why.to_owned(), tried: 1, is_refused }
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_hangs_does_not_hide_the_others() {
        let attempt = |address: SocketAddr, share: Duration| async move {
            if address.ip().to_string() == "10.0.0.3" {
                return Ok("here");
            }
            if address.ip().to_string() == "10.0.0.2" {
                return Err(failed("refused", true));
            }
            tokio::time::sleep(share).await;
            Err(failed("silent", false))
        };
        let begun = Instant::now();
        let reached = try_each(&addresses(3), 0, Duration::from_secs(6), attempt).await.expect("the third");
        assert_eq!((reached.0, reached.1, begun.elapsed().as_secs()), ("here", 2, 2));
        let unreached = try_each(&addresses(2), 1, Duration::from_secs(6), attempt).await.expect_err("none");
        assert_eq!((&*unreached.why, unreached.tried), ("10.0.0.2:1: refused; 10.0.0.1:1: silent", 2));
        assert!(!unreached.is_refused, "the silent one may be busy");
    }

    #[tokio::test(start_paused = true)]
    async fn many_addresses_that_hang_take_no_more_than_the_whole_time() {
        let attempt = |_: SocketAddr, share: Duration| async move {
            assert!(share >= Duration::from_millis(900), "{share:?}");
            tokio::time::sleep(share).await;
            Err::<(), _>(failed("silent", false))
        };
        let begun = Instant::now();
        let unreached = try_each(&addresses(50), 0, Duration::from_secs(5), attempt).await.expect_err("none");
        assert_eq!((unreached.tried, begun.elapsed()), (5, Duration::from_secs(5)));
    }

    #[tokio::test]
    async fn an_address_is_not_looked_up() {
        for (uri, expected) in [
            ("http://127.0.0.1:9", "127.0.0.1:9"),
            ("https://[::1]", "[::1]:443"),
            ("http://[::1]:7/", "[::1]:7"),
        ] {
            let found = resolve(&uri.parse().expect("a URI")).await.expect("an address");
            assert_eq!(found, [expected.parse().expect("an address")]);
        }
    }
}
