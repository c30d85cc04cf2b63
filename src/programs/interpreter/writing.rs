//! The writing: from the first `write_at`, `zero_at` or `sync` on, operations ask the engine to change the disk, and
//! the image that the program has built stays as it is.

use std::ops::Range;

use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::geometry::Version;
use crate::programs::operand::{At, Count, Gap, Inside, Size, SyncKind};
use crate::programs::operation::{Class, Operation};
use crate::programs::request::{CutKind, WriteRequest};

use super::{Effect, Vm, effect};

/// The unit of the size of a disk.
const SECTOR_BYTES: u64 = 512;

impl Vm {
    /// Returns the requests to an engine that has opened the last image for writing.
    pub fn requests(&self) -> &[WriteRequest] {
        &self.writing.requests
    }

    /// Reports whether `operation` belongs to the writing.
    pub(super) fn is_writing(&self, operation: &Operation) -> bool {
        self.writing.size_bytes.is_some() || matches!(operation.class(), Class::Requests(_))
    }

    /// Runs an operation of the writing, which the first one begins.
    pub(super) fn step_writing(&mut self, operation: Operation) -> Effect {
        let plan = self.builder.plan();
        if self.limits.requests == 0 || plan.file.format != ImageFormat::Qcow2 {
            return Effect::None;
        }
        let size_bytes = *self.writing.size_bytes.get_or_insert(plan.virtual_size_bytes());
        match operation {
            Operation::WriteAt { at, inside, length } => {
                let range = self.bytes_at(at, inside, length);
                self.request_write(range)
            }
            Operation::Write { at, clusters } | Operation::WriteAs { at, clusters, .. } => {
                let range = self.whole_clusters(at, clusters);
                self.request_write(range)
            }
            Operation::ZeroAt { at, inside, length } => {
                let range = self.bytes_at(at, inside, length);
                self.request_zeroes(range)
            }
            Operation::Zero { at, clusters, .. } => {
                let range = self.whole_clusters(at, clusters);
                self.request_zeroes(range)
            }
            Operation::Discard { at, clusters } => {
                let range = self.whole_clusters(at, clusters);
                self.request_range(range, |guest, length_bytes| WriteRequest::Discard {
                    guest,
                    length_bytes,
                })
            }
            Operation::Resize { size } => self.request_resize(size_bytes, size),
            Operation::Sync { kind: SyncKind::Flush, .. } => self.request(WriteRequest::Flush),
            Operation::Sync { kind: SyncKind::Cut, choice } => {
                self.request_cut(CutKind::Power, choice)
            }
            Operation::Sync { kind: SyncKind::Kill, choice } => {
                self.request_cut(CutKind::Process, choice)
            }
            Operation::Checkpoint {} => {
                let wants =
                    self.writing.requests.last().is_some_and(|it| *it != WriteRequest::Reopen);
                match wants && self.checkpoint() == Effect::Checkpoint {
                    true => self.request(WriteRequest::Reopen),
                    false => Effect::None,
                }
            }
            _ => Effect::None,
        }
    }

    /// Returns the bytes that the operands of a request select.
    fn bytes_at(&self, at: At, inside: Inside, length: Gap) -> Range<u64> {
        let cluster_bytes = self.builder.plan().geometry.cluster_size.bytes();
        let first = self.position(at).saturating_mul(cluster_bytes);
        let start = first.saturating_add(inside.bytes(cluster_bytes));
        start..start.saturating_add(length.units())
    }

    fn whole_clusters(&self, at: At, clusters: Count) -> Range<u64> {
        let cluster_bytes = self.builder.plan().geometry.cluster_size.bytes();
        // Whole clusters, as many as the requests may still change.
        let clusters = clusters.get().min(self.writing.changeable_bytes / cluster_bytes);
        let start = self.position(at).saturating_mul(cluster_bytes);
        start..start.saturating_add(clusters.saturating_mul(cluster_bytes))
    }

    fn request_write(&mut self, range: Range<u64>) -> Effect {
        let before = self.writing.changeable_bytes;
        let end = range.end.min(range.start.saturating_add(self.writing.writable_bytes));
        // A limit below 4 GiB keeps the length in range.
        let made = self.request_range(range.start..end, |guest, length| WriteRequest::Write {
            guest,
            length_bytes: u32::try_from(length).unwrap_or(u32::MAX),
        });
        self.writing.writable_bytes -= before - self.writing.changeable_bytes;
        made
    }

    fn request_zeroes(&mut self, range: Range<u64>) -> Effect {
        self.request_range(range, |guest, length_bytes| WriteRequest::WriteZeroes {
            guest,
            length_bytes,
        })
    }

    /// Makes a request for the part of `range` that lies on the disk, and that requests may still change.
    fn request_range(
        &mut self,
        range: Range<u64>,
        request: impl FnOnce(GuestOffset, u64) -> WriteRequest,
    ) -> Effect {
        let end = range.end.min(self.writing.size_bytes.unwrap_or(0));
        let length = end.saturating_sub(range.start).min(self.writing.changeable_bytes);
        if length == 0 {
            return Effect::None;
        }
        let made = self.request(request(GuestOffset::new(range.start), length));
        if made == Effect::Changed {
            self.writing.changeable_bytes -= length;
            let cluster_size = self.builder.plan().geometry.cluster_size;
            self.last = cluster_size.clusters_for(range.start.saturating_add(length));
        }
        made
    }

    /// Makes a request for another size. A disk grows by at most as many bytes as requests may still change.
    fn request_resize(&mut self, size_bytes: u64, wanted: Size) -> Effect {
        let most = size_bytes.saturating_add(self.writing.changeable_bytes);
        let wanted = wanted.bytes(self.builder.max_size_bytes()).min(most);
        let wanted = wanted / SECTOR_BYTES * SECTOR_BYTES;
        // A snapshot in a version 2 image need not store the size of its disk. QEMU refuses to resize such an image. If
        // a disk ends within a sector, its last bytes appear when it grows.
        let plan = self.builder.plan();
        let is_old = plan.geometry.version == Version::V2 && self.builder.snapshot_count() > 0;
        let is_fixed = is_old || !plan.size_bytes.is_multiple_of(SECTOR_BYTES);
        if wanted == size_bytes || is_fixed {
            return Effect::None;
        }
        let made = self.request(WriteRequest::Resize { size_bytes: wanted });
        if made == Effect::Changed {
            self.writing.changeable_bytes -= wanted.saturating_sub(size_bytes);
            self.writing.size_bytes = Some(wanted);
        }
        made
    }

    fn request_cut(&mut self, kind: CutKind, choice: u16) -> Effect {
        let cuts = self.writing.requests.iter().filter(|request| request.is_cut()).count();
        match cuts < self.limits.cuts {
            true => self.request(WriteRequest::Cut { kind, choice }),
            false => Effect::None,
        }
    }

    fn request(&mut self, request: WriteRequest) -> Effect {
        let room = self.writing.requests.len() < self.limits.requests;
        self.writing.requests.extend(room.then_some(request));
        effect(room)
    }
}
