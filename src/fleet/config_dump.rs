//! Resources with bodies: `/config_dump`, and the client status discovery service (CSDS).
//!
//! Owns the states of resources at clients. Shows Secrets by name only, and hides values that the API marks as
//! sensitive. Knows no transport.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::Arc;

use prost::Message as _;
use regex::{Regex, escape};
use serde_json::{Value as Json, json};

use super::registry::{PollRequest, Record, RecordState};
use super::resources_report::stores;
use super::view::{Document, LookError, Query, View};
use crate::cache::{Snapshot, VisibleState, Withheld};
use crate::descriptors::{DescriptorError, Descriptors};
use crate::fairness::lower_thread_priority;
use crate::proto::status::string_matcher::MatchPattern;
use crate::proto::status::{
    ClientConfig, ClientStatusRequest, ClientStatusResponse, GenericXdsConfig, NodeMatcher,
    UpdateFailureState,
};
use crate::proto::{ClientResourceStatus, ConfigStatus, Node};
use crate::resource::{Name, Resource, TypeUrl, whole_match};
use crate::subscription::{Audience, ClientState, Delivery, ResourceState, TypeProgress};
use crate::terminal::printable_json;
use crate::utc::WallClock;

/// Bytes of a dump, or of a response of CSDS.
const LARGEST: usize = 64 << 20;

const TOO_LARGE: LookError = LookError::TooLarge(
    "the answer would be larger than 64 MiB; ask for less with `type` and `name`, as in /config_dump?type=cds&name=web-*",
);

/// A `ConfigDump` with a `ClientConfig`, up to its resources.
const BEGINNING: &str = r#"{"configs":[{"@type":"type.googleapis.com/envoy.service.status.v3.ClientConfig","generic_xds_configs":["#;

impl View<'_> {
    /// Matching resources of a node group, as a JSON `ConfigDump`. Lowers the priority of its thread.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is wrong, there is no such group, or there is too much.
    pub fn config_dump(&self, query: &str) -> Document {
        let query = Query::parse(query, &["type", "name", "group"])?;
        let (only, name) = (query.type_url()?, query.pattern("name")?);
        let wanted = query.get("group").unwrap_or_default();
        let group = self.groups.chosen(Some(wanted)).into_iter().next();
        let (_, group) = group.ok_or_else(|| LookError::Missing(LookError::no_group(wanted)))?;
        lower_thread_priority();
        let mut text = BEGINNING.to_owned();
        let stores = stores(&group, only.as_ref());
        // Only what the control plane sent.
        for of in stores.iter().filter(|of| of.parameter_view().as_whole().is_some()) {
            let snapshot = of.snapshot();
            let found = snapshot.entries().filter(|entry| name.is_match(entry.name().as_str()));
            for resource in found.filter_map(|entry| entry.by_name().present()) {
                text += if text.ends_with('[') { "" } else { "," };
                text += &dumped(self.descriptors, of.type_url(), resource).to_string();
                if text.len() > LARGEST {
                    return Err(TOO_LARGE);
                }
            }
        }
        Ok(printable_json(text + "]}]}\n"))
    }
}

/// A `GenericXdsConfig`. A Secret has no body in it.
fn dumped(descriptors: &Descriptors, of: &TypeUrl, resource: &Resource) -> Json {
    let (name, version) = (resource.name().as_str(), resource.version());
    let mut config = json!({ "type_url": of.as_str(), "name": name, "version_info": version });
    if !of.is_secret() {
        match shown_body(resource, |body| descriptors.redacted_json(body, true)) {
            Ok(body) => config["xds_config"] = body,
            Err(details) => config["error_state"] = json!({ "details": details }),
        }
    }
    config
}

/// Larger bodies are not shown: for a moment, JSON takes hundreds of times their memory.
pub(super) const LARGEST_BODY: usize = 1 << 20;

/// The body as `show` gives it, or why there is none.
fn shown_body<T>(
    resource: &Resource,
    show: impl FnOnce(&[u8]) -> Result<T, DescriptorError>,
) -> Result<T, String> {
    let body = resource.body();
    let shown = if body.len() > LARGEST_BODY {
        Err(format!("it has {} bytes, and more than {LARGEST_BODY} are not shown", body.len()))
    } else {
        show(body).map_err(|error| format!("{error}; `rest.descriptor_sets` adds types"))
    };
    shown.map_err(|error| format!("the relay cannot show it: {error}"))
}

/// Memory of the automaton of a regular expression, in bytes: peers choose these.
const AUTOMATON: usize = 64 << 10;
/// Matchers of a request.
const MATCHERS: usize = 100;

const RESPONSE_TOO_LARGE: LookError = LookError::TooLarge(
    "the response would be larger than 64 MiB; name clients in `node_matchers`, or set `exclude_resource_contents`",
);

impl View<'_> {
    /// Response to an encoded request. Lowers the priority of its thread.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the request cannot be read or answered.
    pub fn client_status(&self, request: &[u8]) -> Result<Vec<u8>, LookError> {
        let request = ClientStatusRequest::decode(request)
            .map_err(|error| LookError::Wrong(format!("the request is no ClientStatusRequest: {error}")))?;
        let matchers = node_matchers(&request.node_matchers)?;
        let clock = WallClock::get();
        let mut response = ClientStatusResponse::default();
        let bodies = (!request.exclude_resource_contents).then_some(self.descriptors);
        let (mut places, mut bytes) = (HashMap::new(), 0);
        let copy = |record: Arc<Record>| {
            let state = record.copy_if(|node_id| matches(&matchers, node_id))?;
            Some((state.client.clone()?, state, record))
        };
        let copies: Vec<_> = self.fleet.after(0).filter_map(copy).collect();
        let kept = self.withheld();
        lower_thread_priority();
        for (client, state, record) in copies {
            let RecordState { types, poll, group, .. } = state;
            // A client may have a stream for each type.
            let at = *places.entry((record.connection, Arc::clone(&client))).or_insert_with(|| {
                let group = group.map(|group| format!(", node group {group}")).unwrap_or_default();
                response.config.push(ClientConfig {
                    node: Some(Node {
                        id: client.node_id.clone(),
                        cluster: client.cluster.clone(),
                        user_agent_name: client.user_agent.clone(),
                        ..Node::default()
                    }),
                    generic_xds_configs: Vec::new(),
                    client_scope: format!("{}{group}", scope(&record)),
                });
                response.config.len() - 1
            });
            let configs = &mut response.config[at].generic_xds_configs;
            let mut add = |config: GenericXdsConfig| {
                // Prefixes and node are small beside it.
                bytes += config.encoded_len() + 16;
                configs.push(config);
                if bytes > LARGEST { Err(RESPONSE_TOO_LARGE) } else { Ok(()) }
            };
            for progress in &types {
                add_resources(progress, &kept, bodies, clock, &mut add)?;
            }
            poll.iter().map(|poll| poll_config(poll, &kept)).try_for_each(&mut add)?;
        }
        Ok(response.encode_to_vec())
    }
}

fn scope(record: &Record) -> String {
    format!("{} from {}, connection {}", record.transport, record.peer, record.connection)
}

fn config(status: ConfigStatus, client: ClientResourceStatus) -> GenericXdsConfig {
    GenericXdsConfig {
        config_status: status.into(),
        client_status: client.into(),
        ..GenericXdsConfig::default()
    }
}

/// A held poll: one version of everything it asks for.
fn poll_config(poll: &PollRequest, kept: &Withheld) -> GenericXdsConfig {
    let config = match poll.state(kept) {
        ClientState::Synced => config(ConfigStatus::Synced, ClientResourceStatus::Acked),
        ClientState::HeldBack => config(HELD_BACK, ClientResourceStatus::Acked),
        _ => config(ConfigStatus::NotSent, ClientResourceStatus::Requested),
    };
    let (type_url, version_info) = (poll.type_url().as_str().to_owned(), poll.version.to_string());
    GenericXdsConfig { type_url, version_info, ..config }
}

fn add_resources(
    progress: &TypeProgress,
    kept: &Withheld,
    bodies: Option<&Descriptors>,
    clock: WallClock,
    add: &mut impl FnMut(GenericXdsConfig) -> Result<(), LookError>,
) -> Result<(), LookError> {
    let Some(audience) = progress.upgrade() else { return Ok(()) };
    let snapshot = audience.of().snapshot();
    // Never show the body of a Secret.
    let bodies = bodies.filter(|_| !progress.type_url().is_secret());
    for (name, seen) in snapshot.seen_through(audience.subscription()) {
        let resource = seen.present();
        let mut config = match resource {
            Some(_) => of_present(progress, &audience, &snapshot, name, clock),
            None => of_missing(progress, kept, &snapshot, name, seen),
        };
        let is_held = || kept.holds(audience.of(), &snapshot, audience.subscription(), name);
        if config.config_status == ConfigStatus::Synced as i32 && is_held() {
            config.config_status = HELD_BACK.into();
        }
        config.type_url = progress.type_url().as_str().to_owned();
        config.name = name.to_string();
        config.version_info = resource.map(|resource| resource.version().to_owned()).unwrap_or_default();
        // Without sensitive values.
        let shown =
            |(of, descriptors): (_, &Descriptors)| shown_body(of, |body| descriptors.redacted_any(body));
        match resource.map(|of| &**of).zip(bodies).map(shown) {
            Some(Ok(body)) => config.xds_config = body.into(),
            Some(Err(hidden)) => config.error_state = config.error_state.or_else(|| failure(&hidden)),
            None => {}
        }
        add(config)?;
    }
    Ok(())
}

/// The newest was not sent, and the client has accepted an earlier state.
const HELD_BACK: ConfigStatus = ConfigStatus::NotSent;

fn failure(details: &str) -> Option<UpdateFailureState> {
    Some(UpdateFailureState { details: details.to_owned(), ..Default::default() })
}

/// State of a resource, with its last update or error.
fn of_present(
    progress: &TypeProgress,
    audience: &Audience,
    snapshot: &Snapshot,
    name: &Name,
    clock: WallClock,
) -> GenericXdsConfig {
    let last = |of: Option<&Delivery>| of.map(|of| clock.at(of.at).into());
    match progress.resource_state(audience, snapshot, name) {
        ResourceState::Unknown => config(ConfigStatus::Unknown, ClientResourceStatus::Unknown),
        ResourceState::NotSent => config(ConfigStatus::NotSent, ClientResourceStatus::Requested),
        ResourceState::Synced => GenericXdsConfig {
            last_updated: last(progress.newest_acked().as_ref()),
            ..config(ConfigStatus::Synced, ClientResourceStatus::Acked)
        },
        ResourceState::Stale => GenericXdsConfig {
            last_updated: last(progress.newest_sent()),
            ..config(ConfigStatus::Stale, ClientResourceStatus::Requested)
        },
        ResourceState::Rejected(rejection) => GenericXdsConfig {
            error_state: Some(UpdateFailureState {
                last_update_attempt: Some(clock.at(rejection.delivery.at).into()),
                details: rejection.text.to_string(),
                version_info: rejection.delivery.version.to_string(),
            }),
            ..config(ConfigStatus::Error, ClientResourceStatus::Nacked)
        },
    }
}

/// State of a name that the control plane reports as missing, or not at all.
fn of_missing(
    progress: &TypeProgress,
    kept: &Withheld,
    snapshot: &Snapshot,
    name: &Name,
    seen: VisibleState<'_>,
) -> GenericXdsConfig {
    let is_told = matches!(progress.state(kept), ClientState::Synced | ClientState::HeldBack);
    let config = match seen {
        VisibleState::Absent if is_told => config(ConfigStatus::Synced, ClientResourceStatus::DoesNotExist),
        VisibleState::Absent => config(ConfigStatus::Unknown, ClientResourceStatus::DoesNotExist),
        VisibleState::Failed | VisibleState::Unresolved(_) => {
            config(ConfigStatus::NotSent, ClientResourceStatus::ReceivedError)
        }
        _ => config(ConfigStatus::NotSent, ClientResourceStatus::Requested),
    };
    let error = snapshot.get(name.as_str()).and_then(|entry| entry.failure());
    GenericXdsConfig { error_state: error.and_then(|error| failure(error.message())), ..config }
}

/// Expressions for the whole node ID.
fn node_matchers(matchers: &[NodeMatcher]) -> Result<Vec<Regex>, LookError> {
    if matchers.len() > MATCHERS {
        return Err(fault(format!("more than {MATCHERS} matchers")));
    }
    matchers.iter().map(read).collect()
}

fn matches(matchers: &[Regex], node_id: &str) -> bool {
    matchers.is_empty() || matchers.iter().any(|pattern| pattern.is_match(node_id))
}

fn fault(reason: impl Display) -> LookError {
    LookError::Wrong(format!("node_matchers: {reason}"))
}

fn read(matcher: &NodeMatcher) -> Result<Regex, LookError> {
    const ANY: &str = "(?s:.*)";
    if !matcher.node_metadatas.is_empty() {
        return Err(fault("the relay does not keep the metadata of its clients; match `node_id`"));
    }
    let (key, pattern) = match matcher.node_id.as_ref().map(|node_id| &node_id.match_pattern) {
        None => ("node_id", ANY.to_owned()),
        Some(Some(MatchPattern::Exact(exact))) => ("exact", escape(exact)),
        Some(Some(MatchPattern::Prefix(prefix))) => ("prefix", escape(prefix) + ANY),
        Some(Some(MatchPattern::Suffix(suffix))) => ("suffix", ANY.to_owned() + &escape(suffix)),
        Some(Some(MatchPattern::Contains(part))) => ("contains", format!("{ANY}{}{ANY}", escape(part))),
        Some(Some(MatchPattern::SafeRegex(pattern))) => ("safe_regex", pattern.regex.clone()),
        Some(None) => {
            return Err(fault("`node_id` needs one of exact, prefix, suffix, contains or safe_regex"));
        }
    };
    let ignores_case = matcher.node_id.as_ref().is_some_and(|node_id| node_id.ignore_case);
    // It does not apply to an expression of the request.
    let pattern = if ignores_case && key != "safe_regex" { format!("(?i:{pattern})") } else { pattern };
    whole_match(&pattern, AUTOMATON).map_err(|error| fault(format!("`{key}` is {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::status::{RegexMatcher, StringMatcher};

    fn matcher(pattern: MatchPattern, ignore_case: bool) -> NodeMatcher {
        let node_id = StringMatcher { ignore_case, match_pattern: Some(pattern) };
        NodeMatcher { node_id: Some(node_id), node_metadatas: Vec::new() }
    }

    fn regex(pattern: &str) -> NodeMatcher {
        matcher(MatchPattern::SafeRegex(RegexMatcher { regex: pattern.to_owned() }), false)
    }

    fn fault(matchers: &[NodeMatcher]) -> String {
        node_matchers(matchers).unwrap_err().to_string()
    }

    #[test]
    fn one_of_several_matchers_is_enough() {
        assert!(super::matches(&[], "anything"));
        let matches = |one: NodeMatcher, node_id: &str| {
            let other = matcher(MatchPattern::Exact("other".to_owned()), false);
            super::matches(&node_matchers(&[other, one]).unwrap(), node_id)
        };
        for (pattern, is_one, is_none) in [
            (MatchPattern::Exact("Web-1".to_owned()), "Web-1", "Web-10"),
            (MatchPattern::Prefix("Web".to_owned()), "Web-1", "A-Web"),
            (MatchPattern::Suffix("-1".to_owned()), "Web-1", "Web-1a"),
            (MatchPattern::Contains("b-".to_owned()), "Web-1", "Web1"),
        ] {
            assert!(matches(matcher(pattern.clone(), false), is_one), "{pattern:?}");
            assert!(!matches(matcher(pattern.clone(), false), is_none), "{pattern:?}");
            assert!(matches(matcher(pattern.clone(), true), &is_one.to_uppercase()), "{pattern:?}");
        }
        assert!(matches(regex("web-[0-9]+"), "web-12") && !matches(regex("web-[0-9]+"), "web-12a"));
        assert!(!matches(regex("a|web"), "web-1"), "the whole of it");
        assert!(matches(matcher(MatchPattern::Exact(String::new()), false), "other"));
    }

    #[test]
    fn a_matcher_that_cannot_be_used_is_told() {
        assert!(fault(&vec![NodeMatcher::default(); 1_000_000]).contains("more than 100 matchers"));
        let metadata = NodeMatcher { node_metadatas: vec![bytes::Bytes::new()], ..NodeMatcher::default() };
        assert!(fault(&[metadata]).contains("does not keep the metadata"));
        let empty = NodeMatcher { node_id: Some(StringMatcher::default()), ..NodeMatcher::default() };
        assert!(fault(&[empty]).contains("needs one of exact"));
        assert!(fault(&[regex("(")]).contains("safe_regex"));
        assert!(fault(&[regex("a)|(b")]).contains("safe_regex"));
        assert!(fault(&[regex("(?:a{1000}){1000}")]).contains("safe_regex"));
        assert!(fault(&[regex("a{4000}")]).contains("too large"), "less than a configured one may take");
    }
}
