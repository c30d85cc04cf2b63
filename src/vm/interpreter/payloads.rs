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
