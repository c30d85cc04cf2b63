//! Keeps the last inflated clusters. Without them, a guest that reads a compressed cluster piece by piece would have it
//! inflated from its start for each piece; so would several layers above that leave pieces of it.
//!
//! A payload is identified by its bytes, not by its offset: the caller compares them with the bytes of the file at each
//! use. So a kept cluster is never out of date, even if the caller alternates between disks or their files change.

use smallvec::SmallVec;

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::geometry::Compression;

/// The highest number of kept clusters.
const MAX_ENTRIES: usize = 32;
/// The highest number of bytes that all entries need, and of those in all buffers, without the last inflated cluster.
const MAX_KEPT_BYTES: usize = 4 << 20;
/// The longest payload that is kept. A longer one is inflated again for each read.
const MAX_KEPT_PAYLOAD_BYTES: usize = 256 << 10;

/// The location of a payload, and the size of its cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PayloadLocation {
    pub(super) offset: HostOffset,
    /// The number of bytes that may belong to it.
    pub(super) length: usize,
    /// The size of a cluster, in bytes.
    pub(super) cluster: usize,
    pub(super) compression: Compression,
}

/// The first bytes of a payload, and the length of the part of the cluster that they suffice for.
#[derive(Clone, Copy, Debug)]
struct Prefix {
    input_bytes: usize,
    content_bytes: usize,
}

/// A cluster, or the beginning of one.
#[derive(Debug)]
struct KeptCluster {
    payload: PayloadLocation,
    /// The bytes of the payload that were read.
    input: Vec<u8>,
    content: Vec<u8>,
    /// The bytes of `input` and of `content` that this payload needs. The buffers may be longer, from another payload.
    needed: [usize; 2],
    /// Ascending in both fields. Empty if nothing is known.
    prefixes: SmallVec<[Prefix; 4]>,
    /// The number of the last use.
    used: u64,
}

impl KeptCluster {
    /// Forgets the payload, but keeps the buffers.
    fn forget(&mut self) {
        self.needed = [0; 2];
        self.prefixes.clear();
    }

    fn capacity(&self) -> usize {
        self.input.capacity() + self.content.capacity()
    }
}

/// Inflated clusters, each with its payload.
#[derive(Debug, Default)]
pub(super) struct KeptClusters {
    /// The entries in use, followed by spare ones whose buffers are reused.
    entries: Vec<KeptCluster>,
    live: usize,
    uses: u64,
}

/// A cluster whose beginning is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) index: usize,
    /// The length of the known part of the cluster.
    pub(super) content_bytes: usize,
}

impl KeptClusters {
    /// Forgets all clusters, but keeps the buffers.
    pub(super) fn forget(&mut self) {
        self.entries[..self.live].iter_mut().for_each(KeptCluster::forget);
        (self.live, self.uses) = (0, 0);
    }

    /// Finds a payload whose first bytes are in the file, as `is_prefix` confirms. If a part of the payload suffices
    /// for the first `end` bytes of the cluster, only this part is compared.
    ///
    /// # Errors
    /// Returns the errors of `is_prefix`.
    pub(super) fn find<E>(
        &mut self,
        payload: &PayloadLocation,
        end: usize,
        mut is_prefix: impl FnMut(&[u8]) -> Result<bool, E>,
    ) -> Result<Option<Known>, E> {
        for (index, entry) in self.entries[..self.live].iter_mut().enumerate() {
            if entry.payload != *payload {
                continue;
            }
            let sufficient = entry.prefixes.iter().find(|prefix| prefix.content_bytes >= end);
            let Some(prefix) = sufficient.or(entry.prefixes.last()) else { continue };
            let Prefix { input_bytes, content_bytes } = *prefix;
            if is_prefix(&entry.input[..input_bytes])? {
                self.uses += 1;
                entry.used = self.uses;
                return Ok(Some(Known { index, content_bytes }));
            }
        }
        Ok(None)
    }

    /// Adds a payload and returns its index. If there is no room, the payload replaces the least recently used one.
    pub(super) fn add(&mut self, payload: PayloadLocation) -> usize {
        let index = match self.live {
            MAX_ENTRIES => self.oldest(),
            live => {
                self.live = live + 1;
                live
            }
        };
        self.uses += 1;
        let used = self.uses;
        match self.entries.get_mut(index) {
            Some(entry) => {
                (entry.payload, entry.used) = (payload, used);
                entry.forget();
            }
            None => {
                let (input, content, needed, prefixes) = Default::default();
                self.entries.push(KeptCluster { payload, input, content, needed, prefixes, used });
            }
        }
        index
    }

    fn oldest(&self) -> usize {
        let live = self.entries[..self.live].iter().enumerate();
        live.min_by_key(|(_, entry)| entry.used).map_or(0, |(index, _)| index)
    }

    /// Returns the buffer for the first `content_bytes` of the cluster of an entry. The entry knows nothing until
    /// [`KeptClusters::note`].
    pub(super) fn room(&mut self, index: usize, content_bytes: usize) -> &mut [u8] {
        let entry = &mut self.entries[index];
        if entry.content.len() < content_bytes {
            // The old content is of no use, and need not move to the larger buffer.
            entry.content = vec![0; content_bytes];
        }
        let [input, content] = entry.needed;
        self.need(index, [input, content.max(content_bytes)]);
        &mut self.entries[index].content[..content_bytes]
    }

    /// Raises the bytes that an entry needs. While all entries together need too many, forgets the oldest of the
    /// others. This never depends on the buffers that an earlier disk has left: the reads of a file, which count as
    /// coverage, are those of a new process.
    fn need(&mut self, index: usize, needed: [usize; 2]) {
        if self.entries[index].needed == needed {
            return;
        }
        self.entries[index].needed = needed;
        let live = &mut self.entries[..self.live];
        let mut all: usize = live.iter().flat_map(|entry| entry.needed).sum();
        while all > MAX_KEPT_BYTES {
            let others = live.iter_mut().enumerate().filter(|(at, _)| *at != index);
            let needing = others.map(|(_, entry)| entry).filter(|entry| entry.needed != [0; 2]);
            let Some(oldest) = needing.min_by_key(|entry| entry.used) else { break };
            all -= oldest.needed.iter().sum::<usize>();
            oldest.forget();
        }
        self.free_spare_room();
    }

    /// Frees what no entry needs while all buffers together are too large: those of spare entries first.
    fn free_spare_room(&mut self) {
        let mut all: usize = self.entries.iter().map(KeptCluster::capacity).sum();
        for entry in self.entries.iter_mut().rev() {
            if all <= MAX_KEPT_BYTES {
                return;
            }
            all -= entry.capacity();
            let [input, content] = entry.needed;
            entry.input.truncate(input);
            entry.content.truncate(content);
            entry.input.shrink_to_fit();
            entry.content.shrink_to_fit();
            all += entry.capacity();
        }
    }

    /// Records that `input`, the beginning of the payload of an entry, suffices for the first `content_bytes` of the
    /// cluster, which are in its buffer.
    pub(super) fn note(&mut self, index: usize, input: &[u8], content_bytes: usize) {
        if input.len() > MAX_KEPT_PAYLOAD_BYTES {
            return self.spoil(index);
        }
        let KeptCluster { input: kept, prefixes, .. } = &mut self.entries[index];
        // The file may have changed since the comparison.
        prefixes.retain(|prefix| {
            prefix.content_bytes < content_bytes
                && input.get(..prefix.input_bytes) == kept.get(..prefix.input_bytes)
        });
        let input_bytes = input.len();
        prefixes.push(Prefix { input_bytes, content_bytes });
        if kept.len() < input_bytes {
            kept.resize(input_bytes, 0);
        }
        kept[..input_bytes].copy_from_slice(input);
        let [input, content] = self.entries[index].needed;
        self.need(index, [input.max(input_bytes), content]);
    }

    /// Forgets the prefixes of an entry, because its buffer may now hold anything.
    pub(super) fn spoil(&mut self, index: usize) {
        self.entries[index].prefixes.clear();
    }

    /// Returns the content of an entry.
    pub(super) fn content(&self, index: usize) -> &[u8] {
        &self.entries[index].content
    }
}
