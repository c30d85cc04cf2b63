//! Operations that write compressed clusters in codings of their own.

use crate::build::payload::Kind;
use crate::build::{CompressedWrite, Packing};
use crate::vm::operand::{At, Count, Skew};

use super::{Effect, Vm};

impl Vm {
    /// Where a payload goes.
    pub(super) fn packing(&self, skew: Skew) -> Packing {
        let bytes = self.builder.plan().geometry.cluster_size.bytes();
        match skew {
            Skew::Packed => Packing::Packed,
            Skew::Fresh(steps) => Packing::Fresh { skew_bytes: Skew::bytes(steps, bytes) },
        }
    }

    /// Writes one cluster, as long as there is room for such payloads.
    pub(super) fn compress_as(&mut self, at: At, wanted: Kind, skew: Skew) -> Effect {
        let (kind, payload_bytes) = self.builder.fitting_payload(wanted);
        let Some(left) = self.payload_bytes.checked_sub(payload_bytes) else {
            return Effect::None;
        };
        let (packing, write) = (self.packing(skew), self.next_write());
        let effect = self.compress(at, Count::ONE, CompressedWrite { kind, packing, write });
        if effect != Effect::None {
            self.payload_bytes = left;
        }
        effect
    }
}

#[cfg(test)]
mod tests {
    use crate::limits::Limits;
    use crate::vm::text::assemble;
    use crate::vm::{Effect, Vm};

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
        // Each is a little longer than 64 KiB; what is left is enough for a small one.
        let placed = effects.iter().take_while(|effect| **effect == Effect::Changed).count();
        assert_eq!(placed, 15);
        assert!(effects[15..20].iter().all(|effect| *effect == Effect::None));
        assert_eq!(effects[20], Effect::Changed);
        assert_eq!(vm.journal.records.len(), 16);
    }
}
