//! Keeps the last table entries that were read, because a guest mostly reads on from there.

use std::cell::Cell;

use crate::disk::clusters::GuestCluster;
use crate::disk::offsets::HostOffset;
use crate::formats::error::MapError;
use crate::formats::qcow2::entry::{L2Entry, SubclusterBitmap};

/// An L2 entry and its bitmap (0 if there is none); `None` if there is no L2 table.
type LatestL2Entry = Option<(L2Entry, SubclusterBitmap)>;

/// The last L1 entry and the last L2 entry that were read from an open image.
#[derive(Debug, Default)]
pub(super) struct LatestEntries {
    /// An index into the L1 table, and the L2 table that its entry names.
    pub(super) l1: Latest<u64, Option<HostOffset>>,
    pub(super) l2: Latest<GuestCluster, LatestL2Entry>,
}

/// The last value that was read, with its position.
#[derive(Debug)]
pub(super) struct Latest<K: Copy, V: Copy>(Cell<Option<(K, V)>>);

impl<K: Copy, V: Copy> Default for Latest<K, V> {
    fn default() -> Self {
        Self(Cell::new(None))
    }
}

impl<K: Copy + PartialEq, V: Copy> Latest<K, V> {
    /// Returns the value at `key`. If it is not the latest, `read` reads it; a failed read changes nothing.
    #[inline]
    pub(super) fn get_or_read(
        &self,
        key: K,
        read: impl FnOnce() -> Result<V, MapError>,
    ) -> Result<V, MapError> {
        match self.0.get() {
            Some((at, value)) if at == key => Ok(value),
            _ => {
                let value = read()?;
                self.0.set(Some((key, value)));
                Ok(value)
            }
        }
    }
}
