//! Notations: how the value of a key is written in a file, judged and printed.
//!
//! Owns the shared ones; a section may have its own. A notation is a type without values, named in a key's
//! declaration: `Count<1, 100>`, `Optional<Text>`, `List<Nested>`.

use std::path::Path;
use std::time::Duration;

use regex::Regex;
use serde_json::{Map, Value as Json};

use super::check;
use super::errors::quoted;
use super::place::Place;
use super::schema::{Printed, Section, Shape};
use crate::resource::{MAX_AUTOMATON, Pattern, whole_match};
use crate::units::{self, format_duration, format_size};

/// Durations in milliseconds, sizes in bytes.
pub(super) const TICK: u64 = 1;
pub(super) const SECOND: u64 = 1000;
pub(super) const HOUR: u64 = 60 * 60 * SECOND;
pub(super) const DAY: u64 = 24 * HOUR;
pub(super) const MONTH: u64 = 30 * DAY;
/// Largest protobuf message.
pub(super) const MESSAGE: u64 = 2 << 30;
pub(super) const TIB: u64 = 1 << 40;

pub(super) trait Notation<T> {
    const SHAPE: Shape = Shape::Value;

    /// `None` if absent, or if wrong and reported.
    fn read(place: &Place<'_>) -> Option<T>;

    /// `None` if nothing is to be written.
    fn print(value: &T) -> Option<Printed>;
}

fn printed(value: impl Into<Json>) -> Option<Printed> {
    Some(Printed::Value(value.into()))
}

/// A type whose values have one text each.
pub(super) trait Written: Sized {
    /// Relative paths start from `base`.
    fn parse(text: &str, base: &Path) -> Result<Self, String>;

    fn text(&self) -> String;
}

impl Written for String {
    fn parse(text: &str, _: &Path) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn text(&self) -> String {
        self.clone()
    }
}

#[derive(Debug)]
pub(super) struct Text;

impl<T: Written> Notation<T> for Text {
    fn read(place: &Place<'_>) -> Option<T> {
        place.parsed(|text| T::parse(text, &place.report().base))
    }

    fn print(value: &T) -> Option<Printed> {
        printed(value.text())
    }
}

#[derive(Debug)]
pub(super) struct Filled;

impl Notation<String> for Filled {
    fn read(place: &Place<'_>) -> Option<String> {
        let filled = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        place.parsed(|text| filled(text).ok_or_else(|| "must not be empty".to_owned()))
    }

    fn print(value: &String) -> Option<Printed> {
        printed(value.as_str())
    }
}

/// Regular expression for the whole of a value.
#[derive(Debug)]
pub(super) struct Expression;

impl Notation<Pattern> for Expression {
    fn read(place: &Place<'_>) -> Option<Pattern> {
        place.parsed(|text| Ok(Pattern::new(text, expression(text)?)))
    }

    fn print(value: &Pattern) -> Option<Printed> {
        printed(value.text())
    }
}

pub(super) fn expression(text: &str) -> Result<Regex, String> {
    whole_match(text, MAX_AUTOMATON).map_err(|error| format!("{} is {error}", quoted(text)))
}

/// A type with few values, each with its word.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

#[derive(Debug)]
pub(super) struct OneOf;

impl<T: Choice> Notation<T> for OneOf {
    fn read(place: &Place<'_>) -> Option<T> {
        place.parsed(|text| {
            let found = T::WORDS.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
            found.ok_or_else(|| {
                let words: Vec<String> = T::WORDS.iter().map(|(word, _)| format!("`{word}`")).collect();
                format!("{} is not one of {}", quoted(text), words.join(", "))
            })
        })
    }

    fn print(value: &T) -> Option<Printed> {
        T::WORDS.iter().find(|(_, known)| known == value).and_then(|(text, _)| printed(*text))
    }
}

impl Choice for bool {
    const WORDS: &'static [(&'static str, Self)] = &[("true", true), ("false", false)];
}

/// `true` or `false`.
#[derive(Debug)]
pub(super) struct Flag;

impl Notation<bool> for Flag {
    fn read(place: &Place<'_>) -> Option<bool> {
        OneOf::read(place)
    }

    fn print(value: &bool) -> Option<Printed> {
        printed(*value)
    }
}

/// A duration; bounds in milliseconds.
#[derive(Debug)]
pub(super) struct Time<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Notation<Duration> for Time<MIN, MAX> {
    const SHAPE: Shape = Shape::Range(MIN, MAX, format_duration);

    fn read(place: &Place<'_>) -> Option<Duration> {
        let millis = |text: &str| units::parse_duration(text).map(units::millis);
        number(place, Self::SHAPE, millis).map(Duration::from_millis)
    }

    fn print(value: &Duration) -> Option<Printed> {
        printed(format_duration(units::millis(*value)))
    }
}

#[derive(Debug)]
pub(super) struct Size<const MIN: u64, const MAX: u64>;

impl<T: Number, const MIN: u64, const MAX: u64> Notation<T> for Size<MIN, MAX> {
    const SHAPE: Shape = Shape::Range(MIN, MAX, format_size);

    fn read(place: &Place<'_>) -> Option<T> {
        number(place, <Self as Notation<T>>::SHAPE, units::parse_size)
    }

    fn print(value: &T) -> Option<Printed> {
        printed(format_size((*value).try_into().unwrap_or(u64::MAX)))
    }
}

#[derive(Debug)]
pub(super) struct Count<const MIN: u64, const MAX: u64>;

impl<T: Number, const MIN: u64, const MAX: u64> Notation<T> for Count<MIN, MAX> {
    const SHAPE: Shape = Shape::Range(MIN, MAX, |count| count.to_string());

    fn read(place: &Place<'_>) -> Option<T> {
        number(place, <Self as Notation<T>>::SHAPE, units::parse_count)
    }

    fn print(value: &T) -> Option<Printed> {
        printed((*value).try_into().unwrap_or(u64::MAX))
    }
}

pub(super) trait Number: Copy + TryFrom<u64> + TryInto<u64> {}

impl<T: Copy + TryFrom<u64> + TryInto<u64>> Number for T {}

/// A number in the range of a shape.
fn number<T: TryFrom<u64>>(
    place: &Place<'_>,
    shape: Shape,
    parse: fn(&str) -> Result<u64, String>,
) -> Option<T> {
    place.parsed(|text| {
        let value = parse(text)?;
        let in_range = matches!(shape, Shape::Range(min, max, _) if (min..=max).contains(&value));
        let fitting = T::try_from(value).ok().filter(|_| in_range);
        let allowed = || shape.range().unwrap_or_default();
        fitting.ok_or_else(|| format!("{} is out of range; allowed is {}", quoted(text), allowed()))
    })
}

/// A key that may be absent, without a default.
#[derive(Debug)]
pub(super) struct Optional<N>(N);

impl<T, N: Notation<T>> Notation<Option<T>> for Optional<N> {
    const SHAPE: Shape = N::SHAPE;

    fn read(place: &Place<'_>) -> Option<Option<T>> {
        Some(place.is_there().then(|| N::read(place)).flatten())
    }

    fn print(value: &Option<T>) -> Option<Printed> {
        value.as_ref().and_then(N::print)
    }
}

/// Wrong values are reported and skipped.
#[derive(Debug)]
pub(super) struct List<N>(N);

impl<C, N> Notation<C> for List<N>
where
    C: Clone + IntoIterator + FromIterator<C::Item>,
    N: Notation<C::Item>,
{
    const SHAPE: Shape = match N::SHAPE {
        Shape::Section(keys) => Shape::Sections(keys),
        _ => Shape::Value,
    };

    fn read(place: &Place<'_>) -> Option<C> {
        Some(place.items()?.iter().filter_map(N::read).collect())
    }

    fn print(value: &C) -> Option<Printed> {
        Some(Printed::List(value.clone().into_iter().filter_map(|item| N::print(&item)).collect()))
    }
}

#[derive(Debug)]
pub(super) struct Anything;

impl Notation<Map<String, Json>> for Anything {
    fn read(place: &Place<'_>) -> Option<Map<String, Json>> {
        place.json()
    }

    fn print(value: &Map<String, Json>) -> Option<Printed> {
        printed(value.clone())
    }
}

/// A section; an absent one reads as empty.
#[derive(Debug)]
pub(super) struct Nested;

impl<T: Section> Notation<T> for Nested {
    const SHAPE: Shape = Shape::Section(T::KEYS);

    /// Reports another value in its place, and unknown keys.
    fn read(place: &Place<'_>) -> Option<T> {
        if !place.is_mapping("a mapping") {
            return None;
        }
        check::unknown_keys(place, T::KEYS);
        T::read(place)
    }

    fn print(value: &T) -> Option<Printed> {
        Some(Printed::Section(value.print()))
    }
}
