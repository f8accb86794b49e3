//! Conflicts between listeners' addresses and the admin address. Unchecked, the second bind would fail at the
//! start.

use std::net::SocketAddr;

use super::DEFAULT_ADMIN_ADDRESS;
use super::downstream::{DEFAULT_ADDRESS, ListenAddress};
use super::errors::quoted;
use super::mapping::{Mapping, check_unique};
use super::notation::{Single as _, Text, Written};

/// Reports taken addresses. Skips one that is wrong by itself.
pub(super) fn check(root: &Mapping<'_>) {
    let (admin, downstream) = (root.section("admin"), root.section("downstream"));
    let listeners = downstream.sections("listeners").unwrap_or_default();
    check_unique(&listeners, "address", "is listed", |listener| {
        address(listener, DEFAULT_ADDRESS).filter(has_port)
    });
    let Some(operators) = address(&admin, DEFAULT_ADMIN_ADDRESS) else { return };
    // `None` is the default listener.
    let all = listeners.iter().map(Some).chain((!downstream.has("listeners")).then_some(None));
    for listener in all {
        let clients = listener.map_or(Some(DEFAULT_ADDRESS), |listener| address(listener, DEFAULT_ADDRESS));
        let Some(ListenAddress::Tcp(clients)) = clients else { continue };
        if !meet(operators, clients) {
            continue;
        }
        let [ours, theirs] = [operators, clients].map(|address| quoted(&address.to_string()));
        // Reported at the key in the file: the other may be a default.
        if let Some(listener) = listener.filter(|_| !admin.has("address")) {
            let problem =
                format!("{theirs} meets `admin.address`, which is {ours} by default; use another port");
            listener.wrong_here("address", &problem);
        } else {
            let place = match listener {
                Some(listener) => format!("the listener on line {}", listener.line_of("address")),
                None => "the default listener".to_owned(),
            };
            let problem = format!("{ours} meets {place}, which is {theirs}; use another port");
            admin.wrong_here("address", &problem);
        }
    }
}

/// Address in a section, or this default; `None` if it is wrong.
fn address<T: Written>(of: &Mapping<'_>, default: T) -> Option<T> {
    if of.has("address") {
        of.again("address", Text::parse)
    } else {
        of.misfit().is_none().then_some(default)
    }
}

/// Port 0 is another port each time.
fn has_port(address: &ListenAddress) -> bool {
    !matches!(address, ListenAddress::Tcp(address) if address.port() == 0)
}

/// Whether the system would refuse to bind both. A wildcard address takes the port of each address; the IPv6
/// one takes IPv4 too.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let covers =
        |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}
