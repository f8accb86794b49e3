//! The exact text of every kind of problem.

use std::path::Path;

use super::{UPSTREAM, refused, refused_part};
use crate::config::{Config, UnknownKeys};

#[test]
fn unknown_keys_name_the_nearest_known_one() {
    for (text, message) in [
        ("downstream:\n  setle: 1s\n", "f:3: unknown key `setle` in `downstream`; did you mean `settle`?"),
        ("downstraem: {}\n", "f:2: unknown key `downstraem` at the top level; did you mean `downstream`?"),
        (
            "settle_max: 1s\n",
            "f:2: unknown key `settle_max` at the top level; did you mean `downstream.settle_max`?",
        ),
        (
            "node:\n  locality: {regoin: eu}\n",
            "f:3: unknown key `regoin` in `node.locality`; did you mean `region`?",
        ),
        (
            "downstream:\n  listeners:\n  - adress: 0.0.0.0:1\n",
            "f:4: unknown key `adress` in `downstream.listeners[]`; did you mean `address`?",
        ),
        (
            "cache:\n  colour: red\n",
            "f:3: unknown key `colour` in `cache`; known are encoded_bytes, tombstones, max_parameter_sets, history_bytes",
        ),
        (
            "node.id: a\n",
            "f:2: unknown key `node.id` at the top level; known are node, upstream, downstream, rest, admin, cache, dynamic_parameters, authorization, groups, snapshot, rollout",
        ),
        (
            "downstream: {timeout: 1s}\n",
            "f:2: unknown key `timeout` in `downstream`; did you mean `downstream.keepalive.timeout`?",
        ),
        (
            "cache: {<<: {tombstones: 1}}\n",
            "f:2: unknown key `<<` in `cache`; known are encoded_bytes, tombstones, max_parameter_sets, history_bytes",
        ),
        (
            "\"\": 1\n",
            "f:2: unknown key `` at the top level; known are node, upstream, downstream, rest, admin, cache, dynamic_parameters, authorization, groups, snapshot, rollout",
        ),
    ] {
        assert_eq!(refused_part(text), message);
    }
}

#[test]
fn listeners_leave_the_admin_address_alone() {
    for (text, message) in [
        (
            "admin: {address: \"127.0.0.1:7\"}\ndownstream:\n  listeners:\n  - address: 0.0.0.0:8\n  - address: 127.0.0.1:7\n",
            "f:2: `admin.address`: `127.0.0.1:7` meets the listener on line 6, which is `127.0.0.1:7`; use another port",
        ),
        (
            "admin: {address: \"127.0.0.1:7\"}\ndownstream: {listeners: [{address: \"0.0.0.0:7\"}]}\n",
            "f:2: `admin.address`: `127.0.0.1:7` meets the listener on line 3, which is `0.0.0.0:7`; use another port",
        ),
        (
            "admin:\n  address: \"[::]:15010\"\n",
            "f:3: `admin.address`: `[::]:15010` meets the default listener, which is `0.0.0.0:15010`; use another port",
        ),
        (
            "downstream:\n  listeners:\n  - address: 0.0.0.0:15000\n",
            "f:4: `downstream.listeners[].address`: `0.0.0.0:15000` meets `admin.address`, which is `127.0.0.1:15000` by default; use another port",
        ),
        (
            "admin: other\ndownstream: {listeners: [{address: \"127.0.0.1:15000\"}]}\n",
            "f:2: `admin` must be a mapping, not `other`",
        ),
    ] {
        assert_eq!(refused_part(text), message);
    }
    for apart in [
        "admin: {address: \"127.0.0.1:0\"}\ndownstream: {listeners: [{address: \"127.0.0.1:0\"}]}\n",
        "admin: {address: \"127.0.0.1:7\"}\ndownstream: {listeners: [{address: \"127.0.0.2:7\"}, {address: \"[::1]:7\"}]}\n",
        "admin: {address: \"[::1]:7\"}\ndownstream: {listeners: [{address: \"0.0.0.0:7\"}]}\n",
    ] {
        Config::parse(&format!("{UPSTREAM}{apart}"), "f").unwrap_or_else(|error| panic!("{apart}: {error}"));
    }
}

#[test]
fn keys_are_set_once() {
    assert_eq!(
        refused_part("cache: {tombstones: 1}\n\ncache: {tombstones: 2}\n"),
        "f:4: `cache` is set twice, first on line 2; set it once"
    );
    assert_eq!(
        refused_part("node:\n  metadata:\n    a: 1\n    \"a\": 1\n"),
        "f:5: `a` is set twice, first on line 4; set it once"
    );
}

#[test]
fn authorization() {
    let rule = |text: &str| format!("authorization:\n  rules:\n  - {text}\n");
    for (text, message) in [
        (
            "authorization: {default: maybe}\n".to_owned(),
            "f:2: `authorization.default`: `maybe` is not one of `allow`, `deny`",
        ),
        (
            rule("types: [cds]"),
            "f:4: `authorization.rules[].peers`: names nobody; list who the rule is about, \
             as in [\"spiffe://mesh/ns/prod/**\"]",
        ),
        (
            rule("peers: [prod]"),
            "f:4: `authorization.rules[].peers[]`: `prod` is no peer; write spiffe://…, dns:NAME, subject:…, an \
             address, a network such as 10.0.0.0/8, or unix",
        ),
        (
            rule("peers: [10.1.0.0/8]"),
            "f:4: `authorization.rules[].peers[]`: `10.1.0.0/8` has bits beyond its network; write 10.0.0.0/8",
        ),
        (
            rule("{peers: [unix], parameters: {env: prod}}"),
            "f:4: `authorization.rules[].parameters.env` must be a list, not `prod`",
        ),
        (
            rule("{peers: [unix], parameters: {env: []}}"),
            "f:4: `authorization.rules[].parameters.env`: allows nothing; list the values that are allowed, \
             as in [prod, canary]",
        ),
        (
            rule("{peers: [unix], parameters: {env: [[a]]}}"),
            "f:4: `authorization.rules[].parameters.env[]` must be a single value, not a list",
        ),
    ] {
        assert_eq!(refused_part(&text), message);
    }
}

#[test]
fn a_share_is_a_percentage() {
    for share in ["5", "101%", "-1%", "NaN%", "five"] {
        assert_eq!(
            refused_part(&format!("rollout:\n  share: {share}\n")),
            format!("f:3: `rollout.share`: `{share}` is not a share; write one from 0% to 100%, as in 2.5%")
        );
    }
}

#[test]
fn a_server_may_stand_in_the_list_once() {
    assert_eq!(
        refused("upstream:\n  servers:\n  - uri: http://a:1\n  - uri: http://b:1\n  - uri: http://a:1/\n"),
        "f:5: `upstream.servers[].uri`: `http://a:1` is listed on line 3 already"
    );
}

#[test]
fn rules_about_certificates_need_a_listener_that_learns_them() {
    let rules = |peers: &str| format!("authorization:\n  rules:\n  - peers: [{peers}]\n");
    let tls = "downstream: {listeners: [{}, {address: \"0.0.0.0:2\", tls: {cert_file: a, key_file: b, client_ca_file: c}}]}\n";
    for peer in ["spiffe://mesh/**", "dns:a.example", "subject:CN=a"] {
        let peers = format!("10.0.0.0/8, \"{peer}\"");
        let message = format!(
            "f:4: `authorization.rules[].peers`: `{peer}` matches no client, because no listener learns a certificate; \
             set `tls.client_ca_file` in `downstream.listeners`"
        );
        assert_eq!(refused_part(&rules(&peers)), message);
        assert!(Config::parse(&format!("{UPSTREAM}{}{tls}", rules(&peers)), "f").is_ok());
    }
    assert!(Config::parse(&format!("{UPSTREAM}{}", rules("10.0.0.0/8, unix")), "f").is_ok());
}

#[test]
fn a_directory_needs_neither_a_snapshot_nor_groups() {
    assert_eq!(
        refused("upstream: {directory: d}\nsnapshot: {path: p}\n"),
        "f:2: `snapshot.path`: is of no use with `upstream.directory`, which is read at each start; leave it out"
    );
    for groups in ["default: refuse", "rules: [{name: a, match: {node.id: a}, node: client}]"] {
        assert_eq!(
            refused(&format!("upstream: {{directory: d}}\ngroups: {{{groups}}}\n")),
            "f:2: `groups`: needs `upstream.servers`: a directory is the same for every node"
        );
    }
}

#[test]
fn tls_upstream() {
    for (server, message) in [
        (
            "uri: http://a:1\n    tls: {ca_file: ca.pem}",
            "f:4: `upstream.servers[].tls`: does not go with `http://a:1`, which is cleartext; write https:// or leave it out",
        ),
        (
            "uri: https://a:1\n    tls: {cert_file: c}",
            "f:4: `upstream.servers[].tls.cert_file`: is of no use without `key_file`; write both or none",
        ),
        (
            "uri: https://a:1\n    tls:\n      ca_file: c\n      key_file: k",
            "f:6: `upstream.servers[].tls.key_file`: is of no use without `cert_file`; write both or none",
        ),
        (
            "uri: https://a:1\n    tls: {ca_file: \"\"}",
            "f:4: `upstream.servers[].tls.ca_file`: a path must not be empty",
        ),
        (
            "uri: https://a:1\n    tls: {cert_file: c, key_file: \"-----BEGIN PRIVATE KEY----- MIIEvQ\"}",
            "f:4: `upstream.servers[].tls.key_file`: has the text of a key or certificate; \
             write the path of a file that holds it",
        ),
        (
            "uri: https://a:1\n    tls: \"-----BEGIN PRIVATE KEY----- MIIEvQ\"",
            "f:4: `upstream.servers[].tls` must be a mapping, not `-----BEGIN...`",
        ),
        (
            "uri: https://a:1\n    tls: {server_name: \"a b\"}",
            "f:4: `upstream.servers[].tls.server_name`: `a b` names no server; \
             write a name, an address or spiffe://TRUST_DOMAIN/PATH",
        ),
        (
            "uri: https://a:1\n    tls: {server_name: \"spiffe://A/b\"}",
            "f:4: `upstream.servers[].tls.server_name`: `spiffe://A/b` is no SPIFFE ID; \
             write a name, an address or spiffe://TRUST_DOMAIN/PATH",
        ),
        (
            "uri: https://a~b:1",
            "f:3: `upstream.servers[].uri`: no certificate can be for `a~b`; set `tls.server_name`",
        ),
        ("tls: {}", "f:3: `upstream.servers[].uri`: is missing; write http://HOST:PORT or https://HOST:PORT"),
    ] {
        assert_eq!(refused(&format!("upstream:\n  servers:\n  - {server}\n")), message);
    }
}

#[test]
fn shapes() {
    for (text, message) in [
        ("downstream: [1]\n", "f:2: `downstream` must be a mapping, not a list"),
        ("admin: 127.0.0.1:1\n", "f:2: `admin` must be a mapping, not `127.0.0.1:1`"),
        ("node: {metadata: [a]}\n", "f:2: `node.metadata` must be a mapping, not a list"),
        ("downstream:\n  listeners: {}\n", "f:3: `downstream.listeners` must be a list, not a mapping"),
        ("downstream:\n  listeners: [a]\n", "f:3: `downstream.listeners[]` must be a mapping, not `a`"),
        (
            "downstream:\n  no_legacy_wildcard: eds\n",
            "f:3: `downstream.no_legacy_wildcard` must be a list, not `eds`",
        ),
        (
            "downstream:\n  no_legacy_wildcard:\n",
            "f:3: `downstream.no_legacy_wildcard` must be a list, not nothing",
        ),
        (
            "downstream:\n  no_legacy_wildcard: [[eds]]\n",
            "f:3: `downstream.no_legacy_wildcard[]` must be a single value, not a list",
        ),
        (
            "downstream:\n  settle:\n  drain: 1s\n",
            "f:3: `downstream.settle` must be a single value, not nothing",
        ),
        ("downstream:\n  settle: [1s]\n", "f:3: `downstream.settle` must be a single value, not a list"),
        ("node: {id: {}}\n", "f:2: `node.id` must be a single value, not a mapping"),
    ] {
        assert_eq!(refused_part(text), message);
    }
}

#[test]
fn values() {
    for (text, message) in [
        (
            "downstream:\n  settle: 20\n",
            "f:3: `downstream.settle`: `20` has no unit; durations are written `300ms`, `20s`, `30m`, `1h`",
        ),
        (
            "downstream:\n  settle: soon\n",
            "f:3: `downstream.settle`: `soon` is not a duration; durations are written `300ms`, `20s`, `30m`, `1h`",
        ),
        (
            "downstream:\n  stall_timeout: 0s\n",
            "f:3: `downstream.stall_timeout`: `0s` is out of range; allowed is 1ms to 1h",
        ),
        (
            "downstream:\n  max_names: 0\n",
            "f:3: `downstream.max_names`: `0` is out of range; allowed is 1 to 100000000",
        ),
        ("downstream:\n  max_names: -1\n", "f:3: `downstream.max_names`: `-1` is not a whole number"),
        (
            "downstream:\n  max_name_bytes: 0\n",
            "f:3: `downstream.max_name_bytes`: `0` is out of range; allowed is 1 to 2GiB",
        ),
        (
            "cache:\n  encoded_bytes: 1GB\n",
            "f:3: `cache.encoded_bytes`: `1GB` is not a size; \
             sizes are written `64KiB`, `4MiB`, `1GiB`, or in plain bytes",
        ),
        (
            "downstream:\n  eds_repush_on_cds_change: yes\n",
            "f:3: `downstream.eds_repush_on_cds_change`: `yes` is not one of `true`, `false`",
        ),
        (
            "downstream:\n  no_legacy_wildcard:\n  - eds\n  - foo\n",
            "f:5: `downstream.no_legacy_wildcard[]`: `foo` is not a type; \
             write a type URL or one of cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds",
        ),
        (
            "admin:\n  address: localhost:15000\n",
            "f:3: `admin.address`: `localhost:15000` is not an address; \
             write IP:PORT, for example 127.0.0.1:15010 or [::1]:15010",
        ),
        (
            "downstream:\n  listeners:\n  - address: :15010\n",
            "f:4: `downstream.listeners[].address`: `:15010` is not an address; \
             write IP:PORT, for example 127.0.0.1:15010 or [::1]:15010",
        ),
        ("downstream:\n  listeners: []\n", "f:3: `downstream.listeners`: is empty; list at least one"),
        (
            "downstream:\n  listeners:\n  - address: 0.0.0.0:1\n  - address: 0.0.0.0:1\n",
            "f:5: `downstream.listeners[].address`: `0.0.0.0:1` is listed on line 4 already",
        ),
        (
            "downstream:\n  listeners:\n  - {}\n  - address: 0.0.0.0:15010\n",
            "f:5: `downstream.listeners[].address`: `0.0.0.0:15010` is listed on line 4 already",
        ),
        (
            "downstream:\n  listeners:\n  - tls:\n      key_file: k\n",
            "f:4: `downstream.listeners[].tls.cert_file`: is missing; write the file of its certificate (PEM)",
        ),
        (
            "downstream:\n  listeners:\n  - tls:\n      cert_file: c\n",
            "f:4: `downstream.listeners[].tls.key_file`: is missing; write the file of its key (PEM)",
        ),
        (
            "downstream:\n  listeners:\n  - tls:\n      cert_file: c\n      key_file: k\n      crl_file: r\n",
            "f:7: `downstream.listeners[].tls.crl_file`: is of no use without `client_ca_file`, which makes \
             clients show certificates",
        ),
        (
            "downstream:\n  listeners:\n  - address: 'unix:'\n",
            "f:4: `downstream.listeners[].address`: a path must not be empty",
        ),
        ("node: {id: \"\"}\n", "f:2: `node.id`: must not be empty"),
    ] {
        assert_eq!(refused_part(text), message);
    }
}

#[test]
fn dynamic_parameters() {
    let rule = |lines: &str| format!("dynamic_parameters:\n- key: env\n  {lines}\n");
    let path = "write node.metadata.PATH or one of node.id, node.cluster, node.locality.region, \
                node.locality.zone, node.locality.sub_zone, node.user_agent_name, peer.spiffe_id";
    for (text, message) in [
        (rule(""), "f:3: `dynamic_parameters[].from`: is missing; write what it is taken from".to_owned()),
        (
            "dynamic_parameters:\n- from: node.id\n".to_owned(),
            "f:3: `dynamic_parameters[].key`: is missing; write the parameter that is given".to_owned(),
        ),
        (
            "dynamic_parameters: [{key: \"\", from: node.id}]\n".to_owned(),
            "f:2: `dynamic_parameters[].key`: must not be empty".to_owned(),
        ),
        (
            rule("from: node.id\n- {key: b, from: node.id}\n- from: node.cluster\n  key: env"),
            "f:7: `dynamic_parameters[].key`: `env` has a rule on line 3 already".to_owned(),
        ),
        (
            rule("form: node.id"),
            "f:3: `dynamic_parameters[].from`: is missing; write what it is taken from\n\
             f:4: unknown key `form` in `dynamic_parameters[]`; did you mean `from`?"
                .to_owned(),
        ),
        (
            rule("from: node.locality.zones"),
            "f:4: `dynamic_parameters[].from`: `node.locality.zones` is no field of a client; \
             did you mean `node.locality.zone`?"
                .to_owned(),
        ),
        (
            rule("from: metadata.env.of.a.client"),
            format!(
                "f:4: `dynamic_parameters[].from`: `metadata.env.of.a.client` is no field of a client; {path}"
            ),
        ),
        (
            rule("from: node.metadata.a..b"),
            "f:4: `dynamic_parameters[].from`: `node.metadata.a..b` has an empty key in its path".to_owned(),
        ),
        (
            rule("from: node.metadata."),
            "f:4: `dynamic_parameters[].from`: `node.metadata.` has an empty key in its path".to_owned(),
        ),
        (
            rule("from: node.id\n  pattern: \"(a\""),
            "f:5: `dynamic_parameters[].pattern`: `(a` is no regular expression: unclosed group".to_owned(),
        ),
        // Parentheses that would close the group that anchors it.
        (
            rule("from: node.id\n  pattern: \"a)|(b\""),
            "f:5: `dynamic_parameters[].pattern`: `a)|(b` is no regular expression: unopened group".to_owned(),
        ),
        (
            rule("from: node.id\n  pattern: \"(a)\\\\1\""),
            "f:5: `dynamic_parameters[].pattern`: `(a)\\1` is no regular expression: backreferences are not supported"
                .to_owned(),
        ),
        (
            rule("from: node.id\n  pattern: \"(\\\\w{500})\""),
            "f:5: `dynamic_parameters[].pattern`: `(\\w{500})` is too large a pattern".to_owned(),
        ),
        (
            rule("from: node.id\n  pattern:"),
            "f:5: `dynamic_parameters[].pattern` must be a single value, not nothing".to_owned(),
        ),
        ("dynamic_parameters: {}\n".to_owned(), "f:2: `dynamic_parameters` must be a list, not a mapping".to_owned()),
        (
            "dynamic_parameters: [env]\n".to_owned(),
            "f:2: `dynamic_parameters[]` must be a mapping, not `env`".to_owned(),
        ),
    ] {
        assert_eq!(refused_part(&text), message, "{text}");
    }
}

#[test]
fn upstream_sources() {
    for (upstream, message) in [
        ("{}", "f:1: `upstream`: has no source; write `servers` or `directory`"),
        (
            "\n  directory: d\n  servers: [{uri: \"http://a:1\"}]",
            "f:2: `upstream.directory`: stands beside `servers`; one of them is allowed",
        ),
        ("\n  servers: []", "f:1: `upstream`: has no source; write `servers` or `directory`"),
        ("\n  servers: [a]", "f:2: `upstream.servers[]` must be a mapping, not `a`"),
        (
            "\n  servers: [{}]",
            "f:2: `upstream.servers[].uri`: is missing; write http://HOST:PORT or https://HOST:PORT",
        ),
        ("{directory: \"\"}", "f:1: `upstream.directory`: a path must not be empty"),
        (
            "{directory: d, locators: none}",
            "f:1: `upstream.locators`: `none` is not one of `native`, `plain`",
        ),
        (
            "{directory: d, request_interval: 11ms}",
            "f:1: `upstream.request_interval`: `11ms` is out of range; allowed is 0s to 10ms",
        ),
        (
            "{directory: d, unsubscribe_linger: 0s}",
            "f:1: `upstream.unsubscribe_linger`: `0s` is out of range; allowed is 1s to 24h",
        ),
    ] {
        assert_eq!(refused(&format!("upstream: {upstream}\n")), message);
    }
    assert_eq!(refused("node: {}\n"), "f:1: `upstream`: has no source; write `servers` or `directory`");
}

#[test]
fn server_uris() {
    for uri in [
        "control-plane",
        "control-plane:18000",
        "grpc://a:1",
        "http://a",
        "http://a:",
        "http://a:0",
        "http://a:65536",
        "http://:1",
        "http://",
        "http://a b:1",
        "http://me:secret@a:1",
        "http://a:1/xds",
        "http://a:1?x",
        "/a",
        "",
    ] {
        assert_eq!(
            refused(&format!("upstream: {{servers: [{{uri: \"{uri}\"}}]}}")),
            format!(
                "f:1: `upstream.servers[].uri`: `{uri}` names no server; write http://HOST:PORT or https://HOST:PORT"
            )
        );
    }
}

#[test]
fn yaml_beyond_plain_data_is_refused() {
    for (text, message) in [
        ("node: {id: !!str 5}\n", "f:2: tags (`!name`) are not allowed; quote what is meant as text"),
        ("---\n{}\n", "f:2: a second document starts here; only one is allowed"),
        ("? [a]\n: b\n", "f:2: a key must be text, not a list or a mapping"),
        ("? *a\n: b\n", "f:2: aliases (`*name`) are not allowed; write the value out"),
    ] {
        assert_eq!(refused_part(text), message);
    }
    for text in ["node: [\n", "node: \"a\n", "node:\n\tid: a\n", "node: {id: a\n", "a: b: c\n"] {
        let message = refused_part(text);
        assert!(message.starts_with("f:") && message.contains(": is not YAML: "), "{message}");
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn all_problems_are_told_in_the_order_of_the_file() {
    let text = "
downstream:
  setle: 1s
  drain: 5
  listeners: [{address: nowhere}]
snapshot: {pat: a}
cache: {tombstones: x, tombstones: 1}
upstream:
  connect_timeout: 0s
  backoff: {initial: 1}
";
    let forms = "durations are written `300ms`, `20s`, `30m`, `1h`";
    let expected = [
        "f:3: unknown key `setle` in `downstream`; did you mean `settle`?".to_owned(),
        format!("f:4: `downstream.drain`: `5` has no unit; {forms}"),
        "f:5: `downstream.listeners[].address`: `nowhere` is not an address; \
         write IP:PORT, for example 127.0.0.1:15010 or [::1]:15010"
            .to_owned(),
        "f:6: unknown key `pat` in `snapshot`; did you mean `path`?".to_owned(),
        "f:7: `tombstones` is set twice, first on line 7; set it once".to_owned(),
        "f:7: `cache.tombstones`: `x` is not a whole number".to_owned(),
        "f:9: `upstream.connect_timeout`: `0s` is out of range; allowed is 1ms to 1h".to_owned(),
        format!("f:10: `upstream.backoff.initial`: `1` has no unit; {forms}"),
    ];
    assert_eq!(refused(text), expected.join("\n"));
}

/// For a rollback under the file of a newer version.
#[test]
fn unknown_keys_may_be_ignored_but_not_those_that_decide_who_may_do_what() {
    let parse = |text: &str| {
        let parsed = Config::parse_file(&format!("{UPSTREAM}{text}"), Path::new("f"), UnknownKeys::Ignore);
        parsed.map_err(|error| error.to_string())
    };
    let plain = Config::parse(&format!("{UPSTREAM}cache: {{tombstones: 7}}\n"), "f").unwrap();
    let (config, ignored) = parse("audit: {path: x}\ncache: {tombstones: 7, compression: zstd}\n").unwrap();
    assert_eq!(config, plain);
    assert!(ignored[0].starts_with("f:2: unknown key `audit` at the top level; known are"), "{ignored:?}");
    assert!(ignored[1].starts_with("f:3: unknown key `compression` in `cache`; known are"), "{ignored:?}");
    assert_eq!(ignored.len(), 2);
    assert!(parse("").unwrap().1.is_empty());
    for text in [
        "authorization: {audit: true}\n",
        "authorisation: {default: deny}\n",
        "authorization: {rules: [{allow: [cds], when: night}]}\n",
        "downstream: {listeners: [{address: \"0.0.0.0:1\", tls: {cert_file: a, key_file: b, require_ems: true}}]}\n",
        "downstream: {tls: {cert_file: a}}\n",
        "groups: {rules: [{name: a, unless: {node.id: b}, match: {node.id: c}}]}\n",
        "dynamic_parameters: [{key: a, from: node.id, unless: b}]\n",
        "downstream: {listeners: [{address: \"0.0.0.0:1\", proxy: {}}]}\n",
        "downstream: {require_tls: true}\n",
        "upstream: {servers: [{uri: \"http://a:1\", pin: x}]}\n",
        "admin: {read_only: true}\n",
        "snapshot: {encryption_key_file: x}\n",
        "rbac: {}\n",
        "authz: {}\n",
        "allowed_peers: []\n",
        // A slip.
        "cache: {tombstone: 1}\n",
        "cache: {<<: {tombstones: 1}}\n",
        // Another fault stays one.
        "audit: {}\ncache: {tombstones: many}\n",
    ] {
        parse(text).expect_err(text);
    }
}
