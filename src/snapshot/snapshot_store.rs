//! Content of the file: reading it, and one transaction with all changes.
//!
//! Owns the open file, and how far each cache was copied into it. Rows are made while writing, so that a change of
//! everything needs little memory.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use redb::{
    Database, ReadableDatabase as _, ReadableTable, ReadableTableMetadata as _, Table, WriteTransaction,
};

use super::GroupFacts;
use super::snapshot_encoding::{
    GROUPS, GroupId, RECORDS, RecordKey, RecordRow, STORES, StoreKey, parameters_text, parse_record,
    parse_store, record_row,
};
use super::snapshot_file::{FileError, guarded};
use crate::cache::{Completeness, Snapshot};
use crate::resource::Name;
use crate::snapshot_content::{Clock, Content, Record, Selection, StoreContent, StoreId, record_of};

type Stores<'t> = Table<'t, StoreKey<'static>, (u8, u64)>;
type Records<'t> = Table<'t, RecordKey<'static>, RecordRow<'static>>;

/// Bounds on the content of the file.
#[derive(Clone, Debug, Default)]
pub(super) struct Bounds {
    pub(super) selection: Selection,
    /// Running groups.
    pub(super) live: HashSet<GroupId>,
    /// Groups that may stay beside these.
    pub(super) max_groups: usize,
}

/// Group as it was written.
#[derive(Debug)]
pub struct StoredGroup {
    pub(crate) facts: GroupFacts,
    pub(super) content: Content,
}

/// Position of a group: the state that is, or will be, in the file.
#[derive(Debug, Default, PartialEq)]
pub(super) struct GroupCursor {
    /// Number of its cache, which changes when a group is recreated.
    pub(super) cache: u64,
    pub(super) stores: HashMap<StoreId, StoreCursor>,
    pub(super) facts: GroupFacts,
}

/// Positions of groups, in the order of writing. A random one would spread a group over more pages.
pub(super) type Cursors = Vec<(GroupId, GroupCursor)>;

/// Position of a store.
#[derive(Debug)]
pub(super) struct StoreCursor {
    pub(super) snapshot: Arc<Snapshot>,
    /// Known extent of the wildcard set, and its members.
    pub(super) wildcard: (Completeness, usize),
}

impl PartialEq for StoreCursor {
    fn eq(&self, other: &Self) -> bool {
        let position = |of: &Self| (of.snapshot.generation(), of.wildcard);
        position(self) == position(other)
    }
}

/// Open file.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
    pub(super) is_writable: bool,
    /// Positions up to which this process has copied running groups.
    pub(super) cursors: HashMap<GroupId, GroupCursor>,
}

impl Store {
    pub(super) fn new(database: Database, is_writable: bool) -> Self {
        Self { database, is_writable, cursors: HashMap::new() }
    }

    pub(super) fn groups(&self) -> Result<Vec<(GroupId, GroupFacts)>, FileError> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let table = transaction.open_table(GROUPS)?;
            let mut groups = Vec::new();
            for row in table.iter()? {
                let (id, facts) = row?;
                groups.push((GroupId::from_text(id.value()), GroupFacts::parse(facts.value())));
            }
            Ok(groups)
        })
    }

    /// Group of the file; `None` if there is no such group.
    pub(super) fn group(&self, id: &GroupId) -> Result<Option<StoredGroup>, FileError> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let groups = transaction.open_table(GROUPS)?;
            let Some(facts) = groups.get(id.as_str())? else { return Ok(None) };
            let facts = GroupFacts::parse(facts.value());
            let stores = transaction.open_table(STORES)?;
            let records = transaction.open_table(RECORDS)?;
            let mut content = Content::default();
            for (type_url, parameters) in store_keys(&stores, id)? {
                let key = (id.as_str(), &*type_url, &*parameters);
                let Some(row) = stores.get(key)? else { continue };
                content.stores.push(read_store(&records, key, row.value())?);
            }
            Ok(Some(StoredGroup { facts, content }))
        })
    }

    /// Brings the file to these positions in one transaction. Returns whether anything differed.
    pub(super) fn advance(&mut self, to: Cursors, bounds: &Bounds, clock: Clock) -> Result<bool, FileError> {
        let behind: Vec<_> = to.iter().filter(|(id, group)| self.cursors.get(id) != Some(group)).collect();
        let is_news = !behind.is_empty();
        if is_news {
            guarded(|| {
                let mut transaction = self.database.begin_write()?;
                // A last commit that was altered later is noticed, not skipped for the one before it.
                transaction.set_two_phase_commit(true);
                for (id, group) in behind {
                    let from = self.cursors.get(id).filter(|from| from.cache == group.cache);
                    write_group(&transaction, id, from, group, bounds.selection, clock)?;
                }
                bound_groups(&transaction, bounds)?;
                transaction.commit()?;
                Ok(())
            })?;
        }
        self.cursors = to.into_iter().collect();
        Ok(is_news)
    }
}

/// The next text in the order of keys.
fn after(text: &str) -> String {
    format!("{text}\0")
}

/// Type URLs and parameters of the stores of a group.
fn store_keys(
    stores: &impl ReadableTable<StoreKey<'static>, (u8, u64)>,
    group: &GroupId,
) -> Result<Vec<(String, String)>, FileError> {
    let end = after(group.as_str());
    let mut keys = Vec::new();
    for row in stores.range((group.as_str(), "", "")..(&*end, "", ""))? {
        let (key, _) = row?;
        let (_, type_url, parameters) = key.value();
        keys.push((type_url.to_owned(), parameters.to_owned()));
    }
    Ok(keys)
}

/// Keys of the records of a store. `end` is the text [after] its parameters.
fn records_of<'k>(
    (group, type_url, parameters): StoreKey<'k>,
    end: &'k str,
) -> std::ops::Range<RecordKey<'k>> {
    (group, type_url, parameters, "")..(group, type_url, end, "")
}

fn read_store(
    records: &impl ReadableTable<RecordKey<'static>, RecordRow<'static>>,
    key: StoreKey<'_>,
    (degree, members): (u8, u64),
) -> Result<StoreContent, FileError> {
    let (_, type_url, parameters) = key;
    let corrupt = || FileError::Corrupt(format!("a row of {type_url} cannot be read"));
    let id = parse_store(type_url, parameters).ok_or_else(corrupt)?;
    let completeness = *Completeness::ALL.get(usize::from(degree)).ok_or_else(corrupt)?;
    let (end, mut found) = (after(parameters), Vec::new());
    for row in records.range(records_of(key, &end))? {
        let (key, row) = row?;
        let record = parse_record(&id.type_url, row.value()).ok_or_else(corrupt)?;
        found.push((Name::from(key.value().3), record));
    }
    let members = usize::try_from(members).unwrap_or(usize::MAX);
    Ok(StoreContent { id, completeness, members, records: found })
}

fn write_group(
    transaction: &WriteTransaction,
    id: &GroupId,
    from: Option<&GroupCursor>,
    to: &GroupCursor,
    selection: Selection,
    clock: Clock,
) -> Result<(), FileError> {
    transaction.open_table(GROUPS)?.insert(id.as_str(), to.facts.row())?;
    let mut stores = transaction.open_table(STORES)?;
    let mut records = transaction.open_table(RECORDS)?;
    for (type_url, parameters) in store_keys(&stores, id)? {
        if parse_store(&type_url, &parameters).is_none_or(|id| !to.stores.contains_key(&id)) {
            drop_store(&mut stores, &mut records, (id.as_str(), &type_url, &parameters))?;
        }
    }
    for (store, to) in &to.stores {
        let from = from.and_then(|from| from.stores.get(store));
        if from == Some(to) {
            continue;
        }
        let parameters = parameters_text(&store.parameters);
        let key = (id.as_str(), store.type_url.as_str(), &*parameters);
        let (completeness, members) = to.wildcard;
        stores.insert(key, (completeness as u8, members as u64))?;
        let record = |name: &str| record_of(&store.type_url, &to.snapshot, name, selection, clock);
        write_records(&mut records, key, from, to, record)?;
    }
    Ok(())
}

/// Writes the records of a store that may have changed. Without an earlier position, the file gets all names of
/// the store and keeps no others.
fn write_records(
    records: &mut Records<'_>,
    (group, type_url, parameters): StoreKey<'_>,
    from: Option<&StoreCursor>,
    to: &StoreCursor,
    record: impl Fn(&str) -> Option<Record>,
) -> Result<(), FileError> {
    let all = || to.snapshot.entries().map(|entry| Name::clone(entry.name())).collect();
    let names: BTreeSet<Name> = from.map_or_else(all, |from| to.snapshot.changed_since(&from.snapshot));
    if from.is_none() {
        let end = after(parameters);
        let range = records_of((group, type_url, parameters), &end);
        records.retain_in(range, |(.., name), _| names.contains(name))?;
    }
    for name in names.iter().map(Name::as_str) {
        let key = (group, type_url, parameters, name);
        let Some(record) = record(name) else {
            records.remove(key)?;
            continue;
        };
        let row = record_row(&record);
        let is_there = records.get(key)?.is_some_and(|old| old.value() == row);
        if !is_there {
            records.insert(key, row)?;
        }
    }
    Ok(())
}

fn drop_store(
    stores: &mut Stores<'_>,
    records: &mut Records<'_>,
    key: StoreKey<'_>,
) -> Result<(), FileError> {
    let end = after(key.2);
    records.retain_in(records_of(key, &end), |_, _| false)?;
    stores.remove(key)?;
    Ok(())
}

/// Drops surplus groups that do not run, the most outdated first.
fn bound_groups(transaction: &WriteTransaction, bounds: &Bounds) -> Result<(), FileError> {
    let mut groups = transaction.open_table(GROUPS)?;
    if groups.len()? <= (bounds.live.len() + bounds.max_groups) as u64 {
        return Ok(());
    }
    let mut past = Vec::new();
    for row in groups.iter()? {
        let (id, facts) = row?;
        let id = GroupId::from_text(id.value());
        if !bounds.live.contains(&id) {
            past.push((GroupFacts::parse(facts.value()).current, id));
        }
    }
    past.sort_by_key(|(current, _)| *current);
    let surplus = past.len().saturating_sub(bounds.max_groups);
    let mut stores = transaction.open_table(STORES)?;
    let mut records = transaction.open_table(RECORDS)?;
    for (_, id) in &past[..surplus] {
        groups.remove(id.as_str())?;
        for (type_url, parameters) in store_keys(&stores, id)? {
            drop_store(&mut stores, &mut records, (id.as_str(), &type_url, &parameters))?;
        }
    }
    Ok(())
}
