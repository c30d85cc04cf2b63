//! The snapshots of an image, as far as a command can name them.

use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot;
use crate::harness::engine::{Answer, EngineError};
use crate::harness::files::chain::ChainFile;

/// The longest id and the longest name of a snapshot that qemu-img finds (`QEMUSnapshotInfo`).
const MAX_FOUND_ID_BYTES: usize = 127;
const MAX_FOUND_NAME_BYTES: usize = 255;

/// A snapshot of an image, as far as qemu-img names it.
#[derive(Clone, Debug)]
pub(in crate::harness) struct NamedSnapshot {
    pub(in crate::harness) id: String,
    pub(in crate::harness) name: String,
    /// The size of its disk in bytes.
    pub(in crate::harness) size_bytes: u64,
}

impl NamedSnapshot {
    /// Returns the id or the name by which qemu-img finds the snapshot at `index`. QEMU looks for ids first, then for
    /// names.
    ///
    /// # Errors
    /// qemu-img finds another snapshot, or a command cannot have the strings.
    pub(in crate::harness) fn string_of(snapshots: &[Self], index: usize) -> Answer<&str> {
        let snapshot = Self::nth(snapshots, index)?;
        let with_id = |id: &str| snapshots.iter().position(|other| other.id == id);
        let with_name = |name: &str| snapshots.iter().position(|other| other.name == name);
        match (with_id(&snapshot.id), with_id(&snapshot.name)) {
            (Some(first), _) if first == index && !snapshot.id.is_empty() => Ok(&snapshot.id),
            (_, None) if with_name(&snapshot.name) == Some(index) => Ok(&snapshot.name),
            _ => Err(EngineError::unsupported("another snapshot has the same name")),
        }
    }

    /// Returns the snapshot at `index`, if a command can have its strings.
    pub(in crate::harness) fn nth(snapshots: &[Self], index: usize) -> Answer<&Self> {
        let is_found = |string: &str, most| string.len() <= most && is_plain(string.as_bytes());
        let snapshot = snapshots.get(index).filter(|it| {
            is_found(&it.id, MAX_FOUND_ID_BYTES) && is_found(&it.name, MAX_FOUND_NAME_BYTES)
        });
        snapshot.ok_or_else(|| EngineError::unsupported("such a snapshot"))
    }
}

/// Returns the snapshots of an image, in the order of its table.
pub(in crate::harness) fn snapshots(
    file: &ChainFile,
    header: &Header,
) -> Answer<Vec<NamedSnapshot>> {
    let mut snapshots = Vec::new();
    snapshot::each_entry(file, header, |_, at, entry| {
        let [id_at, name_at] = entry.strings_at(at);
        let extra = snapshot::extra_of(file, at, entry)?;
        snapshots.push(NamedSnapshot {
            id: string(file, id_at, entry.id_bytes)?,
            name: string(file, name_at, entry.name_bytes)?,
            size_bytes: extra.disk_bytes.unwrap_or(header.size_bytes),
        });
        Ok(())
    })?;
    Ok(snapshots)
}

fn string(file: &ChainFile, at: HostOffset, length: u16) -> Result<String, MapError> {
    let mut bytes = vec![0; usize::from(length)];
    file.read_at(at, &mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Reports whether a command can have a name without quotes.
pub(in crate::harness) fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}
