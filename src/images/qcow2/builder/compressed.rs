//! Compressed clusters. Several can lie in one host cluster, each begins at any byte, and they may cross cluster
//! boundaries.

use crate::disk::clusters::GuestCluster;
use crate::disk::offsets::HostOffset;
use crate::images::content::{Shape, WriteNumber};
use crate::images::qcow2::encoding::Sizes;
use crate::images::qcow2::payload;
use crate::images::qcow2::payload::{GivenPayload, PayloadKind};
use crate::images::qcow2::state::PayloadEnd;
use crate::images::qcow2::tables::{ClusterMapping, Compressed};

use super::Builder;

/// The placement of a compressed cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Packing {
    /// Right after the last payload, in the same host cluster, and into the next cluster if that is free. Otherwise
    /// at the start of a new cluster.
    #[default]
    Packed,
    /// In new clusters, from a byte inside the first one on.
    Fresh {
        /// The byte, modulo the cluster size.
        skew_bytes: u64,
    },
}

/// The bytes around a payload in the file. The default is none, as in qcow2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadFrame {
    /// The number of bytes before and behind the payload.
    pub around_bytes: u64,
    /// The payload with these bytes begins at a multiple of this number, and takes a multiple of it.
    pub unit_bytes: u64,
}

impl Default for PayloadFrame {
    fn default() -> Self {
        Self { around_bytes: 0, unit_bytes: 1 }
    }
}

/// A request to write a compressed cluster.
#[derive(Clone, Copy, Debug)]
pub struct CompressedWrite {
    /// The content and the coding.
    pub kind: PayloadKind,
    /// The placement.
    pub packing: Packing,
    /// The bytes around the payload.
    pub frame: PayloadFrame,
    /// The number of the write.
    pub write: WriteNumber,
}

/// A compressed cluster that the builder has written.
#[derive(Clone, Copy, Debug)]
pub struct CompressedPlace {
    /// The host offset of the payload.
    pub offset: HostOffset,
    /// The length of the payload.
    pub length_bytes: u32,
    /// The shape of the content. It differs from the requested shape if that does not fit.
    pub shape: Shape,
    /// The index of the payload, if the builder has used given bytes; see [`Builder::given_content`].
    pub given: Option<u16>,
}

impl Builder {
    /// Returns the content behind the stamp of a given payload.
    pub fn given_content(&self, index: u16) -> &[u8] {
        self.given.content(index)
    }

    /// Makes a payload of the bytes of a program. They are used unchanged if the image may be malformed. Returns `None`
    /// if no valid payload is short enough.
    fn given_payload(&self, bytes: &[u8]) -> Option<GivenPayload> {
        let geometry = &self.plan.geometry;
        match self.limits.attacks {
            0 => GivenPayload::valid(geometry, bytes),
            _ => Some(GivenPayload::unchanged(geometry, bytes)),
        }
    }

    /// Returns the kind that the builder writes for `wanted`, and the number of bytes that it takes in the file.
    pub fn fitting_payload(&self, wanted: PayloadKind) -> (PayloadKind, u64) {
        let (kind, payload) = payload::fitting(&self.plan.geometry, wanted);
        (kind, payload.length_bytes() as u64)
    }

    /// Writes a whole cluster compressed, with a payload made of the bytes `given` if there are any. Returns `None` if
    /// the file is full or the image has a data file; then nothing changed.
    pub fn write_compressed(
        &mut self,
        cluster: GuestCluster,
        wanted: CompressedWrite,
        given: Option<&[u8]>,
    ) -> Option<CompressedPlace> {
        if self.plan.geometry.data_file {
            return None;
        }
        let (table, index) = self.table_for_change(cluster)?;
        let geometry = self.plan.geometry;
        let (kind, payload) = payload::fitting(&geometry, wanted.kind);
        let PayloadFrame { around_bytes, unit_bytes } = wanted.frame;
        let given = given.filter(|_| self.given.has_room()).and_then(|it| self.given_payload(it));
        let claimed = given.as_ref().map_or(payload.claimed_bytes(), |given| given.bytes.len());
        let framed = claimed as u64 + around_bytes;
        let length_bytes = u32::try_from(framed.next_multiple_of(unit_bytes)).ok()?;
        let length = u64::from(length_bytes);
        let offset = match wanted.packing {
            Packing::Packed => self.pack(length).or_else(|| self.place_fresh(length, 0))?,
            Packing::Fresh { skew_bytes } => {
                self.place_fresh(length, skew_bytes - skew_bytes % unit_bytes)?
            }
        };
        let old = self.tables.get(table, index);
        let last = offset + (u64::from(length_bytes) - 1);
        let end = geometry.cluster_size.host_cluster(last).get();
        self.payload_end = Some(PayloadEnd { cluster: end, offset: last + 1 });
        self.release(old);
        self.has_compressed = true;
        let given = given.map(|given| self.given.add_payload(given));
        let entry = Compressed { offset, length_bytes, write: wanted.write, kind, given };
        self.tables.set(table, index, ClusterMapping::Compressed(entry));
        Some(CompressedPlace { offset, length_bytes, shape: kind.shape, given })
    }

    /// Allocates room after the last payload. The cluster in which that payload ends gets another reference, and the
    /// clusters after it are allocated.
    fn pack(&mut self, length_bytes: u64) -> Option<HostOffset> {
        let end = self.payload_end?;
        let cluster_size = self.plan.geometry.cluster_size;
        if end.offset.get() & cluster_size.mask() == 0 {
            return None;
        }
        if self.placement.clusters.references(end.cluster) >= self.plan.geometry.max_refcount() {
            return None;
        }
        let past = end.offset + length_bytes;
        if past.get() > self.descriptor_reach() {
            return None;
        }
        let last = cluster_size.host_cluster(end.offset + (length_bytes - 1)).get();
        let spilled = last - end.cluster;
        if spilled > 0 && !self.placement.allocate_at(end.cluster + 1, spilled) {
            return None;
        }
        self.placement.clusters.add_reference(end.cluster);
        Some(end.offset)
    }

    /// Returns the first host offset that a descriptor cannot hold. A descriptor has 70 - cluster_bits bits for the
    /// offset (specification, "Compressed Clusters Descriptor").
    fn descriptor_reach(&self) -> u64 {
        1 << (70 - self.plan.geometry.cluster_size.bits())
    }

    fn place_fresh(&mut self, length_bytes: u64, skew_bytes: u64) -> Option<HostOffset> {
        let cluster_size = self.plan.geometry.cluster_size;
        // A payload with its skew takes less than four clusters.
        let room = cluster_size.saturating_bytes(self.placement.append_at() + 4);
        let is_near = room <= self.descriptor_reach();
        let skew = skew_bytes & cluster_size.mask();
        let clusters = cluster_size.clusters_for(skew + length_bytes);
        let first = match is_near {
            true => self.placement.allocate(clusters, self.placement.policy)?,
            false => {
                let end = self.descriptor_reach() >> cluster_size.bits();
                self.placement.allocate_below(clusters, end)?
            }
        };
        let first = cluster_size.host_offset(crate::disk::clusters::HostCluster::new(first));
        Some(first + skew)
    }
}
