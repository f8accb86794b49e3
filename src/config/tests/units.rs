use proptest::prelude::*;

use crate::config::units::{format_duration, format_size, parse_count, parse_duration, parse_size};

#[test]
fn durations_have_a_unit_and_whole_milliseconds() {
    for (text, millis) in [
        ("0s", 0),
        ("300ms", 300),
        ("20s", 20_000),
        ("1.5s", 1500),
        ("0.001s", 1),
        ("1.500000000000000000000000s", 1500),
        ("30m", 1_800_000),
        ("0.5h", 1_800_000),
    ] {
        assert_eq!(parse_duration(text), Ok(millis), "{text}");
    }
    let forms = "durations are written `300ms`, `20s`, `30m`, `1h`";
    assert_eq!(parse_duration("20"), Err(format!("`20` has no unit; {forms}")));
    assert_eq!(parse_duration("1.5"), Err(format!("`1.5` has no unit; {forms}")));
    for text in ["", "s", ".5s", "5.s", "1.2.3s", "-1s", "+1s", "1 s", "1S", "1d", "1m30s", "1e3s", "٣s"] {
        assert_eq!(parse_duration(text), Err(format!("`{text}` is not a duration; {forms}")), "{text}");
    }
    for text in ["0.5ms", "1.0001s", "1.00000000000000000000001s"] {
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
    assert_eq!(parse_count("99999999999999999999"), Err("`99999999999999999999` is too large".to_owned()));
}

proptest! {
    #[test]
    fn a_printed_value_reads_back(millis in any::<u64>(), bytes in any::<u64>()) {
        prop_assert_eq!(parse_duration(&format_duration(millis)), Ok(millis));
        prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in "[0-9.]{0,30}[a-zA-Z]{0,4}|.{0,20}") {
        let _ = (parse_duration(&text).is_ok(), parse_size(&text).is_ok(), parse_count(&text).is_ok());
    }
}
