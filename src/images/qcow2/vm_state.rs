//! The state of a guest's memory and devices. A snapshot maps it after the disk, beginning at the first L1 table
//! entry that the disk does not need.

use crate::disk::clusters::GuestCluster;
use crate::images::qcow2::encoding::sizes::Sizes;

use super::builder::Builder;
use super::state::{L1, VmState};

/// The number of unused bytes in the last cluster: a VM state may end at any byte.
const UNUSED_BYTES: u64 = 5;

impl Builder {
    /// Returns the number of the active disk's tables that map the disk. VM state lies in the tables after them.
    pub(super) fn disk_tables(&self) -> usize {
        let end = self.plan.geometry.l1_entries_for(self.plan.size_bytes);
        self.active.tables().partition_point(|(index, _)| *index < end)
    }

    /// Drops the VM state of the active disk.
    pub(super) fn drop_vm_state(&mut self) {
        self.release_tables_from(self.disk_tables());
    }

    /// Writes a VM state after the disk of `l1`, which grows as necessary. Clusters that no L1 table can reach are
    /// left out.
    ///
    /// Returns the length of the state, or `None` if the file is full. `l1` contains the tables in either case.
    pub(super) fn save_vm_state(&mut self, l1: &mut L1, state: VmState) -> Option<u64> {
        let geometry = self.plan.geometry;
        let first = geometry.l1_entries_for(self.plan.size_bytes);
        let most = self.limits.l1_entries(&geometry);
        let mut length = 0;
        for cluster in (0..state.clusters).map(|at| at << state.spread_bits) {
            let l1_index = first + (cluster >> geometry.l2_bits());
            if l1_index >= most {
                break;
            }
            let table = match l1.get(l1_index) {
                Some(table) => table,
                None => {
                    let table = self.add_table()?;
                    l1.set(l1_index, table);
                    table
                }
            };
            l1.entries = l1.entries.max(l1_index + 1);
            let index = cluster & (geometry.l2_entries() - 1);
            let guest = GuestCluster::new((l1_index << geometry.l2_bits()) + index);
            let host = self.allocate_cluster(guest)?;
            let entry = self.data_entry(host, state.write);
            self.tables.set(table, index, entry);
            length = geometry.cluster_size.saturating_bytes(cluster + 1) - UNUSED_BYTES;
        }
        Some(length)
    }
}
