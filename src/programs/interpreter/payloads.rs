//! Operations that write compressed clusters.

use crate::disk::image_format::ImageFormat;
use crate::images::content::{CompressedContent, NOISE_BYTES, Shape, WriteNumber};
use crate::images::qcow2::payload::{Coding, PayloadKind};
use crate::images::qcow2::{CompressedPlace, CompressedWrite, Packing, PayloadFrame};
use crate::programs::journal::JournalRecord;
use crate::programs::operand::{AnyShape, At, BytesKind, Count, Skew};

use super::{Effect, Vm, formats};

/// The number of bytes that a payload of given bytes counts, among those that a program may place: that of the longest
/// content.
const MOST_GIVEN: u64 = NOISE_BYTES as u64;

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
        let (kind, frame) = match formats::compressing(&plan.file) {
            Some(form) => (form.fitting_payload(plan, kind), form.payload_frame()),
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
        // Readers inflate a qcow2 cluster up to the bytes that they need, and all of a VMDK grain.
        let inflated_bytes = match formats::compressing(&plan.file) {
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
