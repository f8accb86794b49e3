//! The command line: commands, arguments and their help.
//!
//! Owns what can be typed and how it is read. Runs nothing.

mod orders;
mod xds;

use std::path::PathBuf;
use std::time::Duration;

use crate::admin_client::{AdminAddress, Asked, Filters};
use crate::output::Format;
use clap::builder::PossibleValuesParser;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use deltafan_core::resource::TypeUrl;
use deltafan_core::subscription::ClientState;

pub use orders::{Order, OrderCommand, RolloutArgs, RolloutCommand};
pub use xds::{GetArgs, LoadArgs, WatchArgs};

/// A caching xDS relay: one connection to each control plane, by delta or state-of-the-world ADS, fanned out to thousands of
/// xDS clients that keep their configuration when the control plane is away.
#[derive(Debug, Parser)]
#[command(name = "deltafan", version, about, long_about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Commands of a relay, and all others.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the relay until SIGTERM or SIGINT, then drain and exit.
    ///
    /// SIGHUP, or a change of the file, has the configuration read again: what can change while it runs does, what needs a
    /// restart is named in the log, and a file that is wrong changes nothing. A drain closes clients one after the other
    /// within `downstream.drain`; a second signal ends it at once. Either way it exits with 0.
    Serve {
        #[command(flatten)]
        config: ConfigArgs,
        /// How to write the log to stderr; by default for people on a terminal and JSON elsewhere.
        #[arg(long, value_enum)]
        log_format: Option<LogFormat>,
        /// Log filter, as in `info` or `deltafan=debug`.
        #[arg(long, env = "DELTAFAN_LOG", default_value = "info")]
        log_level: String,
    },
    /// Check a configuration and print it with every default filled in.
    ///
    /// Exits with 78 and a line `FILE:LINE: what is wrong` for each fault.
    Check {
        #[command(flatten)]
        config: ConfigArgs,
        /// Instead of printing it, show the node group and the dynamic parameters of the node in this file: a Node of xDS,
        /// or the bootstrap of an Envoy or of gRPC, as JSON or YAML.
        #[arg(long, value_name = "FILE")]
        node: Option<PathBuf>,
        /// Leave the files alone that the configuration names: certificates, keys, descriptor sets, resources. For CI, which
        /// has no secrets.
        #[arg(long)]
        no_files: bool,
    },
    #[command(flatten)]
    Client(ClientCommand),
    /// Look at the snapshot on disk of a relay that does not run.
    #[command(subcommand)]
    Snapshot(SnapshotCommand),
    /// Print a script that completes commands and options in a shell
    ///
    /// Examples:
    ///   source <(deltafan completions bash)
    ///   deltafan completions fish > ~/.config/fish/completions/deltafan.fish
    ///   deltafan completions zsh > "${fpath[1]}/_deltafan"
    #[command(verbatim_doc_comment)]
    // An index of a shell is no link.
    #[allow(rustdoc::broken_intra_doc_links)]
    Completions {
        /// The shell.
        shell: Shell,
    },
}

/// Commands that ask servers.
#[derive(Debug, Subcommand)]
pub enum ClientCommand {
    /// Ask an xDS server for resources and show its answer
    ///
    /// A relay answers with what it holds for its clients, and does not ask its control plane for this command. With
    /// --subscribe, and always with --transport rest, it serves this command as a client.
    /// Without --node and --node-id the node is `deltafan-get`, which may have a node group of its own, and no answer.
    /// Exits with 1 if a name does not exist, a collection has no members, or the answer is not complete.
    ///
    /// Examples:
    ///   deltafan get cds --server http://127.0.0.1:15010
    ///   deltafan get eds web --server http://127.0.0.1:15010 -o yaml
    ///   deltafan get cds --transport sotw --server http://control-plane:18000
    ///   deltafan get lds --node envoy.yaml --server http://control-plane:18000
    ///   deltafan get lds --server https://relay:15010 --ca-file ca.pem --cert-file me.pem --key-file me.key
    #[command(verbatim_doc_comment)]
    Get(Box<GetArgs>),
    /// Watch resources of an xDS server: a line for each change
    ///
    /// Begins with the resources that exist, as `added`. When the connection is lost, stderr has the cause, and the command connects
    /// again and prints what changed meanwhile. State of the world and REST-JSON show removals only if you watch all of CDS, LDS or
    /// SRDS. A relay answers as it does to `deltafan get`.
    /// Ends on Ctrl-C, SIGTERM or after --for. Exits with 0 if the server has answered by then, and with 1 if it never has.
    ///
    /// Examples:
    ///   deltafan watch cds --server http://127.0.0.1:15010
    ///   deltafan watch eds web --for 30s -o json
    #[command(verbatim_doc_comment)]
    Watch(Box<WatchArgs>),
    /// Load an xDS server with many clients, and measure how fast it answers and how evenly changes reach them
    ///
    /// Each client has its own connection with one ADS stream, ACKs everything, and connects again when its stream ends. A relay
    /// subscribes to what they ask for, as for any client.
    ///
    ///   connect       from the start of an attempt to the server's first frame: name, TCP, TLS, HTTP/2
    ///   first answer  from that start to the first response
    ///   spread        of a change: from the first client that has it to each of the others
    ///   last client   the spread at the last client, of changes that all clients have
    ///
    /// A spread is not the time from the control plane: no client can tell how long the first one has waited. A change is a new version
    /// or the removal of a resource over delta, and a new version of a response in state of the world. Changes are measured once all
    /// clients have an answer; make them while the command runs. All times include that of this process: see the CPUs that it used.
    /// Exits with 1 if a client had no answer.
    ///
    /// Examples:
    ///   deltafan load cds --server http://127.0.0.1:15010 --clients 1000 --rate 200 --duration 30s
    ///   deltafan load cds lds eds={web,api} --server https://relay:15010 --ca-file ca.pem -o json
    #[command(verbatim_doc_comment)]
    Load(Box<LoadArgs>),
    /// Say whether all is well with a relay, and what is not
    ///
    /// Exits with 0 if nothing is at fault, with 3 if something is, and with 1 if the relay could not be asked. What is worth
    /// knowing and no fault is a note. With several relays it also compares the resources that they serve.
    ///
    /// Examples:
    ///   deltafan status
    ///   deltafan status --admin http://relay-1:15000 --admin http://relay-2:15000
    #[command(verbatim_doc_comment)]
    Status(AdminArgs),
    /// Show the clients of a relay, and what each was sent, accepted and rejected
    ///
    /// Exits with 1 when a filter matches nothing, or the client is not connected.
    ///
    /// Examples:
    ///   deltafan clients --state rejected
    ///   deltafan clients --type cds --asks-for backend
    ///   deltafan clients 42
    #[command(verbatim_doc_comment)]
    Clients(ClientsArgs),
    /// Show the newest rejection (NACK) of each client and type, the newest first
    ///
    /// Rejections of clients that are gone or have accepted something since are shown too; see NOW.
    /// Exits with 1 when a filter matches nothing.
    #[command(verbatim_doc_comment)]
    Nacks(NacksArgs),
    /// Show the resources that a relay holds, and how many clients ask for each
    ///
    /// Exits with 1 when a filter matches nothing.
    ///
    /// Example:
    ///   deltafan resources --type eds --name 'web*'
    #[command(verbatim_doc_comment)]
    Resources(ResourcesArgs),
    /// Show what changed: the newest changes, or those of one resource with its clients and a diff
    ///
    /// The relay remembers changes since its start, within `cache.history_bytes`. Secrets are shown without their content.
    /// Exits with 1 when there is no history of the resource, or no such version.
    ///
    /// Examples:
    ///   deltafan history
    ///   deltafan history eds --limit 20
    ///   deltafan history cds backend
    ///   deltafan history rds front --from 16 --to 18
    ///   deltafan history --since 2026-03-01T14:00:00Z --until 2026-03-01T14:05:00Z
    #[command(verbatim_doc_comment)]
    History(HistoryArgs),
    /// Show the changes that the rollout guard tries or holds, or decide on them
    ///
    /// Examples:
    ///   deltafan rollout
    ///   deltafan rollout hold cds
    ///   deltafan rollout release --yes
    ///   deltafan rollout restore cds backend --version 17
    #[command(verbatim_doc_comment)]
    Rollout(RolloutArgs),
    #[command(flatten)]
    Order(OrderCommand),
}

/// The configuration file.
#[derive(Debug, clap::Args)]
pub struct ConfigArgs {
    /// The configuration; config/reference.yaml has every key.
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Warn of keys that this version does not know, and ignore them, instead of refusing the file: for a rollback under a
    /// newer file. Slips of known keys are refused all the same, and unknown keys about TLS, authorization, listeners, servers,
    /// the admin address, node groups and dynamic parameters.
    #[arg(long)]
    pub allow_unknown_keys: bool,
}

#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Show node groups, types, and resources with version, size and the rest of their TTL; never a body.
    Show {
        /// The folder of `snapshot.path`, or the file in it.
        path: PathBuf,
        /// How to show it.
        #[arg(short, long, value_enum, default_value_t)]
        output: Format,
    },
    /// Verify each value, and say what is broken. Exits with 1 if anything is.
    Verify {
        /// The folder of `snapshot.path`, or the file in it.
        path: PathBuf,
    },
}

/// Admin addresses of relays, and how to show what they answer.
#[derive(Debug, clap::Args)]
pub struct AdminArgs {
    /// The relay's `admin.address`. Several relays are asked if it is repeated, or a name with several addresses.
    #[arg(long, value_name = "URI", default_value = "http://127.0.0.1:15000")]
    pub(crate) admin: Vec<AdminAddress>,
    /// Seconds to wait for each answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds, allow_negative_numbers = true)]
    pub(crate) timeout: Duration,
    /// Form of the answer; JSON and YAML are the document of the admin address, or a list with that of each relay.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// Part of a list.
#[derive(Debug, clap::Args)]
pub struct PageArgs {
    /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL.
    #[arg(long = "type", value_name = "TYPE", value_parser = TypeUrl::from_user)]
    type_url: Option<TypeUrl>,
    /// Entries to show; by default all. With 0, only the figures.
    #[arg(long, value_name = "NUMBER")]
    limit: Option<usize>,
}

/// Clients to show.
#[derive(Debug, clap::Args)]
pub struct ClientsArgs {
    /// One client, with the names that it asks for.
    #[arg(value_name = "ID", conflicts_with_all = ["node", "type_url", "state", "asks_for", "limit"])]
    id: Option<u64>,
    /// Node ID; `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    node: Option<String>,
    /// State of the client, or of its `--type`.
    #[arg(long, value_parser = PossibleValuesParser::new(ClientState::ALL.map(ClientState::label)))]
    state: Option<String>,
    /// Name of a resource: clients that ask for it, by name, through a collection or through the wildcard. Without long polls,
    /// whose names the relay does not keep.
    #[arg(long, value_name = "NAME")]
    asks_for: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

impl ClientsArgs {
    pub(crate) fn asked(&self) -> Asked {
        let own = [("node", &self.node), ("state", &self.state), ("asks_for", &self.asks_for)];
        let one = |id| Asked::get(format!("/clients/{id}"), Vec::new(), None);
        self.id.map_or_else(|| self.page.list("/clients", own), one)
    }
}

/// Rejections to show.
#[derive(Debug, clap::Args)]
pub struct NacksArgs {
    /// Node ID; `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    node: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

impl NacksArgs {
    pub(crate) fn asked(&self) -> Asked {
        self.page.list("/nacks", [("node", &self.node)])
    }
}

/// Resources to show.
#[derive(Debug, clap::Args)]
pub struct ResourcesArgs {
    /// Name of the resource; `*` stands for any text.
    #[arg(long, value_name = "PATTERN")]
    name: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

impl ResourcesArgs {
    pub(crate) fn asked(&self) -> Asked {
        self.page.list("/resources", [("name", &self.name)])
    }
}

/// Changes to show, and which states of a resource are compared.
#[derive(Debug, clap::Args)]
pub struct HistoryArgs {
    /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL.
    #[arg(value_name = "TYPE", value_parser = TypeUrl::from_user)]
    type_url: Option<TypeUrl>,
    /// Name of a resource; by default the newest changes of all are shown.
    #[arg(value_name = "NAME")]
    name: Option<String>,
    /// Node group, as `deltafan resources` shows it; empty for that of the relay's own node. By default all.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
    /// Version to compare with `--to`, or `#` and a generation; by default the one before it.
    #[arg(long, value_name = "VERSION", requires = "name")]
    from: Option<String>,
    /// Time whose state is compared with `--to`, as in 2026-03-01T14:02:11Z.
    #[arg(long, value_name = "TIME", requires = "name", conflicts_with = "from")]
    at: Option<String>,
    /// Version to compare with `--from` or `--at`; by default the newest.
    #[arg(long, value_name = "VERSION", requires = "name")]
    to: Option<String>,
    /// Time of the first change to show, without a name.
    #[arg(long, value_name = "TIME", conflicts_with = "name")]
    since: Option<String>,
    /// Time of the last change to show, without a name.
    #[arg(long, value_name = "TIME", conflicts_with = "name")]
    until: Option<String>,
    /// Changes to show, without a name; by default 100.
    #[arg(long, value_name = "NUMBER", conflicts_with = "name")]
    limit: Option<usize>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

impl HistoryArgs {
    pub(crate) fn asked(&self) -> Asked {
        let filters = filters([
            ("type", url(self.type_url.as_ref())),
            ("limit", self.limit.map(|limit| limit.to_string())),
            ("name", self.name.clone()),
            ("group", self.group.clone()),
            ("from", self.from.clone()),
            ("at", self.at.clone()),
            ("to", self.to.clone()),
            ("since", self.since.clone()),
            ("until", self.until.clone()),
        ]);
        Asked::get("/history", filters, None)
    }
}

impl PageArgs {
    /// A list with the filters that were given.
    fn list<const N: usize>(&self, path: &str, own: [(&'static str, &Option<String>); N]) -> Asked {
        let own = own.map(|(key, value)| (key, value.clone())).into_iter();
        let all = own.chain([("type", url(self.type_url.as_ref()))]);
        Asked::get(path, filters(all), self.limit)
    }
}

fn url(of: Option<&TypeUrl>) -> Option<String> {
    of.map(|of| of.as_str().to_owned())
}

/// Filters that were given.
fn filters(all: impl IntoIterator<Item = (&'static str, Option<String>)>) -> Filters {
    all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum LogFormat {
    Text,
    Json,
}

/// Reads the command line, and exits if it is wrong, or asks for help or `version`.
pub fn parse(version: &'static str) -> Command {
    let matches = Cli::command().version(version).get_matches();
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()).command
}

/// Script that completes the command line in a shell.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "deltafan", &mut script);
    script
}

/// A time of the command line, in seconds.
fn seconds(text: &str) -> Result<Duration, &'static str> {
    // A day: the clock has no moment that is too far away.
    const LONGEST: Duration = Duration::from_hours(24);
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let seconds = seconds.filter(|time| !time.is_zero() && *time <= LONGEST);
    seconds.ok_or("it must be a number of seconds above 0, at most 86400; 0.5 is half a second")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// Files of a folder, with their texts.
    fn files(folder: &Path) -> BTreeMap<String, String> {
        let entries = fs::read_dir(folder).into_iter().flatten().map(Result::unwrap);
        let file = |entry: fs::DirEntry| {
            (entry.file_name().into_string().unwrap(), fs::read_to_string(entry.path()).unwrap())
        };
        entries.map(file).collect()
    }

    /// `UPDATE_DOCS=1` writes them.
    #[test]
    fn the_manual_pages_are_those_of_the_command_line() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/man");
        let made = tempfile::tempdir().unwrap();
        // Without the commit, which a page in the repository cannot know.
        clap_mangen::generate_to(Cli::command(), made.path()).unwrap();
        let pages = files(made.path());
        assert!(pages.len() > 10, "{:?}", pages.keys());
        if std::env::var_os("UPDATE_DOCS").is_some() {
            _ = fs::remove_dir_all(&folder);
            fs::create_dir_all(&folder).unwrap();
            for (name, text) in &pages {
                fs::write(folder.join(name), text).unwrap();
            }
        }
        let kept = files(&folder);
        let names: Vec<_> = pages.iter().filter(|(name, text)| kept.get(*name) != Some(text)).collect();
        let names: Vec<_> = names.into_iter().map(|(name, _)| name).collect();
        assert!(
            names.is_empty() && kept.len() == pages.len(),
            "deploy/man is out of date ({names:?}): UPDATE_DOCS=1 cargo test -p deltafan-commands"
        );
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
