//! The resource scanner: what it makes of an envelope, against Envoy's descriptors.

use deltafan::resource::{Envelope, Form, Kind, Name, TypeUrl, wire};
use prost_reflect::{DynamicMessage, Value};

pub(crate) fn run(data: &[u8]) {
    let type_url = TypeUrl::from(Kind::Cluster);
    let Ok(envelope) = Envelope::parse(data, &type_url) else { return };
    agrees(&envelope, data);

    let name = Name::from(envelope.name);
    let resource = match envelope.encode(&type_url, name.clone()) {
        Some(resource) => resource,
        None => envelope.encode_unresolved(&type_url, name),
    };
    // The whole is one field of a response, and is a resource of the same name, version, body and aliases.
    let inner = only_field(resource.delta_entry());
    assert!(
        wire::fields(inner).flatten().all(|field| field.number < 1 << 29),
        "no reader knows such a field"
    );
    let again = Envelope::parse(inner, &type_url).expect("what is told is a resource");
    assert_eq!(again.name, envelope.name);
    assert_eq!(again.version, resource.version());
    assert!(envelope.version.is_empty() || resource.origin_version() == Some(envelope.version));
    assert_eq!(again.body, envelope.body);
    assert_eq!(again.do_not_cache, envelope.do_not_cache);
    assert_eq!(again.ttl, None, "what is left of it is told at the time of telling");
    assert!(again.aliases().eq(envelope.aliases()));
    assert!(
        resource
            .aliases()
            .filter(|alias| !alias.is_empty())
            .eq(envelope.aliases().filter(|alias| !alias.is_empty()))
    );
    // So is its tail, of the other kind of response.
    if let Some(body) = envelope.body {
        assert_eq!(resource.body(), body);
        assert!(resource.is_delta_only() || only_field(resource.sotw_entry()) == body);
    }
    assert!(resource.same_content(&resource.clone()));
    if resource.form() == Form::Whole {
        let dropped = resource.dropped();
        assert!(dropped.same_content(&resource) && resource.same_content(&dropped));
        assert_eq!(dropped.digest(), resource.digest());
    }
}

/// The payload of what has to be one field `2`.
fn only_field(entry: &[u8]) -> &[u8] {
    let fields: Vec<_> = wire::fields(entry).collect();
    let [Ok(field)] = &fields[..] else { panic!("no field, or more than one: {fields:?}") };
    assert_eq!(field.number, 2);
    field.bytes().expect("a message")
}

/// Where others can read it at all, they read the same.
fn agrees(envelope: &Envelope<'_>, data: &[u8]) {
    let name = "envoy.service.discovery.v3.Resource";
    let descriptor = deltafan::descriptors::pool().get_message_by_name(name).expect("it is in Envoy's API");
    let Ok(message) = DynamicMessage::decode(descriptor, data) else { return };
    let text = |message: &DynamicMessage, name: &str| {
        message
            .get_field_by_name(name)
            .and_then(|value| value.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let named = match message.get_field_by_name("resource_name").as_deref() {
        Some(Value::Message(inner)) if envelope.by_resource_name => text(inner, "name"),
        _ => text(&message, "name"),
    };
    // A message that is sent twice would be merged.
    let sent = |number| wire::fields(data).flatten().filter(|field| field.number == number).count();
    if sent(8) <= 1 {
        assert_eq!(named, envelope.name);
    }
    assert_eq!(text(&message, "version"), envelope.version);
    let aliases = message.get_field_by_name("aliases");
    let aliases = aliases.as_deref().and_then(Value::as_list).unwrap_or_default();
    assert!(aliases.iter().filter_map(Value::as_str).eq(envelope.aliases()));
    assert_eq!(message.has_field_by_name("resource"), envelope.body.is_some());
}
