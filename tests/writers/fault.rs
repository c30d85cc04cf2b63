//! The faults that can be planted in the small writer.

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriterFault {
    CopiedIgnored,
    SharedTable,
    CountNotRaised,
    CountNotLowered,
    CopiedNotSet,
    HeadLost,
    TailLost,
    BelowLost,
    CompressedNeighbour,
    ZerosPastEnd,
    DiscardIgnored,
    DiscardShowsBelow,
    ZeroFlagStays,
    SizeNotStored,
    GrownTail,
    OpenWrites,
    AssumedNeighbours,
    EndMissing,
    TableNotStored,
    BlockNotCounted,
}

/// A fault with its description, and the beginnings of the fingerprints by which it is found.
pub struct PlantedWriterFault {
    pub name: &'static str,
    pub fault: WriterFault,
    pub found_by: &'static [&'static str],
}

const fn planted(
    fault: WriterFault,
    name: &'static str,
    found_by: &'static [&'static str],
) -> PlantedWriterFault {
    PlantedWriterFault { name, fault, found_by }
}

/// All faults.
pub const FAULTS: &[PlantedWriterFault] = {
    use WriterFault::*;
    &[
        planted(
            CopiedIgnored,
            "a cluster that a snapshot shares is written in place",
            &["written: a snapshot, what was written"],
        ),
        planted(
            SharedTable,
            "a shared L2 table is changed in place",
            &["refcounts: ", "written: "],
        ),
        planted(CountNotRaised, "a new cluster gets no refcount", &["refcounts: "]),
        planted(CountNotLowered, "an unused cluster keeps its refcount", &["refcounts: "]),
        planted(
            CopiedNotSet,
            "a new cluster is not marked as copied",
            &["refcounts: data, copied → not copied"],
        ),
        planted(
            HeadLost,
            "the bytes before a write in a new cluster are lost",
            &["written: the rest, the bytes of the guest → zeros"],
        ),
        planted(
            TailLost,
            "the bytes behind a write in a new cluster are lost",
            &["written: the rest, the bytes of the guest → zeros"],
        ),
        planted(
            BelowLost,
            "a new cluster lacks the bytes of the layers below",
            &["written: the rest, the bytes of the guest → zeros"],
        ),
        planted(
            CompressedNeighbour,
            "a write goes over the compressed data of neighbours",
            &["refcounts: ", "written: "],
        ),
        planted(
            ZerosPastEnd,
            "a range of zeros grows to whole clusters",
            &["written: the rest, ", "written: a write, "],
        ),
        planted(
            DiscardIgnored,
            "a discard frees nothing",
            &["written: zeros, the bytes of the guest → other bytes"],
        ),
        planted(
            DiscardShowsBelow,
            "after a discard the layers below show",
            &["written: zeros, the bytes of the guest → other bytes"],
        ),
        planted(
            ZeroFlagStays,
            "a write to a zero cluster keeps the zero flag",
            &["written: a write, the bytes of the guest → zeros"],
        ),
        planted(SizeNotStored, "a new size is not stored", &["written: "]),
        planted(
            GrownTail,
            "the new part of a disk has old bytes",
            &["written: zeros, the bytes of the guest → other bytes"],
        ),
        planted(
            OpenWrites,
            "opening for writing changes the header",
            &["written: file without a request, unchanged → changed"],
        ),
        planted(
            AssumedNeighbours,
            "all clusters of a write go behind the first one",
            &["written: "],
        ),
        planted(EndMissing, "the last bytes of a long write are missing", &["written: a write, "]),
        planted(TableNotStored, "a moved refcount table is not stored", &["refcounts: "]),
        planted(
            BlockNotCounted,
            "a new refcount block does not count itself",
            &["refcounts: refcount block, the references → fewer"],
        ),
    ]
};
