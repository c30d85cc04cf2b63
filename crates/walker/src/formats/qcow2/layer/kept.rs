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
/// The highest number of bytes in all buffers, without the last inflated cluster.
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
    /// Ascending in both fields. Empty if nothing is known.
    prefixes: SmallVec<[Prefix; 4]>,
    /// The number of the last use.
    used: u64,
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
                entry.prefixes.clear();
            }
            None => {
                let (input, content) = Default::default();
                let prefixes = SmallVec::new();
                self.entries.push(KeptCluster { payload, input, content, prefixes, used });
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
            self.free_others(index);
        }
        &mut self.entries[index].content[..content_bytes]
    }

    /// Frees the buffers of other entries while all together are too large: spare ones and the oldest first.
    fn free_others(&mut self, index: usize) {
        let bytes = |entry: &KeptCluster| entry.input.capacity() + entry.content.capacity();
        let mut all: usize = self.entries.iter().map(bytes).sum();
        while all > MAX_KEPT_BYTES {
            let live = self.live;
            let others = self.entries.iter_mut().enumerate();
            let freeable = others.filter(|(at, entry)| *at != index && bytes(entry) > 0);
            let age = |(at, entry): &(usize, &mut KeptCluster)| (*at < live, entry.used);
            let Some((_, entry)) = freeable.min_by_key(age) else { return };
            all -= bytes(entry);
            entry.prefixes.clear();
            (entry.input, entry.content) = Default::default();
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
        self.free_others(index);
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
