//! Arguments of the commands that are xDS clients.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use crate::client::{Asker, NodeFile, Query, Server, Subscription, Transport};
use crate::load::Load;
use crate::output::Format;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, RangedU64ValueParser};
use deltafan_core::cache::Protocol;
use deltafan_core::resource::{Name, TypeUrl};
use deltafan_transport::tls::options::{CertificateFiles, ServerIdentity, TlsOptions};
use deltafan_transport::units::parse_duration;

/// Longest attempt to connect, of commands that try again.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Resources, the server that has them, and the node that asks.
#[derive(Debug, clap::Args)]
struct QueryArgs {
    /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL.
    #[arg(value_name = "TYPE", value_parser = TypeUrl::from_user)]
    type_url: TypeUrl,
    /// Names of resources, or of collections (`xdstp://…/*`); by default, or with `*`, everything that the server lists.
    #[arg(value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    names: Vec<String>,
    #[command(flatten)]
    server: ServerArgs,
    /// Transport to ask over.
    #[arg(long, value_enum, default_value_t)]
    transport: Transport,
    #[command(flatten)]
    asker: AskerArgs,
    /// Have a relay ask its control plane for what it does not hold, as it would for a client.
    #[arg(long)]
    subscribe: bool,
}

impl QueryArgs {
    /// Reads the files that the arguments name.
    fn read(self, default_id: &str, connect_timeout: Duration) -> anyhow::Result<Query> {
        let Self { type_url, names, server, transport, asker, subscribe } = self;
        let (asker, parameters) = asker.read(default_id)?;
        Ok(Query {
            server: server.read(connect_timeout)?,
            transport,
            asker: if subscribe { asker } else { asker.observing() },
            asked: Subscription::new(type_url, names, parameters.into_iter().collect()),
        })
    }
}

/// Resources to get.
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    #[command(flatten)]
    query: QueryArgs,
    /// Seconds to wait for the whole answer.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::seconds, allow_negative_numbers = true)]
    pub(crate) timeout: Duration,
    /// Form of the answer.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

impl GetArgs {
    /// Reads the files that the arguments name.
    pub(crate) fn into_query(self) -> anyhow::Result<Query> {
        self.query.read("deltafan-get", self.timeout)
    }
}

/// Resources to watch.
#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    #[command(flatten)]
    query: QueryArgs,
    /// Stop after this time, such as `30s` or `5m`.
    #[arg(long = "for", value_name = "TIME", value_parser = parse_duration)]
    pub(crate) time: Option<Duration>,
    /// Form of a change: a line of a table, or a document; in JSON a line too.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

impl WatchArgs {
    /// Reads the files that the arguments name.
    pub(crate) fn into_query(self) -> anyhow::Result<Query> {
        self.query.read("deltafan-watch", CONNECT_TIMEOUT)
    }
}

/// Clients of a load, and their server.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// Types that each client subscribes to: all resources of a type, or those that are named. In most shells `eds={a,b}` is two
    /// names.
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
    /// Clients that connect per second.
    #[arg(long, value_name = "NUMBER", default_value = "100")]
    rate: NonZeroU32,
    /// How long to measure changes once all clients have an answer, such as `30s` or `5m`.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_duration)]
    duration: Duration,
    /// Seconds to wait for first answers after the last client has begun to connect.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = super::seconds, allow_negative_numbers = true)]
    timeout: Duration,
    /// Form of the results; times are in milliseconds in JSON and YAML.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
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
fn resource(text: &str) -> Result<(TypeUrl, String), String> {
    let (kind, name) = text.split_once('=').unwrap_or((text, Name::WILDCARD));
    if name.is_empty() {
        return Err("a name is missing after `=`".to_owned());
    }
    Ok((TypeUrl::from_user(kind).map_err(|unknown| unknown.to_string())?, name.to_owned()))
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
        Server::new(self.server, self.tls.into_options(), connect_timeout)
    }
}

/// Node that asks.
#[derive(Debug, clap::Args)]
struct AskerArgs {
    /// Ask as the node in this file: a Node of xDS, or the bootstrap of an Envoy or of gRPC, as JSON or YAML. The whole node is
    /// sent, so the server answers as it would that client.
    #[arg(long, value_name = "FILE")]
    node: Option<PathBuf>,
    /// `node.id` to send, in place of that in the file.
    #[arg(long, value_name = "ID")]
    node_id: Option<String>,
    /// `node.cluster` to send, in place of that in the file.
    #[arg(long, value_name = "NAME")]
    node_cluster: Option<String>,
    /// Dynamic parameter to send, as `KEY=VALUE`; may be repeated.
    #[arg(long = "param", value_name = "KEY=VALUE", value_parser = parameter)]
    parameters: Vec<(String, String)>,
}

impl AskerArgs {
    /// Returns the node and the dynamic parameters.
    fn read(self, default_id: &str) -> anyhow::Result<(Asker, Vec<(String, String)>)> {
        let Self { node, node_id, node_cluster, parameters } = self;
        let node = node.map(|path| NodeFile::read(&path)).transpose()?;
        Ok((Asker::new(node, default_id, node_id, node_cluster), parameters))
    }
}

/// Heading of options that mean nothing for `http://`.
const TLS: &str = "TLS, with https:// only";

/// Verification of an `https://` server, and the certificate for it.
#[derive(Debug, clap::Args)]
pub(crate) struct TlsArgs {
    /// Authorities (PEM) to verify the server's certificate with; by default those of the system.
    #[arg(long, value_name = "FILE", help_heading = TLS)]
    ca_file: Option<PathBuf>,
    /// Certificate chain (PEM) for a server that asks for one.
    #[arg(long, value_name = "FILE", help_heading = TLS, requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    #[arg(long, value_name = "FILE", help_heading = TLS, requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// Identity in the server's certificate, if not the host of the URI: a name, an address or a SPIFFE ID.
    #[arg(long, value_name = "NAME", help_heading = TLS)]
    server_name: Option<ServerIdentity>,
}

impl TlsArgs {
    fn into_options(self) -> TlsOptions {
        let Self { ca_file, cert_file, key_file, server_name } = self;
        let own =
            cert_file.zip(key_file).map(|(cert_file, key_file)| CertificateFiles { cert_file, key_file });
        TlsOptions { ca_file, own, crl_file: None, server_name }
    }
}

/// A dynamic parameter of the command line.
fn parameter(text: &str) -> Result<(String, String), &'static str> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("a parameter is written KEY=VALUE"),
    }
}
