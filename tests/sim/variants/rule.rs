//! Parameters and constraints, in the most literal reading.

use std::collections::HashMap;

use bytes::BytesMut;
use deltafan::resource::{Constraints, wire};

/// The parameters of a client; an empty value stands for an absent key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ClientParameters {
    pub(crate) env: &'static str,
    pub(crate) v: &'static str,
}

pub(crate) const ENVS: [&str; 3] = ["", "prod", "dev"];
pub(crate) const VS: [&str; 3] = ["", "1", "2"];

impl ClientParameters {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        ENVS.into_iter().flat_map(|env| VS.into_iter().map(move |v| Self { env, v }))
    }

    pub(crate) fn read(pairs: &HashMap<String, String>) -> Self {
        let find = |key: &str, among: [&'static str; 3]| {
            let value = pairs.get(key).map_or("", String::as_str);
            among.into_iter().find(|known| *known == value).expect("a value of these tests")
        };
        Self { env: find("env", ENVS), v: find("v", VS) }
    }

    pub(crate) fn pairs(self) -> HashMap<String, String> {
        let pairs = [("env", self.env), ("v", self.v)].into_iter().filter(|(_, value)| !value.is_empty());
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn get(self, key: &str) -> Option<&'static str> {
        Some(if key == "env" { self.env } else { self.v }).filter(|value| !value.is_empty())
    }

    /// Whether this rule is for it: `env=prod,!v|env=dev`, where `,` binds closer.
    pub(crate) fn fits(self, rule: &str) -> bool {
        let single = |part: &str| match part.split_once('=') {
            Some((key, value)) => self.get(key) == Some(value),
            None => self.get(part).is_some(),
        };
        let part = |part: &str| part.strip_prefix('!').map_or_else(|| single(part), |part| !single(part));
        rule.is_empty() || rule.split('|').any(|all| all.split(',').all(part))
    }
}

/// Variants of which no two are ever for the same client.
pub(crate) const LAYOUTS: [&[&str]; 9] = [
    &[""],
    &["env=prod", "env=dev", "!env"],
    &["v=1", "v=2", "!v"],
    &["env=prod,v=1", "env=prod,v=2", "env=prod,!v", "env=dev", "!env"],
    &["env=prod|env=dev", "!env"],
    &["env=dev|!env", "env=prod"],
    &["env", "!env"],
    &["!env=prod", "env=prod"],
    &["env=prod,v=1|env=dev,v=2", "env=prod,!v=1", "!env"],
];

fn field(number: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    wire::put_header(&mut out, number, payload.len());
    out.extend_from_slice(payload);
    out.to_vec()
}

/// The encoding of a rule; nothing where it constrains nothing.
pub(crate) fn encode(rule: &str) -> Vec<u8> {
    if rule.is_empty() {
        return Vec::new();
    }
    let single = |part: &str| match part.split_once('=') {
        Some((key, value)) => field(1, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat()),
        None => field(1, &[field(1, part.as_bytes()), field(3, &[])].concat()),
    };
    let part =
        |text: &str| text.strip_prefix('!').map_or_else(|| single(text), |text| field(4, &single(text)));
    let all = |text: &str| {
        field(3, &text.split(',').map(|text| field(1, &part(text))).collect::<Vec<_>>().concat())
    };
    field(2, &rule.split('|').map(|text| field(1, &all(text))).collect::<Vec<_>>().concat())
}

/// The rule as it is told.
pub(crate) fn shown(rule: &str) -> String {
    Constraints::parse(&encode(rule)).unwrap().map(|constraints| constraints.to_string()).unwrap_or_default()
}
