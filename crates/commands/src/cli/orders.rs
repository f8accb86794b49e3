//! Arguments of the commands that give orders to relays, and the question before each.

use deltafan_core::resource::TypeUrl;

use crate::admin_client::{Asked, Filters};

use super::{AdminArgs, filters, url};

/// Relays that get an order.
#[derive(Debug, clap::Args)]
pub struct OrderArgs {
    /// Give the order without a question. Needed where stdin is no terminal.
    #[arg(short, long)]
    yes: bool,
    #[command(flatten)]
    admin: AdminArgs,
}

/// An order that was typed.
#[derive(Debug)]
pub struct Order {
    pub(crate) asked: Asked,
    /// The order in words, for a question.
    pub(crate) words: String,
    pub(crate) is_confirmed: bool,
    pub(crate) admin: AdminArgs,
}

impl OrderArgs {
    fn order(self, words: String, path: impl Into<String>, filters: Filters) -> Order {
        let Self { yes, admin } = self;
        Order { asked: Asked::order(path, filters), words, is_confirmed: yes, admin }
    }
}

/// Orders about a relay or one of its clients.
#[derive(Debug, clap::Subcommand)]
pub enum OrderCommand {
    /// Order relays to send their clients away within `downstream.drain`; there is no way back but a restart.
    Drain {
        #[command(flatten)]
        to: OrderArgs,
    },
    /// Order relays to ask the control plane anew for one resource
    ///
    /// For a resource whose content differs from that of the control plane though its version is the same.
    ///
    /// Example:
    ///   deltafan refresh eds backend
    #[command(verbatim_doc_comment)]
    Refresh {
        /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL.
        #[arg(value_name = "TYPE", value_parser = TypeUrl::from_user)]
        type_url: TypeUrl,
        /// Name of the resource.
        #[arg(value_name = "NAME")]
        name: String,
        #[command(flatten)]
        group: GroupArgs,
        #[command(flatten)]
        to: OrderArgs,
    },
    /// Order a relay to close the connection of a client, with all of its streams; the client reconnects.
    Disconnect {
        /// The client's ID, as `deltafan clients` shows it.
        #[arg(value_name = "CLIENT")]
        client: u64,
        #[command(flatten)]
        to: OrderArgs,
    },
    /// Set the log level of relays until their next start.
    LogLevel {
        /// Log filter, as in `debug` or `info,deltafan::upstream=debug`.
        #[arg(value_name = "LEVEL")]
        level: String,
        #[command(flatten)]
        to: OrderArgs,
    },
}

impl OrderCommand {
    pub(crate) fn into_order(self) -> Order {
        match self {
            Self::Drain { to } => to.order("drain".to_owned(), "/drain", Vec::new()),
            Self::Refresh { type_url, name, group, to } => {
                let words = format!("ask anew for {} {name}{}", type_url.kind().short(), group.words());
                let of = [("type", type_url.as_str().to_owned()), ("name", name)];
                to.order(words, "/refresh", of.into_iter().chain(group.filter()).collect())
            }
            Self::Disconnect { client, to } => to.order(
                format!("disconnect client {client}"),
                format!("/clients/{client}/disconnect"),
                Vec::new(),
            ),
            Self::LogLevel { level, to } => {
                to.order(format!("set the log level to {level}"), "/log", vec![("level", level)])
            }
        }
    }
}

/// Node group that an order is about.
#[derive(Debug, clap::Args)]
pub struct GroupArgs {
    /// Node group, as `deltafan resources` shows it; empty for that of the relay's own node. By default all.
    #[arg(long, value_name = "GROUP")]
    group: Option<String>,
}

impl GroupArgs {
    fn words(&self) -> String {
        match self.group.as_deref() {
            None => String::new(),
            Some("") => " in the relay's own group".to_owned(),
            Some(group) => format!(" in group `{group}`"),
        }
    }

    fn filter(self) -> Option<(&'static str, String)> {
        Some(("group", self.group?))
    }
}

/// The rollout guard of relays.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RolloutArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RolloutCommand>,
    #[command(flatten)]
    pub(crate) admin: AdminArgs,
}

#[derive(Debug, clap::Subcommand)]
pub enum RolloutCommand {
    /// Show changes on trial or held, and orders in force. The default.
    Show(AdminArgs),
    /// Hold changes: clients keep what they have until a release.
    Hold(DecideArgs),
    /// Release held changes, restored states and holds.
    Release(DecideArgs),
    /// Discard held changes: these versions never spread.
    Discard(DecideArgs),
    /// Serve an earlier state from the history
    ///
    /// It lasts until the control plane sends something newer, or until a release.
    ///
    /// Examples:
    ///   deltafan rollout restore cds backend --version 17
    ///   deltafan rollout restore --at 2026-03-01T14:02:11Z
    #[command(verbatim_doc_comment)]
    Restore {
        #[command(flatten)]
        of: TypeArgs,
        /// Name of a resource; by default all of the type.
        #[arg(value_name = "NAME")]
        name: Option<String>,
        /// Version of the resource, as `deltafan history` shows it.
        #[arg(
            long,
            value_name = "VERSION",
            requires = "name",
            conflicts_with = "at",
            required_unless_present = "at"
        )]
        version: Option<String>,
        /// Time whose state is served, as in 2026-03-01T14:02:11Z.
        #[arg(long, value_name = "TIME")]
        at: Option<String>,
        #[command(flatten)]
        decision: DecisionArgs,
    },
}

/// Resource type that an order is about.
#[derive(Debug, clap::Args)]
pub struct TypeArgs {
    /// cds, eds, leds, lds, srds, rds, vhds, sds, ecds, rtds, or a type URL. By default all guarded types.
    #[arg(value_name = "TYPE", value_parser = TypeUrl::from_user)]
    type_url: Option<TypeUrl>,
}

impl TypeArgs {
    fn words(&self) -> &'static str {
        self.type_url.as_ref().map_or("all guarded types", |of| of.kind().short())
    }
}

/// Scope, author and relays of a decision.
#[derive(Debug, clap::Args)]
pub struct DecisionArgs {
    #[command(flatten)]
    group: GroupArgs,
    /// Author of the order, for those who see it later.
    #[arg(long, value_name = "TEXT", env = "USER", hide_env_values = true)]
    by: Option<String>,
    #[command(flatten)]
    to: OrderArgs,
}

impl DecisionArgs {
    /// `of` are the keys beside the group and the author.
    fn order(self, verb: &str, object: &str, mut of: Filters) -> Order {
        let Self { group, by, to } = self;
        let words = format!("{verb} {object}{}", group.words());
        of.extend(group.filter());
        of.extend(by.filter(|by| !by.is_empty()).map(|by| ("by", by)));
        to.order(words, format!("/rollout/{verb}"), of)
    }
}

/// Decision on the changes of a type.
#[derive(Debug, clap::Args)]
pub struct DecideArgs {
    #[command(flatten)]
    of: TypeArgs,
    #[command(flatten)]
    decision: DecisionArgs,
}

impl DecideArgs {
    fn order(self, verb: &str) -> Order {
        let object = format!("changes of {}", self.of.words());
        self.decision.order(verb, &object, filters([("type", url(self.of.type_url.as_ref()))]))
    }
}

impl RolloutCommand {
    /// Returns the order; an error has the relays to show.
    pub(crate) fn into_order(self) -> Result<Order, AdminArgs> {
        Ok(match self {
            Self::Show(admin) => return Err(admin),
            Self::Hold(of) => of.order("hold"),
            Self::Release(of) => of.order("release"),
            Self::Discard(of) => of.order("discard"),
            Self::Restore { of, name, version, at, decision } => {
                let kind = of.words();
                let object = name.as_ref().map_or_else(|| kind.to_owned(), |name| format!("{kind} {name}"));
                let state = match (&version, &at) {
                    (Some(version), _) => format!("{object} at version {version}"),
                    (None, at) => format!("{object} as of {}", at.as_deref().unwrap_or_default()),
                };
                let of =
                    [("type", url(of.type_url.as_ref())), ("name", name), ("version", version), ("at", at)];
                decision.order("restore", &state, filters(of))
            }
        })
    }
}
