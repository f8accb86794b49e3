//! `deltafan snapshot show` and `verify`.
//!
//! Owns the report as JSON. The file stays unchanged, and bodies are never shown.

use std::io;
use std::path::Path;

use serde_json::{Value as Json, json};

use super::disk_state::clock;
use super::snapshot_encoding::GroupId;
use super::snapshot_file::{self, FileError};
use super::snapshot_store::{Store, StoredGroup};
use crate::cache::View;
use crate::snapshot_content::{Clock, Kept, Record};

/// Error of a command, with the file and the remedy.
fn explained(path: &Path, error: &FileError) -> anyhow::Error {
    let path = snapshot_file::file_in(path);
    match error {
        FileError::Locked => anyhow::anyhow!(
            "{}: a relay has it open; look at /upstreams of its admin address, or at a copy",
            path.display()
        ),
        FileError::Io(error) if error.kind() == io::ErrorKind::NotFound => {
            anyhow::anyhow!("{}: there is no snapshot", path.display())
        }
        error => anyhow::anyhow!("{}: {error}", path.display()),
    }
}

fn groups(path: &Path) -> Result<Vec<(GroupId, StoredGroup)>, FileError> {
    let store = Store::new(snapshot_file::look(&snapshot_file::file_in(path))?, false);
    let mut all = Vec::new();
    for (id, _) in store.groups()? {
        if let Some(group) = store.group(&id)? {
            all.push((id, group));
        }
    }
    Ok(all)
}

/// Report on a snapshot: its groups, their types, and resources with version, size and remaining TTL.
///
/// # Errors
///
/// The file cannot be read, or is corrupt.
pub fn report(path: &Path) -> anyhow::Result<Json> {
    let groups = groups(path).map_err(|error| explained(path, &error))?;
    let groups: Vec<Json> = groups.iter().map(|(id, group)| object(id, group, clock())).collect();
    Ok(json!({ "groups": groups }))
}

/// Verifies each value of a snapshot. Returns a line with its size.
///
/// # Errors
///
/// The first broken value, or the reason why the file cannot be read.
pub fn verify(path: &Path) -> anyhow::Result<String> {
    let groups = groups(path).map_err(|error| explained(path, &error))?;
    let stores = || groups.iter().flat_map(|(_, group)| &group.content.stores);
    let records: usize = stores().map(|store| store.records.len()).sum();
    Ok(format!("intact: groups {}, types {}, records {records}\n", groups.len(), stores().count()))
}

const fn view(record: &Record) -> &'static str {
    match (&record.kept, record.view) {
        (Kept::Collection, _) => "collection",
        (Kept::Resource(_), View::Wildcard) => "member",
        (Kept::Resource(_), View::Named) => "by name",
    }
}

fn object(id: &GroupId, group: &StoredGroup, clock: Clock) -> Json {
    let stores = group.content.stores.iter().map(|store| {
        let records = store.records.iter().map(|(name, record)| {
            let mut row = json!({ "name": name.as_str(), "held_as": view(record) });
            if let Kept::Resource(resource) = &record.kept {
                row["version"] = resource.version().into();
                row["bytes"] = resource.body().len().into();
            }
            if let Some((_, deadline)) = record.lease {
                let left = clock.left_until(deadline).unwrap_or_default();
                row["ttl_left_seconds"] = left.as_secs_f64().into();
            }
            row
        });
        let parameters: serde_json::Map<String, Json> =
            store.id.parameters.iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        json!({
            "type": store.id.type_url.as_str(),
            "parameters": parameters,
            "wildcard": store.completeness,
            "resources": records.collect::<Vec<_>>(),
        })
    });
    let (rule, values) = id.parts().map(|(rule, _, values)| (rule, values)).unzip();
    json!({
        "group": id.to_string(),
        "rule": rule,
        "values": values,
        "server": group.facts.server,
        "age_seconds": group.age(clock).map(|age| age.as_secs_f64()),
        "types": stores.collect::<Vec<_>>(),
    })
}
