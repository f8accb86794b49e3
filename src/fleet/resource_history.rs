//! Last changes of one resource, how many clients have each, and newest changes of all, as JSON.
//!
//! Owns also which states a query names that an operator may [restore](crate::cache::Order::Restore). They are those that the
//! fleet was sent: what was on trial, held or discarded then is not among them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::json_diff::{DiffReport, Side, diff, lost};
use super::registry::Fleet;
use super::view::{Document, LookError, Query, View, clip, document, row, seconds};
use crate::cache::{EarlierState, Generation, ParameterView, PlacedChange, ResourceChange, Track};
use crate::fairness::lower_thread_priority;
use crate::groups::{Group, Groups};
use crate::resource::{Name, Parameters, Resource, TypeUrl};
use crate::subscription::{Audience, ResourceState, TypeProgress};
use crate::utc::{self, WallClock};

/// Groups and parameter sets on a page.
const HISTORIES: usize = 16;
/// Changes of a list that says nothing of its size.
const CHANGES: usize = 100;

type Chosen = Vec<(Option<String>, Arc<Group>)>;

/// One resource, and which of its states are compared.
#[derive(Debug)]
struct HistoryOf {
    type_url: TypeUrl,
    name: Name,
    /// The control plane's states, or those of the fleet.
    track: Track,
    from: Option<String>,
    /// Time of the state to compare with `to`, instead of its version.
    at: Option<SystemTime>,
    to: Option<String>,
}

impl HistoryOf {
    /// The resource of a query; `None` if it is for all.
    fn read(query: &Query<'_>) -> Result<Option<Self>, LookError> {
        let without = |key| Err(LookError::without(key, "/history?type=cds&name=backend"));
        let [from, to] = ["from", "to"].map(|key| query.get(key).map(str::to_owned));
        let at = query.time("at")?;
        match (query.type_url()?, query.get("name")) {
            (Some(type_url), Some(name)) => {
                let (track, name) = (Track::Origin, Name::normal(name));
                Ok(Some(Self { type_url, name, track, from, at, to }))
            }
            (None, Some(_)) => without("type"),
            (_, None) if from.is_some() || at.is_some() || to.is_some() => without("name"),
            (_, None) => Ok(None),
        }
    }

    fn unknown(&self) -> String {
        let (kind, name) = (self.type_url.kind().short(), clip(self.name.as_str()));
        format!(
            "no history of {kind} `{name}`: it is not here, and has not changed since the relay started, or its changes had to make room \
             (cache.history_bytes); GET /resources?type={kind} lists what is here"
        )
    }
}

row! {
    struct HistoryPage(of: &HistoryOf, of_lines: Vec<HistoryRow>, more: usize) {
        #[serde(flatten)]
        type_url: TypeUrl = of.type_url.clone(),
        name: Name = of.name.clone(),
        /// One per node group and parameter set.
        histories: Vec<HistoryRow> = of_lines,
        /// Further ones, which `group` shows.
        left_out: usize = more,
    }
}

row! {
    struct HistoryRow(line: &Line, of: &TypeUrl, its_diff: DiffReport, now: Instant)
    where
        both = line.changes.iter().zip(&line.tallies).rev(),
        rows = both.map(|(change, tally)| TalliedRow::new(change, *tally, of, now)),
    {
        group: Option<String> = line.key.clone(),
        parameters: Parameters = line.parameters.clone(),
        /// Streams that ask for it.
        clients: usize = line.clients,
        /// Newest first.
        changes: Vec<TalliedRow> = rows.collect(),
        diff: DiffReport = its_diff,
    }
}

row! {
    struct TalliedRow(of: &ResourceChange, tally: [usize; 3], of_type: &TypeUrl, now: Instant)
    where
        after = of.after.as_ref().filter(|_| !of_type.is_secret()),
    {
        #[serde(flatten)]
        change: ChangeRow = ChangeRow::new(of, now),
        /// Hash of name, version and body; `None` of a removal, and of a Secret.
        digest: Option<String> = after.map(|after| format!("{:032x}", after.digest)),
        /// Clients that ACKed this change or a later one.
        accepted: usize = tally[0],
        /// Other clients that rejected their newest change, if it is this or a later one.
        rejected: usize = tally[1],
        unanswered: usize = tally[2],
    }
}

row! {
    struct RecentRow(of: &PlacedChange, key: Option<String>, now: Instant) {
        #[serde(flatten)]
        type_url: TypeUrl = of.type_url.clone(),
        name: Name = of.name.clone(),
        /// `None` in the group of the relay's own node.
        group: Option<String> = key,
        parameters: Parameters = of.parameters.clone(),
        #[serde(flatten)]
        change: ChangeRow = ChangeRow::new(&of.change, now),
    }
}

row! {
    struct ChangeRow(of: &ResourceChange, now: Instant)
    where
        after = of.after.as_ref(),
    {
        /// UTC, as in `2026-03-01T14:02:11Z`; `None` before the first remembered change.
        time: Option<String> = of.at.map(|at| utc::seconds(WallClock::get().at(at))),
        seconds_ago: Option<f64> = of.at.map(|at| seconds(at, now)),
        event: &'static str = match after {
            _ if of.at.is_none() => "present",
            None => "removed",
            Some(_) if of.is_first => "added",
            Some(_) => "changed",
        },
        /// `None` of a removal, as bytes.
        version: Option<String> = after.map(|after| after.version.to_string()),
        generation: u64 = of.generation.get(),
        /// Bytes of its `Any`.
        bytes: Option<usize> = after.map(|after| after.bytes),
    }
}

/// Of one group and parameter set, oldest first.
#[derive(Debug)]
struct Line {
    key: Option<String>,
    group: Arc<Group>,
    parameters: Parameters,
    changes: Vec<ResourceChange>,
    clients: usize,
    /// Per change: clients that accepted, rejected, have not answered.
    tallies: Vec<[usize; 3]>,
}

impl View<'_> {
    /// History of the resource in the query, or the newest changes of all. Lowers the priority of its thread for
    /// diffs.
    ///
    /// # Errors
    ///
    /// [`LookError`] if the query is wrong, or there is no such resource, group, version or time: this one begins with "no history".
    pub fn history(&self, query: &str) -> Document {
        let keys = ["type", "name", "from", "at", "to", "group", "since", "until", "limit"];
        let query = Query::parse(query, &keys)?;
        let (of, only, limit) = (HistoryOf::read(&query)?, query.type_url()?, query.limit(CHANGES)?);
        let times = (query.time("since")?, query.time("until")?);
        let groups = chosen(self.groups, query.get("group"))?;
        match of {
            Some(of) => document(&self.one(&groups, &of)?),
            None => {
                let changes = recent(&groups, only.as_ref(), times, limit, self.now);
                document(&BTreeMap::from([("changes", changes)]))
            }
        }
    }

    fn one(&self, groups: &Chosen, of: &HistoryOf) -> Result<HistoryPage, LookError> {
        let mut lines = lines(groups, of);
        if lines.is_empty() {
            return Err(LookError::Missing(of.unknown()));
        }
        let left_out = lines.len().saturating_sub(HISTORIES);
        lines.truncate(HISTORIES);
        count(self.fleet, of, &mut lines);
        // From here on, no lock is taken that others wait for.
        lower_thread_priority();
        let mut histories = Vec::new();
        let mut missing = None;
        for line in &lines {
            match line.sides(of) {
                Ok((from, to)) => {
                    let diff = diff(self.descriptors, &of.type_url, from, to);
                    histories.push(HistoryRow::new(line, &of.type_url, diff, self.now));
                }
                Err(reason) => missing = Some(reason),
            }
        }
        if let Some(reason) = missing.filter(|_| histories.is_empty()) {
            return Err(LookError::Missing(reason));
        }
        Ok(HistoryPage::new(of, histories, left_out))
    }
}

/// Whether a moment is later than a time, both as shown: in whole seconds.
fn is_after(at: Instant, time: SystemTime) -> bool {
    WallClock::get().at(at).duration_since(time).is_ok_and(|past| past >= Duration::from_secs(1))
}

/// Newest first, between two times.
fn recent(
    groups: &Chosen,
    only: Option<&TypeUrl>,
    (since, until): (Option<SystemTime>, Option<SystemTime>),
    max: usize,
    now: Instant,
) -> Vec<RecentRow> {
    let keys: BTreeMap<u64, &Option<String>> =
        groups.iter().map(|(key, group)| (group.cache().number(), key)).collect();
    let is_one = |cache: u64, type_url: &TypeUrl, track: Track| {
        track == Track::Origin && keys.contains_key(&cache) && only.is_none_or(|only| only == type_url)
    };
    // All groups share one.
    let history = groups.iter().find_map(|(_, group)| group.cache().history());
    let is_then = |at| {
        since.is_none_or(|since| WallClock::get().at(at) >= since)
            && until.is_none_or(|until| !is_after(at, until))
    };
    let found = history.map(|history| history.newest(max, is_one, is_then)).unwrap_or_default();
    let key = |of: &PlacedChange| keys.get(&of.cache).and_then(|key| (*key).clone());
    found.iter().map(|of| RecentRow::new(of, key(of), now)).collect()
}

/// All groups, or one.
fn chosen(groups: &Groups, only: Option<&str>) -> Result<Chosen, LookError> {
    let chosen = groups.chosen(only);
    let reason = if chosen.is_empty() {
        format!("no history: {}", LookError::no_group(only.unwrap_or_default()))
    } else if chosen.iter().all(|(_, group)| group.cache().history().is_none()) {
        "no history is kept: `cache.history_bytes` is 0".to_owned()
    } else {
        return Ok(chosen);
    };
    Err(LookError::Missing(reason))
}

/// Changes of a resource in each group.
fn lines(groups: &Chosen, of: &HistoryOf) -> Vec<Line> {
    let mut lines = Vec::new();
    for (key, group) in groups {
        let Some(history) = group.cache().history() else { continue };
        let mut found = history.of(group.cache().number(), &of.type_url, of.track, of.name.as_str());
        for (parameters, present) in group.cache().present(&of.type_url, of.track, of.name.as_str()) {
            if found.iter().all(|(other, _)| *other != parameters) {
                found.push((parameters, vec![present]));
            }
        }
        for (parameters, changes) in found {
            let tallies = vec![[0; 3]; changes.len()];
            let (key, group) = (key.clone(), Arc::clone(group));
            lines.push(Line { key, group, parameters, changes, clients: 0, tallies });
        }
    }
    // Changed ones first: a page may not have room for all groups.
    lines.sort_by_key(|line| line.changes.iter().all(|change| change.at.is_none()));
    lines
}

/// By progress of the clients that ask for the resource.
fn count(fleet: &Fleet, resource: &HistoryOf, lines: &mut [Line]) {
    let name = resource.name.as_str();
    for record in fleet.after(0) {
        // Copy, so that the client's connection does not wait for the rest.
        let progress = record.state().find(&resource.type_url).map(|progress| progress.clone());
        let Some(progress) = progress else { continue };
        let Some(audience) = progress.upgrade() else { continue };
        let (of, subscription) = (audience.of(), audience.subscription());
        let view = of.parameter_view();
        let by_name = subscription.contains(name) || subscription.covers(name);
        let through_wildcard = subscription.wildcard && !view.is_beside_wildcard(name);
        let parameters = if by_name { view.of(name) } else { view.wildcard() };
        let is_one = |line: &&mut Line| {
            line.group.cache().number() == of.cache()
                && line.parameters == *parameters
                && (by_name || line.changes.last().is_some_and(|newest| newest.is_member))
        };
        if (by_name || through_wildcard)
            && view.scope().allows(name)
            && let Some(line) = lines.iter_mut().find(is_one)
        {
            line.count(&resource.name, &progress, &audience);
        }
    }
}

impl Line {
    fn count(&mut self, name: &Name, progress: &TypeProgress, audience: &Audience) {
        self.clients += 1;
        let is_guarded = audience.of().parameter_view().track() != Track::Origin;
        let Some((shown, at)) =
            (if is_guarded { self.shown_on_track(name, audience) } else { self.newest() })
        else {
            return;
        };
        // Newest of these changes that the client was sent.
        let mut told = None;
        for (index, change) in self.changes.iter().enumerate().take(shown + 1).rev() {
            // A track's generations are not those of the changes.
            let at = if index == shown { Some(at) } else { (!is_guarded).then_some(change.generation) };
            let state = at.and_then(|at| match progress.change_state(name, at, change.after.is_none()) {
                ResourceState::Synced => Some(0),
                ResourceState::Rejected(_) => Some(1),
                ResourceState::Stale => Some(2),
                ResourceState::NotSent | ResourceState::Unknown => None,
            });
            if told != Some(0) && (told.is_none() || state == Some(0)) {
                told = state;
            }
            if let Some(place) = told {
                self.tallies[index][place] += 1;
            }
        }
    }

    fn newest(&self) -> Option<(usize, Generation)> {
        self.changes.last().map(|newest| (self.changes.len() - 1, newest.generation))
    }

    /// Change that a client's track shows, with its generation there; `None` if it is none of these.
    fn shown_on_track(&self, name: &Name, audience: &Audience) -> Option<(usize, Generation)> {
        let snapshot = audience.of().snapshot();
        let entry = snapshot.get(name.as_str());
        let digest = entry.and_then(|entry| entry.by_name().existing()).map(|held| held.digest());
        let is_it = |change: &ResourceChange| change.after.as_ref().map(|after| after.digest) == digest;
        let at = entry.map_or(Generation::ZERO, |entry| entry.position());
        self.changes.iter().rposition(is_it).map(|index| (index, at))
    }

    /// By default before and after the newest change.
    fn sides(&self, of: &HistoryOf) -> Result<(Side, Side), String> {
        let newest = self.changes.len() - 1;
        let to = match &of.to {
            Some(version) => self.find(version, newest)?,
            None => newest,
        };
        let from = match (&of.from, of.at) {
            (Some(version), _) => self.state_after(self.find(version, to)?, of),
            (None, Some(time)) => self.state_after(self.find_at(time)?, of),
            (None, None) => self.state_before(to),
        };
        Ok((from, self.state_after(to, of)))
    }

    /// Newest change to a version, or to `#` and a generation; prefers one before `to`.
    fn find(&self, version: &str, to: usize) -> Result<usize, String> {
        let is_one = |change: &ResourceChange| {
            change.after.as_ref().is_some_and(|after| *after.version == *version)
                || version.strip_prefix('#').is_some_and(|text| text == change.generation.to_string())
        };
        let found = self.changes[..to].iter().rposition(is_one);
        let found = found.or_else(|| self.changes.iter().rposition(is_one));
        found.ok_or_else(|| {
            let known: Vec<String> = self.changes.iter().rev().map(|change| clip(&label(change))).collect();
            format!("no history of version `{}`; there are {}", clip(version), known.join(", "))
        })
    }

    /// Newest change up to a time.
    fn find_at(&self, time: SystemTime) -> Result<usize, String> {
        let found = self.changes.iter().rposition(|change| change.at.is_none_or(|at| !is_after(at, time)));
        found.ok_or_else(|| format!("no history at {}: the first change is newer", utc::seconds(time)))
    }

    fn state_before(&self, index: usize) -> Side {
        let change = &self.changes[index];
        match (&change.before, index.checked_sub(1).map(|before| &self.changes[before])) {
            (Some(before), _) => (before.version().to_owned(), Ok(Some(Arc::clone(before)))),
            (None, Some(earlier)) if earlier.after.is_some() => (label(earlier), lost(&label(earlier))),
            (None, Some(removal)) => (label(removal), Ok(None)),
            (None, None) if change.is_first => ("nothing".to_owned(), Ok(None)),
            (None, None) => {
                let unknown = "no earlier change is remembered, so there is nothing to compare";
                ("what was there before".to_owned(), Err(unknown.to_owned()))
            }
        }
    }

    fn state_after(&self, index: usize, of: &HistoryOf) -> Side {
        let change = &self.changes[index];
        let version = label(change);
        let Some(after) = &change.after else { return (version, Ok(None)) };
        let held = match self.changes.get(index + 1) {
            Some(next) => next.before.clone(),
            None => {
                let view = ParameterView::uniform(self.parameters.clone()).on(of.track);
                let snapshot = self.group.cache().find(&of.type_url, &view).map(|of| of.snapshot());
                snapshot.and_then(|held| held.get(of.name.as_str())?.by_name().present().cloned())
            }
        };
        let held = held.filter(|held| held.digest() == after.digest);
        let state = held.map_or_else(|| lost(&version), |held| Ok(Some(held)));
        (version, state)
    }
}

fn label(change: &ResourceChange) -> String {
    match &change.after {
        Some(after) => after.version.to_string(),
        None => format!("removed (#{})", change.generation),
    }
}

const EXAMPLE: &str = "/rollout/restore?type=cds&name=backend&version=7, or /rollout/restore?at=2026-03-01T14:02:11Z for all guarded types";

/// States of a node group.
#[derive(Debug)]
pub struct GroupStates {
    pub group: Option<String>,
    pub of: Arc<Group>,
    pub states: Vec<EarlierState>,
}

/// Place of a change, and the state of the resource.
type Earlier = (usize, Option<Arc<Resource>>);

/// Moment or version of the states.
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
    let mut found = Vec::new();
    let mut missing = "no such type is in `rollout.types`, so it is not guarded".to_owned();
    for (key, group) in chosen(groups, query.get("group"))? {
        let mut states = Vec::new();
        let types = group.cache().rollout().into_iter().flat_map(|rollout| rollout.types());
        for type_url in types.filter(|type_url| only.as_ref().is_none_or(|only| only == *type_url)) {
            missing = "nothing has changed since then".to_owned();
            let names = match (&name, &then) {
                (None, Then::At(at)) => changed_since(&group, type_url, *at),
                _ => name.iter().cloned().collect(),
            };
            for name in names {
                let (type_url, track) = (type_url.clone(), Track::Stable);
                let resource = HistoryOf { type_url, name, track, from: None, at: None, to: None };
                let lines = lines(&vec![(key.clone(), Arc::clone(&group))], &resource);
                if lines.is_empty() {
                    missing = resource.unknown();
                }
                for line in lines {
                    match line.earlier(&resource, &then) {
                        Ok(state) => states.extend(state),
                        // Other parameters or another group may have this version.
                        Err(reason) if matches!(then, Then::Version(_)) => missing = reason,
                        Err(reason) => return Err(LookError::Missing(reason)),
                    }
                }
            }
        }
        if !states.is_empty() {
            found.push(GroupStates { group: key, of: group, states });
        }
    }
    if found.is_empty() { Err(LookError::Missing(missing)) } else { Ok(found) }
}

fn changed_since(group: &Group, type_url: &TypeUrl, at: SystemTime) -> BTreeSet<Name> {
    let cache = group.cache();
    let is_one =
        |number, of: &TypeUrl, track| (number, of, track) == (cache.number(), type_url, Track::Stable);
    let changes = cache.history().map(|of| of.newest(usize::MAX, is_one, |changed| is_after(changed, at)));
    changes.into_iter().flatten().map(|of| of.name).collect()
}

impl Line {
    /// State at a moment or of a version; `None` if nothing has changed since.
    fn earlier(&self, of: &HistoryOf, then: &Then<'_>) -> Result<Option<EarlierState>, String> {
        let (kind, name) = (of.type_url.kind().short(), clip(of.name.as_str()));
        let found = match then {
            Then::Version(version) => self
                .find(version, self.changes.len() - 1)
                .and_then(|index| Ok(Some((index, self.state_after(index, of).1?)))),
            Then::At(at) => self.state_at(of, *at),
        };
        let found = found.map_err(|reason| format!("{kind} `{name}`: {reason}"))?;
        Ok(found.map(|(index, resource)| EarlierState {
            type_url: of.type_url.clone(),
            parameters: self.parameters.clone(),
            name: of.name.clone(),
            resource,
            is_member: self.changes[index].is_member,
        }))
    }

    /// State before the first change after a moment; `None` if there is none.
    fn state_at(&self, of: &HistoryOf, at: SystemTime) -> Result<Option<Earlier>, String> {
        let cache = self.group.cache();
        let known = cache
            .history()
            .and_then(|all| all.known_since(cache.number(), &of.type_url, &self.parameters, &of.name));
        if let Some(known) = known.filter(|known| is_after(*known, at)) {
            let since = utc::seconds(WallClock::get().at(known));
            return Err(format!(
                "its history goes back to {since} only; restore what you need by name and version"
            ));
        }
        let first =
            self.changes.iter().position(|change| change.at.is_some_and(|changed| is_after(changed, at)));
        first.map(|first| Ok((first, self.state_before(first).1?))).transpose()
    }
}
