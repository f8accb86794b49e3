//! Unified diff of the JSON of two states of a resource.
//!
//! Owns its bounds. Shows no Secret, and no value that the API marks as sensitive.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use similar::TextDiff;

use super::config_dump::LARGEST_BODY;
use crate::descriptors::Descriptors;
use crate::resource::{Resource, TypeUrl};

/// Time for a comparison; after it the rest is coarse.
const COMPARING: Duration = Duration::from_millis(100);
/// Bytes after which a diff is cut.
const LONGEST: usize = 1 << 20;

/// Resource of a state, `None` if it did not exist then; or why its content is not here.
pub(super) type State = Result<Option<Arc<Resource>>, String>;

/// Version's name and state.
pub(super) type Side = (String, State);

#[derive(Debug, Serialize)]
pub(super) struct DiffReport {
    from: String,
    to: String,
    /// `None` if a note says why there is no diff.
    text: Option<String>,
    note: Option<String>,
}

/// State whose content is no longer held, or must not be.
pub(super) fn lost(version: &str) -> State {
    Err(format!("the relay does not hold the content of {version}; compare bytes and digests"))
}

/// Compares two states.
pub(super) fn diff(descriptors: &Descriptors, type_url: &TypeUrl, from: Side, to: Side) -> DiffReport {
    let (text, note) = match compare(descriptors, type_url, &from, &to) {
        Ok(text) if text.is_empty() => (None, Some(SAME.to_owned())),
        Ok(mut text) => {
            let note = (text.len() > LONGEST).then(|| {
                text.truncate(text.floor_char_boundary(LONGEST));
                "the rest is left out: the diff is longer than 1 MiB".to_owned()
            });
            (Some(text), note)
        }
        Err(reason) => (None, Some(reason)),
    };
    DiffReport { from: from.0, to: to.0, text, note }
}

const SAME: &str = "what is shown is equal: only values that are hidden differ, or their encoding";

fn compare(descriptors: &Descriptors, type_url: &TypeUrl, from: &Side, to: &Side) -> Result<String, String> {
    if type_url.is_secret() {
        return Err("the content of a Secret is not shown".to_owned());
    }
    if let (Ok(Some(from)), Ok(Some(to))) = (&from.1, &to.1)
        && from.body() == to.body()
    {
        return Err("the content is the same; only the version changed".to_owned());
    }
    let json = |side| json(descriptors, side);
    let (old, new) = (json(from)?, json(to)?);
    let diff = TextDiff::configure().timeout(COMPARING).diff_lines(&old, &new);
    let mut text = String::new();
    // Writing to a String cannot fail.
    _ = write!(text, "{}", diff.unified_diff().context_radius(3).header(&from.0, &to.0));
    Ok(text)
}

/// Indented JSON, or why it cannot be shown.
fn json(descriptors: &Descriptors, (version, state): &Side) -> Result<String, String> {
    let Some(resource) = state.as_ref()? else { return Ok(String::new()) };
    if resource.body().len() > LARGEST_BODY {
        return Err(format!("{version} is larger than 1 MiB; compare bytes and digests"));
    }
    let json = descriptors.redacted_json(resource.body(), false).map_err(|error| {
        format!("{version} cannot be shown ({error}); `rest.descriptor_sets` adds types; compare bytes and digests")
    })?;
    serde_json::to_string_pretty(&json).map(|text| text + "\n").map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use deltafan_test_support::wire;

    use super::*;

    /// Number of `internal_only_headers`.
    const HEADERS: u8 = 3;

    /// A route configuration with these fields, which hold texts.
    fn of_fields(version: &str, fields: impl IntoIterator<Item = (u8, String)>) -> Side {
        let mut message = bytes::BytesMut::new();
        fields.into_iter().for_each(|(field, text)| wire::put(&mut message, field, text.as_bytes()));
        (version.to_owned(), Ok(Some(wire::envelope(&wire::type_url("rds"), "front", version, &message))))
    }

    /// A route configuration with these headers.
    fn routes(version: &str, headers: impl IntoIterator<Item = String>) -> Side {
        of_fields(version, headers.into_iter().map(|text| (HEADERS, text)))
    }

    fn compared(type_url: &str, from: Side, to: Side) -> DiffReport {
        diff(&Descriptors::default(), &wire::type_url(type_url), from, to)
    }

    #[test]
    fn a_diff_shows_a_few_lines_around_each_change() {
        let headers = |changed: usize| {
            (0..100).map(move |at| format!("header-{}", at + 1_000 * usize::from(at == changed)))
        };
        let (from, to) = (routes("1", headers(50)), routes("2", headers(101)));
        let report = compared("rds", from, to);
        let text = report.text.unwrap();
        assert!(text.starts_with("--- 1\n+++ 2\n@@ -51,7 +51,7 @@\n"), "{text}");
        assert!(text.contains("\n-    \"header-1050\",\n+    \"header-50\",\n"), "{text}");
        assert_eq!((text.lines().count(), report.note), (11, None));
    }

    #[test]
    fn a_note_says_why_there_is_no_diff() {
        let state = |version: &str| routes(version, [version.to_owned()]);
        let lost = || ("0".to_owned(), lost("0"));
        let large = || routes("3", std::iter::once("x".repeat(LARGEST_BODY)));
        let (same, other) = (routes("1", ["a".to_owned()]), routes("2", ["a".to_owned()]));
        let (name, header) = ((1, "front".to_owned()), (HEADERS, "a".to_owned()));
        let reordered = of_fields("1", [header.clone(), name.clone()]);
        let ordered = of_fields("2", [name, header]);
        for (type_url, from, to, note) in [
            ("sds", state("1"), state("2"), "the content of a Secret is not shown"),
            ("rds", lost(), state("2"), "does not hold the content of 0"),
            ("rds", state("1"), large(), "3 is larger than 1 MiB"),
            ("rds", same, other, "the content is the same"),
            ("rds", reordered, ordered, "what is shown is equal"),
        ] {
            let report = compared(type_url, from, to);
            assert!(report.note.as_ref().unwrap().contains(note), "{report:?}");
            assert_eq!(report.text, None);
        }
    }

    #[test]
    fn large_resources_that_have_nothing_in_common_are_compared_in_time() {
        const LINES: usize = 80_000;
        let of = |version: &str, step: usize| {
            let text = move |at: usize| format!("{:040}", at * step % 1_000_003);
            routes(version, (0..LINES).map(text))
        };
        let begin = Instant::now();
        let report = compared("rds", of("1", 7_919), of("2", 104_729));
        println!("{:?} for two bodies of {} bytes", begin.elapsed(), 42 * LINES);
        assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
        if let Some(text) = report.text {
            assert!(text.len() <= LONGEST && report.note.is_some());
        }
    }
}
