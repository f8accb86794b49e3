//! `rollout`: a share of the clients tries changes first.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::groups::Conditions;
use super::notation::{Choice, List, Nested, OneOf, Optional, Text, Time, Written};
use super::place::Place;
use super::section::section;
use crate::node_group::Condition;
use crate::resource::TypeUrl;

const MAX_STEPS: usize = 8;

section! {
    /// Guard of changes.
    #[check(check)]
    pub struct Rollout {
        /// Types whose changes canaries try first: short names or type URLs. List routes together with their clusters,
        /// as in [cds, lds, rds]. Default: none, so all clients get each change at once.
        #[key(List<Text>, default = BTreeSet::new(), example = "[cds, lds, rds]")]
        pub types: BTreeSet<TypeUrl>,
        /// Clients that try each change before all others. Default: none.
        #[key(Optional<Nested>)]
        pub canaries: Option<Canaries>,
        /// Share of a node group's clients that get a change first, or next after `canaries`. Their node IDs decide.
        /// Without `canaries` it is at least one client.
        #[key(Text, default = Percent(5.0))]
        pub share: Percent,
        /// Instead of `share`: several shares in turn, for one `window` each.
        #[key(List<Text>, default = Vec::new(), example = "[5%, 25%, 100%]")]
        pub steps: Vec<Percent>,
        /// Secret that chooses the canaries: at least 16 random bytes, the same file at all replicas. Without it each
        /// start makes a new one, so replicas choose different clients.
        #[key(Optional<Text>, example = "./canaries.key")]
        pub key_file: Option<PathBuf>,
        /// How long each step of a trial lasts. 0s: no trials; only `max_removed` and orders hold changes.
        #[key(Time<0, 86_400_000>, default = Duration::from_secs(30))]
        pub window: Duration,
        /// Share of the answers to a change that may be rejections (NACKs). Above it the change is held: all other
        /// clients keep the last good resources.
        #[key(Text, default = Percent(10.0))]
        pub threshold: Percent,
        /// Share of a type's resources that one trial may remove; types with fewer than 5 are exempt. Above it the
        /// change is held before any client gets it, until an operator decides or resources come back. Default: no
        /// limit.
        #[key(Optional<Text>, example = "40%")]
        pub max_removed: Option<Percent>,
        /// How the control plane learns of held changes. `nack` sends it a NACK of each type, once per hold and stream,
        /// with the names, versions and texts of the rejections, for its log and metrics. `none` sends nothing. Has no
        /// effect with a directory.
        #[key(OneOf, default = HoldReport::None)]
        pub report: HoldReport,
    }
}

section! {
    /// Named canaries.
    #[derive(Eq)]
    pub struct Canaries {
        /// All of these must match, as in `groups.rules`. Any client can claim a `node.` value. If clients are not
        /// trusted, match their certificates, as with `peer.spiffe_id`.
        #[key(
            Conditions, name = "match", required = "which clients it takes, as in {node.id: \"canary-.*\"}",
            example = "{node.id: \"canary-.*\"}"
        )]
        pub conditions: Vec<Condition>,
    }
}

impl Rollout {
    /// Shares of the steps after named canaries.
    pub fn shares(&self) -> impl Iterator<Item = Percent> {
        let share = self.steps.is_empty().then_some(self.share);
        self.steps.iter().copied().chain(share)
    }
}

fn check(rollout: &Rollout, place: &Place<'_>) {
    let steps = &rollout.steps;
    if steps.len() > MAX_STEPS {
        place.at("steps").wrong(&format!("has more than {MAX_STEPS} steps"));
    }
    if !steps.is_sorted_by(|one, next| one < next) {
        place.at("steps").wrong("has a share that is not larger than the one before");
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HoldReport {
    None,
    /// A NACK with the texts of clients.
    Nack,
}

impl Choice for HoldReport {
    const WORDS: &'static [(&'static str, Self)] = &[("none", Self::None), ("nack", Self::Nack)];
}

/// A share from `0%` to `100%`.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

impl Percent {
    /// From 0 to 1.
    pub fn ratio(self) -> f64 {
        self.0 / 100.0
    }
}

impl Written for Percent {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
        number.filter(|number| (0.0..=100.0).contains(number)).map(Self).ok_or_else(|| {
            format!("{} is not a share; write one from 0% to 100%, as in 2.5%", super::errors::quoted(text))
        })
    }

    fn text(&self) -> String {
        format!("{}%", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_grow() {
        use crate::config::Config;

        let read = |steps: &str| {
            let text =
                format!("upstream: {{directory: d}}\nrollout: {{types: [cds], share: 3%, steps: {steps}}}\n");
            let shares =
                |config: &Config| config.rollout.shares().map(|share| share.text()).collect::<Vec<_>>();
            Config::parse(&text, "f")
                .map(|config| shares(&config).join(" "))
                .map_err(|error| error.to_string())
        };
        assert_eq!(read("[]"), Ok("3%".to_owned()));
        assert_eq!(read("[1%, 2.5%, 100%]"), Ok("1% 2.5% 100%".to_owned()));
        assert!(read("[5%, 5%]").unwrap_err().contains("not larger than the one before"));
        assert!(read("[1%, 2%, 3%, 4%, 5%, 6%, 7%, 8%, 9%]").unwrap_err().contains("more than 8"));
    }

    #[test]
    fn each_share_can_be_written() {
        for hundredths in 0..=10_000_u16 {
            let share = Percent(f64::from(hundredths) / 100.0);
            assert_eq!(Percent::parse(&share.text(), Path::new("")), Ok(share));
        }
        for wrong in ["100.01%", "-0.01%", "nan%", "inf%", "5"] {
            assert!(Percent::parse(wrong, Path::new("")).is_err(), "{wrong}");
        }
    }
}
