//! Bodies of an origin as JSON: bounded depth, and no panic, whatever an `Any` holds (R-REST-03).

use deltafan::descriptors::{MAX_DEPTH, any_to_json};
use serde_json::Value;

pub(crate) fn run(data: &[u8]) {
    let Ok(json) = any_to_json(data) else { return };
    // A message in a list is a level of the message and one of the list; the values of a `Struct` are three of each.
    assert!(depth(&json) <= 3 * MAX_DEPTH, "{} levels", depth(&json));
    let text = json.to_string();
    assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
}

fn depth(json: &Value) -> usize {
    let inner = match json {
        Value::Array(items) => items.iter().map(depth).max(),
        Value::Object(fields) => fields.values().map(depth).max(),
        _ => return 0,
    };
    1 + inner.unwrap_or_default()
}
