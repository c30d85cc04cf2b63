//! The operations that placed the data of a chain's images, by the bytes of the files.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::disk::observer::Event;
use crate::programs::{Journal, JournalRecord, Placed};

/// The operations of a chain, with a buffer that is reused.
#[derive(Debug, Default)]
pub(crate) struct DataOrigins {
    /// In the order of the operations, layer by layer.
    placed: Vec<PlacedData>,
    /// The layers whose journals name places in the image, counted from the top: a bit for each.
    known: u32,
}

/// Data that an operation placed.
#[derive(Clone, Debug)]
struct PlacedData {
    depth: usize,
    bytes: Range<u64>,
    event: Event,
}

impl DataOrigins {
    /// Takes the operations of all layers, from the top down.
    pub(crate) fn take(&mut self, journals: &[&Journal]) {
        self.placed.clear();
        self.known = 0;
        for (depth, journal) in journals.iter().enumerate() {
            if journal.format != ImageFormat::Qcow2 {
                continue;
            }
            self.known |= 1 << depth;
            for record in &journal.records {
                let placed = Placed::of(record, journal.cluster_size);
                if let (Some(bytes), Some(event)) =
                    (placed.and_then(|it| it.host), event_of(record))
                {
                    self.placed.push(PlacedData { depth, bytes, event });
                }
            }
        }
    }

    /// Returns the event of the last operation that placed data at an offset of the image of a layer. The event is
    /// `unallocated` if there is none, and `normal` if the layer has no known operations.
    pub(crate) fn event(&self, depth: usize, offset: u64) -> Event {
        if self.known & 1 << depth == 0 {
            return Event::Normal;
        }
        let here = |it: &&PlacedData| it.depth == depth && it.bytes.contains(&offset);
        self.placed.iter().rev().find(here).map_or(Event::Unallocated, |it| it.event)
    }
}

/// Returns the event of the operation behind a record that places data.
fn event_of(record: &JournalRecord) -> Option<Event> {
    match record {
        JournalRecord::Written { .. } => Some(Event::Normal),
        JournalRecord::Compressed { .. } => Some(Event::Compressed),
        JournalRecord::Zeroed { .. } => Some(Event::ZeroAllocated),
        JournalRecord::Subclusters { .. } => Some(Event::Subclusters),
        JournalRecord::Discarded { .. }
        | JournalRecord::Resized { .. }
        | JournalRecord::SnapshotTaken
        | JournalRecord::SnapshotDeleted { .. }
        | JournalRecord::SnapshotApplied { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::file_parts::FileParts;
    use crate::disk::clusters::{ClusterSize, GuestCluster};
    use crate::disk::offsets::HostOffset;
    use crate::images::content::{CompressedContent, Shape};

    #[test]
    fn the_last_operation_counts() {
        let cluster_size = ClusterSize::SMALLEST;
        let bytes = cluster_size.bytes();
        let journal = |format| {
            let mut journal = Journal::new();
            journal.begin((cluster_size, bytes, 1 << 20), (format, FileParts::TABLED));
            let (cluster, at) = (GuestCluster::new(1), |nth| HostOffset::new(nth * bytes));
            let write = Default::default();
            journal.records.extend([
                JournalRecord::Written { cluster, clusters: 3, host: at(4), write },
                JournalRecord::Zeroed { cluster: GuestCluster::new(2), kept: Some(at(5)) },
                JournalRecord::Discarded { cluster: GuestCluster::new(3) },
                JournalRecord::Compressed {
                    cluster: GuestCluster::new(9),
                    host: HostOffset::new(9 * bytes + 7),
                    length_bytes: 30,
                    content: CompressedContent::Shape(Shape::default()),
                    write,
                },
            ]);
            journal
        };
        let (top, below) = (journal(ImageFormat::Qcow2), journal(ImageFormat::Vpc));
        let mut origins = DataOrigins::default();
        origins.take(&[&top, &below]);
        let of = |nth: u64, inside: u64| origins.event(0, nth * bytes + inside);
        assert_eq!([of(3, bytes - 1), of(7, 0)], [Event::Unallocated; 2]);
        assert_eq!([of(4, 0), of(6, bytes - 1)], [Event::Normal; 2]);
        assert_eq!([of(5, 0), of(5, bytes - 1)], [Event::ZeroAllocated; 2]);
        assert_eq!(
            [of(9, 6), of(9, 36), of(9, 37)].map(|it| it == Event::Compressed),
            [false, true, false]
        );
        assert_eq!([origins.event(1, 0), origins.event(2, 5 * bytes)], [Event::Normal; 2]);
        origins.take(&[]);
        assert_eq!(origins.event(0, 5 * bytes), Event::Normal);
    }
}
