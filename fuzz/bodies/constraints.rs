//! Dynamic parameter constraints against an evaluator that reads them by Envoy's descriptors and does word by word what
//! the rules say (R-DP-01, R-DP-02).

use deltafan::resource::{Constraints, Parameters};
use prost_reflect::{DynamicMessage, Value};

use super::input::Input;

const KEYS: [&str; 4] = ["", "a", "b", "env"];
const VALUES: [&str; 3] = ["", "x", "prod"];

/// Two sets of parameters, then the constraints.
pub(crate) fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let sets = [parameters(&mut input), parameters(&mut input)];
    let bytes = input.rest();
    let Ok(read) = Constraints::parse(bytes) else { return };

    if let Some(constraints) = &read {
        let again = Constraints::parse(constraints.encoded());
        assert_eq!(again.as_ref().ok(), Some(&read), "the canonical form is its own");
        assert_eq!(
            again.ok().flatten().map(|again| again.encoded().clone()),
            Some(constraints.encoded().clone())
        );
        assert!(!constraints.to_string().chars().any(char::is_control));
    }
    let name = "envoy.service.discovery.v3.DynamicParameterConstraints";
    let descriptor = deltafan::descriptors::pool().get_message_by_name(name).expect("it is in Envoy's API");
    let message = DynamicMessage::decode(descriptor, bytes).expect("what is accepted is a message");
    for set in &sets {
        let served = read.as_ref().is_none_or(|constraints| constraints.matches(set));
        assert_eq!(served, matches(&message, set), "{read:?} for {set:?}");
    }
}

fn parameters(input: &mut Input<'_>) -> Parameters {
    let pairs: Vec<_> = input.some(&KEYS).copied().collect();
    pairs.into_iter().map(|key| (key, *input.pick(&VALUES))).collect()
}

fn matches(constraints: &DynamicMessage, parameters: &Parameters) -> bool {
    let field = |message: &DynamicMessage, name: &str| {
        message
            .has_field_by_name(name)
            .then(|| message.get_field_by_name(name).map(|value| value.into_owned()))
            .flatten()
    };
    let inner = |name| match field(constraints, name) {
        Some(Value::Message(message)) => Some(message),
        _ => None,
    };
    let list = |message: &DynamicMessage| match field(message, "constraints") {
        Some(Value::List(items)) => items.iter().filter_map(|item| item.as_message().cloned()).collect(),
        _ => Vec::new(),
    };
    if let Some(single) = inner("constraint") {
        let key = field(&single, "key").and_then(|key| key.as_str().map(str::to_owned)).unwrap_or_default();
        let has = parameters.get(&key);
        return match field(&single, "value") {
            Some(wanted) => has == wanted.as_str(),
            None => has.is_some(),
        };
    }
    if let Some(any) = inner("or_constraints") {
        return list(&any).iter().any(|part| matches(part, parameters));
    }
    if let Some(all) = inner("and_constraints") {
        return list(&all).iter().all(|part| matches(part, parameters));
    }
    inner("not_constraints").is_none_or(|part| !matches(&part, parameters))
}
