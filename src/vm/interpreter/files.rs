//! Operations that make of a file more than its disk needs.

use crate::build::payload::Kind;
use crate::build::{CompressedWrite, Packing};
use crate::content::WriteNumber;
use crate::qcow2::units::GuestCluster;
use crate::vm::operand::{At, Count, Hidden};

use super::{Effect, Vm, effect};

impl Vm {
    /// Allocates clusters. They read as zeros: the data of no write.
    pub(super) fn preallocate(&mut self, at: At, clusters: Count) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let host = vm.builder.preallocate(cluster);
            if let Some(host) = host {
                vm.journal.written(cluster, host, WriteNumber::NONE);
            }
            host.is_some()
        })
    }

    /// Puts clusters past the end of the disk, where the L1 table has room. The journal knows nothing of
    /// them: no guest sees them.
    pub(super) fn beyond(
        &mut self,
        table: u8,
        distance: u16,
        clusters: Count,
        kind: Hidden,
    ) -> Effect {
        let write = self.next_write();
        let Some(room) = self.builder.beyond(u64::from(table)) else { return Effect::None };
        let first = room.start + u64::from(distance) % (room.end - room.start);
        let end = (first + clusters.get().min(self.touchable)).min(room.end);
        let mut changed = false;
        for cluster in (first..end).map(GuestCluster::new) {
            changed |= match kind {
                Hidden::Data => self.builder.write(cluster, write).is_some(),
                Hidden::Compressed => {
                    let (kind, packing) = (Kind::default(), Packing::Packed);
                    let wanted = CompressedWrite { kind, packing, write };
                    self.builder.write_compressed(cluster, wanted).is_some()
                }
                Hidden::Zeros => self.builder.zero(cluster, false).is_some(),
                Hidden::Allocated => self.builder.preallocate(cluster).is_some(),
            };
        }
        self.touchable -= end - first;
        if changed {
            self.builder.note_beyond();
        }
        effect(changed)
    }
}
