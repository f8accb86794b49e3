//! Declarations of keys: the macro that makes them, and what is looked up in them.
//!
//! A key is declared once, where the struct of its section is: type, notation and range, default, when a change takes
//! effect, and the help that users read. The struct, its reader, the printed configuration, `config/reference.yaml`, the
//! table of reloads in `docs/operations.md` and the rules of a reload follow from that. To add a key, add a field:
//!
//! ```text
//! /// Removed names remembered per type, for clients that were slow or away.
//! #[key(Count<1, 100_000_000>, default = 10_000, effect = AtOnce, note = "for each type with its next change")]
//! pub tombstones: usize,
//! ```
//!
//! Then use it in the program, and run `UPDATE_DOCS=1 cargo test --lib config`, which writes both pages again.
//!
//! | Part | Meaning |
//! |---|---|
//! | the comment | Help of the reference, which adds the range. Says the default where that is no constant. |
//! | the first word in `key` | Notation, with the range in milliseconds, bytes or things: one of `notation`, or of the section itself. |
//! | `default` | Value of an absent key; may name the keys above. |
//! | `required` | Instead of a default: the end of the message `is missing; write …`. |
//! | `example` | Value that the reference shows in a comment, where the default depends on the machine or is absent. |
//! | `effect` | When a change takes effect, with a `note` where that is not all. A key without takes that of its section. |

use std::sync::LazyLock;

use super::Config;
use super::changes::Effect;
use super::mapping::Mapping;
use super::printed::Entries;
use super::units::{format_duration, format_size};
use super::yaml::{Tree, Value};

/// One declared key.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) name: &'static str,
    /// In Markdown, as its comment stands in the code.
    pub(super) help: &'static str,
    pub(super) shape: Shape,
    /// As YAML on one line.
    pub(super) example: Option<&'static str>,
    pub(super) effect: Option<Effect>,
    /// End of the sentence of the effect.
    pub(super) note: Option<&'static str>,
}

/// Form of the value of a key. Ranges are inclusive.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    /// A mapping of these keys.
    Section(&'static [Key]),
    /// No mapping of its own: these keys stand beside those of the section that has them.
    Part(&'static [Key]),
    /// A list of sections with these keys.
    Sections(&'static [Key]),
    /// A list of texts.
    Texts,
    /// A mapping of anything.
    Free,
    /// A text, with rules of its own.
    Text,
    /// In milliseconds.
    Duration(u64, u64),
    /// In bytes.
    Size(u64, u64),
    Count(u64, u64),
}

impl Shape {
    /// Lowest and highest value.
    pub(super) const fn range(self) -> Option<(u64, u64)> {
        match self {
            Self::Duration(min, max) | Self::Size(min, max) | Self::Count(min, max) => Some((min, max)),
            _ => None,
        }
    }

    /// The range, as messages and the reference write it; empty where there is none.
    pub(super) fn words(self) -> String {
        match self {
            Self::Duration(min, max) => format!("{} to {}", format_duration(min), format_duration(max)),
            Self::Size(min, max) => format!("{} to {}", format_size(min), format_size(max)),
            Self::Count(min, max) => format!("{min} to {max}"),
            _ => String::new(),
        }
    }

    /// The keys below this one.
    pub(super) const fn keys(self) -> &'static [Key] {
        match self {
            Self::Section(keys) | Self::Part(keys) | Self::Sections(keys) => keys,
            _ => &[],
        }
    }
}

/// A mapping of declared keys. Made by [`section!`], or by hand where keys exclude or need one another.
pub(super) trait Section: Sized {
    const KEYS: &'static [Key];

    /// Reads all keys. `None` where a problem was reported that leaves nothing to go on with.
    fn read(mapping: &Mapping<'_>) -> Option<Self>;

    /// Writes all keys, in the order of their declaration.
    fn print(&self, into: &mut Entries);
}

/// Declares a section: a struct with a key for each field. See the module.
///
/// `#[check(function)]` names a function that holds values against each other once all of them are read.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),+)])?
        $(#[check($check:path)])?
        $visible:vis struct $section:ident {$(
            $(#[doc = $help:literal])+
            #[key(
                $notation:ty
                $(, default = $default:expr)?
                $(, required = $required:literal)?
                $(, example = $example:literal)?
                $(, effect = $effect:ident $(, note = $note:literal)?)?
            )]
            $open:vis $key:ident: $type:ty,
        )+}
    ) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, PartialEq)]
        $(#[derive($($derive),+)])?
        $visible struct $section {$(
            $(#[doc = $help])+
            $open $key: $type,
        )+}

        impl $crate::config::schema::Section for $section {
            const KEYS: &'static [$crate::config::schema::Key] = &[$($crate::config::schema::Key {
                name: stringify!($key),
                help: concat!($($help, "\n"),+),
                shape: <$notation as $crate::config::notation::Notation<$type>>::SHAPE,
                example: $crate::config::schema::optional!($($example)?),
                effect: $crate::config::schema::optional!($($crate::config::changes::Effect::$effect)?),
                note: $crate::config::schema::optional!($($($note)?)?),
            }),+];

            fn read(mapping: &$crate::config::mapping::Mapping<'_>) -> Option<Self> {
                $(let $key: Option<$type> = $crate::config::schema::read_key!(
                    mapping, stringify!($key), $notation $(, default $default)? $(, required $required)?
                );)+
                // All keys are read before one that is missing ends this, so that all problems are told.
                let section = Self { $($key: $key?),+ };
                $($check(&section, mapping);)?
                Some(section)
            }

            fn print(&self, into: &mut $crate::config::printed::Entries) {
                $(<$notation as $crate::config::notation::Notation<$type>>::print(&self.$key, stringify!($key), into);)+
            }
        }
    };
}

macro_rules! optional {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! read_key {
    ($mapping:ident, $name:expr, $notation:ty) => {
        <$notation as $crate::config::notation::Notation<_>>::read($mapping, $name)
    };
    ($mapping:ident, $name:expr, $notation:ty, default $default:expr) => {
        $crate::config::schema::read_key!($mapping, $name, $notation).or_else(|| Some($default))
    };
    ($mapping:ident, $name:expr, $notation:ty, required $what:literal) => {{
        $mapping.require($name, $what);
        $crate::config::schema::read_key!($mapping, $name, $notation)
    }};
}

pub(super) use {optional, read_key, section};

/// A key that users may expect and that this version cannot do. Deleting the row lifts the refusal.
pub(super) struct NotYet {
    pub(super) path: &'static str,
    pub(super) when: When,
    /// The subject of the message.
    pub(super) subject: &'static str,
    /// The remedy.
    pub(super) instead: &'static str,
}

/// Which values of a key are refused.
#[derive(Debug, Clone, Copy)]
pub(super) enum When {
    Present,
    /// Anything but an empty list.
    NotEmpty,
    /// From the second entry of a list on.
    Several,
}

const fn not_yet(path: &'static str, when: When, subject: &'static str, instead: &'static str) -> NotYet {
    NotYet { path, when, subject, instead }
}

pub(super) const NOT_YET: &[NotYet] = &[
    not_yet("snapshot", When::Present, "`snapshot`", "leave it out"),
    not_yet("groups", When::NotEmpty, "`groups`", "leave it out or write []"),
    not_yet("upstream.servers", When::Several, "a second entry in `upstream.servers`", "list one server"),
];

impl NotYet {
    pub(super) fn message(&self) -> String {
        format!("{} is not supported yet by this version; {}", self.subject, self.instead)
    }

    pub(super) fn refuses(&self, tree: &Tree) -> bool {
        match (self.when, &tree.value) {
            (_, Value::Refused) => false,
            (When::Present, _) => true,
            (When::NotEmpty, Value::List(items)) => !items.is_empty(),
            (When::NotEmpty, _) => true,
            (When::Several, Value::List(items)) => items.len() > 1,
            (When::Several, _) => false,
        }
    }
}

/// Every key with its path, in the order of the declarations. Segments are joined by `.`; `[]` stands for each entry of a
/// list, as in `downstream.listeners[].address`.
pub(super) static ALL: LazyLock<Vec<(String, &'static Key)>> = LazyLock::new(|| {
    let mut all = Vec::new();
    collect(Config::KEYS, "", &mut all);
    all
});

fn collect(keys: &'static [Key], section: &str, all: &mut Vec<(String, &'static Key)>) {
    for key in children(keys) {
        let path = join(section, key.name);
        let entry = if matches!(key.shape, Shape::Sections(_)) { format!("{path}[]") } else { path.clone() };
        all.push((path, key));
        collect(key.shape.keys(), &entry, all);
    }
}

/// The keys that stand in one mapping, those of parts included.
pub(super) fn children(keys: &'static [Key]) -> Vec<&'static Key> {
    let of = |key: &'static Key| match key.shape {
        Shape::Part(keys) => children(keys),
        _ => vec![key],
    };
    keys.iter().flat_map(of).collect()
}

/// The names that a section may hold, refused ones included.
pub(super) fn names(section: &str, keys: &'static [Key]) -> Vec<&'static str> {
    let mut names: Vec<_> = children(keys).into_iter().map(|key| key.name).collect();
    let refused = NOT_YET.iter().filter_map(|row| match row.path.rsplit_once('.') {
        Some((of, name)) => (of == section).then_some(name),
        None => section.is_empty().then_some(row.path),
    });
    for name in refused {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

pub(super) fn join(section: &str, name: &str) -> String {
    if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") }
}

/// Which of these a word was probably meant to be.
pub(super) fn near<'k>(known: impl IntoIterator<Item = &'k str>, word: &str) -> Option<&'k str> {
    /// A longer word is no slip of the keyboard, and the distance of a huge one takes long to compute.
    const LONGEST: usize = 64;
    known
        .into_iter()
        .filter(|_| word.len() <= LONGEST)
        .map(|known| (strsim::osa_distance(known, word), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}

/// Key that an unknown one was probably meant to be: one with a near name in its section, else one with this name in
/// another place.
pub(super) fn nearest(section: &str, keys: &'static [Key], name: &str) -> Option<String> {
    if let Some(known) = near(names(section, keys), name) {
        return Some(known.to_owned());
    }
    let elsewhere = ALL.iter().filter(|(_, key)| key.name == name);
    elsewhere.map(|(path, _)| path).min_by_key(|path| !path.starts_with(section)).cloned()
}
