//! The parts of the faults that are more than a condition.

use qcowfuzz::disk::offsets::GuestOffset;
use qcowfuzz::formats::qcow2::constants::{INCOMPATIBLE_CORRUPT, INCOMPATIBLE_DIRTY};

use super::SmallWriter;
use crate::{WriteError, WriterFault};

/// The distance from the edges of a cluster at which the fault [`WriterFault::SharedInside`] begins.
const FAR_FROM_EDGES_BYTES: u64 = 1024;

impl SmallWriter<'_> {
    /// Carries out what some faults do after a write.
    pub(super) fn plant_after_write(
        &mut self,
        guest: GuestOffset,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        let marks = self.planted_marks();
        if marks != 0 {
            self.tables.set_marks(marks)?;
        }
        if self.tables.has(WriterFault::NeighbourStored) {
            self.store_neighbour(guest + bytes.len() as u64)?;
        }
        let middle = bytes.len() / 2;
        match bytes.get(middle) {
            Some(byte) if self.tables.has(WriterFault::MiddleWrong) => {
                let at = guest + middle as u64;
                self.write_piece(at.get(), &[!byte], &mut None)
            }
            _ => Ok(()),
        }
    }

    /// Returns the bits by which some faults mark an image while they write to it.
    fn planted_marks(&self) -> u64 {
        let has = |fault| self.tables.has(fault);
        match has(WriterFault::DirtyStays) || has(WriterFault::DirtyWhileOpen) {
            true => INCOMPATIBLE_DIRTY,
            false if has(WriterFault::CorruptStays) => INCOMPATIBLE_CORRUPT,
            false => 0,
        }
    }

    /// Stores the cluster behind the one of the byte before `end`, as it is.
    fn store_neighbour(&mut self, end: GuestOffset) -> Result<(), WriteError> {
        let cluster = self.tables.cluster_size().bytes();
        let next = end.get().div_ceil(cluster).saturating_mul(cluster);
        if next >= self.virtual_size_bytes() {
            return Ok(());
        }
        let mut byte = [0];
        self.read(GuestOffset::new(next), &mut byte)?;
        self.write_piece(next, &byte, &mut None)
    }

    /// Reports whether bytes of a cluster are so far from its edges that the oracles do not read these for them.
    pub(super) fn is_far_inside(&self, inside: u64, length: usize) -> bool {
        let behind = inside.saturating_add(length as u64).saturating_add(FAR_FROM_EDGES_BYTES);
        // An entry without a cluster may have the offset 0 of a data file.
        let is_in_image = self.tables.data_file().is_none();
        is_in_image
            && inside >= FAR_FROM_EDGES_BYTES
            && behind <= self.tables.cluster_size().bytes()
    }
}
