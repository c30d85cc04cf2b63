//! Changes to the subclusters of one cluster, under extended L2.

use super::encoding::entries::Subclusters;
use crate::disk::clusters::GuestCluster;
use crate::disk::clusters::SubclusterRange;
use crate::disk::offsets::HostOffset;
use crate::images::content::SubclusterChange;

use super::builder::Builder;
use super::tables::{ClusterMapping, Extended};

impl Builder {
    /// Changes subclusters of a cluster. A cluster without a host cluster gets one if data are written; a shared host
    /// cluster is copied first. Compressed clusters do not change.
    ///
    /// Returns the host cluster after the change, if any, or `None` if nothing changed.
    pub fn change_subclusters(
        &mut self,
        cluster: GuestCluster,
        range: SubclusterRange,
        change: SubclusterChange,
    ) -> Option<Option<HostOffset>> {
        if !self.plan.geometry.extended_l2 {
            return None;
        }
        let (table, index) = self.table_for_change(cluster)?;
        let old = match self.tables.get(table, index) {
            ClusterMapping::Unallocated => Extended::default(),
            ClusterMapping::Extended(extended) => extended,
            ClusterMapping::Zero(_)
            | ClusterMapping::Normal(..)
            | ClusterMapping::Compressed(_) => return None,
        };
        let (allocated, zero) = (old.bitmap.allocated, old.bitmap.zero);
        let mask = range.mask();
        let new = match change {
            SubclusterChange::Write(write) => {
                let mut owned = self.with_own_host(cluster, old)?;
                let writes = self.tables.writes_mut(owned.writes);
                range.iter().for_each(|subcluster| writes[subcluster as usize] = write);
                owned.bitmap = Subclusters { allocated: allocated | mask, zero: zero & !mask };
                owned
            }
            SubclusterChange::Zero => Extended {
                bitmap: Subclusters { allocated: allocated & !mask, zero: zero | mask },
                ..old
            },
            SubclusterChange::Unallocate => Extended {
                bitmap: Subclusters { allocated: allocated & !mask, zero: zero & !mask },
                ..old
            },
        };
        self.tables.set(table, index, ClusterMapping::Extended(new));
        Some(new.host)
    }

    /// Returns the entry with a host cluster that no other entry references. It has the data of the old one.
    fn with_own_host(&mut self, cluster: GuestCluster, old: Extended) -> Option<Extended> {
        if self.own_host(ClusterMapping::Extended(old)).is_some() {
            return Some(old);
        }
        let host = self.allocate_cluster(cluster)?;
        let writes = self.tables.add_writes();
        if old.host.is_some() {
            *self.tables.writes_mut(writes) = *self.tables.writes(old.writes);
        }
        self.release(ClusterMapping::Extended(old));
        Some(Extended { host: Some(host), writes, ..old })
    }
}
