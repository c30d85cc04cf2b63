//! Writes in the build: whole clusters with a given content, and compressed clusters.

use crate::disk::clusters::GuestCluster;
use crate::disk::image_format::ImageFormat;
use crate::images::content::fill::DeepCluster;
use crate::images::content::unstamped::{MAX_UNSTAMPED_BYTES, ShortPiece, UnstampedData};
use crate::images::content::{CompressedContent, NOISE_BYTES, Shape, WriteNumber};
use crate::images::format::list::drawer;
use crate::images::qcow2::payload::{Coding, PayloadKind};
use crate::images::qcow2::{CompressedPlace, CompressedWrite, Packing, PayloadFrame, StoredData};
use crate::programs::journal::JournalRecord;
use crate::programs::operand::{AnyShape, At, BytesKind, Count, DataContent, Skew};

use super::{Effect, Vm};

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
        if self.compressing().is_some() {
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
                    form: drawer(plan.file.format).entry_form(),
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
        // Any bytes may be those of a footer that misleads.
        if !self.allows_look(cluster, true) || !self.take_payload_bytes(copied) {
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

/// The number of bytes that a payload of given bytes counts, among those that a program may place: that of the longest
/// content.
const MOST_GIVEN: u64 = NOISE_BYTES as u64;

/// Compressed clusters.
impl Vm {
    /// Writes compressed clusters, in the usual coding.
    pub(super) fn compress(&mut self, at: At, clusters: Count, shape: Shape, skew: Skew) -> Effect {
        let kind = PayloadKind { shape, coding: Coding::Usual };
        let (packing, write) = (self.packing(skew), self.next_write());
        let wanted = self.payload_of(kind, packing, write);
        self.place_payloads(at, clusters, wanted)
    }

    /// Returns the request for a payload, as the format stores it.
    pub(super) fn payload_of(
        &self,
        kind: PayloadKind,
        packing: Packing,
        write: WriteNumber,
    ) -> CompressedWrite {
        let plan = self.builder.plan();
        let (kind, frame) = match self.compressing() {
            Some(frame) => (drawer(plan.file.format).fitting_payload(plan, kind), frame),
            None => (kind, PayloadFrame::default()),
        };
        CompressedWrite { kind, packing, frame, write }
    }

    /// Returns the placement of a payload.
    fn packing(&self, skew: Skew) -> Packing {
        let bytes = self.builder.plan().geometry.cluster_size.bytes();
        match skew {
            Skew::Packed => Packing::Packed,
            Skew::Fresh(steps) => Packing::Fresh { skew_bytes: Skew::bytes(steps, bytes) },
        }
    }

    /// Writes one compressed cluster in any coding, if the payloads so far leave room for it.
    pub(super) fn compress_as(
        &mut self,
        at: At,
        shape: AnyShape,
        coding: Coding,
        skew: Skew,
    ) -> Effect {
        let (packing, kind) = (self.packing(skew), PayloadKind { shape: shape.0, coding });
        let (_, payload_bytes) = self.builder.fitting_payload(kind);
        if payload_bytes > self.payload_bytes {
            return Effect::None;
        }
        let write = self.next_write();
        let wanted = self.payload_of(kind, packing, write);
        let effect = self.place_payloads(at, Count::ONE, wanted);
        if effect != Effect::None {
            self.payload_bytes = self.payload_bytes.saturating_sub(payload_bytes);
        }
        effect
    }

    fn place_payloads(&mut self, at: At, clusters: Count, wanted: CompressedWrite) -> Effect {
        let plan = self.builder.plan();
        // Readers inflate a qcow2 cluster up to the bytes that they need, and all of a grain.
        let inflated_bytes = match self.compressing() {
            Some(_) => plan.geometry.cluster_size.bytes(),
            None => 0,
        };
        let is_qcow2 = plan.file.format == ImageFormat::Qcow2;
        self.for_clusters(at, clusters, |vm, cluster| {
            let Some(left) = vm.payload_bytes.checked_sub(inflated_bytes) else { return false };
            let given =
                vm.given.waiting(BytesKind::Payload).filter(|_| is_qcow2 && left >= MOST_GIVEN);
            let placed = vm.builder.write_compressed(cluster, wanted, given);
            if let Some(CompressedPlace { offset: host, length_bytes, shape, given }) = placed {
                let (host, write) = (vm.file_offset(host), wanted.write);
                let (content, left) = match given {
                    Some(given) => {
                        vm.given.use_up(BytesKind::Payload);
                        (
                            vm.journal.keep_content(vm.builder.given_content(given)),
                            left - MOST_GIVEN,
                        )
                    }
                    None => (CompressedContent::Shape(shape), left),
                };
                let record =
                    JournalRecord::Compressed { cluster, host, length_bytes, content, write };
                vm.journal.records.push(record);
                vm.payload_bytes = left;
            }
            placed.is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::images::limits::Limits;
    use crate::programs::text::assemble;
    use crate::programs::{Effect, Vm};

    #[test]
    fn large_payloads_are_placed_until_there_is_no_room_for_them() {
        let image = "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<16+0 \
                     rng_seed=0 blocks=append table=append tolerance=0\n";
        let line = "compress_as at=last+0 shape=noise coding=stored skew=packed\n";
        let small = "compress_as at=last+0 shape=zeros coding=quick skew=packed\n";
        let program = assemble(&format!("{image}{}{small}", line.repeat(20))).unwrap();
        let mut vm = Vm::new();
        vm.begin(&program.prologue, Limits::WALKED);
        let effects: Vec<_> = program.operations.iter().map(|one| vm.step(*one)).collect();
        // Each payload is a little longer than 64 KiB; the rest is enough for a small one.
        let placed = effects.iter().take_while(|effect| **effect == Effect::Changed).count();
        assert_eq!(placed, 15);
        assert!(effects[15..20].iter().all(|effect| *effect == Effect::None));
        assert_eq!(effects[20], Effect::Changed);
        assert_eq!(vm.journal.records.len(), 16);
    }
}
