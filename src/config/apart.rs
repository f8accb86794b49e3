//! The address for operators and those for clients must not meet: whichever is bound second would fail at the start.

use std::net::SocketAddr;
use std::path::Path;

use super::errors::quoted;
use super::section::Section;
use super::values::{self, ListenAddress};
use super::{Admin, Listener};

/// Reports a listener that would take the admin address. What is wrong by itself is not looked at again.
pub(super) fn check(root: &Section<'_>) {
    let (admin, downstream) = (root.section("admin"), root.section("downstream"));
    let operators = match admin.scalar("address").map(values::parse_socket_address) {
        None if admin.has("address") => return,
        None => Admin::default().address,
        Some(Ok(address)) => address,
        Some(Err(_)) => return,
    };
    let Some(listeners) = downstream.sections("listeners") else {
        if !downstream.has("listeners") {
            judge(&admin, operators, None, Listener::default().address);
        }
        return;
    };
    for listener in &listeners {
        let address = match listener.scalar("address") {
            // Relative paths do not matter here: no path meets a port.
            Some(text) => ListenAddress::parse(text, Path::new("")),
            None if listener.has("address") || listener.was_refused() => continue,
            None => Ok(Listener::default().address),
        };
        if let Ok(address) = address {
            judge(&admin, operators, Some(listener), address);
        }
    }
}

fn judge(admin: &Section<'_>, operators: SocketAddr, listener: Option<&Section<'_>>, address: ListenAddress) {
    let ListenAddress::Tcp(clients) = address else { return };
    if !meet(operators, clients) {
        return;
    }
    let [ours, theirs] = [operators, clients].map(|address| quoted(&address.to_string()));
    match listener {
        // Told where the file says it: the other may be a default.
        Some(listener) if !admin.has("address") => {
            let problem =
                format!("{theirs} meets `admin.address`, which is {ours} by default; use another port");
            listener.wrong("address", listener.line_of("address"), &problem);
        }
        _ => {
            let place = match listener {
                Some(listener) => format!("the listener on line {}", listener.line_of("address")),
                None => "the default listener".to_owned(),
            };
            let problem = format!("{ours} meets {place}, which is {theirs}; use another port");
            admin.wrong("address", admin.line_of("address"), &problem);
        }
    }
}

/// Whether the system would refuse to bind both. An address that stands for all takes the port of each; that of IPv6
/// takes those of IPv4 too.
fn meet(one: SocketAddr, other: SocketAddr) -> bool {
    let covers =
        |all: SocketAddr, one: SocketAddr| all.ip().is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    one.port() == other.port()
        && one.port() != 0
        && (one.ip() == other.ip() || covers(one, other) || covers(other, one))
}
