//! A writer keeps the names in the header of an image: those of the backing file, of its format and of the data file.
//! It keeps the bit for lazy refcounts. It does not mark a closed image as corrupt, and marks it as dirty only with
//! lazy refcounts. It keeps the entries of the snapshots that it does not delete: their ids, names, dates and clocks,
//! the lengths of their VM states, and the sizes of their disks. A reader that gets its files from the harness ignores
//! these fields, so the other oracles miss errors in them.
//!
//! Does not check: the bytes of VM states; unknown header extensions and unknown extra data of snapshots, which a
//! writer may leave out.

use std::fmt::Debug;

use crate::disk::error::StorageError;
use crate::formats::error::MapError;
use crate::formats::qcow2::constants::{
    COMPATIBLE_LAZY_REFCOUNTS, INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY,
};
use crate::formats::qcow2::head::{Field, Head};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::snapshot;
use crate::harness::engine::EngineError;
use crate::harness::files::chain::ChainFile;
use crate::harness::oracles::{
    OracleResult, SetAside, Violation, disagreement, unexpected_error, violation,
};

use super::declarations::read_field;

const ORACLE: &str = "written";

/// The names in the header of an image.
#[derive(Debug, PartialEq, Eq)]
struct HeaderNames {
    backing_file: Vec<u8>,
    backing_format: Vec<u8>,
    data_file: Vec<u8>,
}

/// The facts about a snapshot that a writer keeps.
#[derive(Debug, PartialEq, Eq)]
struct SnapshotFacts {
    id: Vec<u8>,
    name: Vec<u8>,
    /// Seconds since 1970, and nanoseconds.
    date: (u32, u32),
    vm_clock_nanoseconds: u64,
    vm_state_bytes: u64,
    /// An entry without this field means the size of the active disk.
    disk_bytes: Option<u64>,
}

/// Compares an image that an engine has written with the image before. `kept` are the snapshots that are still there:
/// the index of each in the table now, and before.
pub fn check(
    before: &ChainFile,
    after: &ChainFile,
    kept: impl Iterator<Item = (usize, usize)>,
    set_aside: &mut SetAside,
) -> OracleResult {
    let old = Head::read(before).map_err(unreadable)?;
    let new = Head::read(after).map_err(unreadable)?;
    let old_names = HeaderNames::read(&old, before).map_err(unreadable)?;
    let new_names = HeaderNames::read(&new, after).map_err(unreadable)?;
    let fields = [
        ("backing file's name", old_names.backing_file == new_names.backing_file),
        ("backing file's format", old_names.backing_format == new_names.backing_format),
        ("data file's name", old_names.data_file == new_names.data_file),
    ];
    check_fields(&fields, &old_names, &new_names, set_aside)?;
    let mut kept = kept.peekable();
    if kept.peek().is_none() {
        return Ok(());
    }
    let old = snapshots(before, &old).map_err(unreadable)?;
    let new = snapshots(after, &new).map_err(unreadable)?;
    // The number of snapshots is right (`written::wrong_snapshot_count`), or that is a known finding.
    let mut pairs = kept.filter_map(|(now, then)| old.get(then).zip(new.get(now)));
    pairs.try_for_each(|(then, now)| check_snapshot(then, now, set_aside))
}

/// Checks the header's bits of a closed image. `before` is the image before; a new image has none.
pub fn check_bits(
    before: Option<&ChainFile>,
    after: &ChainFile,
    set_aside: &mut SetAside,
) -> OracleResult {
    let old = before.map(Header::read).transpose().map_err(unreadable)?;
    let new = Header::read(after).map_err(unreadable)?;
    let marks = old.as_ref().map_or(0, |old| old.incompatible);
    // With lazy refcounts, QEMU leaves some closed images dirty, and the next writer counts their clusters.
    let is_lazy = new.compatible & COMPATIBLE_LAZY_REFCOUNTS != 0;
    let excused = if is_lazy { INCOMPATIBLE_DIRTY } else { 0 };
    for (field, bit) in [("dirty bit", INCOMPATIBLE_DIRTY), ("corrupt bit", INCOMPATIBLE_CORRUPT)] {
        if new.incompatible & !marks & !excused & bit != 0 {
            let after = new.incompatible;
            let detail = format!("incompatible features {marks:#x} before, {after:#x} after");
            set_aside(disagreement(ORACLE, field, ("clear", "set"), detail))?;
        }
    }
    let lazy = |header: &Header| header.compatible & COMPATIBLE_LAZY_REFCOUNTS;
    match old.filter(|old| lazy(old) != lazy(&new)) {
        None => Ok(()),
        Some(old) => violation(ORACLE, "lazy refcounts", ("kept", "changed"), || {
            format!("compatible features {:#x} before, {:#x} after", old.compatible, new.compatible)
        }),
    }
}

/// Returns the violation of an image whose header or snapshot table cannot be read.
fn unreadable(error: impl Into<MapError>) -> Box<Violation> {
    unexpected_error(ORACLE, "header", &EngineError::from(error.into()))
}

impl HeaderNames {
    fn read(head: &Head, file: &ChainFile) -> Result<Self, StorageError> {
        Ok(Self {
            backing_file: field(file, head.backing_name)?,
            backing_format: field(file, head.backing_format)?,
            data_file: field(file, head.data_file)?,
        })
    }
}

fn check_snapshot(
    before: &SnapshotFacts,
    after: &SnapshotFacts,
    set_aside: &mut SetAside,
) -> OracleResult {
    let fields = [
        ("snapshot's id", before.id == after.id),
        ("snapshot's name", before.name == after.name),
        ("snapshot's date", before.date == after.date),
        ("snapshot's clock", before.vm_clock_nanoseconds == after.vm_clock_nanoseconds),
        ("snapshot's VM state", before.vm_state_bytes == after.vm_state_bytes),
        ("snapshot's size", before.disk_bytes.is_none() || before.disk_bytes == after.disk_bytes),
    ];
    check_fields(&fields, before, after, set_aside)
}

fn check_fields<T: Debug>(
    fields: &[(&'static str, bool)],
    before: &T,
    after: &T,
    set_aside: &mut SetAside,
) -> OracleResult {
    let mut changed = fields.iter().filter(|(_, is_kept)| !is_kept);
    changed.try_for_each(|(field, _)| {
        let detail = format!("before {before:?}\nafter  {after:?}");
        set_aside(disagreement(ORACLE, field, ("kept", "changed"), detail))
    })
}

/// Returns the facts about all snapshots, in the order of their table.
fn snapshots(file: &ChainFile, head: &Head) -> Result<Vec<SnapshotFacts>, MapError> {
    let mut all = Vec::new();
    snapshot::each_entry(file, &head.header, |_, at, entry| {
        let extra = snapshot::extra_of(file, at, entry)?;
        let [id, name] = entry.strings_at(at);
        let string = |offset, length: u16| {
            field(file, Some(Field { offset, length_bytes: u32::from(length) }))
        };
        all.push(SnapshotFacts {
            id: string(id, entry.id_bytes)?,
            name: string(name, entry.name_bytes)?,
            date: (entry.date_seconds, entry.date_nanoseconds),
            vm_clock_nanoseconds: entry.vm_clock_nanoseconds,
            vm_state_bytes: extra.vm_state_bytes.unwrap_or_else(|| entry.vm_state_bytes.into()),
            disk_bytes: extra.disk_bytes,
        });
        Ok(())
    })?;
    Ok(all)
}

/// Returns the bytes of a field of the file; none if there is no such field.
fn field(file: &ChainFile, field: Option<Field>) -> Result<Vec<u8>, StorageError> {
    let mut bytes = Vec::new();
    read_field(file, field, &mut bytes)?;
    Ok(bytes)
}
