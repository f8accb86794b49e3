//! Resources with bodies, in the shape of Envoy's `/config_dump`.
//!
//! Owns the mapping of types to Envoy's admin messages. Shows Secrets by name only, and hides values that the
//! API marks as sensitive.

use serde_json::{Value as Json, json};

use super::admin_query::{Glob, LookError, Query};
use super::resources_report::stores;
use crate::cache::{Cache, Entry, TypeCache};
use crate::descriptors::{DescriptorError, Descriptors};
use crate::fairness::lower_thread_priority;
use crate::groups::Groups;
use crate::resource::{Kind, Parameters, Resource};
use crate::utc::{self, WallClock};

/// Bytes of an answer.
const LARGEST: usize = 64 << 20;

const TOO_LARGE: LookError = LookError::TooLarge(
    "the answer would be larger than 64 MiB; ask for less with `type` and `name`, as in /config_dump?type=cds&name=web-*",
);

/// Message of a type below `envoy`, its field with the resources, and the field of a body in these.
type Shape = (&'static str, &'static str, &'static str);

/// For types for which Envoy has no message.
const GENERIC: Shape = ("service.status.v3.ClientConfig", "generic_xds_configs", "xds_config");

const fn shape(kind: Kind) -> Shape {
    match kind {
        Kind::Cluster => ("admin.v3.ClustersConfigDump", "dynamic_active_clusters", "cluster"),
        Kind::Endpoint => ("admin.v3.EndpointsConfigDump", "dynamic_endpoint_configs", "endpoint_config"),
        Kind::Listener => ("admin.v3.ListenersConfigDump", "dynamic_listeners", "listener"),
        Kind::ScopedRoute => {
            ("admin.v3.ScopedRoutesConfigDump", "dynamic_scoped_route_configs", "scoped_route_configs")
        }
        Kind::Route => ("admin.v3.RoutesConfigDump", "dynamic_route_configs", "route_config"),
        Kind::Secret => ("admin.v3.SecretsConfigDump", "dynamic_active_secrets", "secret"),
        Kind::ExtensionConfig => ("admin.v3.EcdsConfigDump", "ecds_filters", "ecds_filter"),
        _ => GENERIC,
    }
}

struct Dump<'d> {
    text: Vec<u8>,
    descriptors: &'d Descriptors,
    clock: WallClock,
}

/// Matching resources of a node group, as a JSON `ConfigDump`. Lowers the priority of its thread.
///
/// # Errors
///
/// [`LookError`] if the query is wrong, there is no such group, or there is too much.
pub fn config_dump(groups: &Groups, descriptors: &Descriptors, query: &str) -> Result<String, LookError> {
    let query = Query::parse(query, &["type", "name", "group"])?;
    let (only, name) = (query.type_url()?, query.pattern("name"));
    let wanted = query.get("group").unwrap_or_default();
    let group = groups.chosen(Some(wanted)).into_iter().next();
    let (_, group) = group.ok_or_else(|| LookError::Missing(LookError::no_group(wanted)))?;
    lower_thread_priority();
    let mut dump = Dump { text: b"{\"configs\":[".to_vec(), descriptors, clock: WallClock::get() };
    for of in stores(&group, only.as_ref()) {
        // Only what the control plane sent.
        if of.parameter_view().as_whole().is_some() {
            dump.put(group.cache(), &of, &name)?;
        }
    }
    dump.text.extend_from_slice(b"]}\n");
    Ok(String::from_utf8(dump.text).unwrap_or_default())
}

impl Dump<'_> {
    /// Writes the message of one store, if there is anything to write: of what is not known there is none.
    fn put(&mut self, cache: &Cache, of: &TypeCache, name: &Glob) -> Result<(), LookError> {
        let (kind, snapshot) = (of.type_url().kind(), of.snapshot());
        let is_one = |entry: &&Entry| name.matches(entry.name().as_str());
        let held = |entry: &Entry| entry.by_name().present().cloned();
        let mut resources = snapshot.entries().filter(is_one).filter_map(held).peekable();
        if resources.peek().is_none() {
            return Ok(());
        }
        if !self.text.ends_with(b"[") {
            self.text.push(b',');
        }
        let (message, list, field) = shape(kind);
        let mut head = json!({ "@type": format!("type.googleapis.com/envoy.{message}") });
        // These have one version for all resources.
        if matches!(kind, Kind::Cluster | Kind::Listener) {
            head["version_info"] = json!(&**snapshot.system_version());
        }
        self.write(&head)?;
        // The list is the last field.
        self.text.pop();
        self.text.extend_from_slice(format!(",\"{list}\":[").as_bytes());
        let parameters = of.parameter_view().wildcard();
        for (at, resource) in resources.enumerate() {
            if at > 0 {
                self.text.push(b',');
            }
            let updated = self.last_updated(cache, of, parameters, &resource);
            let element = self.element(of, field, &resource, updated);
            self.write(&element)?;
        }
        self.text.extend_from_slice(b"]}");
        Ok(())
    }

    fn write(&mut self, json: &Json) -> Result<(), LookError> {
        // Writing a `Value` to memory cannot fail.
        _ = serde_json::to_writer(&mut self.text, json);
        if self.text.len() > LARGEST { Err(TOO_LARGE) } else { Ok(()) }
    }

    /// Arrival of the current state, if the history still has it.
    fn last_updated(
        &self,
        cache: &Cache,
        of: &TypeCache,
        parameters: &Parameters,
        resource: &Resource,
    ) -> Option<String> {
        let track = of.parameter_view().track();
        let lines = cache.history()?.of(cache.number(), of.type_url(), track, resource.name().as_str());
        let (_, changes) = lines.into_iter().find(|(its, _)| its == parameters)?;
        let newest = changes.last()?;
        newest.after.as_ref().filter(|after| after.digest == resource.digest())?;
        Some(utc::milliseconds(self.clock.at(newest.at?)))
    }

    /// With the body in this field.
    fn element(&self, of: &TypeCache, field: &str, resource: &Resource, updated: Option<String>) -> Json {
        let (kind, name) = (of.type_url().kind(), resource.name().as_str());
        let mut state = json!({ "version_info": resource.version() });
        if let Some(updated) = updated {
            state["last_updated"] = json!(updated);
        }
        let body = if of.type_url().is_secret() {
            Ok(json!({ "@type": of.type_url().as_str(), "name": name }))
        } else {
            shown_body(resource, |body| self.descriptors.redacted_dump(body))
        };
        match body {
            Ok(body) if kind == Kind::ScopedRoute => state[field] = json!([body]),
            Ok(body) => state[field] = body,
            Err(details) => state["error_state"] = json!({ "details": details }),
        }
        if kind == Kind::Listener {
            return json!({ "name": name, "active_state": state });
        }
        let is_generic = field == GENERIC.2;
        if is_generic || matches!(kind, Kind::ScopedRoute | Kind::Secret) {
            state["name"] = json!(name);
        }
        if is_generic {
            state["type_url"] = json!(of.type_url().as_str());
        }
        state
    }
}

/// Larger bodies are not shown: for a moment, JSON takes hundreds of times their memory.
pub(super) const LARGEST_BODY: usize = 1 << 20;

/// The body as `show` gives it, or why there is none.
pub(super) fn shown_body<T>(
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
