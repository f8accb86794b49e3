//! First fault of JSON or YAML that should be a message: its line, its path and the expected form.
//!
//! Repeats no value of the file, as parsers' errors do, because it may be a private key. Its words come from
//! the descriptors. From the file come only names of known fields, map keys and line numbers.

use std::fmt::Write as _;

use prost_reflect::{DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::Value;
use serde_path_to_error::{Deserializer, Segment, Track};
use serde_saphyr::granit_parser::{self, Event, Parser};

use super::{ANY, DescriptorError, message as descriptor, message_name};

/// Reads `value`, which stands at `place` in `text`.
///
/// # Errors
///
/// Its first fault. Example: `tlsCertificate.privateKey (line 7): expected envoy.config.core.v3.DataSource`.
pub(super) fn read(
    message: &MessageDescriptor,
    value: &Value,
    text: &str,
    place: &[Segment],
    options: &DeserializeOptions,
) -> Result<DynamicMessage, String> {
    let mut track = Track::new();
    let tracked = Deserializer::new(value, &mut track);
    let read = DynamicMessage::deserialize_with_options(message.clone(), tracked, options);
    read.map_err(|error| {
        // The error quotes values.
        if error.to_string().contains("recursion limit") {
            return "it nests too deep".to_owned();
        }
        let shown = track.path();
        let mut path: Vec<Segment> = shown.iter().cloned().collect();
        let is_whole = path.is_empty();
        let mut at = Part { kind: Kind::Message(message.clone()), whole: None, value };
        _ = path.iter().try_for_each(|step| at.enter(step));
        let (reason, unknown) = at.fault();
        path.extend(unknown.map(|key| Segment::Map { key: key.to_owned() }));
        match line_of(text, place.iter().chain(&path)) {
            Some(line) if is_whole => format!("line {line}: {reason}"),
            Some(line) => format!("{shown} (line {line}): {reason}"),
            None => reason,
        }
    })
}

/// Part of a value, and the kind that it should have.
struct Part<'v> {
    kind: Kind,
    /// Form of a list or map. Its elements have the `kind`.
    whole: Option<&'static str>,
    value: &'v Value,
}

impl<'v> Part<'v> {
    /// Goes one step down. `None` if the value or the descriptors do not lead there.
    fn enter(&mut self, step: &Segment) -> Option<()> {
        let parent = self.value;
        self.value = match step {
            Segment::Map { key } => parent.get(key)?,
            Segment::Seq { index } => parent.get(index)?,
            _ => return None,
        };
        if self.whole.take().is_some() {
            return Some(());
        }
        let Segment::Map { key } = step else { return None };
        let message = content(self.kind.as_message()?, parent)?.ok()?;
        if has_own_form(&message) {
            // The `value` of an Any.
            self.kind = Kind::Message(message);
            return Some(());
        }
        let field = field_of(&message, key)?;
        (self.kind, self.whole) = match field.kind() {
            Kind::Message(entry) if field.is_map() => {
                (entry.map_entry_value_field().kind(), Some("an object"))
            }
            kind => (kind, field.is_list().then_some("a list")),
        };
        Some(())
    }

    /// The fault, and the unknown field that it is about. That is never shown, because it may be a misplaced value.
    fn fault(&self) -> (String, Option<&'v str>) {
        let expected = || match self.whole {
            Some(whole) => (format!("expected {whole}"), None),
            // The debug form is the name of the type.
            None => (format!("expected {:?}", self.kind), None),
        };
        let message = self.kind.as_message().filter(|_| self.whole.is_none());
        let inner = match message.and_then(|message| content(message, self.value)) {
            Some(Ok(inner)) if !has_own_form(&inner) => inner,
            Some(Err(error)) => return (error.to_string(), None),
            _ => return expected(),
        };
        let Value::Object(fields) = self.value else { return expected() };
        let is_type = |key: &str| key == "@type" && message.is_some_and(|message| message.full_name() == ANY);
        if let Some(key) = fields.keys().find(|key| !is_type(key) && field_of(&inner, key).is_none()) {
            return (unknown_field(&inner, key), Some(key));
        }
        let is_set = |field: &FieldDescriptor| {
            let values = [field.json_name(), field.name()].map(|name| fields.get(name));
            values.into_iter().flatten().any(|value| !value.is_null())
        };
        for oneof in inner.oneofs() {
            let mut set = oneof.fields().filter(is_set);
            if let (Some(one), Some(other)) = (set.next(), set.next()) {
                return (format!("only one of {} and {} may be set", one.name(), other.name()), None);
            }
        }
        expected()
    }
}

/// Message whose fields are in a value: of an `Any` the one that it names, if any.
fn content(message: &MessageDescriptor, value: &Value) -> Option<Result<MessageDescriptor, DescriptorError>> {
    if message.full_name() != ANY {
        return Some(Ok(message.clone()));
    }
    let type_url = value.get("@type")?.as_str()?;
    Some(message_name(type_url).and_then(descriptor))
}

fn field_of(message: &MessageDescriptor, key: &str) -> Option<FieldDescriptor> {
    message.get_field_by_json_name(key).or_else(|| message.get_field_by_name(key))
}

fn unknown_field(message: &MessageDescriptor, key: &str) -> String {
    let mut text = format!("unknown field of {}", message.full_name());
    let names: Vec<_> =
        message.fields().flat_map(|field| [field.json_name().to_owned(), field.name().to_owned()]).collect();
    if let Some(name) = near(names.iter().map(String::as_str), key) {
        _ = write!(text, "; did you mean {name}?");
    }
    text
}

/// Whether the message may have another JSON form than an object of its fields.
fn has_own_form(message: &MessageDescriptor) -> bool {
    message.parent_file().package_name() == "google.protobuf"
}

/// Line of the value at the end of a path, or of the last step in the text. JSON is read as YAML.
fn line_of<'p>(text: &str, path: impl IntoIterator<Item = &'p Segment>) -> Option<usize> {
    let options = granit_parser::options! { emit_comments: false, emit_unresolved_aliases: true };
    let events = Parser::new_from_str_with_options(text, options).map_while(Result::ok);
    let mut nodes = events.map(|(event, span)| (event, span.start.line()));
    let is_first =
        |(event, _): &(Event<'_>, _)| !matches!(event, Event::StreamStart | Event::DocumentStart(..));
    let (mut node, mut line) = nodes.find(is_first)?;
    for step in path {
        let Some((below, at)) = child(&node, step, &mut nodes) else { break };
        (node, line) = (below, at);
    }
    Some(line)
}

/// Node below a started one, with the line of its key or its own.
fn child<'t>(
    parent: &Event<'t>,
    step: &Segment,
    nodes: &mut impl Iterator<Item = (Event<'t>, usize)>,
) -> Option<(Event<'t>, usize)> {
    match (parent, step) {
        (Event::MappingStart(..), Segment::Map { key: name }) => loop {
            let (key, line) = nodes.next().filter(|(event, _)| !matches!(event, Event::MappingEnd))?;
            skip(&key, nodes);
            let (value, _) = nodes.next()?;
            if matches!(&key, Event::Scalar(text, ..) if text == name) {
                return Some((value, line));
            }
            skip(&value, nodes);
        },
        (Event::SequenceStart(..), Segment::Seq { index: at }) => {
            for _ in 0..*at {
                skip(&nodes.next()?.0, nodes);
            }
            nodes.next()
        }
        _ => None,
    }
}

/// Skips the rest of a node that begins with this event.
fn skip<'t>(first: &Event<'t>, nodes: &mut impl Iterator<Item = (Event<'t>, usize)>) {
    let change = |event: &Event<'_>| match event {
        Event::SequenceStart(..) | Event::MappingStart(..) => 1,
        Event::SequenceEnd | Event::MappingEnd => -1,
        _ => 0,
    };
    let mut depth = change(first);
    while depth > 0
        && let Some((event, _)) = nodes.next()
    {
        depth += change(&event);
    }
}

/// Known word that an unknown one may be a slip of.
pub fn near<'k>(known: impl IntoIterator<Item = &'k str>, word: &str) -> Option<&'k str> {
    /// A longer word is no slip, and takes long to compare.
    const LONGEST: usize = 64;
    known
        .into_iter()
        .filter(|_| word.len() <= LONGEST)
        .map(|known| (strsim::osa_distance(known, word), known))
        .filter(|(distance, known)| *distance <= 1 + known.len() / 4)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, known)| known)
}
