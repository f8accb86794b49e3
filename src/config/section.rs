//! Declaration of keys: the macro that makes a section of a struct.
//!
//! A key is declared once, in the struct of its section: type, notation, range, default, effect, and the help
//! for users. The struct, its reader, the printed configuration, `config/reference.yaml`, the list of reloads
//! in `docs/configure.md` and the rules of a reload follow from that. To add a key, add a field:
//!
//! ```text
//! /// Removed names remembered per type, for clients that were slow or away.
//! #[key(Count<1, 100_000_000>, default = 10_000, effect = AtOnce, note = "for each type with its next change")]
//! pub tombstones: usize,
//! ```
//!
//! Then use it, and run `UPDATE_DOCS=1 cargo test --lib config`, which writes both pages again.
//!
//! | Part | Meaning |
//! |---|---|
//! | the comment | Help of the reference, which adds the range. Says the default if that is no constant. |
//! | the first word in `key` | Notation of `notation` or of the section, with the range in milliseconds, bytes or things. |
//! | `name` | Key in the file, if that is a word of Rust. |
//! | `default` | Value of an absent key; may name the keys above. |
//! | `required` | Instead of a default: the end of the message `is missing; write …`. |
//! | `example` | Value in a comment of the reference, if the default is absent or depends on the machine. |
//! | `effect` | When a change takes effect, with a `note` on exceptions. Without it, the section's applies. |

/// Declares a section: a struct with a key for each field.
///
/// `#[check(function)]` names a function that compares values once all of them are read, and none is wrong.
macro_rules! section {
    (
        $(#[doc = $doc:literal])*
        $(#[derive($($derive:ident),+)])?
        $(#[check($check:path)])?
        $visible:vis struct $section:ident {$(
            $(#[doc = $help:literal])+
            #[key(
                $notation:ty
                $(, name = $name:literal)?
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
                name: $crate::config::section::key_name!($key $(, $name)?),
                #[cfg(test)]
                help: concat!($($help, "\n"),+),
                shape: <$notation as $crate::config::notation::Notation<$type>>::SHAPE,
                #[cfg(test)]
                example: $crate::config::section::optional!($($example)?),
                effect: $crate::config::section::optional!($($crate::config::schema::Effect::$effect)?),
                #[cfg(test)]
                note: $crate::config::section::optional!($($($note)?)?),
            }),+];

            fn read(place: &$crate::config::place::Place<'_>) -> Option<Self> {
                let problems = place.report().count();
                $(let $key: Option<$type> = $crate::config::section::read_key!(
                    place, $crate::config::section::key_name!($key $(, $name)?), $notation $(, default $default)? $(, required $required)?
                );)+
                // Read all keys before a missing one returns: all problems are reported.
                let section = Self { $($key: $key?),+ };
                if place.report().count() == problems {
                    $($check(&section, place);)?
                }
                Some(section)
            }

            fn print(&self) -> $crate::config::schema::Entries {
                let printed = [$((
                    $crate::config::section::key_name!($key $(, $name)?),
                    <$notation as $crate::config::notation::Notation<$type>>::print(&self.$key),
                )),+];
                printed.into_iter().filter_map(|(name, printed)| Some((name, printed?))).collect()
            }
        }
    };
}

macro_rules! key_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident, $name:literal) => {
        $name
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
    ($place:ident, $name:expr, $notation:ty) => {
        <$notation as $crate::config::notation::Notation<_>>::read(&$place.at($name))
    };
    ($place:ident, $name:expr, $notation:ty, default $default:expr) => {
        $crate::config::section::read_key!($place, $name, $notation).or_else(|| Some($default))
    };
    ($place:ident, $name:expr, $notation:ty, required $what:literal) => {{
        $place.at($name).require($what);
        $crate::config::section::read_key!($place, $name, $notation)
    }};
}

pub(super) use {key_name, optional, read_key, section};
