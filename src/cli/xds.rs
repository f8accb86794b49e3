//! Arguments of the commands that are xDS clients.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, RangedU64ValueParser};
use deltafan::cache::Protocol;
use deltafan::client::{Asker, Format, Query, Server, Subscription, Transport, Watch};
use deltafan::config::{self, CertificateFiles, ClientTls, ServerIdentity};
use deltafan::load::{self, Load};
use deltafan::node_file;
use deltafan::resource::{Name, TypeUrl, UnknownKindError};

/// Longest time of one attempt to connect, of commands that try again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Resources to ask for, and the server to ask.
#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL.
    #[arg(value_name = "TYPE", value_parser = TypeUrl::from_user)]
    type_url: TypeUrl,
    /// Names to ask for; without any, or with `*`, everything that the server lists.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// How to ask.
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,
    #[command(flatten)]
    asker: AskerArgs,
    /// Have a relay ask its control plane for what it does not hold, as it would for a client.
    #[arg(long)]
    subscribe: bool,
    /// Seconds to wait for the whole answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::seconds, allow_negative_numbers = true)]
    timeout: Duration,
    /// How to show the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

impl GetArgs {
    /// Reads the files that the arguments name.
    pub(crate) fn into_query(self) -> anyhow::Result<Query> {
        let Self { type_url, names, server, transport, asker, subscribe, timeout, output: _ } = self;
        let (asker, parameters) = asker.read("deltafan-get")?;
        Ok(Query {
            server: server.read(timeout)?,
            transport,
            asker: if subscribe { asker } else { asker.observing() },
            asked: Subscription::new(type_url, names, parameters.into_iter().collect()),
            timeout,
        })
    }
}

/// Resources to watch, and the server that has them.
#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL.
    #[arg(value_name = "TYPE", value_parser = TypeUrl::from_user)]
    type_url: TypeUrl,
    /// Names to watch; without any, or with `*`, everything that the server lists.
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// How to ask.
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,
    #[command(flatten)]
    asker: AskerArgs,
    /// Have a relay ask its control plane for what it does not hold, as it would for a client.
    #[arg(long)]
    subscribe: bool,
    /// End after this time, such as `30s` or `5m`.
    #[arg(long = "for", value_name = "TIME", value_parser = config::duration)]
    pub(crate) time: Option<Duration>,
    /// How to show a change: as a line, or as a document, in JSON one to a line.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

impl WatchArgs {
    /// Reads the files that the arguments name.
    pub(crate) fn into_watch(self) -> anyhow::Result<Watch> {
        let Self { type_url, names, server, transport, asker, subscribe, time: _, output: _ } = self;
        let (asker, parameters) = asker.read("deltafan-watch")?;
        Ok(Watch {
            server: server.read(CONNECT_TIMEOUT)?,
            transport,
            asker: if subscribe { asker } else { asker.observing() },
            asked: Subscription::new(type_url, names, parameters.into_iter().collect()),
        })
    }
}

/// Clients, and the server that they load.
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArgs {
    /// Types that each client asks for, all resources of a type, or the ones that are named; `eds={a,b}` is two of a type in most
    /// shells.
    #[arg(value_name = "TYPE[=NAME]", value_parser = resource, default_value = "cds")]
    resources: Vec<(TypeUrl, String)>,
    #[command(flatten)]
    server: ServerArgs,
    /// Protocol of the clients.
    #[arg(long, default_value = "delta", value_parser = PossibleValuesParser::new(["delta", "sotw"]))]
    transport: String,
    #[command(flatten)]
    asker: AskerArgs,
    /// Number of clients. `node.id` of each ends with its number.
    #[arg(long, value_name = "NUMBER", default_value = "100", value_parser = RangedU64ValueParser::<usize>::new().range(1..=100_000))]
    pub(crate) clients: usize,
    /// Clients that connect in a second.
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    rate: NonZeroU32,
    /// Time to measure changes for, once all clients have an answer, such as `30s` or `5m`.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = config::duration)]
    duration: Duration,
    /// Seconds to wait for the first answers, once the last client has begun to connect.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::seconds, allow_negative_numbers = true)]
    timeout: Duration,
    /// How to show the results.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: load::Format,
}

impl LoadArgs {
    /// Reads the files that the arguments name.
    pub(crate) fn into_load(self) -> anyhow::Result<Load> {
        let Self { resources, server, transport, asker, clients, rate, duration, timeout, output: _ } = self;
        let (asker, parameters) = asker.read("deltafan-load")?;
        let mut by_type = BTreeMap::<TypeUrl, Vec<String>>::new();
        for (type_url, name) in resources {
            by_type.entry(type_url).or_default().push(name);
        }
        let subscription =
            |(type_url, names)| Subscription::new(type_url, names, parameters.iter().cloned().collect());
        Ok(Load {
            server: server.read(CONNECT_TIMEOUT)?,
            protocol: if transport == "sotw" { Protocol::Sotw } else { Protocol::Delta },
            asker,
            asked: by_type.into_iter().map(subscription).collect(),
            clients,
            rate,
            patience: timeout,
            duration,
        })
    }
}

/// Type of the command line, and a name of it or `*`.
fn resource(text: &str) -> Result<(TypeUrl, String), UnknownKindError> {
    let (kind, name) = text.split_once('=').unwrap_or((text, Name::WILDCARD));
    Ok((TypeUrl::from_user(kind)?, name.to_owned()))
}

/// An xDS server.
#[derive(Debug, clap::Args)]
struct ServerArgs {
    /// The server's address: http://HOST:PORT, https://HOST:PORT or unix:PATH.
    #[arg(long, value_name = "URI", default_value = "http://127.0.0.1:15010")]
    server: String,
    #[command(flatten)]
    tls: TlsArgs,
}

impl ServerArgs {
    fn read(self, connect_timeout: Duration) -> anyhow::Result<Server> {
        Server::new(self.server, self.tls.into_config(), connect_timeout)
    }
}

/// As whom to ask.
#[derive(Debug, clap::Args)]
struct AskerArgs {
    /// Ask as the node in this file: a Node of xDS, or the bootstrap of an Envoy or of gRPC, as JSON or YAML. All of the node is
    /// sent, so a server answers as it would answer that client.
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// `node.id` to ask with, instead of the one in the file.
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,
    /// `node.cluster` to ask with, instead of the one in the file.
    #[arg(long, value_name = "NAME")]
    node_cluster: Option<String>,
    /// A dynamic parameter to ask with, as `KEY=VALUE`; may be given more than once.
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
}

impl AskerArgs {
    /// Node and dynamic parameters.
    fn read(self, default_id: &str) -> anyhow::Result<(Asker, Vec<(String, String)>)> {
        let Self { node, node_id, node_cluster, parameters } = self;
        let node = node.map(|path| node_file::read(&path)).transpose()?;
        Ok((Asker::new(node, default_id, node_id, node_cluster), parameters))
    }
}

/// How an `https://` server is verified, and what is shown to it.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "TLS, with https:// only")]
pub(crate) struct TlsArgs {
    /// The authorities (PEM) that the server's certificate must lead to; by default those of the system.
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
    /// The certificate (PEM) to show when the server asks for one, and those that lead to its authority.
    #[arg(long, value_name = "FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// The private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// Identity that the server's certificate must be for, if not the host of the URI: a name, an address or a SPIFFE ID.
    #[arg(long, value_name = "NAME")]
    server_name: Option<ServerIdentity>,
}

impl TlsArgs {
    /// `None` where none was given.
    pub(crate) fn into_config(self) -> Option<ClientTls> {
        let Self { ca_file, cert_file, key_file, server_name } = self;
        let own =
            cert_file.zip(key_file).map(|(cert_file, key_file)| CertificateFiles { cert_file, key_file });
        let tls = ClientTls { ca_file, own, crl_file: None, server_name };
        (tls != ClientTls::default()).then_some(tls)
    }
}

/// A dynamic parameter of the command line.
fn parameter(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a parameter is written KEY=VALUE"),
    }
}
