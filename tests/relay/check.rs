//! `deltafan check --node`: the node group and the dynamic parameters of a node, by the real binary; and `deltafan completions`.

use std::path::{Path, PathBuf};

use deltafan_test_support::certificates::Authority;
use deltafan_test_support::process::{Ran, program, run};
use tempfile::TempDir;

const UPSTREAM: &str = "upstream: {servers: [{uri: \"http://cp:18000\"}]}\n";
const RULES: &str = r#"
downstream: {max_name_bytes: 40}
dynamic_parameters:
- {key: env, from: node.metadata.env, pattern: "(prod|canary)-.*", default: prod}
- {key: cluster, from: node.cluster}
- {key: zone, from: node.locality.zone}
- {key: version, from: node.metadata.build.version}
"#;

/// Beginning of the output where no groups are configured.
const OWN: &str = "group own  # the configuration has no `groups`\nthe control plane sees this node:\n{\n";

struct Files(TempDir);

impl Files {
    fn with(rules: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        files.write("relay.yaml", &format!("{UPSTREAM}{rules}"));
        files
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("relay.yaml")
    }

    /// Checks the configuration with further options.
    fn check(&self, more: &[&str]) -> Ran {
        run(&[&["check", "--config", self.config().to_str().unwrap()], more].concat())
    }

    /// Checks this configuration.
    fn check_of(&self, config: &str) -> (Option<i32>, String) {
        self.write("relay.yaml", config);
        let ran = self.check(&[]);
        (ran.code, ran.stderr)
    }

    /// Output for a good node.
    fn given(&self, node: &Path) -> String {
        let ran = self.check(&["--node", node.to_str().unwrap()]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
        ran.stdout
    }

    /// Output behind the node that the control plane sees, which without groups is the relay's own.
    fn given_behind_own(&self, node: &Path) -> String {
        let shown = self.given(node);
        let parts = shown.strip_prefix(OWN).and_then(|rest| rest.split_once("\n}\n"));
        let (own, rest) = parts.unwrap_or_else(|| panic!("{shown}"));
        assert!(own.contains("\n  \"userAgentName\": \"deltafan\""), "{shown}");
        rest.to_owned()
    }

    /// The complaint about a bad one, without the path that it begins with.
    fn refused(&self, node: &Path) -> String {
        let Ran { code, stdout, stderr } = self.check(&["--node", node.to_str().unwrap()]);
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (Some(1), "", 1), "{stderr}");
        let start = format!("deltafan: {}: ", node.display());
        stderr.strip_prefix(&start).unwrap_or_else(|| panic!("{stderr}")).trim_end().to_owned()
    }
}

fn in_config(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(name)
}

#[test]
fn r_dp_17_a_node_is_shown_with_its_given_parameters_and_why() {
    let files = Files::with(RULES);
    let json = r#"{"id": "a", "cluster": "edge", "locality": {"zone": "eu-1"}, "userAgentBuildVersion": {"version": {}},
        "metadata": {"env": "canary-7", "build": {"version": 1.50, "other": [null]}}}"#;
    let yaml = "
id: a
cluster: edge
locality: {zone: eu-1}
user_agent_build_version: {version: {}}
metadata: {env: canary-7, build: {version: 1.50, other: [~]}}
";
    let bootstrap = format!("static_resources: {{unknown_to_us: 1}}\nnode:{}", yaml.replace('\n', "\n  "));
    let expected = r#"env = "canary"  # node.metadata.env, by (prod|canary)-.*
cluster = "edge"  # node.cluster
zone = "eu-1"  # node.locality.zone
version = "1.5"  # node.metadata.build.version
"#;
    for (name, text) in
        [("node.json", json), ("node.yaml", yaml), ("node", yaml), ("node.yml", json), ("b.yaml", &bootstrap)]
    {
        assert_eq!(files.given_behind_own(&files.write(name, text)), expected, "{name}");
    }
    let node = files.write("other.yaml", "metadata: {env: prod, build: {version: [1]}}\ncluster: \"\"");
    let expected = r#"env = "prod"  # the default: node.metadata.env does not match (prod|canary)-.*
cluster is absent  # the node has no node.cluster
zone is absent  # the node has no node.locality.zone
version is absent  # node.metadata.build.version is neither text, nor a number, nor true or false
"#;
    assert_eq!(files.given_behind_own(&node), expected);
    let long = files
        .write("long.yaml", &format!("cluster: {}\nmetadata: {{env: {}}}", "c".repeat(40), "e".repeat(41)));
    let shown = files.given(&long);
    assert!(
        shown.contains("# the default: node.metadata.env is longer than `downstream.max_name_bytes`"),
        "{shown}"
    );
    assert!(shown.contains(&format!("cluster = {:?}", "c".repeat(40))), "{shown}");
}

#[test]
fn r_dp_17_the_bootstraps_of_clients_are_read() {
    let files = Files::with(RULES);
    for bootstrap in [
        "envoy-delta-ads.yaml",
        "envoy-delta-ads-mtls.yaml",
        "envoy-delta-per-type.yaml",
        "envoy-sotw-ads.yaml",
        "envoy-sotw-per-type.yaml",
        "envoy-rest.yaml",
        "grpc-bootstrap.json",
        "grpc-bootstrap-mtls.json",
    ] {
        let shown = files.given(&in_config(bootstrap));
        assert!(shown.contains("\ncluster = \"edge\"  # node.cluster\n"), "{bootstrap}: {shown}");
    }
}

/// The example of groups, with parameters beside them.
fn with_groups(more: &str) -> Files {
    let files = Files::with("");
    let example = std::fs::read_to_string(in_config("node-groups.yaml")).unwrap();
    files.write("relay.yaml", &format!("{example}{more}"));
    files
}

#[test]
fn r_relay_01_a_node_is_shown_with_its_group_and_the_node_that_the_control_plane_sees() {
    let files = with_groups("dynamic_parameters: [{key: env, from: node.metadata.env}]\n");
    let gateway = files.write(
        "gateway.yaml",
        "{id: gw-1, locality: {region: eu-west-1}, metadata: {role: gateway, env: prod}}",
    );
    let expected = r#"group gateways "eu-west-1"  # the first rule that matches
the control plane sees this node:
{
  "clientFeatures": [
    "xds.config.supports-resource-ttl"
  ],
  "cluster": "gateways",
  "id": "gateway-eu-west-1",
  "locality": {
    "region": "eu-west-1"
  },
  "metadata": {
    "role": "gateway"
  },
  "userAgentName": "deltafan",
  "userAgentVersion": "VERSION"
}
rule gateways matches
  node.locality.region = "eu-west-1"  # matches (?P<region>[a-z]+-[a-z]+-[0-9]+)
  node.metadata.role = "gateway"  # matches gateway
rule proxies does not match
  node.id does not match sidecar~.*
  peer.spiffe_id is known of a client only
rule payments may match: that depends on the client's certificate
  peer.spiffe_id is known of a client only
env = "prod"  # node.metadata.env
"#;
    let expected = expected.replace("VERSION", env!("CARGO_PKG_VERSION"));
    assert_eq!(files.given(&gateway), expected);
}

const CLAIMED: &str = "groups: {rules: [{name: proxies, match: {node.id: \"sidecar~.*\"}, key: \"${node.id}\", node: client}]}\n";

#[test]
fn r_relay_02_the_node_of_a_client_is_shown_verbatim() {
    let files = Files::with(CLAIMED);
    let sidecar = files.write(
        "sidecar.json",
        r#"{"id": "sidecar~1", "metadata": {"n": [1, null]}, "extensions": [{"name": "e", "version": {"version": {"majorNumber": 1}}}],
            "listeningAddresses": [{"pipe": {"path": "/p"}}]}"#,
    );
    let shown = files.check(&["--node", sidecar.to_str().unwrap()]).stdout;
    let start = "group proxies \"sidecar~1\"  # the first rule that matches, with a group for each identity that clients prove\n\
                 the control plane sees this node:  # of one client of the group, such as this one\n";
    let json = shown.strip_prefix(start).unwrap_or_else(|| panic!("{shown}"));
    let json: serde_json::Value = serde_json::from_str(&json[..json.find("\nrule ").unwrap()]).unwrap();
    let original: serde_json::Value = serde_json::from_slice(&std::fs::read(&sidecar).unwrap()).unwrap();
    assert_eq!(json["extensions"], original["extensions"], "{shown}");
    assert_eq!(json["listeningAddresses"], original["listeningAddresses"], "{shown}");
    assert_eq!((&json["id"], json["metadata"]["n"].to_string()), (&original["id"], "[1.0,null]".to_owned()));
}

#[test]
fn r_relay_01_rules_that_trust_the_claims_of_clients_are_warned_of() {
    let warning = "deltafan: warning: groups.rules: `node: client` of proxies trusts whatever clients without a certificate claim";
    let certificates = "cert_file: a.pem, key_file: a.key";
    let listeners = |listed: &str| format!("downstream: {{listeners: [{listed}]}}\n{CLAIMED}");
    let proven = format!("{{tls: {{{certificates}, client_ca_file: ca.pem}}}}");
    let served = format!("{{address: \"0.0.0.0:2\", tls: {{{certificates}}}}}");
    let (server, clients) = (Authority::new("servers").server(), Authority::new("clients"));
    let matches = |more: &str| CLAIMED.replace("sidecar~.*\"", &format!("sidecar~.*\", {more}"));
    for (rules, is_warned) in [
        (CLAIMED.to_owned(), true),
        (listeners(&served), true),
        (listeners(&format!("{proven}, {served}")), true),
        (listeners(&proven), false),
        (matches("node.cluster: a"), true),
        (matches("peer.spiffe_id: \".*\""), false),
        (matches("peer.san: \".*\""), false),
        (CLAIMED.replace("node: client", "node: {id: a}"), false),
    ] {
        let files = Files::with(&rules);
        files.write("a.pem", &server.cert_pem);
        files.write("a.key", &server.key_pem);
        files.write("ca.pem", &clients.pem());
        let Ran { code, stderr, .. } = files.check(&[]);
        assert_eq!((code, stderr.starts_with(warning)), (Some(0), is_warned), "{rules}: {stderr}");
        assert_eq!(stderr.lines().count(), usize::from(is_warned), "{rules}: {stderr}");
    }
}

#[test]
fn r_relay_01_a_node_without_a_group_is_shown_with_the_reasons() {
    let files = with_groups("");
    let other =
        files.write("other.yaml", "{id: \"\\e[2J\", locality: {region: eu}, metadata: {role: gateway}}");
    let shown = files.given(&other);
    assert!(
        shown.starts_with(
            "group own  # no rule matches, unless payments does, which depends on the client's certificate\n\
             the control plane sees this node:\n{\n"
        ),
        "{shown}"
    );
    assert!(shown.contains("\n  \"id\": \"relay-1\""), "{shown}");
    assert!(shown.contains(
        "\nrule gateways does not match\n  node.locality.region does not match (?P<region>[a-z]+-[a-z]+-[0-9]+)\n  \
         node.metadata.role = \"gateway\"  # matches gateway\n"
    ), "{shown}");
    assert!(!shown.contains('\u{1b}'));

    let refusing = std::fs::read_to_string(files.0.path().join("relay.yaml")).unwrap();
    files.write("relay.yaml", &refusing.replace("default: own", "default: refuse"));
    let shown = files.given(&other);
    let start = "no group  # no node group takes this client: it matches none of the rules gateways, proxies, payments, \
                 unless payments does, which depends on the client's certificate\n\
                 rule gateways does not match\n";
    assert!(shown.starts_with(start), "{shown}");
}

#[test]
fn without_groups_the_control_plane_sees_the_node_of_the_relay() {
    const NONE: &str = "no parameters: the configuration has no `dynamic_parameters`\n";
    let files = Files::with("dynamic_parameters: []\nnode: {id: relay-1, cluster: edge}\n");
    let node = files.write("node.yaml", "{id: envoy-1, cluster: front}");
    assert_eq!(files.given_behind_own(&node), NONE);
    let shown = files.given(&node);
    for (text, is_shown) in
        [("\"cluster\": \"edge\"", true), ("\"id\": \"relay-1\"", true), ("envoy-1", false)]
    {
        assert_eq!(shown.contains(text), is_shown, "{shown}");
    }
    // A directory sees nobody.
    std::fs::create_dir(files.0.path().join("resources")).unwrap();
    files.write("relay.yaml", "upstream: {directory: resources}\n");
    assert_eq!(files.given(&node), NONE);
}

#[test]
fn a_file_that_is_no_node_is_told_with_its_path_and_the_reason() {
    let files = Files::with(RULES);
    for (name, text, reason) in [
        ("a.json", "{", "not JSON: EOF"),
        ("a.json", "", "not JSON: EOF"),
        ("a.yaml", "{a", "not YAML: "),
        ("a.yaml", "", "expected an envoy.config.core.v3.Node, or a bootstrap with a `node`, as an object"),
        ("a.json", "[1]", "expected an envoy.config.core.v3.Node"),
        ("a.json", r#"{"node": "me"}"#, "expected an envoy.config.core.v3.Node"),
        ("a.json", r#"{"node": {"id": 7}}"#, "its `node` is not a valid envoy.config.core.v3.Node: "),
        ("a.json", r#"{"node": {"name": "x"}}"#, "its `node` is not a valid envoy.config.core.v3.Node: "),
        (
            "a.yaml",
            "static_resources: {}",
            "it has no `node`, and by itself it is not a valid envoy.config.core.v3.Node: ",
        ),
        ("a.yaml", "id: a\nid: b", "not YAML: "),
    ] {
        let told = files.refused(&files.write(name, text));
        assert!(told.starts_with(reason), "{text}: {told}");
    }
    assert!(files.refused(&files.0.path().join("none.yaml")).starts_with("cannot be read: No such file"));
    assert!(files.refused(files.0.path()).starts_with("cannot be read: "));
    assert_eq!(files.refused(Path::new("/dev/zero")), "is larger than 16777216 bytes");
}

#[test]
fn hostile_nodes_neither_crash_it_nor_steer_a_terminal() {
    let files = Files::with(RULES);
    let bomb =
        format!("{{\"metadata\": {{\"env\": {}1{}}}}}", "{\"a\":".repeat(100_000), "}".repeat(100_000));
    assert!(!files.refused(&files.write("bomb.json", &bomb)).is_empty());
    // Readable as JSON, but deeper than a message may nest.
    let deep = format!("{{\"metadata\": {{\"env\": {}1{}}}}}", "[".repeat(60), "]".repeat(60));
    let told = files.refused(&files.write("deep.json", &deep));
    assert!(told.contains("it nests too deep"), "{told}");

    let node = files.write("steer.json", r#"{"cluster": "\u001b[2J\n\"", "metadata": {"env": "\u001b"}}"#);
    let shown = files.given(&node);
    assert!(shown.contains("\ncluster = \"\\u{1b}[2J\\n\\\"\"  # node"), "{shown}");
    assert!(!shown.contains('\u{1b}'));
    let unknown = files.write("unknown.json", r#"{"\u001b[2J\n": 1}"#);
    assert!(!files.refused(&unknown).contains('\u{1b}'));
    let files = Files::with("dynamic_parameters: [{key: \"\\e[2J\\n\", from: \"node.metadata.\\e\"}]\n");
    assert_eq!(
        files.given_behind_own(&node),
        "\\u{1b}[2J\\n is absent  # the node has no node.metadata.\\u{1b}\n"
    );
}

#[test]
fn a_configuration_is_checked_first_and_without_its_files() {
    let files = Files::with("dynamic_parameters: [{key: a, from: node.idd}]\n");
    let ran = files.check(&["--node", in_config("envoy-delta-ads.yaml").to_str().unwrap()]);
    assert_eq!(ran.code, Some(78));
    ran.complains(&[
        "relay.yaml:2: `dynamic_parameters[].from`: `node.idd` is no field of a client; did you mean `node.id`?",
    ]);
    let files = Files::with(
        "downstream: {listeners: [{tls: {cert_file: none.pem, key_file: none.key, client_ca_file: ca.pem}}]}\n\
         rest: {descriptor_sets: [none.binpb]}\n",
    );
    let ran = files.check(&[]);
    assert_eq!(ran.code, Some(78));
    ran.complains(&["none.binpb"]);
    let ran = files.check(&["--no-files"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(ran.stdout.contains("cert_file: ") && ran.stdout.contains("none.pem"), "{}", ran.stdout);
    let node = files.write("node.json", r#"{"id": "a"}"#);
    let ran = files.check(&["--no-files", "--node", node.to_str().unwrap()]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "files of the command line are read");

    // All else is checked.
    files.write(
        "relay.yaml",
        "upstream: {servers: [{uri: \"https://cp:1\", tls: {ca_file: none.pem}}]}\nnothing: 1\n",
    );
    let ran = files.check(&["--no-files"]);
    assert_eq!(ran.code, Some(78));
    ran.complains(&["relay.yaml:2: unknown key"]);
}

#[test]
fn likely_mistakes_are_told_and_the_files_of_a_directory_are_read() {
    let files = Files::with("");
    let check = |config: &str| files.check_of(config);
    let rollout = |keys: &str| check(&format!("{UPSTREAM}rollout: {{types: [cds], {keys}}}\n"));
    assert_eq!(rollout("share: 5%"), (Some(0), String::new()));
    for (keys, warned) in [
        ("share: 0%", "rollout.share: `0%` is one client"),
        ("threshold: 100%", "rollout.threshold: `100%` holds"),
    ] {
        let (code, told) = rollout(keys);
        assert!(code == Some(0) && told.starts_with(&format!("deltafan: warning: {warned}")), "{told}");
    }
    assert_eq!(rollout("share: 0%, window: 0s"), (Some(0), String::new()), "there are no trials");
    let directory = "upstream: {directory: resources}\n";
    let (code, told) = check(directory);
    assert!(
        code == Some(1) && told.contains("resources (upstream.directory): No such file or directory"),
        "{told}"
    );
    std::fs::create_dir(files.0.path().join("resources")).unwrap();
    assert_eq!(check(directory), (Some(0), String::new()));
    for name in ["one", "two"] {
        files.write(&format!("resources/{name}.yaml"), "resources: [");
    }
    let (code, told) = check(directory);
    let named = ["one", "two"].map(|name| {
        format!("deltafan: {}: ", files.0.path().join(format!("resources/{name}.yaml")).display())
    });
    assert_eq!(code, Some(1), "{told}");
    let lines: Vec<&str> = told.lines().collect();
    assert!(
        lines.len() == 3 && lines.iter().zip(&named).all(|(line, start)| line.starts_with(start)),
        "{told}"
    );
}

#[test]
fn unknown_keys_are_refused_unless_they_are_allowed() {
    let files = Files::with("audit: {path: x}\n");
    let refused = files.check(&[]);
    assert_eq!(refused.code, Some(78), "{refused:?}");
    let allowed = files.check(&["--allow-unknown-keys"]);
    let warning = format!("ignored: {}:2: unknown key `audit` at the top level", files.config().display());
    assert!(allowed.code == Some(0) && allowed.stderr.starts_with(&warning), "{allowed:?}");
    assert!(!allowed.stdout.contains("audit"), "it is not in effect");
}

/// Words that bash offers for the last of these.
fn offered(words: &str) -> Vec<String> {
    let script = r#"
        source <("$0" completions bash)
        COMP_WORDS=($1) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _deltafan deltafan "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
        echo "${COMPREPLY[@]}"
    "#;
    let output =
        std::process::Command::new("bash").args(["-c", script]).arg(program()).arg(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_shell_completes_commands_options_and_values() {
    assert_eq!(offered("deltafan cli"), ["clients"]);
    assert_eq!(offered("deltafan clients --as"), ["--asks-for"]);
    assert_eq!(offered("deltafan clients --state s"), ["synced"]);
    assert_eq!(offered("deltafan resources -o y"), ["yaml"]);
    assert_eq!(offered("deltafan rollout rest"), ["restore"]);
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = run(&["completions", shell]);
        for word in ["serve", "check", "get", "clients", "nacks", "resources", "status", "asks-for"] {
            assert!(ran.code == Some(0) && ran.stdout.contains(word), "{shell} does not know {word}");
        }
    }
}
