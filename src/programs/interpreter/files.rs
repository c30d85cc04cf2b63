//! Operations that lay out the file, and that add structures that its disk does not need.

use std::ops::Range;

use crate::disk::clusters::GuestCluster;
use crate::disk::image_format::ImageFormat;
use crate::images::content::WriteNumber;
use crate::images::format::file_plan::{ExtentForm, ExtentPlan};
use crate::images::format::list::drawer;
use crate::images::qcow2::payload::PayloadKind;
use crate::images::qcow2::placement::Policy;
use crate::images::qcow2::refcounts::SpareBlocks;
use crate::images::qcow2::{FileEnd, HeaderFlags, HeaderLength, HeaderStyle, ImagePlan, Packing};
use crate::programs::operand::{At, BytesKind, Count, FarGap, Gap, Hidden, Number};

use super::{Effect, Vm, effect};

/// The number of entries that a preallocated block of another format than qcow2 counts as.
const COST_OF_BLOCK: u64 = 8;

impl Vm {
    /// Sets the placement of host clusters from now on.
    pub(super) fn place(&mut self, policy: Policy) -> Effect {
        self.builder.set_policy(policy);
        Effect::Changed
    }

    /// Leaves a gap at the end of the file.
    pub(super) fn reserve(&mut self, gap: Gap) -> Effect {
        self.builder.leave_gap(gap.units());
        effect(gap.units() > 0)
    }

    /// Leaves a gap at the end of the file, and lets the file grow as long as the format allows.
    pub(super) fn reserve_far(&mut self, gap: FarGap) -> Effect {
        effect(self.builder.leave_far_gap(gap.units()))
    }

    /// Adds a file beside the current image, which begins again.
    pub(super) fn extent(&mut self, kind: ExtentForm, length: Gap, lead: u8) -> Effect {
        let plan = *self.builder.plan();
        if !self.journal.records.is_empty() {
            return Effect::None;
        }
        let extent = ExtentPlan::new(kind, length.units(), lead);
        match drawer(plan.file.format).plan_with_extent(&plan, extent) {
            Some(file) => {
                self.begin_layer(ImagePlan { file, ..plan });
                Effect::Changed
            }
            None => Effect::None,
        }
    }

    /// Sets the options of the header.
    pub(super) fn header(
        &mut self,
        length: HeaderLength,
        order: u8,
        (unknown, unknown_bytes): (Number<0, 7>, u8),
        flags: HeaderFlags,
    ) -> Effect {
        let unknown = unknown.get();
        let style = HeaderStyle { length, order, unknown, unknown_bytes, flags };
        let mut changed = self.builder.set_header(style);
        if unknown > 0
            && let Some(body) = self.given.waiting(BytesKind::Extension)
        {
            self.builder.set_extension_body(body);
            self.given.use_up(BytesKind::Extension);
            changed = true;
        }
        effect(changed)
    }

    /// Sets the end of the file.
    pub(super) fn end_file(&mut self, end: FileEnd, tail: Gap) -> Effect {
        self.builder.end_file(end, tail.units());
        Effect::Changed
    }

    /// Makes tables longer than necessary.
    pub(super) fn spare(&mut self, table: Number<0, 15>, l1: Gap) -> Effect {
        effect(self.builder.spare(u64::from(table.get()), l1.units()))
    }

    /// Adds refcount blocks that count nothing.
    pub(super) fn spare_blocks(&mut self, blocks: Count, distance: u16) -> Effect {
        let blocks = SpareBlocks { blocks: blocks.get(), distance: u64::from(distance) };
        effect(self.builder.spare_blocks(blocks))
    }

    /// Allocates clusters without writing data. They read as zeros.
    pub(super) fn preallocate(&mut self, at: At, clusters: Count) -> Effect {
        self.for_clusters(at, clusters, |vm, cluster| {
            let host = vm.builder.preallocate(cluster);
            if let Some(host) = host {
                vm.journal.written(cluster, vm.file_offset(host), WriteNumber::NONE);
            }
            host.is_some()
        })
    }

    /// Allocates a run of clusters without writing data.
    pub(super) fn preallocate_run(&mut self, at: At, length: Gap) -> Effect {
        let plan = self.builder.plan();
        let is_plain = plan.file.format == ImageFormat::Qcow2 && !plan.geometry.extended_l2;
        // A block of another format, or a cluster with subclusters, costs as much as some entries.
        let cost = if is_plain { 1 } else { COST_OF_BLOCK };
        let disk = self.builder.guest_clusters();
        let first = self.position(at);
        let end = (first + length.units().min(self.preallocatable / cost)).min(disk);
        if first >= end {
            return Effect::None;
        }
        self.preallocatable -= (end - first) * cost;
        self.last = end;
        let Self { builder, journal, .. } = self;
        let mut changed = false;
        builder.preallocate_run(first..end, |builder, cluster, clusters, host| {
            changed = true;
            let plan = builder.plan();
            let cluster_size = plan.geometry.cluster_size;
            // In some something lies between two blocks.
            let is_dense =
                plan.file.places.is_none_or(|it| it.stride_bytes == cluster_size.bytes());
            let step = if is_dense { clusters } else { 1 };
            for nth in (0..clusters).step_by(step as usize) {
                let host = host + cluster_size.saturating_bytes(nth);
                let at = GuestCluster::new(cluster.get() + nth);
                let lies_at = plan.file.file_offset(cluster_size, host);
                journal.written_run((at, step), lies_at, WriteNumber::NONE);
            }
        });
        effect(changed)
    }

    /// Puts clusters past the end of the disk, if the L1 table has room. The journal does not record them, because no
    /// guest sees them.
    pub(super) fn beyond(
        &mut self,
        table: Number<0, 15>,
        distance: u16,
        clusters: Count,
        kind: Hidden,
    ) -> Effect {
        let write = self.next_write();
        let Some(range) = self.clusters_beyond(table, distance, clusters) else {
            return Effect::None;
        };
        self.touchable -= range.end - range.start;
        let compresses = self.compressing().is_some();
        let kind = if kind == Hidden::Data && compresses { Hidden::Compressed } else { kind };
        let mut changed = false;
        for cluster in range.map(GuestCluster::new) {
            changed |= match kind {
                Hidden::Data => self.builder.write(cluster, write).is_some(),
                Hidden::Compressed => {
                    let wanted = self.payload_of(PayloadKind::default(), Packing::Packed, write);
                    self.builder.write_compressed(cluster, wanted, None).is_some()
                }
                Hidden::Zeros => self.builder.zero(cluster, false).is_some(),
                Hidden::Allocated => self.builder.preallocate(cluster).is_some(),
            };
        }
        if changed {
            self.builder.note_beyond();
        }
        effect(changed)
    }

    /// Returns the clusters that the operands select, at most as many as operations may still touch.
    pub(super) fn clusters_beyond(
        &self,
        table: Number<0, 15>,
        distance: u16,
        clusters: Count,
    ) -> Option<Range<u64>> {
        let room = self.builder.beyond(u64::from(table.get()))?;
        let first = room.start + u64::from(distance) % (room.end - room.start);
        Some(first..(first + clusters.get().min(self.touchable)).min(room.end))
    }
}

#[cfg(test)]
mod tests {
    use crate::harness::{Checks, Harness, Walker};
    use crate::programs::text::assemble;

    /// Returns the number of effective operations of a program that has no violation.
    fn effective(lines: &str) -> usize {
        let image = "image version=3 cluster_bits=9 refcount_order=4 features=none size=64<<9+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";
        let program = assemble(&format!("{image}{lines}")).unwrap();
        let run = Harness::new(Walker::default()).run(&program.encode(), Checks::AfterEach);
        run.unwrap_or_else(|failure| panic!("{}", failure.violation)).effective
    }

    #[test]
    fn only_vacant_clusters_are_preallocated() {
        let line = "preallocate at=start+0 clusters=1\n";
        assert_eq!(effective(&line.repeat(2)), 1);
        for before in [
            "write at=start+0 clusters=1\n",
            "compress at=start+0 clusters=1 shape=text skew=packed\n",
            "write at=start+0 clusters=1\nzero at=start+0 clusters=1 keep=yes\n",
        ] {
            assert_eq!(effective(&format!("{before}{line}")), before.lines().count());
        }
        let zeros = "zero at=start+0 clusters=1 keep=no\n";
        assert_eq!(effective(&format!("{zeros}{line}")), 2);
    }

    #[test]
    fn a_run_allocates_every_cluster_of_the_disk() {
        // Two tables of 64 entries. The second run finds nothing vacant.
        let run = "preallocate_run at=start+0 length=1<<15\n";
        assert_eq!(effective(&format!("resize size=100<<9+0\n{}", run.repeat(2))), 2);
        for before in [
            "write at=start+5 clusters=3\nzero at=start+70 clusters=3 keep=no\n",
            "compress at=start+9 clusters=2 shape=text skew=packed\nplace policy=random\n",
            "reserve gap=9<<0\nplace policy=first\n",
        ] {
            let text = format!("resize size=100<<9+0\n{before}{run}snapshot\n{run}");
            assert_eq!(effective(&text), 1 + before.lines().count() + 2);
        }
        let owned_bytes = |lines: &str| {
            let image = "image version=3 cluster_bits=16 refcount_order=4 features=none \
                         size=16384<<16+0 rng_seed=0 blocks=append table=append tolerance=0\n";
            let program = assemble(&format!("{image}{lines}")).unwrap();
            let mut harness = Harness::new(Walker::default());
            harness.run(&program.encode(), Checks::AtCheckpoints).unwrap();
            harness.images().top().image.owned_bytes()
        };
        // All of 1 GiB: entries of eight bytes, counts of two, and little more.
        let owned = owned_bytes(run);
        assert!((160 << 10..170 << 10).contains(&owned), "{owned}");
    }

    #[test]
    fn no_cluster_is_put_past_the_end_without_room_in_a_table() {
        // The disk uses all of its only L2 table.
        let beyond = "beyond table=0 distance=9 clusters=2 kind=data\n";
        assert_eq!(effective(beyond), 0);
        let spare = "spare table=0 l1=1<<0\n";
        assert_eq!(effective(&format!("{spare}{beyond}")), 2);
        let smaller = "resize size=63<<9+0\n";
        assert_eq!(effective(&format!("{smaller}{beyond}")), 2);
        // A disk that grows over the cluster replaces it, for every kind of cluster.
        for kind in ["data", "compressed", "zeros", "allocated"] {
            let beyond = format!("beyond table=1 distance=9 clusters=2 kind={kind}\n");
            let grown = "resize size=128<<9+0\nresize size=200<<9+0\n";
            assert_eq!(effective(&format!("{spare}{beyond}{grown}")), 4);
        }
    }
}
