//! The reference model: computes the expected disk from the journals alone.
//!
//! A layer is an ordered list of pieces, each with one state. Every record replaces a range: the model cuts out the old
//! pieces and inserts the new one. A disk is a list of layers: if the first layer leaves a range unallocated, the
//! second layer decides, up to its end, and so on. That is all.
//!
//! # Arithmetic
//! The build chooses host offsets that fit into the 56 bits of an entry, and a disk ends before 2^63. So no offset of a
//! piece saturates.

mod pieces;

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

use crate::base::file_parts::{FilePart, FileParts};
use crate::disk::clusters::{ClusterSize, GuestCluster, SUBCLUSTERS};
use crate::disk::extent::Extent;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::images::content::unstamped::UnstampedData;
use crate::images::content::{CompressedContent, SubclusterChange};
use crate::programs::journal::{Journal, JournalRecord};

pub use pieces::{ModelPiece, PieceState, Visible};

/// An earlier state of a layer.
#[derive(Debug, Default)]
struct ModelSnapshot {
    size_bytes: u64,
    pieces: Vec<ModelPiece>,
}

/// The expected state of one layer: a list of pieces.
#[derive(Debug)]
struct ModelLayer {
    cluster_size: ClusterSize,
    /// The smallest unit of mapping in bytes.
    cell_bytes: u64,
    size_bytes: u64,
    format: ImageFormat,
    /// The image is a raw file with holes.
    has_holes: bool,
    /// The parts of the disk by files. In a part without a table, every byte is data, as in a raw file without holes.
    parts: FileParts,
    /// Never empty; the first starts at 0, the last has no end.
    pieces: Vec<ModelPiece>,
    /// The content of compressed clusters that have no shape.
    given: Vec<u8>,
    /// The data without stamps, by the index in their writes.
    unstamped: Vec<UnstampedData>,
    snapshots: Vec<ModelSnapshot>,
    /// The buffers of deleted snapshots.
    spare: Vec<ModelSnapshot>,
}

/// The index of the last piece found in each layer.
type Found = SmallVec<[usize; 4]>;

/// The expected disk: layers, from the top down.
#[derive(Debug)]
pub struct Model {
    /// The image itself first. Spare layers follow the last one in use.
    layers: Vec<ModelLayer>,
    live: usize,
    /// The parts of the disk that a guest sees, in order. The model updates them whenever the layers change.
    visible: Vec<Visible>,
}

impl Model {
    /// Creates an empty disk of size 0.
    pub fn new() -> Self {
        Self { layers: vec![ModelLayer::new()], live: 1, visible: Vec::new() }
    }

    /// Replays `journals`, and reuses the buffers. The first journal is the image's own; each next one belongs to the
    /// layer below.
    pub fn replay<'j>(&mut self, journals: impl Iterator<Item = &'j Journal>) {
        self.live = 0;
        for journal in journals {
            if self.live == self.layers.len() {
                self.layers.push(ModelLayer::new());
            }
            self.layers[self.live].replay(journal);
            self.live += 1;
        }
        self.update_visible();
    }

    /// Returns the number of snapshots of the image itself.
    pub fn snapshot_count(&self) -> usize {
        self.layers[0].snapshots.len()
    }

    /// Returns the size of the disk as the image stores it, which may end inside a sector.
    pub fn stored_size_bytes(&self) -> u64 {
        self.layers[0].size_bytes
    }

    /// Returns the sizes of the disks of all snapshots, as the image stores them.
    pub fn stored_snapshot_sizes_bytes(&self) -> impl Iterator<Item = u64> {
        self.layers[0].snapshots.iter().map(|snapshot| snapshot.size_bytes)
    }

    /// Restores the state that the disk had when the snapshot at `index` was taken. The snapshot must exist.
    pub fn become_snapshot(&mut self, index: usize) {
        self.layers[0].become_snapshot(index);
        self.layers[0].join();
        self.update_visible();
    }

    /// Returns the size of the disk that a guest sees.
    pub fn virtual_size_bytes(&self) -> u64 {
        self.layers[0].virtual_size_bytes()
    }

    /// Returns the parts of the disk that a guest sees, in order.
    pub fn visible(&self) -> &[Visible] {
        &self.visible
    }

    /// Returns the parts of the disk in `range`, clipped to it.
    pub fn visible_in(&self, range: Range<u64>) -> impl Iterator<Item = Visible> {
        let first = self.visible.partition_point(|visible| visible.end <= range.start);
        let there = self.visible[first..].iter().take_while(move |part| part.start < range.end);
        there.map(move |part| Visible {
            start: part.start.max(range.start),
            end: part.end.min(range.end),
            ..*part
        })
    }

    /// Returns the part of the disk from `guest` on; `None` past the end.
    pub fn at(&self, guest: u64) -> Option<Visible> {
        self.visible_in(guest..guest.saturating_add(1)).next()
    }

    /// Returns the bytes that follow the stamp in each compressed cluster of a part of the disk, without trailing
    /// zeros.
    pub fn compressed_content(&self, part: &Visible, content: CompressedContent) -> &[u8] {
        match content {
            CompressedContent::Shape(shape) => shape.behind_stamp(part.cluster_size),
            CompressedContent::Given { start, length_bytes } => {
                let given = &self.layers[part.depth as usize].given;
                &given[start as usize..][..length_bytes as usize]
            }
        }
    }

    /// Returns the unstamped data with this index in the layer that `part` comes from.
    pub fn unstamped(&self, part: &Visible, index: u32) -> Option<&UnstampedData> {
        self.layers.get(part.depth as usize)?.unstamped.get(index as usize)
    }

    /// Computes `visible` from the layers.
    fn update_visible(&mut self) {
        let size = self.virtual_size_bytes();
        let mut visible = std::mem::take(&mut self.visible);
        visible.clear();
        let mut at = 0;
        let mut found: Found = smallvec![0; self.live];
        while at < size {
            let part = self.visible_from(at, &mut found);
            at = part.end;
            visible.push(part);
        }
        self.visible = visible;
    }

    /// Returns the visible part from `guest` on. Layers are consulted from the top down, each up to its end. For each
    /// layer, `found` holds the index of a piece that begins at or before `guest`: the search starts there.
    #[inline]
    fn visible_from(&self, guest: u64, found: &mut [usize]) -> Visible {
        let layers = &self.layers[..self.live];
        let mut end = self.virtual_size_bytes();
        let mut depth = 0;
        loop {
            let layer = &layers[depth];
            let (piece, piece_end) = layer.piece_at(guest, &mut found[depth]);
            let part = layer.parts.at(guest);
            end = end.min(piece_end).min(part.end);
            if part.flat_at.is_some() && guest < layer.size_bytes {
                end = end.min(layer.size_bytes);
            }
            match layers.get(depth + 1).map(ModelLayer::virtual_size_bytes) {
                Some(size) if layer.leaves(part, piece.state) && guest < size => {
                    end = end.min(size);
                    depth += 1;
                }
                _ => {
                    let ModelLayer {
                        cluster_size, cell_bytes, size_bytes, format, has_holes, ..
                    } = *layer;
                    return Visible {
                        start: guest,
                        end,
                        depth: depth as u32,
                        piece,
                        piece_end,
                        cluster_size,
                        cell_bytes,
                        size_bytes,
                        format,
                        part: *part,
                        has_holes,
                    };
                }
            }
        }
    }

    /// Writes the extents of the whole disk to `extents`.
    pub fn extents(&self, extents: &mut Vec<Extent>) {
        extents.clear();
        let mut file = 0;
        for visible in &self.visible {
            let mapping = visible.mapping();
            let length_bytes = visible.end - visible.start;
            // Data of two files are two extents, even if their offsets are consecutive.
            let is_other_file = mapping.offset.is_some() && file != visible.part.file;
            file = visible.part.file;
            if let Some(last) = extents.last_mut()
                && !is_other_file
                && last.mapping.advanced(last.length_bytes) == Some(mapping)
            {
                last.length_bytes += length_bytes;
            } else {
                let start = GuestOffset::new(visible.start);
                extents.push(Extent { start, length_bytes, mapping });
            }
        }
    }
}

impl ModelLayer {
    fn new() -> Self {
        let nothing = ModelPiece { start: 0, state: PieceState::Unallocated };
        Self {
            cluster_size: ClusterSize::SMALLEST,
            cell_bytes: ClusterSize::SMALLEST.bytes(),
            size_bytes: 0,
            format: ImageFormat::Qcow2,
            has_holes: false,
            parts: FileParts::TABLED,
            pieces: vec![nothing],
            given: Vec::new(),
            unstamped: Vec::new(),
            snapshots: Vec::new(),
            spare: Vec::new(),
        }
    }

    fn replay(&mut self, journal: &Journal) {
        (self.cluster_size, self.cell_bytes) = (journal.cluster_size, journal.cell_bytes);
        self.size_bytes = journal.size_bytes;
        (self.format, self.has_holes) = (journal.format, journal.has_holes);
        self.parts = match journal.format {
            ImageFormat::Raw => FileParts::FLAT,
            _ => journal.parts,
        };
        self.given.clone_from(&journal.given);
        self.unstamped.clone_from(&journal.unstamped);
        self.spare.append(&mut self.snapshots);
        self.pieces.clear();
        self.pieces.push(ModelPiece { start: 0, state: PieceState::Unallocated });
        for record in &journal.records {
            self.apply(record);
        }
        self.join();
    }

    /// Returns the size that the layers above see: whole sectors. An image's last sector must be complete; a raw file's
    /// is filled up.
    fn virtual_size_bytes(&self) -> u64 {
        match self.format {
            ImageFormat::Raw => self.size_bytes.next_multiple_of(512),
            _ => self.size_bytes / 512 * 512,
        }
    }

    /// Reports whether the layer below decides about ranges of a part in this state.
    fn leaves(&self, part: &FilePart, state: PieceState) -> bool {
        part.flat_at.is_none()
            && self.format.facts().has_backing_files
            && matches!(state, PieceState::Unallocated | PieceState::UnallocatedInside(_))
    }

    /// Joins neighbours that continue each other.
    fn join(&mut self) {
        self.pieces
            .dedup_by(|next, here| here.state.advanced(next.start - here.start) == next.state);
    }

    /// Returns the piece that holds the byte at `guest`, and the byte past its end. `found` is the index of a piece
    /// that does not begin later.
    #[inline]
    fn piece_at(&self, guest: u64, found: &mut usize) -> (ModelPiece, u64) {
        // The piece is mostly the next one.
        loop {
            match self.pieces.get(*found + 1) {
                Some(next) if next.start <= guest => *found += 1,
                next => return (self.pieces[*found], next.map_or(u64::MAX, |next| next.start)),
            }
        }
    }

    fn apply(&mut self, record: &JournalRecord) {
        match *record {
            JournalRecord::Written { cluster, clusters, host, write } => {
                self.paint(cluster, clusters, PieceState::Normal(host, write));
            }
            JournalRecord::Compressed { cluster, content, write, .. } => {
                self.paint(cluster, 1, PieceState::Compressed(write, content));
            }
            JournalRecord::Zeroed { cluster, kept: None } => {
                self.paint(cluster, 1, PieceState::ZeroPlain)
            }
            JournalRecord::Zeroed { cluster, kept: Some(host) } => {
                self.paint(cluster, 1, PieceState::ZeroAllocated(host));
            }
            JournalRecord::Discarded { cluster } => self.paint(cluster, 1, PieceState::Unallocated),
            JournalRecord::Subclusters { cluster, range, change, host } => {
                if let Some(host) = host {
                    self.move_cluster(cluster, host);
                }
                let length = self.cluster_size.bytes() / u64::from(SUBCLUSTERS);
                for subcluster in range.iter() {
                    let delta = u64::from(subcluster) * length;
                    let start = self.cluster_size.guest_offset(cluster).get() + delta;
                    let lies_at = host.map(|host| host + delta);
                    let state = match (change, lies_at) {
                        (SubclusterChange::Write(write), Some(host)) => {
                            PieceState::Normal(host, write)
                        }
                        (SubclusterChange::Zero, Some(host)) => PieceState::ZeroAllocated(host),
                        (SubclusterChange::Zero, None) => PieceState::ZeroPlain,
                        (_, Some(host)) => PieceState::UnallocatedInside(host),
                        (_, None) => PieceState::Unallocated,
                    };
                    self.paint_bytes(start, start + length, state);
                }
            }
            JournalRecord::Resized { size_bytes } => {
                let first = size_bytes.next_multiple_of(self.cluster_size.bytes());
                self.size_bytes = size_bytes;
                let at = self.cut(first);
                self.pieces.truncate(at);
                self.pieces.push(ModelPiece { start: first, state: PieceState::Unallocated });
            }
            JournalRecord::SnapshotTaken => {
                let mut snapshot = self.spare.pop().unwrap_or_default();
                snapshot.size_bytes = self.size_bytes;
                snapshot.pieces.clone_from(&self.pieces);
                self.snapshots.push(snapshot);
            }
            JournalRecord::SnapshotDeleted { index } => {
                self.spare.push(self.snapshots.remove(index))
            }
            JournalRecord::SnapshotApplied { index } => self.become_snapshot(index),
        }
    }

    /// Restores the state that the layer had when the snapshot at `index` was taken. The snapshot must exist.
    fn become_snapshot(&mut self, index: usize) {
        let snapshot = &self.snapshots[index];
        self.size_bytes = snapshot.size_bytes;
        self.pieces.clone_from(&snapshot.pieces);
    }

    fn paint(&mut self, cluster: GuestCluster, clusters: u64, state: PieceState) {
        let start = self.cluster_size.guest_offset(cluster).get();
        self.paint_bytes(start, start + clusters * self.cluster_size.bytes(), state);
    }

    fn paint_bytes(&mut self, start: u64, end: u64, state: PieceState) {
        let first = self.cut(start);
        let past = self.cut(end);
        self.pieces[first] = ModelPiece { start, state };
        self.pieces.drain(first + 1..past);
    }

    /// Moves the pieces of the cluster to the host cluster at `host`. Their states stay the same.
    fn move_cluster(&mut self, cluster: GuestCluster, host: HostOffset) {
        let start = self.cluster_size.guest_offset(cluster).get();
        let first = self.cut(start);
        let past = self.cut(start + self.cluster_size.bytes());
        for piece in &mut self.pieces[first..past] {
            piece.state = piece.state.moved_to(host + (piece.start - start));
        }
    }

    /// Makes a piece start at `at`, and cuts one in two if necessary. Returns its index.
    fn cut(&mut self, at: u64) -> usize {
        let index = self.pieces.partition_point(|piece| piece.start < at);
        if self.pieces.get(index).is_none_or(|piece| piece.start > at) {
            // The index is not 0, because the first piece starts at 0.
            let before = self.pieces[index - 1];
            let state = before.state.advanced(at - before.start);
            self.pieces.insert(index, ModelPiece { start: at, state });
        }
        index
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::new()
    }
}
