//! Notation of durations and sizes: `300ms`, `20s`, `4MiB`.
//!
//! Owns reading and printing; knows no key and no range. Printed values read back the same.

use std::time::Duration;

use super::errors::quoted;

/// Largest first, so that printing finds the shortest form.
const DURATION_UNITS: [(&str, u64); 4] = [("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];
const SIZE_UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

const DURATION_FORMS: &str = "durations are written `300ms`, `20s`, `30m`, `1h`";
const SIZE_FORMS: &str = "sizes are written `64KiB`, `4MiB`, `1GiB`, or in plain bytes";

/// Returns milliseconds; the number may have a fraction (`1.5s`), the unit is mandatory.
pub(super) fn parse_duration(text: &str) -> Result<u64, String> {
    let (number, unit) = split_unit(text);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(format!("{} is not a duration; {DURATION_FORMS}", quoted(text)));
    }
    if unit.is_empty() {
        return Err(format!("{} has no unit; {DURATION_FORMS}", quoted(text)));
    }
    let Some((_, scale)) = DURATION_UNITS.into_iter().find(|(name, _)| *name == unit) else {
        return Err(format!("{} is not a duration; {DURATION_FORMS}", quoted(text)));
    };
    let whole_millis = whole.parse::<u64>().ok().and_then(|whole| whole.checked_mul(scale));
    let whole_millis = whole_millis.ok_or_else(|| format!("{} is too long", quoted(text)))?;

    let fraction = fraction.trim_end_matches('0');
    let fraction_millis = fraction_of(fraction, scale)
        .ok_or_else(|| format!("{} is not a whole number of milliseconds", quoted(text)))?;
    Ok(whole_millis.saturating_add(fraction_millis))
}

/// Reads a duration of the command line.
///
/// # Errors
///
/// Text that is none, with the notation.
pub fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).map(Duration::from_millis)
}

/// `0.DIGITS` of `scale`, if that is a whole number.
fn fraction_of(digits: &str, scale: u64) -> Option<u64> {
    if digits.is_empty() {
        return Some(0);
    }
    let divisor = 10_u64.checked_pow(u32::try_from(digits.len()).ok()?)?;
    let product = digits.parse::<u64>().ok()?.checked_mul(scale)?;
    product.is_multiple_of(divisor).then_some(product / divisor)
}

/// In bytes; integers only.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
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

pub(super) fn parse_count(text: &str) -> Result<u64, String> {
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
pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

pub(super) fn format_duration(millis: u64) -> String {
    if millis == 0 {
        return "0s".to_owned();
    }
    let fits = |scale: u64| millis.is_multiple_of(scale);
    let (unit, scale) = DURATION_UNITS.into_iter().find(|(_, scale)| fits(*scale)).unwrap_or(("ms", 1));
    format!("{}{unit}", millis / scale)
}

pub(super) fn format_size(bytes: u64) -> String {
    match SIZE_UNITS.into_iter().find(|(_, scale)| bytes > 0 && bytes.is_multiple_of(*scale)) {
        Some((unit, scale)) => format!("{}{unit}", bytes / scale),
        None => bytes.to_string(),
    }
}
