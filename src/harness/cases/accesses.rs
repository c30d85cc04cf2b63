//! Feedback from the files alone: the parts of the images that an engine reads and writes, in their order, and the
//! operations that placed the data there. It says something about every implementation, also about one that reports no
//! events.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::disk::observer::{Event, Observer, State, Vital};
use crate::disk::storage::Storage;
use crate::formats::anatomy::{Anatomy, Part};
use crate::harness::engine::AccessFeedback;
use crate::harness::files::meter::{FileAccess, MAX_ACCESSES, Meter};
use crate::images::files::{Images, LayerFile};
use crate::images::format::layer_anatomy::LayerAnatomy;
use crate::programs::{Journal, JournalRecord, Placed};

/// The smallest unit of the structures of formats without clusters: a sector.
const SECTOR_BYTES: u64 = 512;

/// Reports the accesses of an engine, with buffers that are reused.
#[derive(Debug, Default)]
pub(crate) struct AccessReport {
    anatomy: LayerAnatomy,
    structures: Vec<StructureRange>,
    origins: DataOrigins,
}

/// A range of a file that belongs to a part of the image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct StructureRange {
    place: FilePlace,
    start: u64,
    end: u64,
    part: Part,
}

/// A file of a chain: the depth of its layer, and the file of the layer.
type FilePlace = (usize, LayerFile);

impl AccessReport {
    /// Begins a trace on `meter`, if the accesses of the engine are feedback, and `observer` wants it. If `observer`
    /// prints accesses, each is printed when it occurs.
    pub(crate) fn begin(feedback: AccessFeedback, meter: &Meter, observer: &dyn Observer) {
        if feedback != AccessFeedback::None && observer.observes() {
            meter.begin_trace(observer.access_printer());
        }
    }

    /// Ends the trace on `meter`, if there is one, and reports the accesses to the files of `images` to `observer`.
    /// `journals` are those of its layers, from the top down; a file of unknown origin has none. Returns the number of
    /// accesses, as far as it is feedback.
    pub(crate) fn end(
        &mut self,
        feedback: AccessFeedback,
        files: (&Images, &[&Journal]),
        meter: &Meter,
        observer: &dyn Observer,
    ) {
        match feedback {
            AccessFeedback::None => {}
            AccessFeedback::Parts => self.report_parts(files, meter, observer),
            AccessFeedback::Ordered => self.report_ordered(files, meter, observer),
        }
    }

    /// Reports which parts of `images` the accesses met, each once and in a fixed order: the order of the accesses, and
    /// so their number, do not depend on the input alone. Reports nothing if the trace is full.
    fn report_parts(
        &mut self,
        (images, journals): (&Images, &[&Journal]),
        meter: &Meter,
        observer: &dyn Observer,
    ) {
        let Some(accesses) = self.end_trace((images, journals), meter, observer) else { return };
        // The first accesses of a longer trace depend on its order.
        if accesses.len() == MAX_ACCESSES {
            return;
        }
        let mut met = [[false; Event::COUNT]; 2];
        for access in accesses {
            met[usize::from(access.is_write)][self.event(images, access) as usize] = true;
        }
        for (state, met) in [State::FileReads, State::FileWrites].into_iter().zip(met) {
            observer.begin(state);
            let events = Event::ALL.iter().zip(met).filter(|(_, is_met)| *is_met);
            events.for_each(|(event, _)| observer.event(state, *event));
        }
    }

    fn report_ordered(
        &mut self,
        (images, journals): (&Images, &[&Journal]),
        meter: &Meter,
        observer: &dyn Observer,
    ) {
        let Some(accesses) = self.end_trace((images, journals), meter, observer) else { return };
        observer.begin(State::FileReads);
        observer.begin(State::FileWrites);
        let (mut depth, mut counts) = (0, [0u64; 2]);
        for access in accesses {
            let state = if access.is_write { State::FileWrites } else { State::FileReads };
            if access.depth > depth {
                observer.event(state, Event::Backing);
            }
            depth = access.depth;
            observer.event(state, self.event(images, access));
            counts[usize::from(access.is_write)] += 1;
        }
        let [reads, writes] = counts;
        observer.handled_bytes(meter.traced_bytes());
        observer.vital(Vital::FileReads, reads);
        observer.vital(Vital::FileWrites, writes);
    }

    /// Ends the trace on `meter`, and takes the files apart. Returns the accesses; `None` if there are none, or if no
    /// observer wants them.
    fn end_trace(
        &mut self,
        (images, journals): (&Images, &[&Journal]),
        meter: &Meter,
        observer: &dyn Observer,
    ) -> Option<Vec<FileAccess>> {
        let accesses = meter.end_trace();
        if !observer.observes() || accesses.is_empty() {
            return None;
        }
        self.take_apart(images);
        self.origins.take(journals);
        Some(accesses)
    }

    /// Finds the structures of all files.
    fn take_apart(&mut self, images: &Images) {
        let Self { anatomy, structures, .. } = self;
        structures.clear();
        for (depth, files) in images.layers().enumerate() {
            // The structures of a damaged image are those that were found before the damage.
            let _ = anatomy.read(files);
            for (file, anatomy) in anatomy.files() {
                let unit_bytes = match anatomy.cluster_size() {
                    Some(size) if files.format == ImageFormat::Qcow2 => size.bytes(),
                    _ => SECTOR_BYTES,
                };
                ranges_of((depth, file), unit_bytes, anatomy, structures);
            }
        }
        structures.sort_unstable_by_key(|it| (it.place, it.start, it.part));
        structures.dedup_by(|next, before| {
            let continues = next.place == before.place
                && (next.start < before.end
                    || next.start == before.end && next.part == before.part);
            if continues && next.part == before.part {
                before.end = before.end.max(next.end);
            }
            // If a unit has two parts, the first counts.
            continues && next.end <= before.end
        });
    }

    fn event(&self, images: &Images, access: FileAccess) -> Event {
        let offset = access.offset.get();
        let place = (access.depth, access.file);
        let next = self.structures.partition_point(|it| (it.place, it.start) <= (place, offset));
        let range = next.checked_sub(1).and_then(|index| self.structures.get(index));
        if let Some(range) = range.filter(|it| it.place == place && offset < it.end) {
            return event_of(range.part);
        }
        let files = images.layers().nth(access.depth);
        let is_inside = files.is_some_and(|it| offset < it.file(access.file).length_bytes());
        match access.file {
            _ if !is_inside => Event::PastFile,
            LayerFile::Image => self.origins.event(access.depth, offset),
            LayerFile::DataFile => Event::DataFile,
            LayerFile::Extent(_) => Event::Extent,
        }
    }
}

/// Adds the ranges of a file that belong to its structures, in units of `unit_bytes`: of clusters, or of sectors.
fn ranges_of(place: FilePlace, unit_bytes: u64, anatomy: &Anatomy, into: &mut Vec<StructureRange>) {
    let first_of_file = into.len();
    for element in anatomy.elements() {
        let start = element.at.get() & !(unit_bytes - 1);
        // A unit at the end of all offsets ends there.
        let end = start.saturating_add(unit_bytes);
        let range = StructureRange { place, start, end, part: element.part };
        // Elements of a table follow each other.
        if into.len() == first_of_file || into.last() != Some(&range) {
            into.push(range);
        }
    }
}

/// Returns the event of an access to a part. Parts with the same purpose in different formats have the same event.
fn event_of(part: Part) -> Event {
    match part {
        Part::Header => Event::Header,
        Part::Extension | Part::Metadata => Event::Metadata,
        Part::L1 | Part::Directory => Event::Directory,
        Part::L2 | Part::Bitmap | Part::Table => Event::Table,
        Part::SnapshotTable => Event::SharedTable,
        Part::RefcountTable | Part::RefcountBlock => Event::Block,
        Part::Snapshot => Event::Snapshot,
        Part::BitmapDirectory | Part::BitmapTable => Event::Bitmap,
        Part::Payload => Event::Compressed,
        Part::BlockFront => Event::Piece,
    }
}

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
                    (placed.and_then(|it| it.host), event_of_record(record))
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
fn event_of_record(record: &JournalRecord) -> Option<Event> {
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
    use crate::base::file_parts::FileParts;
    use crate::disk::clusters::{ClusterSize, GuestCluster};
    use crate::disk::offsets::HostOffset;
    use crate::images::content::{CompressedContent, Shape};

    use super::*;

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
        let (top, below) = (journal(ImageFormat::Qcow2), journal(ImageFormat::Raw));
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
