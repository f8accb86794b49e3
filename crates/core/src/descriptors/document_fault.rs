//! First fault of JSON or YAML that should be a message: its line, its path and the expected form.
//!
//! Repeats no value of the file, as parsers' errors do, because it may be a private key. Its words come from
//! the descriptors. From the file come only names of known fields, map keys and line numbers.

use std::collections::HashMap;
use std::fmt::Write as _;

use prost_reflect::{DeserializeOptions, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Value, json};
use serde_saphyr::granit_parser::{self, Event, Parser};

use super::{ANY, message as descriptor, message_name};

/// Most values of an enum that a message lists.
const LISTED: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Known field, or key of a map.
    Key(String),
    /// Unknown field. Never shown, because it may be a misplaced value.
    Unknown(String),
    Item(usize),
}

/// First fault of `value`, an invalid `message` at `place` in `text`. Example:
/// `tlsCertificate.privateKey (line 7): expected an object (envoy.config.core.v3.DataSource)`.
pub(super) fn first_fault(
    message: &MessageDescriptor,
    value: &Value,
    text: &str,
    place: &[Step],
    options: &DeserializeOptions,
) -> String {
    if depth(value) > DEEP {
        return "it nests too deep".to_owned();
    }
    let mut search = Search { options, path: Vec::new() };
    let reason = search.message(message, value).unwrap_or_else(|| format!("expected {}", form(message)));
    let mut shown = String::new();
    for step in &search.path {
        match step {
            Step::Key(key) => shown = if shown.is_empty() { key.clone() } else { format!("{shown}.{key}") },
            Step::Item(index) => _ = write!(shown, "[{index}]"),
            Step::Unknown(_) => {}
        }
    }
    match line_of(text, &[place, &search.path].concat()) {
        Some(line) if shown.is_empty() => format!("line {line}: {reason}"),
        Some(line) => format!("{shown} (line {line}): {reason}"),
        None => reason,
    }
}

/// JSON levels from which a message may nest too deep: a list item in a `Struct` takes two of the library's
/// hundred.
const DEEP: usize = 45;

fn depth(value: &Value) -> usize {
    let deepest = match value {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + deepest.unwrap_or(0)
}

/// Search for the first fault. Its functions return the fault and leave `path` at it, or return `None` and
/// restore `path`.
struct Search<'o> {
    options: &'o DeserializeOptions,
    path: Vec<Step>,
}

impl Search<'_> {
    fn is_valid(&self, message: &MessageDescriptor, value: &Value) -> bool {
        DynamicMessage::deserialize_with_options(message.clone(), value, self.options).is_ok()
    }

    fn message(&mut self, message: &MessageDescriptor, value: &Value) -> Option<String> {
        if self.is_valid(message, value) {
            return None;
        }
        let expected = || Some(format!("expected {}", form(message)));
        let Value::Object(fields) = value else { return expected() };
        if message.full_name() != ANY {
            return if has_own_form(message) { expected() } else { self.fields(message, fields) };
        }
        let Some(type_url) = fields.get("@type").and_then(Value::as_str) else { return expected() };
        let inner = match message_name(type_url).and_then(descriptor) {
            Ok(inner) => inner,
            Err(error) => return Some(error.to_string()),
        };
        if has_own_form(&inner) {
            let value = fields.get("value").unwrap_or(&Value::Null);
            return self.within(Step::Key("value".to_owned()), |search| search.message(&inner, value));
        }
        self.fields(&inner, fields.iter().filter(|(key, _)| *key != "@type"))
    }

    fn fields<'v>(
        &mut self,
        message: &MessageDescriptor,
        fields: impl IntoIterator<Item = (&'v String, &'v Value)>,
    ) -> Option<String> {
        let mut chosen: HashMap<String, FieldDescriptor> = HashMap::new();
        for (key, value) in fields {
            let field = message.get_field_by_json_name(key).or_else(|| message.get_field_by_name(key));
            let Some(field) = field else {
                let alone = json!({ key.as_str(): value });
                if self.is_valid(message, &alone) {
                    continue;
                }
                self.path.push(Step::Unknown(key.clone()));
                return Some(unknown_field(message, key));
            };
            if value.is_null() {
                continue;
            }
            let fault = self.within(Step::Key(key.clone()), |search| search.field(&field, value));
            if fault.is_some() {
                return fault;
            }
            let oneof = field.containing_oneof().map(|oneof| oneof.name().to_owned());
            if let Some(other) = oneof.and_then(|oneof| chosen.insert(oneof, field.clone())) {
                return Some(format!("only one of {} and {} may be set", other.name(), field.name()));
            }
        }
        None
    }

    fn field(&mut self, field: &FieldDescriptor, value: &Value) -> Option<String> {
        let name = field.json_name();
        if field.is_map() {
            let Value::Object(entries) = value else { return Some("expected an object".to_owned()) };
            let of = field.kind().as_message()?.map_entry_value_field().kind();
            return entries.iter().find_map(|(key, value)| {
                let alone = || json!({ name: { key.as_str(): value } });
                self.within(Step::Key(key.clone()), |search| search.one(field, &of, value, alone))
            });
        }
        if field.is_list() {
            let Value::Array(items) = value else { return Some("expected a list".to_owned()) };
            return items.iter().enumerate().find_map(|(at, item)| {
                let alone = || json!({ name: [item] });
                self.within(Step::Item(at), |search| search.one(field, &field.kind(), item, alone))
            });
        }
        self.one(field, &field.kind(), value, || json!({ name: value }))
    }

    /// Checks one value of a field; `alone` is a message with nothing else.
    fn one(
        &mut self,
        field: &FieldDescriptor,
        kind: &Kind,
        value: &Value,
        alone: impl FnOnce() -> Value,
    ) -> Option<String> {
        if let Kind::Message(message) = kind {
            return self.message(message, value);
        }
        let is_valid = self.is_valid(field.parent_message(), &alone());
        (!is_valid).then(|| format!("expected {}", words(kind)))
    }

    fn within(&mut self, step: Step, search: impl FnOnce(&mut Self) -> Option<String>) -> Option<String> {
        self.path.push(step);
        let fault = search(self);
        if fault.is_none() {
            self.path.pop();
        }
        fault
    }
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

/// Whether the message's JSON form is not an object of its fields.
fn has_own_form(message: &MessageDescriptor) -> bool {
    message.parent_file().package_name() == "google.protobuf" && form_of(message.name()).is_some()
}

fn form(message: &MessageDescriptor) -> String {
    match form_of(message.name()).filter(|_| has_own_form(message)) {
        Some(form) => form.to_owned(),
        None => format!("an object ({})", message.full_name()),
    }
}

fn form_of(name: &str) -> Option<&'static str> {
    Some(match name {
        "Any" => "an object with the \"@type\" of a known message",
        "Duration" => "a duration such as \"1.5s\"",
        "Timestamp" => "a time such as \"2026-01-31T12:00:00Z\"",
        "FieldMask" => "names of fields such as \"a,b.c\"",
        "BoolValue" => "true or false",
        "StringValue" => "a text",
        "BytesValue" => "a text in base64",
        "DoubleValue" | "FloatValue" => "a number",
        "Int32Value" | "UInt32Value" | "Int64Value" | "UInt64Value" => "a whole number",
        "Struct" | "Empty" => "an object",
        "ListValue" => "a list",
        "Value" => "a value",
        _ => return None,
    })
}

fn words(kind: &Kind) -> String {
    let words = match kind {
        Kind::Enum(values) => {
            let (names, more): (Vec<_>, Vec<_>) =
                values.values().enumerate().partition(|(at, _)| *at < LISTED);
            let names: Vec<_> = names.iter().map(|(_, value)| value.name()).collect();
            let more = if more.is_empty() { "" } else { ", …" };
            return format!("one of {}{more}", names.join(", "));
        }
        Kind::Bool => "true or false",
        Kind::String => "a text",
        Kind::Bytes => "a text in base64",
        Kind::Double | Kind::Float => "a number",
        Kind::Message(message) => return form(message),
        _ => "a whole number",
    };
    words.to_owned()
}

/// Line of the value at the end of a path, or of the last step in the text. JSON is read as YAML.
fn line_of(text: &str, path: &[Step]) -> Option<usize> {
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
    step: &Step,
    nodes: &mut impl Iterator<Item = (Event<'t>, usize)>,
) -> Option<(Event<'t>, usize)> {
    match (parent, step) {
        (Event::MappingStart(..), Step::Key(name) | Step::Unknown(name)) => loop {
            let (key, line) = nodes.next().filter(|(event, _)| !matches!(event, Event::MappingEnd))?;
            skip(&key, nodes);
            let (value, _) = nodes.next()?;
            if matches!(&key, Event::Scalar(text, ..) if text == name) {
                return Some((value, line));
            }
            skip(&value, nodes);
        },
        (Event::SequenceStart(..), Step::Item(at)) => {
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
