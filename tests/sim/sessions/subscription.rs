//! Subscription of a client, in the most literal reading of the protocol.

use std::collections::BTreeSet;

use rand::Rng;
use rand::rngs::StdRng;

use super::origin::{NAMES, TYPES, name_of};
use crate::common::subscribe;

#[derive(Clone, Debug, Default)]
pub(crate) struct Subscribed {
    pub(crate) wildcard: bool,
    pub(crate) names: BTreeSet<String>,
    /// Names were sent, so that an empty list is no wildcard any more.
    explicit: bool,
}

fn allows_legacy(at: usize, grpc: bool) -> bool {
    !grpc && !["eds", "rds", "sds"].contains(&TYPES[at])
}

impl Subscribed {
    /// A complete list (R-SotW-12 to R-SotW-14).
    pub(crate) fn list(&mut self, at: usize, grpc: bool, names: &[String]) {
        self.explicit |= !names.is_empty();
        let star = names.iter().any(|name| name == "*");
        self.wildcard = star || (!self.explicit && allows_legacy(at, grpc));
        self.names = names.iter().filter(|name| *name != "*").cloned().collect();
    }

    /// The first increment of a type (R-Delta-08).
    pub(crate) fn begin(&mut self, at: usize, grpc: bool, add: &[String], end: &[String]) {
        self.wildcard = add.is_empty() && end.is_empty() && allows_legacy(at, grpc);
        self.change(add, end);
    }

    /// A later one (R-Delta-03).
    pub(crate) fn change(&mut self, add: &[String], end: &[String]) {
        subscribe(&mut self.wildcard, &mut self.names, add);
        for name in end {
            if name == "*" {
                self.wildcard = false;
            } else {
                self.names.remove(name);
            }
        }
    }
}

/// Some names, each with this chance, and `*` now and then.
pub(crate) fn pick(rng: &mut StdRng, at: usize, chance: f64, star: f64) -> Vec<String> {
    let mut picked: Vec<String> =
        (0..NAMES).filter(|_| rng.random_bool(chance)).map(|number| name_of(at, number)).collect();
    if rng.random_bool(star) {
        picked.push("*".to_owned());
    }
    picked
}
