//! Figures beside what they are to reach (`docs/benchmarks.md`). They say, they do not fail: machines differ.

/// Bound that a figure has to reach, and one that it had better.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Goal {
    pub(crate) must: f64,
    pub(crate) stretch: f64,
}

impl Goal {
    pub(crate) const fn new(must: f64, stretch: f64) -> Self {
        Self { must, stretch }
    }

    /// A figure that should be small.
    pub(crate) fn at_most(self, what: &str, value: f64) {
        self.print(what, value, '≤', |value, goal| value <= goal);
    }

    /// A figure that should be large.
    pub(crate) fn at_least(self, what: &str, value: f64) {
        self.print(what, value, '≥', |value, goal| value >= goal);
    }

    fn print(self, what: &str, value: f64, sign: char, holds: fn(f64, f64) -> bool) {
        let verdict = |goal| if holds(value, goal) { "PASS" } else { "BELOW" };
        let Self { must, stretch } = self;
        println!(
            "    {what}: {value:.2}   must {sign} {must}: {}   stretch {sign} {stretch}: {}",
            verdict(must),
            verdict(stretch)
        );
    }
}
