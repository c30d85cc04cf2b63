//! The table entries that a look-up read last: a guest mostly reads on where it has just read.

use std::cell::Cell;

use crate::qcow2::entry::{L2Entry, SubclusterBitmap};
use crate::qcow2::error::MapError;
use crate::qcow2::units::{GuestCluster, HostOffset};

/// An L2 entry and its bitmap (0 where there is none); `None` where there is no L2 table.
type Entry = Option<(L2Entry, SubclusterBitmap)>;

/// One L1 entry and one L2 entry of an opened image, with their places. What could not be read is not kept.
#[derive(Debug, Default)]
pub(super) struct Latest {
    /// An index of the L1 table, and the L2 table that its entry names.
    table: Cell<Option<(u64, Option<HostOffset>)>>,
    entry: Cell<Option<(GuestCluster, Entry)>>,
}

impl Latest {
    /// Returns the L2 table that the L1 entry at `index` names. `read` reads it if it is not the latest.
    #[inline]
    pub(super) fn table(
        &self,
        index: u64,
        read: impl FnOnce() -> Result<Option<HostOffset>, MapError>,
    ) -> Result<Option<HostOffset>, MapError> {
        latest(&self.table, index, read)
    }

    /// Returns the L2 entry of `cluster`. `read` reads it if it is not the latest.
    #[inline]
    pub(super) fn entry(
        &self,
        cluster: GuestCluster,
        read: impl FnOnce() -> Result<Entry, MapError>,
    ) -> Result<Entry, MapError> {
        latest(&self.entry, cluster, read)
    }
}

#[inline]
fn latest<K: Copy + PartialEq, V: Copy>(
    cell: &Cell<Option<(K, V)>>,
    key: K,
    read: impl FnOnce() -> Result<V, MapError>,
) -> Result<V, MapError> {
    match cell.get() {
        Some((at, value)) if at == key => Ok(value),
        _ => {
            let value = read()?;
            cell.set(Some((key, value)));
            Ok(value)
        }
    }
}
