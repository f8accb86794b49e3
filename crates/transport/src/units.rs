//! Notation of durations and sizes: `300ms`, `20s`, `4MiB`.
//!
//! Owns reading and printing; knows no key and no range. Printed values read back the same.

use std::time::Duration;

use crate::terminal::quoted;

/// Largest first, so that printing finds the shortest form.
const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

const DURATION_FORMS: &str = "durations are written `300ms`, `20s`, `30m`, `1h`";
const SIZE_FORMS: &str = "sizes are written `64KiB`, `4MiB`, `1GiB`, or in plain bytes";

/// Whole milliseconds; the number may have a fraction (`1.5s`), the unit is mandatory.
///
/// # Errors
///
/// Text in another notation.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    /// Exact as `f64`: 31,000 years.
    const MOST: f64 = 1e15;
    let (number, unit) = split_unit(text);
    let scale = DURATION_UNITS.into_iter().find(|(name, _)| *name == unit);
    let (Ok(value), Some((_, scale))) = (number.parse::<f64>(), scale) else {
        let has_unit = number.is_empty() || !unit.is_empty();
        let problem = if has_unit { "is not a duration" } else { "has no unit" };
        return Err(format!("{} {problem}; {DURATION_FORMS}", quoted(text)));
    };
    let millis = value * scale as f64;
    if millis > MOST {
        return Err(format!("{} is too long", quoted(text)));
    }
    // 1.1 is no binary fraction: 1000 times 1.1 may not be quite 1100.
    if (millis - millis.round()).abs() > 1e-6 {
        return Err(format!("{} is not a whole number of milliseconds", quoted(text)));
    }
    Ok(Duration::from_millis(millis.round() as u64))
}

/// In bytes; integers only.
///
/// # Errors
///
/// Text in another notation.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let scale = match SIZE_UNITS.into_iter().find(|(name, _)| *name == unit) {
        Some((_, scale)) => scale,
        None if unit.is_empty() => 1,
        None => return Err(format!("{} is not a size; {SIZE_FORMS}", quoted(text))),
    };
    if number.is_empty() || number.contains('.') {
        return Err(format!("{} is not a size; {SIZE_FORMS}", quoted(text)));
    }
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(scale));
    bytes.ok_or_else(|| format!("{} is too large", quoted(text)))
}

/// Whole number.
///
/// # Errors
///
/// Text in another notation.
pub fn parse_count(text: &str) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{} is not a whole number", quoted(text)));
    }
    text.parse().map_err(|_| format!("{} is too large", quoted(text)))
}

fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

/// Milliseconds, as ranges have them. Every duration of a file fits.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub fn format_duration(millis: u64) -> String {
    if millis == 0 {
        return "0s".to_owned();
    }
    let fits = |scale: u64| millis.is_multiple_of(scale);
    let (unit, scale) = DURATION_UNITS.into_iter().find(|(_, scale)| fits(*scale)).unwrap_or(("ms", 1));
    format!("{}{unit}", millis / scale)
}

pub fn format_size(bytes: u64) -> String {
    match SIZE_UNITS.into_iter().find(|(_, scale)| bytes > 0 && bytes.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_have_a_unit_and_whole_milliseconds() {
        for (text, millis) in [
            ("0s", 0),
            ("300ms", 300),
            ("20s", 20_000),
            ("1.5s", 1500),
            ("0.001s", 1),
            ("1.001s", 1001),
            ("999999999999.999s", 999_999_999_999_999),
            ("1.500000000000000000000000s", 1500),
            ("30m", 1_800_000),
            ("0.5h", 1_800_000),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        let forms = "durations are written `300ms`, `20s`, `30m`, `1h`";
        assert_eq!(parse_duration("20"), Err(format!("`20` has no unit; {forms}")));
        assert_eq!(parse_duration("1.5"), Err(format!("`1.5` has no unit; {forms}")));
        for text in ["", "s", "1.2.3s", "-1s", "+1s", "1 s", "1S", "1d", "1m30s", "1e3s", "٣s"] {
            assert_eq!(parse_duration(text), Err(format!("`{text}` is not a duration; {forms}")), "{text}");
        }
        for text in ["0.5ms", "1.0001s"] {
            let problem = format!("`{text}` is not a whole number of milliseconds");
            assert_eq!(parse_duration(text), Err(problem), "{text}");
        }
        assert_eq!(
            parse_duration("99999999999999999999s"),
            Err("`99999999999999999999s` is too long".to_owned())
        );
        assert_eq!(parse_duration("9999999999999999h"), Err("`9999999999999999h` is too long".to_owned()));
    }

    #[test]
    fn sizes_are_bytes_or_binary_units() {
        for (text, bytes) in [("0", 0), ("17", 17), ("64KiB", 65_536), ("4MiB", 4 << 20), ("1GiB", 1 << 30)] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
        let forms = "sizes are written `64KiB`, `4MiB`, `1GiB`, or in plain bytes";
        for text in ["", "MiB", "4MB", "4 MiB", "4mib", "1.5MiB", "-1", "4M"] {
            assert_eq!(parse_size(text), Err(format!("`{text}` is not a size; {forms}")), "{text}");
        }
        assert_eq!(parse_size("99999999999999999999"), Err("`99999999999999999999` is too large".to_owned()));
        assert_eq!(
            parse_size("18446744073709551615KiB"),
            Err("`18446744073709551615KiB` is too large".to_owned())
        );
    }

    #[test]
    fn counts_are_digits() {
        assert_eq!(parse_count("100000"), Ok(100_000));
        for text in ["", "-1", "+1", "1.0", "1e3", "100_000", "0x10", "many"] {
            assert_eq!(parse_count(text), Err(format!("`{text}` is not a whole number")), "{text}");
        }
        assert_eq!(
            parse_count("99999999999999999999"),
            Err("`99999999999999999999` is too large".to_owned())
        );
    }

    proptest! {
        #[test]
        fn a_printed_value_reads_back(millis in 0_u64..1_000_000_000_000_000, bytes in any::<u64>()) {
            prop_assert_eq!(parse_duration(&format_duration(millis)), Ok(Duration::from_millis(millis)));
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn no_text_makes_the_readers_panic(text in "[0-9.]{0,30}[a-zA-Z]{0,4}|.{0,20}") {
            let _ = (parse_duration(&text).is_ok(), parse_size(&text).is_ok(), parse_count(&text).is_ok());
        }
    }
}
