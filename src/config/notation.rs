//! Notations: how the value of a key is written in a file, judged and printed.
//!
//! Owns the shared ones; a section may have its own. A notation is a type without values, named in a key's
//! declaration: `Count<1, 100>`, `Optional<Text>`, `Nested`.

use std::path::Path;
use std::time::Duration;

use regex::Regex;
use serde_json::{Map, Value as Json};

use super::check;
use super::errors::quoted;
use super::mapping::{Mapping, Word};
use super::schema::{Entries, Printed, Section, Shape};
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
    const SHAPE: Shape;

    /// `None` if absent, or if wrong and reported.
    fn read(mapping: &Mapping<'_>, name: &str) -> Option<T>;

    fn print(value: &T, name: &'static str, into: &mut Entries);
}

pub(super) trait Single<T> {
    const SHAPE: Shape = Shape::Value;

    /// An error ends a message, after the key's name.
    fn parse(word: Word<'_>) -> Result<T, String>;

    fn json(value: &T) -> Json;
}

/// Makes single values usable as keys. A blanket implementation would exclude sections and lists.
macro_rules! single {
    ($([$($parameters:tt)*] $notation:ty => $type:ty;)+) => {$(
        impl<$($parameters)*> Notation<$type> for $notation {
            const SHAPE: Shape = <Self as Single<$type>>::SHAPE;

            fn read(mapping: &Mapping<'_>, name: &str) -> Option<$type> {
                mapping.parsed(name, <Self as Single<$type>>::parse)
            }

            fn print(value: &$type, name: &'static str, into: &mut Entries) {
                into.push((name, Printed::Value(<Self as Single<$type>>::json(value))));
            }
        }
    )+};
}

single! {
    [T: Written] Text => T;
    [] Filled => String;
    [] GroupPattern => Pattern;
    [T: Choice] OneOf => T;
    [] Flag => bool;
    [const MIN: u64, const MAX: u64] Time<MIN, MAX> => Duration;
    [T: Number, const MIN: u64, const MAX: u64] Size<MIN, MAX> => T;
    [T: Number, const MIN: u64, const MAX: u64] Count<MIN, MAX> => T;
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

impl<T: Written> Single<T> for Text {
    fn parse(word: Word<'_>) -> Result<T, String> {
        T::parse(word.text, word.base)
    }

    fn json(value: &T) -> Json {
        value.text().into()
    }
}

#[derive(Debug)]
pub(super) struct Filled;

impl Single<String> for Filled {
    fn parse(word: Word<'_>) -> Result<String, String> {
        if word.text.is_empty() { Err("must not be empty".to_owned()) } else { Ok(word.text.to_owned()) }
    }

    fn json(value: &String) -> Json {
        value.as_str().into()
    }
}

/// Regular expression for the whole of a value; its first group is the result.
#[derive(Debug)]
pub(super) struct GroupPattern;

impl Single<Pattern> for GroupPattern {
    fn parse(word: Word<'_>) -> Result<Pattern, String> {
        let whole = expression(word.text)?;
        if whole.captures_len() < 2 {
            let text = quoted(word.text);
            return Err(format!(
                "{text} has no group; put what is the value in parentheses, as in `(prod|canary)-.*`"
            ));
        }
        Ok(Pattern::new(word.text, whole))
    }

    fn json(value: &Pattern) -> Json {
        value.text().into()
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

impl<T: Choice> Single<T> for OneOf {
    fn parse(word: Word<'_>) -> Result<T, String> {
        let found = T::WORDS.iter().find(|(text, _)| *text == word.text).map(|(_, value)| *value);
        found.ok_or_else(|| match T::WORDS {
            [(one, _), (other, _)] => format!("{} is neither `{one}` nor `{other}`", quoted(word.text)),
            words => {
                let words: Vec<String> = words.iter().map(|(text, _)| format!("`{text}`")).collect();
                format!("{} is none of {}", quoted(word.text), words.join(", "))
            }
        })
    }

    fn json(value: &T) -> Json {
        T::WORDS.iter().find(|(_, known)| known == value).map(|(text, _)| *text).into()
    }
}

/// `true` or `false`.
#[derive(Debug)]
pub(super) struct Flag;

impl Single<bool> for Flag {
    fn parse(word: Word<'_>) -> Result<bool, String> {
        match (word.text, word.plain) {
            ("true", true) => Ok(true),
            ("false", true) => Ok(false),
            ("true" | "false", false) => Err(format!("{} is in quotes; write it without", quoted(word.text))),
            _ => Err(format!("{} is neither true nor false", quoted(word.text))),
        }
    }

    fn json(value: &bool) -> Json {
        (*value).into()
    }
}

/// A duration; bounds in milliseconds.
#[derive(Debug)]
pub(super) struct Time<const MIN: u64, const MAX: u64>;

impl<const MIN: u64, const MAX: u64> Single<Duration> for Time<MIN, MAX> {
    const SHAPE: Shape = Shape::Duration(MIN, MAX);

    fn parse(word: Word<'_>) -> Result<Duration, String> {
        let millis = units::millis(units::parse_duration(word.text)?);
        in_range(word, Shape::Duration(MIN, MAX), millis).map(Duration::from_millis)
    }

    fn json(value: &Duration) -> Json {
        format_duration(units::millis(*value)).into()
    }
}

#[derive(Debug)]
pub(super) struct Size<const MIN: u64, const MAX: u64>;

impl<T: Number, const MIN: u64, const MAX: u64> Single<T> for Size<MIN, MAX> {
    const SHAPE: Shape = Shape::Size(MIN, MAX);

    fn parse(word: Word<'_>) -> Result<T, String> {
        fitting(word, in_range(word, Shape::Size(MIN, MAX), units::parse_size(word.text)?)?)
    }

    fn json(value: &T) -> Json {
        format_size((*value).try_into().unwrap_or(u64::MAX)).into()
    }
}

#[derive(Debug)]
pub(super) struct Count<const MIN: u64, const MAX: u64>;

impl<T: Number, const MIN: u64, const MAX: u64> Single<T> for Count<MIN, MAX> {
    const SHAPE: Shape = Shape::Count(MIN, MAX);

    fn parse(word: Word<'_>) -> Result<T, String> {
        fitting(word, in_range(word, Shape::Count(MIN, MAX), units::parse_count(word.text)?)?)
    }

    fn json(value: &T) -> Json {
        (*value).try_into().unwrap_or(u64::MAX).into()
    }
}

pub(super) trait Number: Copy + TryFrom<u64> + TryInto<u64> {}

impl<T: Copy + TryFrom<u64> + TryInto<u64>> Number for T {}

fn in_range(word: Word<'_>, shape: Shape, value: u64) -> Result<u64, String> {
    match shape.range() {
        Some((min, max)) if !(min..=max).contains(&value) => {
            Err(format!("{} is out of range; allowed is {}", quoted(word.text), shape.words()))
        }
        _ => Ok(value),
    }
}

fn fitting<T: TryFrom<u64>>(word: Word<'_>, value: u64) -> Result<T, String> {
    T::try_from(value).map_err(|_| format!("{} is too large for this machine", quoted(word.text)))
}

/// A key that may be absent, without a default.
#[derive(Debug)]
pub(super) struct Optional<N>(N);

impl<T, N: Notation<T>> Notation<Option<T>> for Optional<N> {
    const SHAPE: Shape = N::SHAPE;

    fn read(mapping: &Mapping<'_>, name: &str) -> Option<Option<T>> {
        Some(mapping.has(name).then(|| N::read(mapping, name)).flatten())
    }

    fn print(value: &Option<T>, name: &'static str, into: &mut Entries) {
        if let Some(value) = value {
            N::print(value, name, into);
        }
    }
}

/// Wrong values are reported and skipped.
#[derive(Debug)]
pub(super) struct List<N>(N);

impl<C, N> Notation<C> for List<N>
where
    C: Clone + IntoIterator + FromIterator<C::Item>,
    N: Single<C::Item>,
{
    const SHAPE: Shape = Shape::Value;

    fn read(mapping: &Mapping<'_>, name: &str) -> Option<C> {
        mapping.words(name, N::parse).map(C::from_iter)
    }

    fn print(value: &C, name: &'static str, into: &mut Entries) {
        let items = value.clone().into_iter().map(|item| N::json(&item));
        into.push((name, Printed::Value(items.collect())));
    }
}

#[derive(Debug)]
pub(super) struct Anything;

impl Notation<Map<String, Json>> for Anything {
    const SHAPE: Shape = Shape::Value;

    fn read(mapping: &Mapping<'_>, name: &str) -> Option<Map<String, Json>> {
        mapping.free(name)
    }

    fn print(value: &Map<String, Json>, name: &'static str, into: &mut Entries) {
        into.push((name, Printed::Value(value.clone().into())));
    }
}

/// A section; an absent one reads as empty.
#[derive(Debug)]
pub(super) struct Nested;

impl<T: Section> Notation<T> for Nested {
    const SHAPE: Shape = Shape::Section(T::KEYS);

    fn read(mapping: &Mapping<'_>, name: &str) -> Option<T> {
        whole(&mapping.section(name))
    }

    fn print(value: &T, name: &'static str, into: &mut Entries) {
        into.push((name, Printed::Section(entries(value))));
    }
}

/// Keys of another struct that stand in the same mapping.
#[derive(Debug)]
pub(super) struct Beside;

impl<T: Section> Notation<T> for Beside {
    const SHAPE: Shape = Shape::Part(T::KEYS);

    fn read(mapping: &Mapping<'_>, _: &str) -> Option<T> {
        T::read(mapping)
    }

    fn print(value: &T, _: &'static str, into: &mut Entries) {
        value.print(into);
    }
}

/// A list of sections; skips reported ones.
#[derive(Debug)]
pub(super) struct Each;

impl<T: Section> Notation<Vec<T>> for Each {
    const SHAPE: Shape = Shape::Sections(T::KEYS);

    fn read(mapping: &Mapping<'_>, name: &str) -> Option<Vec<T>> {
        mapping.check_list(name);
        Some(mapping.sections(name)?.iter().filter_map(whole).collect())
    }

    fn print(value: &Vec<T>, name: &'static str, into: &mut Entries) {
        into.push((name, Printed::Sections(value.iter().map(entries).collect())));
    }
}

/// Reads a section with its parts. Reports another value in its place, and unknown keys.
pub(super) fn whole<T: Section>(mapping: &Mapping<'_>) -> Option<T> {
    if !mapping.is_mapping("a mapping") {
        return None;
    }
    check::unknown_keys(mapping, T::KEYS);
    T::read(mapping)
}

pub(super) fn entries<T: Section>(section: &T) -> Entries {
    let mut entries = Entries::new();
    section.print(&mut entries);
    entries
}
