//! Writes with a given content, in the build.

use crate::disk::clusters::GuestCluster;
use crate::images::content::WriteNumber;
use crate::images::deep::DeepCluster;
use crate::images::qcow2::StoredData;
use crate::images::unstamped::{MAX_UNSTAMPED_BYTES, ShortPiece, UnstampedData};
use crate::programs::operand::{At, BytesKind, Count, DataContent};

use super::{Effect, Vm, formats};

/// The bytes of payload that a deep cluster counts as: it makes an image longer that is exported to a file system.
const COST_OF_DEEP_CLUSTER: u64 = 16 << 10;

impl Vm {
    /// Writes clusters with a given content, as far as the image allows that.
    pub(super) fn write_data(
        &mut self,
        at: At,
        clusters: Count,
        content: DataContent,
        value: u8,
    ) -> Effect {
        if formats::compressing(&self.builder.plan().file).is_some() {
            return self.write(at, clusters);
        }
        let write = self.next_write();
        let data = self.unstamped_data(content, value);
        // All clusters of the write have the same data.
        let mut added = None;
        let effect = self.write_each(at, clusters, |vm, cluster| {
            let number = match content {
                DataContent::Deep => vm.deep(write),
                DataContent::Zeros => Some(WriteNumber::NONE),
                DataContent::Same | DataContent::Former => vm.same_data(cluster),
                DataContent::Own
                | DataContent::Repeat
                | DataContent::Entries
                | DataContent::Counts => {
                    data.and_then(|data| vm.unstamped_write(cluster, data, &mut added))
                }
            };
            number.unwrap_or(write)
        });
        if effect != Effect::None {
            self.use_up_data(content);
        }
        effect
    }

    /// Returns the data without stamps of a content, if it has some.
    pub(super) fn unstamped_data(&self, content: DataContent, value: u8) -> Option<UnstampedData> {
        let byte = [value];
        let piece = || ShortPiece::new(self.given.waiting(BytesKind::Data).unwrap_or(&byte));
        match content {
            DataContent::Own => Some(UnstampedData::Once(piece())),
            DataContent::Repeat => Some(UnstampedData::Repeated(piece())),
            DataContent::Entries => {
                let plan = self.builder.plan();
                Some(UnstampedData::Entries {
                    form: formats::entry_form(plan.file.format),
                    first: value,
                    cluster_size: plan.geometry.cluster_size,
                })
            }
            // Counts of 16 bits, the usual width.
            DataContent::Counts => Some(UnstampedData::Repeated(ShortPiece::new(&[0, value]))),
            DataContent::Deep | DataContent::Zeros | DataContent::Same | DataContent::Former => {
                None
            }
        }
    }

    /// Removes the bytes of the program that a write with this content has used.
    pub(super) fn use_up_data(&mut self, content: DataContent) {
        if matches!(content, DataContent::Own | DataContent::Repeat) {
            self.given.use_up(BytesKind::Data);
        }
    }

    /// Returns the write with deep data, if clusters of the image can have them. Under extended L2, pieces of data may
    /// begin inside a cluster.
    fn deep(&mut self, write: WriteNumber) -> Option<WriteNumber> {
        let geometry = &self.builder.plan().geometry;
        if geometry.extended_l2 || DeepCluster::new(geometry.cluster_size).is_none() {
            return None;
        }
        self.take_payload_bytes(COST_OF_DEEP_CLUSTER).then(|| write.deep())
    }

    /// Returns the write with data without stamps, if the cluster may have any bytes. `added` is the write of an
    /// earlier cluster.
    fn unstamped_write(
        &mut self,
        cluster: GuestCluster,
        data: UnstampedData,
        added: &mut Option<WriteNumber>,
    ) -> Option<WriteNumber> {
        let plan = self.builder.plan();
        let most = plan.geometry.cluster_size.bytes_usize().min(MAX_UNSTAMPED_BYTES);
        let copied = data.covered_bytes(most) as u64;
        if !formats::allows_any_bytes(plan, cluster) || !self.take_payload_bytes(copied) {
            return None;
        }
        Some(*added.get_or_insert_with(|| self.add_unstamped(data)))
    }

    fn add_unstamped(&mut self, data: UnstampedData) -> WriteNumber {
        // The builder and the journal begin together, so that both have the same indexes.
        self.journal.unstamped.push(data);
        self.builder.add_unstamped(data)
    }

    /// Takes bytes of payload, if there are as many left.
    fn take_payload_bytes(&mut self, bytes: u64) -> bool {
        let left = self.payload_bytes.checked_sub(bytes);
        self.payload_bytes = left.unwrap_or(self.payload_bytes);
        left.is_some()
    }

    /// Returns the write with the bytes that a guest reads in a cluster, if there is one: those of one layer that has
    /// clusters of the same size, or zeros. Under extended L2, only zeros are the same in all clusters of a write.
    fn same_data(&mut self, cluster: GuestCluster) -> Option<WriteNumber> {
        match self.read_data(cluster) {
            StoredData::Nothing | StoredData::Zeros => Some(WriteNumber::NONE),
            StoredData::Write(write) => {
                (!self.builder.plan().geometry.extended_l2).then_some(write)
            }
            StoredData::Unstamped(data) => self.unstamped_write(cluster, data, &mut None),
            StoredData::Other => None,
        }
    }

    /// Returns the data that a guest reads in a cluster.
    fn read_data(&self, cluster: GuestCluster) -> StoredData {
        let cluster_size = self.builder.plan().geometry.cluster_size;
        let start = cluster_size.guest_offset(cluster).get();
        for (depth, (builder, journal)) in self.layers().enumerate() {
            let plan = builder.plan();
            let is_cut = start.saturating_add(cluster_size.bytes()) > plan.size_bytes;
            if depth > 0 && start >= plan.size_bytes {
                return StoredData::Zeros;
            }
            if plan.geometry.cluster_size != cluster_size || depth > 0 && is_cut {
                return StoredData::Other;
            }
            match builder.stored_data(cluster) {
                // A part without a table has no layer below.
                StoredData::Nothing if journal.parts.at(start).flat_at.is_some() => {
                    return StoredData::Zeros;
                }
                StoredData::Nothing => {}
                stored => return stored,
            }
        }
        StoredData::Nothing
    }
}
