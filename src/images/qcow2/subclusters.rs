//! Changes to the subclusters of one cluster, under extended L2.

use super::encoding::entries::Subclusters;
use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::units::{GuestCluster, SubclusterRange};
use crate::images::content::SubclusterChange;

use super::builder::Builder;
use super::tables::{Entry, Extended};

impl Builder {
    /// Changes subclusters of a cluster. A cluster without a host cluster gets one when data is
    /// written; a shared one is copied first. Compressed clusters are left alone.
    ///
    /// Returns the host cluster that the cluster has now, if any; `None` where nothing was changed.
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
            Entry::Unallocated => Extended::default(),
            Entry::Extended(extended) => extended,
            Entry::Zero(_) | Entry::Normal(..) | Entry::Compressed(_) => return None,
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
        self.tables.set(table, index, Entry::Extended(new));
        Some(new.host)
    }

    /// The entry with a host cluster that nobody else references, and the data of the old one in it.
    fn with_own_host(&mut self, cluster: GuestCluster, old: Extended) -> Option<Extended> {
        if self.own_host(Entry::Extended(old)).is_some() {
            return Some(old);
        }
        let host = self.allocate_cluster(cluster)?;
        let writes = self.tables.add_writes();
        if old.host.is_some() {
            *self.tables.writes_mut(writes) = *self.tables.writes(old.writes);
        }
        self.release(Entry::Extended(old));
        Some(Extended { host: Some(host), writes, ..old })
    }
}
