//! Conflicts between listeners' addresses and the admin address. Unchecked, the second bind would fail at the
//! start.

use std::net::SocketAddr;

use super::Config;
use super::downstream::ListenAddress;
use super::errors::quoted;
use super::place::{Place, check_unique};

/// Reports taken addresses.
pub(super) fn check(config: &Config, root: &Place<'_>) {
    let (operators, admin) = (config.admin.address, root.at("admin").at("address"));
    let places = root.at("downstream").at("listeners").items().into_iter().flatten();
    // Without a list there is the default listener, which stands nowhere.
    let places = places.map(|listener| Some(listener.at("address"))).chain([None]);
    let addresses = config.downstream.listeners.iter().map(|listener| &listener.address);
    let listeners: Vec<_> = places.zip(addresses).collect();
    let placed = listeners.iter().filter_map(|(place, address)| Some((place.clone()?, *address)));
    check_unique(placed.filter(|(_, address)| has_port(address)), "is listed");
    for (place, address) in &listeners {
        let ListenAddress::Tcp(clients) = **address else { continue };
        if !meet(operators, clients) {
            continue;
        }
        let [ours, theirs] = [operators, clients].map(|address| quoted(&address.to_string()));
        // Reported at the key in the file: the other may be a default.
        if let Some(place) = place.as_ref().filter(|_| !admin.is_there()) {
            place.wrong(&format!(
                "{theirs} meets `admin.address`, which is {ours} by default; use another port"
            ));
        } else {
            let of = match place {
                Some(place) => format!("the listener on line {}", place.line()),
                None => "the default listener".to_owned(),
            };
            admin.wrong(&format!("{ours} meets {of}, which is {theirs}; use another port"));
        }
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
