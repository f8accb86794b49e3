//! `rollout`: a share of the clients tries changes first.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::notation::{Choice, List, OneOf, Optional, Text, Time, Written};
use super::section::section;
use super::values::TypeName;

section! {
    /// Guard of changes.
    #[derive(Eq)]
    pub struct Rollout {
        /// Types whose changes are tried: short names or type URLs. Routes and the clusters that they lead to belong together,
        /// as in [cds, lds, rds]. Default: none, all clients are sent each change at once.
        #[key(List<TypeName>, default = Vec::new(), example = "[cds, lds, rds]")]
        pub types: Vec<String>,
        /// Share of the clients of a node group that are sent a change first, chosen by their node IDs; at least one client.
        #[key(Text, default = Percent::of(5))]
        pub share: Percent,
        /// Secret that chooses the canaries: at least 16 random bytes, the same file at all replicas. Without it each start
        /// draws one, so that replicas choose different clients.
        #[key(Optional<Text>, example = "./canaries.key")]
        pub key_file: Option<PathBuf>,
        /// How long a change is tried before it spreads. 0s: no trials, only `max_removed` holds changes.
        #[key(Time<0, 86_400_000>, default = Duration::from_secs(30))]
        pub window: Duration,
        /// Share of the answers to a change that may be rejections (NACKs). With more of them the change is held: all other
        /// clients keep the last good resources.
        #[key(Text, default = Percent::of(10))]
        pub threshold: Percent,
        /// Share of a type's resources, of at least 5, that the changes of one trial may remove. With more of them the change is held
        /// before any client is sent it, until an operator decides or resources come back. Default: no limit.
        #[key(Optional<Text>, example = "40%")]
        pub max_removed: Option<Percent>,
        /// Whether the control plane is told of changes that are held: `nack` sends it a NACK of each type, once per stream, with
        /// the names, versions and texts of the rejections, in which its log and metrics show them; `none` tells it nothing. Has no
        /// effect with a directory.
        #[key(OneOf, default = HoldReport::None)]
        pub report: HoldReport,
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

/// A share from `0%` to `100%`, in steps of 0.01%.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Percent {
    hundredths: u16,
}

impl Percent {
    const ALL: u16 = 10_000;

    const fn of(percent: u16) -> Self {
        Self { hundredths: percent * 100 }
    }

    /// From 0 to 1.
    pub fn ratio(self) -> f64 {
        f64::from(self.hundredths) / f64::from(Self::ALL)
    }
}

impl Written for Percent {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
        // 1.1 is no binary fraction: 100 times 1.1 is not quite 110.
        let is_whole = |number: &f64| (number - number.round()).abs() < 1e-6;
        let hundredths = number.map(|number| number * 100.0).filter(is_whole).map(f64::round);
        let hundredths = hundredths.filter(|number| (0.0..=f64::from(Self::ALL)).contains(number));
        match hundredths {
            Some(hundredths) => Ok(Self { hundredths: hundredths as u16 }),
            None => Err(format!(
                "{} is not a share; write one from 0% to 100%, as in 2.5%",
                super::errors::quoted(text)
            )),
        }
    }

    fn text(&self) -> String {
        format!("{}%", f64::from(self.hundredths) / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_share_can_be_written() {
        for hundredths in 0..=Percent::ALL {
            let share = Percent { hundredths };
            assert_eq!(Percent::parse(&share.text(), Path::new("")), Ok(share));
        }
        for wrong in ["0.001%", "100.01%", "-0.01%", "nan%", "inf%", "5"] {
            assert!(Percent::parse(wrong, Path::new("")).is_err(), "{wrong}");
        }
    }
}
