//! Content of the file: reading it, and one transaction with all changes.
//!
//! Owns the tables. Changes carry only names, and bytes are made while writing, so that a change of
//! everything needs little memory.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use redb::{
    Database, ReadTransaction, ReadableDatabase as _, ReadableTable, ReadableTableMetadata as _, Table,
    TableDefinition, WriteTransaction,
};

use super::snapshot_encoding::{GroupId, Prefix, parse_store, said_checksum, seal, unseal};
use super::snapshot_file::{FileError, META, guarded};
use super::{GroupFacts, StoreFacts};
use crate::cache::Snapshot;
use crate::resource::Name;
use crate::snapshot_content::{
    Clock, Content, Record, RecordError, Selection, StoreContent, StoreId, record_of,
};

const GROUPS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("groups");
const STORES: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("stores");
const RECORDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("records");
const RUN_KEY: &str = "run";

type ReadRows = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;
type Rows<'t> = Table<'t, &'static [u8], &'static [u8]>;

/// Names of a store to write.
#[derive(Debug)]
pub(super) enum Names {
    /// Names that may have changed.
    Some(BTreeSet<Name>),
    /// All names: each is compared with its record, and all other records are removed.
    All(BTreeSet<Name>),
}

pub(super) struct StoreChange {
    pub(super) id: StoreId,
    /// Current facts, except those that the file counts.
    pub(super) facts: StoreFacts,
    pub(super) names: Names,
    /// State of the store to write.
    pub(super) snapshot: Arc<Snapshot>,
    pub(super) selection: Selection,
    pub(super) clock: Clock,
}

impl StoreChange {
    /// Record of a name; `None` if nothing is kept of it.
    fn record(&self, name: &str) -> Option<Bytes> {
        record_of(&self.id.type_url, &self.snapshot, name, self.selection, self.clock)
    }
}

pub(super) struct GroupChange {
    pub(super) id: GroupId,
    pub(super) facts: GroupFacts,
    pub(super) stores: Vec<StoreChange>,
    /// Removed stores.
    pub(super) gone: Vec<StoreId>,
    /// All existing stores; others are removed. `None` where `gone` lists the removed ones.
    pub(super) all: Option<HashSet<StoreId>>,
}

/// One transaction.
#[derive(Default)]
pub(super) struct Changes {
    pub(super) groups: Vec<GroupChange>,
    /// Running groups.
    pub(super) live: HashSet<GroupId>,
    /// Groups that may stay beside these.
    pub(super) max_groups: usize,
    /// Number of the run, once it counts: groups not live in the previous run are removed.
    pub(super) run: Option<u64>,
}

/// Group as it was written.
#[derive(Debug)]
pub(super) struct StoredGroup {
    pub(super) facts: GroupFacts,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) struct Store {
    pub(super) database: Database,
    /// Number of openings for writing, because each file may have other content. `None` for reading.
    pub(super) opened: Option<u64>,
}

impl Store {
    /// Number of the last run that counted.
    pub(super) fn run(&self) -> Result<u64, FileError> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let table = transaction.open_table(META)?;
            let Some(sealed) = table.get(RUN_KEY)? else { return Ok(0) };
            let value = unseal(RUN_KEY.as_bytes(), sealed.value());
            let run = value.and_then(|(_, value)| Some(u64::from_le_bytes(value.try_into().ok()?)));
            run.ok_or_else(|| FileError::Corrupt("the number of its run cannot be read".to_owned()))
        })
    }

    pub(super) fn groups(&self) -> Result<Vec<(GroupId, GroupFacts)>, FileError> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let Some(table) = open_if_there(&transaction, GROUPS)? else { return Ok(Vec::new()) };
            let mut groups = Vec::new();
            for row in table.iter()? {
                let (key, sealed) = row?;
                groups.push((GroupId::from_bytes(key.value()), group_facts(key.value(), sealed.value())?));
            }
            Ok(groups)
        })
    }

    /// Number of records of each group.
    pub(super) fn records(&self) -> Result<HashMap<GroupId, u64>, FileError> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let mut records = HashMap::new();
            let Some(stores) = open_if_there(&transaction, STORES)? else { return Ok(records) };
            for row in stores.iter()? {
                let (key, sealed) = row?;
                let (group, _) =
                    parse_store(key.value()).ok_or_else(|| corrupt("the key of a store cannot be read"))?;
                *records.entry(group).or_default() += store_facts(key.value(), sealed.value())?.records;
            }
            Ok(records)
        })
    }

    /// Group with verified values; `None` if it is not in the file.
    pub(super) fn group(&self, id: &GroupId) -> Result<Option<StoredGroup>, FileError> {
        guarded(|| {
            let transaction = self.database.begin_read()?;
            let Some(groups) = open_if_there(&transaction, GROUPS)? else { return Ok(None) };
            let Some(sealed) = groups.get(id.as_bytes())? else { return Ok(None) };
            let facts = group_facts(id.as_bytes(), sealed.value())?;
            let mut content = Content::default();
            let (Some(stores), Some(records)) =
                (open_if_there(&transaction, STORES)?, open_if_there(&transaction, RECORDS)?)
            else {
                return Ok(Some(StoredGroup { facts, content }));
            };
            let prefix = Prefix::of_group(id);
            let range = prefix.range();
            let mut count = 0;
            for row in stores.range(&range.start[..]..&range.end[..])? {
                let (key, sealed) = row?;
                let store = read_store(&records, key.value(), sealed.value())?;
                count += store.records.len();
                content.stores.push(store);
            }
            let all = records.range(&range.start[..]..&range.end[..])?.take(count + 1).count();
            if all != count {
                return Err(corrupt(&format!("group {id} has {count} records in its stores, and others")));
            }
            Ok(Some(StoredGroup { facts, content }))
        })
    }

    /// Writes all changes atomically.
    pub(super) fn commit(&self, changes: &Changes) -> Result<(), FileError> {
        guarded(|| {
            let mut transaction = self.database.begin_write()?;
            // A last commit that was altered later is noticed, not skipped for the one before it.
            transaction.set_two_phase_commit(true);
            for group in &changes.groups {
                write_group(&transaction, group)?;
            }
            bound_groups(&transaction, changes)?;
            if let Some(run) = changes.run {
                count_run(&transaction, run)?;
            }
            transaction.commit()?;
            Ok(())
        })
    }
}

fn open_if_there(
    transaction: &ReadTransaction,
    table: TableDefinition<'static, &'static [u8], &'static [u8]>,
) -> Result<Option<ReadRows>, FileError> {
    match transaction.open_table(table) {
        Ok(table) => Ok(Some(table)),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn corrupt(what: &str) -> FileError {
    FileError::Corrupt(what.to_owned())
}

fn group_facts(key: &[u8], sealed: &[u8]) -> Result<GroupFacts, FileError> {
    let value = unseal(key, sealed).and_then(|(_, value)| GroupFacts::from_bytes(value));
    value.ok_or_else(|| corrupt(&format!("the facts of group {} cannot be read", GroupId::from_bytes(key))))
}

fn store_facts(key: &[u8], sealed: &[u8]) -> Result<StoreFacts, FileError> {
    let value = unseal(key, sealed).and_then(|(_, value)| StoreFacts::from_bytes(value));
    value.ok_or_else(|| corrupt("the facts of a store cannot be read"))
}

fn read_store(
    records: &impl ReadableTable<&'static [u8], &'static [u8]>,
    key: &[u8],
    sealed: &[u8],
) -> Result<StoreContent, FileError> {
    let facts = store_facts(key, sealed)?;
    let (group, id) = parse_store(key).ok_or_else(|| corrupt("the key of a store cannot be read"))?;
    let prefix = Prefix::of_store(&group, &id);
    let range = prefix.range();
    let (mut found, mut sum) = (Vec::new(), 0_u64);
    for row in records.range(&range.start[..]..&range.end[..])? {
        let (key, sealed) = row?;
        let (key, sealed) = (key.value(), sealed.value());
        // Surplus records are not read: there may be many.
        let name = prefix.name_in(key).filter(|_| (found.len() as u64) < facts.records);
        let read = name.zip(unseal(key, sealed));
        let Some((name, (checksum, value))) = read else {
            return Err(corrupt(&format!("a record of {} cannot be read", id.type_url)));
        };
        let record = Record::read(&id.type_url, value).map_err(|error| match error {
            RecordError::Newer(_) => FileError::Newer(error.to_string()),
            RecordError::Malformed => corrupt(&format!("a record of {} cannot be read", id.type_url)),
        })?;
        sum = sum.wrapping_add(checksum);
        found.push((Name::from(name), record));
    }
    if (found.len() as u64, sum) != (facts.records, facts.sum) {
        return Err(corrupt(&format!("records of {} are missing", id.type_url)));
    }
    let members = usize::try_from(facts.members).unwrap_or(usize::MAX);
    Ok(StoreContent { id, completeness: facts.completeness, members, records: found })
}

fn write_group(transaction: &WriteTransaction, group: &GroupChange) -> Result<(), FileError> {
    let id = group.id.as_bytes();
    transaction.open_table(GROUPS)?.insert(id, &seal(id, &group.facts.to_bytes()).1[..])?;
    let mut stores = transaction.open_table(STORES)?;
    let mut records = transaction.open_table(RECORDS)?;
    let mut gone: Vec<Vec<u8>> = group.gone.iter().map(|store| store_key(&group.id, store)).collect();
    if let Some(all) = &group.all {
        let stays: HashSet<Vec<u8>> = all.iter().map(|store| store_key(&group.id, store)).collect();
        let range = Prefix::of_group(&group.id).range();
        for row in stores.range(&range.start[..]..&range.end[..])? {
            let key = row?.0.value().to_vec();
            if !stays.contains(&key) {
                gone.push(key);
            }
        }
    }
    for key in gone {
        let (_, store) = parse_store(&key).ok_or_else(|| corrupt("the key of a store cannot be read"))?;
        drop_range(&mut records, &Prefix::of_store(&group.id, &store))?;
        stores.remove(&key[..])?;
    }
    for store in &group.stores {
        write_store(&mut stores, &mut records, &group.id, store)?;
    }
    Ok(())
}

fn store_key(group: &GroupId, store: &StoreId) -> Vec<u8> {
    Prefix::of_store(group, store).as_bytes().to_vec()
}

fn write_store(
    stores: &mut Rows<'_>,
    records: &mut Rows<'_>,
    group: &GroupId,
    store: &StoreChange,
) -> Result<(), FileError> {
    let prefix = Prefix::of_store(group, &store.id);
    let before = match stores.get(prefix.as_bytes())? {
        Some(sealed) => Some(store_facts(prefix.as_bytes(), sealed.value())?),
        None => None,
    };
    let counted = before.unwrap_or_default();
    let mut facts = StoreFacts { records: counted.records, sum: counted.sum, ..store.facts };
    let mut unwanted = Vec::new();
    let names = match &store.names {
        Names::Some(names) => names,
        Names::All(names) => {
            let range = prefix.range();
            for row in records.range(&range.start[..]..&range.end[..])? {
                let key = row?.0.value().to_vec();
                if prefix.name_in(&key).is_none_or(|name| !names.contains(name)) {
                    unwanted.push(key);
                }
            }
            names
        }
    };
    for key in unwanted {
        put(records, &mut facts, &key, None)?;
    }
    for name in names {
        put(records, &mut facts, &prefix.of_name(name.as_str()), store.record(name.as_str()))?;
    }
    if before != Some(facts) {
        let sealed = seal(prefix.as_bytes(), &facts.to_bytes()).1;
        stores.insert(prefix.as_bytes(), &sealed[..])?;
    }
    Ok(())
}

/// Writes a record, or removes it, and keeps the facts right.
fn put(
    records: &mut Rows<'_>,
    facts: &mut StoreFacts,
    key: &[u8],
    record: Option<Bytes>,
) -> Result<(), FileError> {
    let sealed = record.map(|record| seal(key, &record));
    let checksum = |old: &[u8]| said_checksum(old).ok_or_else(|| corrupt("a record has no checksum"));
    let old = records.get(key)?.map(|old| checksum(old.value())).transpose()?;
    if old == sealed.as_ref().map(|(sum, _)| *sum) {
        return Ok(());
    }
    if let Some(sum) = old {
        let left = facts.records.checked_sub(1);
        facts.records = left.ok_or_else(|| corrupt("there are more records than said"))?;
        facts.sum = facts.sum.wrapping_sub(sum);
    }
    let Some((sum, sealed)) = sealed else { return Ok(records.remove(key).map(drop)?) };
    facts.records += 1;
    facts.sum = facts.sum.wrapping_add(sum);
    Ok(records.insert(key, &sealed[..]).map(drop)?)
}

fn drop_range(rows: &mut Rows<'_>, prefix: &Prefix) -> Result<(), FileError> {
    let range = prefix.range();
    debug_assert!(range.contains(&prefix.as_bytes().to_vec()));
    rows.retain_in(&range.start[..]..&range.end[..], |_, _| false)?;
    Ok(())
}

fn drop_group(transaction: &WriteTransaction, group: &GroupId) -> Result<(), FileError> {
    let prefix = Prefix::of_group(group);
    transaction.open_table(GROUPS)?.remove(group.as_bytes())?;
    drop_range(&mut transaction.open_table(STORES)?, &prefix)?;
    drop_range(&mut transaction.open_table(RECORDS)?, &prefix)
}

/// Drops surplus groups that do not run, the most outdated first.
fn bound_groups(transaction: &WriteTransaction, changes: &Changes) -> Result<(), FileError> {
    let mut past = Vec::new();
    {
        let groups = transaction.open_table(GROUPS)?;
        let most = changes.live.len() + changes.max_groups;
        if groups.len()? <= most as u64 {
            return Ok(());
        }
        for row in groups.iter()? {
            let (key, sealed) = row?;
            let id = GroupId::from_bytes(key.value());
            if !changes.live.contains(&id) {
                past.push((group_facts(key.value(), sealed.value())?.current, id));
            }
        }
    }
    past.sort_by_key(|(current, _)| *current);
    let surplus = past.len().saturating_sub(changes.max_groups);
    past[..surplus].iter().try_for_each(|(_, group)| drop_group(transaction, group))
}

/// Counts the run, and drops groups that were not live in the previous one.
fn count_run(transaction: &WriteTransaction, run: u64) -> Result<(), FileError> {
    let (_, sealed) = seal(RUN_KEY.as_bytes(), &run.to_le_bytes());
    transaction.open_table(META)?.insert(RUN_KEY, &sealed[..])?;
    let mut past = Vec::new();
    for row in transaction.open_table(GROUPS)?.iter()? {
        let (key, sealed) = row?;
        if group_facts(key.value(), sealed.value())?.run + 1 < run {
            past.push(GroupId::from_bytes(key.value()));
        }
    }
    past.iter().try_for_each(|group| drop_group(transaction, group))
}
