//! Level of the log while the program runs.

use std::fmt;

use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

const LONGEST: usize = 1 << 10;

pub struct LogLevel {
    /// In force, as it was written.
    level: Mutex<String>,
    put: Box<dyn Fn(EnvFilter) -> bool + Send + Sync>,
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LogLevel").field(&self.level).finish()
    }
}

impl LogLevel {
    /// Starts with a level in force. `put` installs another filter and returns whether it could.
    pub fn new(level: &str, put: impl Fn(EnvFilter) -> bool + Send + Sync + 'static) -> Self {
        Self { level: Mutex::new(level.to_owned()), put: Box::new(put) }
    }

    /// Filter of a level. Ignores an unreadable one.
    pub fn filter_lossy(level: &str) -> EnvFilter {
        EnvFilter::builder().parse_lossy(with_quiet(level))
    }

    /// Changes the level, and returns the old one.
    ///
    /// # Errors
    ///
    /// Reason for which it cannot be used, for operators.
    pub fn set(&self, level: &str) -> Result<String, String> {
        let allowed = "it has to be off, error, warn, info, debug or trace, or filters as in `info,deltafan::upstream=debug`";
        if level.is_empty() || level.len() > LONGEST {
            return Err(format!("`level` is empty or longer than {LONGEST} bytes; {allowed}"));
        }
        // A word that is no level would be a target, and all others would be silent.
        let is_level = |part: &str| {
            let level = part.rsplit('=').next().unwrap_or(part);
            !level.is_empty() && level.parse::<LevelFilter>().is_ok()
        };
        if let Some(part) = level.split(',').find(|part| !is_level(part)) {
            let part: String = part.chars().take(60).flat_map(char::escape_debug).collect();
            return Err(format!("`{part}` has no level; {allowed}"));
        }
        let filter = EnvFilter::builder().with_regex(false).parse(with_quiet(level));
        let filter = filter.map_err(|error| format!("`level` cannot be read: {error}; {allowed}"))?;
        let mut current = self.level.lock();
        if !(self.put)(filter) {
            return Err("the log is gone".to_owned());
        }
        Ok(std::mem::replace(&mut *current, level.to_owned()))
    }
}

/// rustls warns of each renegotiation that a peer asks for.
fn with_quiet(level: &str) -> String {
    format!("rustls=error,{level}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_that_cannot_be_read_changes_nothing() {
        let log = LogLevel::new("info", |_| true);
        let long = "info,".repeat(1_000);
        for wrong in ["", "loud", "a=b=c", "deltafan=loud", "info,deltafan", "info,,warn", "a=", &long] {
            let fault = log.set(wrong).expect_err(wrong);
            assert!(fault.contains("off, error, warn"), "{fault}");
        }
        assert_eq!(log.set("debug").unwrap(), "info");
        assert_eq!(log.set("info,deltafan::upstream=debug").unwrap(), "debug");
        assert_eq!(log.set("warn").unwrap(), "info,deltafan::upstream=debug");
    }
}
