//! Earlier states of resources, which an operator may [restore](crate::cache::Order::Restore).
//!
//! Owns which states a query names. They are those that the fleet was sent: what was on trial, held or discarded then is not
//! among them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::SystemTime;

use super::admin_query::{LookError, Query, clip};
use super::resource_history::{Chosen, HistoryOf, Line, chosen, is_after, lines};
use crate::cache::{EarlierState, Track};
use crate::groups::{Group, Groups};
use crate::resource::{Name, Resource, TypeUrl};
use crate::utc::{self, WallClock};

const EXAMPLE: &str = "/rollout/restore?type=cds&name=backend&version=7, or /rollout/restore?at=2026-03-01T14:02:11Z for all guarded types";

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

/// States that a query names: a `version` of a resource, or what a resource, a type or all were `at` a time. Names that have
/// not changed since are not among them.
///
/// # Errors
///
/// [`LookError`] if the query is wrong, the type is not guarded, or the history does not have these states.
pub fn earlier_states(groups: &Groups, query: &Query<'_>) -> Result<Vec<GroupStates>, LookError> {
    let (only, name) = (query.type_url()?, query.get("name").map(Name::normal));
    let then = match (query.get("version"), query.time("at")?) {
        (Some(version), None) if name.is_some() && only.is_some() => Then::Version(version),
        (None, Some(at)) if name.is_none() || only.is_some() => Then::At(at),
        _ => return Err(LookError::Wrong(format!("give a name and its version, or a time: {EXAMPLE}"))),
    };
    let groups: Chosen = chosen(groups, query.get("group"))?;
    let (mut found, mut missing, mut is_guarded) = (Vec::new(), None, false);
    for (key, group) in &groups {
        let types = group.cache().rollout().into_iter().flat_map(|rollout| rollout.types());
        let mut states = Vec::new();
        for type_url in types.filter(|type_url| only.as_ref().is_none_or(|only| only == *type_url)) {
            is_guarded = true;
            let names = match (&name, &then) {
                (None, Then::At(at)) => changed_since(group, type_url, *at),
                _ => name.iter().cloned().collect(),
            };
            for name in names {
                match states_of(&(key.clone(), Arc::clone(group)), type_url, &name, &then) {
                    Ok(of_name) => states.extend(of_name),
                    // Another group may have this version.
                    Err(error) if matches!(then, Then::Version(_)) => missing = Some(error),
                    Err(error) => return Err(error),
                }
            }
        }
        if !states.is_empty() {
            found.push(GroupStates { group: key.clone(), of: Arc::clone(group), states });
        }
    }
    match missing {
        _ if !found.is_empty() => Ok(found),
        Some(error) => Err(error),
        None if !is_guarded => {
            Err(LookError::Missing("no such type is in `rollout.types`, so it is not guarded".to_owned()))
        }
        None => Err(LookError::Missing("nothing has changed since then".to_owned())),
    }
}

fn changed_since(group: &Group, type_url: &TypeUrl, at: SystemTime) -> BTreeSet<Name> {
    let cache = group.cache();
    let is_one =
        |number, of: &TypeUrl, track| (number, of, track) == (cache.number(), type_url, Track::Stable);
    let changes = cache.history().map(|of| of.newest(usize::MAX, is_one, |changed| is_after(changed, at)));
    changes.into_iter().flatten().map(|of| of.name).collect()
}

/// States of a name, one for each set of parameters.
fn states_of(
    of: &(Option<String>, Arc<Group>),
    type_url: &TypeUrl,
    name: &Name,
    then: &Then<'_>,
) -> Result<Vec<EarlierState>, LookError> {
    let (track, from, at, to) = (Track::Stable, None, None, None);
    let resource = HistoryOf { type_url: type_url.clone(), name: name.clone(), track, from, at, to };
    let (mut states, mut missing) = (Vec::new(), None);
    for line in lines(&vec![of.clone()], &resource)? {
        let found = match then {
            Then::Version(version) => {
                let index = line.find(version, line.changes.len() - 1);
                index.and_then(|index| Ok(Some((index, line.state_after(index, &resource).1?))))
            }
            Then::At(at) => state_at(&of.1, &line, &resource, *at),
        };
        match found {
            Ok(Some((index, state))) => states.push(EarlierState {
                type_url: type_url.clone(),
                parameters: line.parameters.clone(),
                name: name.clone(),
                resource: state,
                is_member: line.changes[index].is_member,
            }),
            Ok(None) => {}
            Err(reason) => {
                missing = Some(format!("{} `{}`: {reason}", type_url.kind().short(), clip(name.as_str())))
            }
        }
    }
    match missing {
        Some(reason) if states.is_empty() || matches!(then, Then::At(_)) => Err(LookError::Missing(reason)),
        _ => Ok(states),
    }
}

type Found = Option<(usize, Option<Arc<Resource>>)>;

/// State before the first change after a moment; `None` if there is none.
fn state_at(group: &Group, line: &Line, of: &HistoryOf, at: SystemTime) -> Result<Found, String> {
    let cache = group.cache();
    let known = cache
        .history()
        .and_then(|all| all.known_since(cache.number(), &of.type_url, &line.parameters, &of.name));
    if let Some(known) = known.filter(|known| is_after(*known, at)) {
        let since = utc::seconds(WallClock::get().at(known));
        return Err(format!(
            "its history goes back to {since} only; restore what you need by name and version"
        ));
    }
    let Some(first) =
        line.changes.iter().position(|change| change.at.is_some_and(|changed| is_after(changed, at)))
    else {
        return Ok(None);
    };
    Ok(Some((first, line.state_before(first).1?)))
}
