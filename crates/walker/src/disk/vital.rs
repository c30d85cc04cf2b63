//! Vitals: the values that the harness measures once for each image.

use super::closed::closed;

closed! {
    /// A value that is measured once for each verified image. Feedback uses its magnitude.
    Vital {
        /// Extents of the whole walk.
        Extents = "extents",
        /// Reads while the engine opens the image and walks the whole disk; without a walk, until it has read the data.
        Reads = "reads",
        /// Bytes that these reads returned.
        ReadBytes = "bytes read",
        /// The largest number of runs in one extended entry.
        Splits = "splits of an entry",
        /// The deepest layer that an extent comes from.
        Depth = "depth",
        /// L2 tables in the layer at the top.
        Tables = "L2 tables",
        /// Refcount blocks.
        Blocks = "refcount blocks",
        /// Clusters of the refcount table.
        TableClusters = "refcount table clusters",
        /// The longest row of refcount blocks of which each was needed by the one before.
        BlockRounds = "blocks for blocks",
        /// Holes between clusters of the file.
        Holes = "holes",
        /// Clusters of the file.
        FileClusters = "file clusters",
        /// Snapshots.
        Snapshots = "snapshots",
        /// Bitmaps.
        Bitmaps = "bitmaps",
        /// Layers of the chain.
        Layers = "layers",
        /// Clusters with a count above their references.
        Leaked = "leaked clusters",
        /// Clusters with a count below their references.
        Uncounted = "uncounted clusters",
        /// Questions of the program, and extents of a damaged image about which the harness asks.
        Questions = "questions",
        /// Reads of the files by an engine that reports no events, at most 1,024.
        FileReads = "file reads",
        /// Its writes to the file at the top.
        FileWrites = "file writes",
        /// Steps of the whole walk per step that it may take, in 16,384ths. The highest value is 16,384.
        FuelUsed = "fuel used",
        /// Bytes that the reads of [`Vital::Reads`] returned per byte of tables, in 1,024ths. In a damaged image or a
        /// file of any content, each stored byte may belong to a table.
        TableReads = "bytes read per byte of tables",
        /// Extents of the whole walk per entry, which has eight bytes of tables as in [`Vital::TableReads`], in
        /// 1,024ths.
        EntryExtents = "extents per entry",
        /// [`Vital::FileReads`] and [`Vital::FileWrites`] per request to an engine that writes, in sixteenths.
        RequestAccesses = "accesses per request",
    }
}

impl Vital {
    /// Returns the name with the unit, for tables of values.
    pub const fn label(self) -> &'static str {
        match self {
            Self::FuelUsed => "fuel used, in 16,384ths",
            Self::TableReads => "bytes read per byte of tables, in 1,024ths",
            Self::EntryExtents => "extents per entry, in 1,024ths",
            Self::RequestAccesses => "accesses per request, in sixteenths",
            _ => self.name(),
        }
    }

    /// Returns the number of parts that make the ratio 1; `None` if the vital is no ratio.
    pub const fn parts(self) -> Option<u64> {
        match self {
            Self::FuelUsed => Some(1 << 14),
            Self::TableReads | Self::EntryExtents => Some(1 << 10),
            Self::RequestAccesses => Some(16),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_have_labels_with_their_unit() {
        for vital in Vital::ALL {
            let is_named = vital.label() == vital.name();
            assert_eq!(is_named, vital.parts().is_none(), "{}", vital.name());
            assert!(vital.label().starts_with(vital.name()));
        }
    }
}
