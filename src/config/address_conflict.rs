//! Conflicts between listeners' addresses and the admin address. Unchecked, the second bind would fail at the
//! start.

use std::collections::HashMap;
use std::net::SocketAddr;

use super::downstream::{self, ListenAddress};
use super::errors::quoted;
use super::mapping::Mapping;
use super::notation::{Single as _, Text};

/// Reports taken addresses. Skips one that is wrong by itself.
pub(super) fn check(root: &Mapping<'_>) {
    let (admin, downstream) = (root.section("admin"), root.section("downstream"));
    let listeners = downstream.sections("listeners").unwrap_or_default();
    let address_of = |listener: &Mapping<'_>| match listener.has("address") {
        true => listener.again("address", Text::parse),
        false => (!listener.was_refused()).then_some(downstream::DEFAULT_ADDRESS),
    };
    let listeners: Vec<(&Mapping<'_>, ListenAddress)> =
        listeners.iter().filter_map(|listener| Some((listener, address_of(listener)?))).collect();
    check_listeners(&listeners);

    let operators = match admin.has("address") {
        true => admin.again("address", Text::parse),
        false => Some(super::DEFAULT_ADMIN_ADDRESS),
    };
    let Some(operators) = operators else { return };
    for (listener, address) in &listeners {
        judge(&admin, operators, Some(listener), address);
    }
    if !downstream.has("listeners") {
        judge(&admin, operators, None, &downstream::DEFAULT_ADDRESS);
    }
}

fn check_listeners(listeners: &[(&Mapping<'_>, ListenAddress)]) {
    let mut lines = HashMap::new();
    for (listener, address) in listeners {
        // Port 0 is another port each time.
        if matches!(address, ListenAddress::Tcp(socket) if socket.port() == 0) {
            continue;
        }
        if let Some(first) = lines.insert(address, listener.line_of("address")) {
            let problem = format!("{} is listed on line {first} already", quoted(&address.to_string()));
            listener.wrong_here("address", &problem);
        }
    }
}

fn judge(
    admin: &Mapping<'_>,
    operators: SocketAddr,
    listener: Option<&Mapping<'_>>,
    address: &ListenAddress,
) {
    let ListenAddress::Tcp(clients) = *address else { return };
    if !meet(operators, clients) {
        return;
    }
    let [ours, theirs] = [operators, clients].map(|address| quoted(&address.to_string()));
    match listener {
        // Reported at the key in the file: the other may be a default.
        Some(listener) if !admin.has("address") => {
            let problem =
                format!("{theirs} meets `admin.address`, which is {ours} by default; use another port");
            listener.wrong_here("address", &problem);
        }
        _ => {
            let place = match listener {
                Some(listener) => format!("the listener on line {}", listener.line_of("address")),
                None => "the default listener".to_owned(),
            };
            let problem = format!("{ours} meets {place}, which is {theirs}; use another port");
            admin.wrong_here("address", &problem);
        }
    }
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
