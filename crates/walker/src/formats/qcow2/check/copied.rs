//! The COPIED flags of the active disk's tables against the counts on disk.

use std::ops::ControlFlow;

use crate::disk::offsets::HostOffset;
use crate::disk::storage::{PIECE_BYTES, Storage};
use crate::formats::error::MapError;
use crate::formats::qcow2::entry::{L1Entry, L2Entry};
use crate::formats::qcow2::table::{HostTable, TableEntry};

use super::image_check::ImageCheck;
use super::references::allocation;

impl<S: Storage + ?Sized> ImageCheck<'_, S> {
    /// Compares each COPIED flag with the count on disk (QEMU, `check_oflag_copied`).
    ///
    /// # Errors
    /// A read fails, or the image is too large.
    pub(super) fn copied(&mut self) -> Result<(), MapError> {
        let (storage, table) = (self.storage, HostTable::active_l1(self.header));
        let mut l2_piece = vec![0; PIECE_BYTES];
        let _ = table.each_entry(
            storage,
            &mut vec![0; PIECE_BYTES],
            |TableEntry { word, .. }| {
                if let Some(l2) = L1Entry(word).table() {
                    self.copied_in(l2, L1Entry(word).copied(), &mut l2_piece)?;
                    self.check_bound()?;
                }
                Ok::<_, MapError>(ControlFlow::Continue(()))
            },
        )?;
        Ok(())
    }

    /// Checks the flag of an L2 table and the flags of its entries. If the count of the table cannot be read, QEMU
    /// does not look at its entries.
    fn copied_in(
        &mut self,
        l2: HostOffset,
        copied: bool,
        piece: &mut [u8],
    ) -> Result<(), MapError> {
        if !self.compare_copied("L2", l2, copied) {
            return Ok(());
        }
        let (storage, table) = (self.storage, HostTable::l2(self.geometry(), l2));
        let _ = table.each_entry(storage, piece, |TableEntry { word, .. }| {
            let entry = L2Entry(word);
            if let Some(host) = allocation(entry, self.geometry()) {
                self.compare_copied("data", host, entry.copied());
            }
            Ok::<_, MapError>(ControlFlow::Continue(()))
        })?;
        Ok(())
    }

    /// Compares a flag with the count of its cluster. A cluster in a data file belongs to one guest cluster. Reports
    /// whether the count can be read.
    fn compare_copied(&mut self, role: &str, host: HostOffset, copied: bool) -> bool {
        let cluster = self.geometry().cluster_size.host_cluster(host);
        let in_data_file = role == "data" && self.geometry().data_file;
        let count = if in_data_file { Some(1) } else { self.refcount(cluster.get()) };
        let Some(count) = count else { return false };
        if copied != (count == 1) {
            let flag = if copied { "set" } else { "not set" };
            self.findings.corruption(format_args!(
                "OFLAG_COPIED {role} cluster {cluster}: {flag}, refcount={count}"
            ));
        }
        true
    }
}
