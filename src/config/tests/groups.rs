//! Rules of groups: the messages for wrong ones.

use super::refused_part;

#[test]
fn faults_are_told_with_their_lines() {
    let rule = |text: &str| format!("groups:\n  rules:\n  - name: a\n    node: client\n    {text}\n");
    let node = |text: &str| {
        format!(
            "groups:\n  rules:\n  - name: a\n    match: {{node.id: \"(?P<id>.*)\"}}\n    key: \"${{id}}\"\n    node:\n      {text}\n"
        )
    };
    for (text, message) in [
        ("groups: []\n".to_owned(), "f:2: `groups` must be a mapping, not a list"),
        (
            "groups: {default: none}\n".to_owned(),
            "f:2: `groups.default`: `none` is not one of `own`, `refuse`",
        ),
        ("groups: {max: 0}\n".to_owned(), "f:2: `groups.max`: `0` is out of range; allowed is 1 to 100000"),
        (
            rule("match: {}"),
            "f:6: `groups.rules[].match`: is empty, so that it takes every client; write node.id: \".*\" for all with a `node.id`",
        ),
        (rule("match: node.id"), "f:6: `groups.rules[].match` must be a mapping, not `node.id`"),
        (
            rule("match:\n      node.id: [a]"),
            "f:7: `groups.rules[].match.node.id` must be a single value, not a list",
        ),
        (
            rule("match:\n      node.id: a\n      node.idd: b"),
            "f:8: `groups.rules[].match.node.idd`: is no field of a client; did you mean `node.id`?",
        ),
        (
            rule("match:\n      node.metadata..a: b"),
            "f:7: `groups.rules[].match.node.metadata..a`: has an empty key in its path",
        ),
        (
            rule("match:\n      colour: b"),
            "f:7: `groups.rules[].match.colour`: is no field of a client; write node.metadata.PATH or one of node.id, \
             node.cluster, node.locality.region, node.locality.zone, node.locality.sub_zone, node.user_agent_name, \
             peer.spiffe_id, peer.san",
        ),
        (
            rule("match:\n      node.id: (a"),
            "f:7: `groups.rules[].match.node.id`: `(a` is no regular expression: unclosed group",
        ),
        (
            rule("match:\n      node.id: (?P<x>a)\n      node.cluster: (?P<x>a)"),
            "f:7: `groups.rules[].match.node.id`: another pattern has a group `x` too; give each its own name",
        ),
        (
            rule("match: {node.id: a}\n    key: ${b}"),
            "f:7: `groups.rules[].key`: `${b}` is no value: no pattern in `match` has a named group, as in (?P<name>.*); \
             fields are written as in ${node.id}",
        ),
        (
            rule("match: {node.id: a}\n  - {name: a, match: {node.id: b}, node: client}"),
            "f:7: `groups.rules[].name`: `a` is the name of the rule on line 4 already",
        ),
        (
            node("cluster: a"),
            "f:7: `groups.rules[].node.id`: is missing; write the `node.id` that the control plane sees",
        ),
        (
            node("id: x\n      metadata:\n        a:\n          b: ${node.cluster}"),
            "f:11: `groups.rules[].node.metadata.a.b`: `${node.cluster}` is not in `key`: clients of one group would \
             differ in it; write it into `key` too",
        ),
        (
            node("id: ${id\n      locality: {region: $id}"),
            "f:8: `groups.rules[].node.id`: has a `${` without its `}`\n\
             f:9: `groups.rules[].node.locality.region`: has a `$` that stands for nothing; write ${NAME} for a value, $$ for a dollar",
        ),
        (node("idd: x\n      id: y"), "f:8: unknown key `idd` in `groups.rules[].node`; did you mean `id`?"),
        (
            rule("match: {node.id: a}").replace("client", "clients"),
            "f:5: `groups.rules[].node` must be `client` or a mapping, not `clients`",
        ),
        (
            rule("match: {node.id: a}").replace("name: a", "name: own"),
            "f:4: `groups.rules[].name`: `own` is the group of the relay's own node; choose another name",
        ),
        (
            rule("match: {node.id: a}").replace("name: a", "name: a b"),
            "f:4: `groups.rules[].name`: `a b` is no label; write at most 63 letters, digits, `-`, `_` and `.`",
        ),
        (
            "groups: {rules: [{}]}\n".to_owned(),
            "f:2: `groups.rules[].name`: is missing; write a label for metrics\n\
             f:2: `groups.rules[].match`: is missing; write which clients it takes, as in {node.id: \"edge-.*\"}\n\
             f:2: `groups.rules[].node`: is missing; write the node that the control plane sees, or `client`",
        ),
    ] {
        assert_eq!(refused_part(&text), message, "{text}");
    }
}
