//! The data that a cluster of the current image has already, for a write of the same data.

use crate::disk::clusters::GuestCluster;
use crate::images::content::{WriteContent, WriteNumber};
use crate::images::unstamped::UnstampedData;

use super::builder::Builder;
use super::tables::ClusterMapping;

/// The data of a whole cluster of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoredData {
    /// No data: the layer below decides.
    Nothing,
    /// Zeros.
    Zeros,
    /// The data of a write.
    Write(WriteNumber),
    /// The data of a write without stamps.
    Unstamped(UnstampedData),
    /// Data that no single uncompressed write makes: compressed ones, or those of subclusters.
    Other,
}

impl Builder {
    /// Adds data without stamps. Returns the number of the write that has them.
    pub fn add_unstamped(&mut self, data: UnstampedData) -> WriteNumber {
        // A program adds them at most once for each cluster that it touches (`limits`).
        let index = self.unstamped.len() as u32;
        self.unstamped.push(data);
        WriteNumber::of_unstamped(index)
    }

    /// Returns the data that the image stores for a cluster.
    pub fn stored_data(&self, cluster: GuestCluster) -> StoredData {
        let Some((table, index)) = self.find(cluster) else { return StoredData::Nothing };
        let mut pages = self.tables.pages(table);
        let entry = pages.find_map(|(first, page)| {
            let inside = usize::try_from(index.checked_sub(first)?).ok()?;
            page.get(inside).copied()
        });
        match entry.unwrap_or_default() {
            ClusterMapping::Unallocated => StoredData::Nothing,
            ClusterMapping::Zero(_) | ClusterMapping::Normal(_, WriteNumber::NONE) => {
                StoredData::Zeros
            }
            ClusterMapping::Normal(_, write) => match write.content() {
                WriteContent::Unstamped(index) => {
                    let data = self.unstamped.get(index as usize).copied();
                    data.map_or(StoredData::Other, StoredData::Unstamped)
                }
                WriteContent::Stamped | WriteContent::Look(_) | WriteContent::Deep => {
                    StoredData::Write(write)
                }
            },
            ClusterMapping::Compressed(_) | ClusterMapping::Extended(_) => StoredData::Other,
        }
    }
}
