//! The faults of the small writer, and the fingerprints by which the oracles find them.

use qcowfuzz::internal::writers::WriterFault;

/// A fault with the beginnings of the fingerprints by which it is found.
pub struct PlantedWriterFault {
    pub fault: WriterFault,
    pub found_by: &'static [&'static str],
}

const fn planted(fault: WriterFault, found_by: &'static [&'static str]) -> PlantedWriterFault {
    PlantedWriterFault { fault, found_by }
}

/// All faults.
pub const FAULTS: &[PlantedWriterFault] = {
    use WriterFault::*;
    &[
        planted(CopiedIgnored, &["written: a snapshot, what was written"]),
        planted(SharedTable, &["refcounts: ", "written: "]),
        planted(CountNotRaised, &["refcounts: "]),
        planted(CountNotLowered, &["refcounts: "]),
        planted(CopiedNotSet, &["refcounts: data, copied → not copied"]),
        planted(HeadLost, &["written: the rest, the bytes of the guest → zeros"]),
        planted(TailLost, &["written: the rest, the bytes of the guest → zeros"]),
        planted(BelowLost, &["written: the rest, the bytes of the guest → zeros"]),
        planted(CompressedNeighbour, &["refcounts: ", "written: "]),
        planted(ZerosPastEnd, &["written: the rest, ", "written: a write, "]),
        planted(DiscardIgnored, &["written: zeros, the bytes of the guest → other bytes"]),
        planted(DiscardShowsBelow, &["written: zeros, the bytes of the guest → other bytes"]),
        planted(ZeroFlagStays, &["written: a write, the bytes of the guest → zeros"]),
        planted(SizeNotStored, &["written: "]),
        planted(GrownTail, &["written: zeros, the bytes of the guest → other bytes"]),
        planted(OpenWrites, &["written: file without a request, unchanged → changed"]),
        planted(AssumedNeighbours, &["written: "]),
        planted(EndMissing, &["written: a write, "]),
        planted(TableNotStored, &["refcounts: "]),
        planted(BlockNotCounted, &["refcounts: refcount block, the references → fewer"]),
    ]
};
