//! Earlier states of resources, which an operator may [restore](crate::cache::Order::Restore).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use super::admin_query::{LookError, Query, clip};
use super::resource_history::{Chosen, HistoryOf, Line, chosen, is_after, lines};
use crate::cache::EarlierState;
use crate::groups::{Group, Groups};
use crate::resource::{Name, TypeUrl};
use crate::utc::{self, WallClock};

const EXAMPLE: &str =
    "/rollout/restore?type=cds&name=backend&version=7, or /rollout/restore?type=cds&at=2026-03-01T14:02:11Z";

/// States of a node group.
#[derive(Debug)]
pub struct GroupStates {
    pub group: Option<String>,
    pub of: Arc<Group>,
    pub states: Vec<EarlierState>,
}

/// The moment or the version of the states.
enum Then<'q> {
    At(SystemTime),
    Version(&'q str),
}

/// States that a query names: a `version` of a resource, or what a resource or a type was `at` a time. Names that have not
/// changed since are not among them.
///
/// # Errors
///
/// [`LookError`] if the query is wrong, the type is not guarded, or the history does not have these states.
pub fn earlier_states(groups: &Groups, query: &Query<'_>) -> Result<Vec<GroupStates>, LookError> {
    let type_url = query.type_url()?.ok_or_else(|| LookError::without("type", EXAMPLE))?;
    let name = query.get("name").map(Name::normal);
    let then = match (query.get("version"), query.time("at")?) {
        (Some(version), None) if name.is_some() => Then::Version(version),
        (None, Some(at)) => Then::At(at),
        _ => return Err(LookError::Wrong(format!("give a name and its version, or a time: {EXAMPLE}"))),
    };
    let mut groups: Chosen = chosen(groups, query.get("group"))?;
    groups.retain(|(_, group)| group.cache().rollout_of(&type_url).is_some());
    if groups.is_empty() {
        let kind = type_url.kind().short();
        return Err(LookError::Missing(format!(
            "changes of {kind} are not guarded; list it in `rollout.types`"
        )));
    }
    let (mut found, mut missing) = (Vec::new(), None);
    for (key, group) in groups {
        let names = match (&name, &then) {
            (None, Then::At(at)) => changed_since(&group, &type_url, *at),
            _ => name.iter().cloned().collect(),
        };
        let mut all = Vec::new();
        for name in names {
            match states(&(key.clone(), Arc::clone(&group)), &type_url, &name, &then) {
                Ok(states) => all.extend(states),
                // Another group may have this version.
                Err(error) if matches!(then, Then::Version(_)) => missing = Some(error),
                Err(error) => return Err(error),
            }
        }
        if !all.is_empty() {
            found.push(GroupStates { group: key, of: group, states: all });
        }
    }
    match missing {
        _ if !found.is_empty() => Ok(found),
        Some(error) => Err(error),
        None => Err(LookError::Missing("nothing has changed since then".to_owned())),
    }
}

fn changed_since(group: &Group, type_url: &TypeUrl, at: SystemTime) -> BTreeSet<Name> {
    let cache = group.cache();
    let is_one = |number, of: &TypeUrl| number == cache.number() && of == type_url;
    let changes = cache.history().map(|of| of.newest(usize::MAX, is_one, |changed| is_after(changed, at)));
    changes.into_iter().flatten().map(|of| of.name).collect()
}

/// States of a name, one for each set of parameters.
fn states(
    of: &(Option<String>, Arc<Group>),
    type_url: &TypeUrl,
    name: &Name,
    then: &Then<'_>,
) -> Result<Vec<EarlierState>, LookError> {
    let resource =
        HistoryOf { type_url: type_url.clone(), name: name.clone(), from: None, at: None, to: None };
    let (mut states, mut missing) = (Vec::new(), None);
    for line in lines(&vec![of.clone()], &resource)? {
        let found = match then {
            Then::Version(version) => line
                .find(version, line.changes.len() - 1)
                .map(|index| Some((index, line.state_after(index, type_url, name).1))),
            Then::At(at) => state_at(&of.1, &line, type_url, *at),
        };
        let (index, state) = match found {
            Ok(Some(found)) => found,
            Ok(None) => continue,
            Err(reason) => {
                missing = Some(reason);
                continue;
            }
        };
        match state {
            Ok(resource) => states.push(EarlierState {
                type_url: type_url.clone(),
                parameters: line.parameters.clone(),
                name: name.clone(),
                resource,
                is_member: line.changes[index].is_member,
            }),
            Err(reason) => missing = Some(format!("`{}`: {reason}", clip(name.as_str()))),
        }
    }
    match missing {
        Some(reason) if states.is_empty() || matches!(then, Then::At(_)) => Err(LookError::Missing(reason)),
        _ => Ok(states),
    }
}

type Found = Option<(usize, Result<Option<Arc<crate::resource::Resource>>, String>)>;

/// State before the first change after a moment; `None` if there is none.
fn state_at(group: &Group, line: &Line, type_url: &TypeUrl, at: SystemTime) -> Result<Found, String> {
    let cache = group.cache();
    let known = cache.history().and_then(|of| of.known_since(cache.number(), type_url, &line.parameters));
    if let Some(known) = known.filter(|known| is_after(*known, at)) {
        let kind = type_url.kind().short();
        let since = utc::seconds(WallClock::get().at(known));
        return Err(format!("the history of {kind} goes back to {since} only (`cache.history_bytes`)"));
    }
    let first = line.changes.iter().position(|change| change.at.is_some_and(|changed| is_after(changed, at)));
    Ok(first.map(|index| (index, line.state_before(index).1)))
}
