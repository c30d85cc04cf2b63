//! The directory of persistent dirty bitmaps, as the writer has left it.

use std::ops::Range;

use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::Storage;
use qcowfuzz::formats::qcow2::bitmap;
use qcowfuzz::formats::qcow2::bitmap::{BitmapEntry, BitmapsExtension};
use qcowfuzz::formats::qcow2::constants::{AUTOCLEAR_BITMAPS, BITMAP_FIXED_BYTES};
use qcowfuzz::formats::qcow2::head::Head;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::harness::files::chain::ChainFile;

use crate::WriteError;

/// The offset of the field `flags` in an entry of the directory.
pub(super) const FLAGS_AT: usize = 12;

/// A bitmap, with the bytes of its entry in the directory.
#[derive(Clone, Debug)]
pub(super) struct StoredBitmap {
    pub(super) at: HostOffset,
    pub(super) entry: BitmapEntry,
    pub(super) bytes: Vec<u8>,
}

/// The bitmaps of an image.
#[derive(Debug, Default)]
pub(super) struct StoredBitmaps {
    pub(super) all: Vec<StoredBitmap>,
    pub(super) directory: Option<BitmapsExtension>,
    /// Changes of which the fault `bitmap_late` sets no bits yet.
    pub(super) late: Vec<Range<u64>>,
}

impl StoredBitmap {
    /// Returns the name.
    pub(super) fn name(&self) -> &[u8] {
        let length = usize::from(self.entry.name_bytes);
        self.bytes.get(BITMAP_FIXED_BYTES..).and_then(|it| it.get(..length)).unwrap_or_default()
    }

    /// Gives the entry other flags.
    pub(super) fn set_flags(&mut self, flags: u32) {
        self.entry.flags = flags;
        self.bytes[FLAGS_AT..FLAGS_AT + 4].copy_from_slice(&flags.to_be_bytes());
    }

    /// Gives the entry another table.
    pub(super) fn set_table(&mut self, table: HostOffset, entries: u32) {
        (self.entry.table_offset, self.entry.table_entries) = (table, entries);
        let fields = table.get().to_be_bytes().into_iter().chain(entries.to_be_bytes());
        self.bytes.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    }
}

impl StoredBitmaps {
    /// Reads the directory, if the bitmaps count.
    pub(super) fn read(file: &ChainFile, header: &Header) -> Result<Self, WriteError> {
        if header.autoclear & AUTOCLEAR_BITMAPS == 0 {
            return Ok(Self::default());
        }
        let Some(directory) = Head::read(file)?.bitmaps else { return Ok(Self::default()) };
        let mut all = Vec::new();
        bitmap::each_entry(file, &directory, |_, at, entry| {
            // The directory has a bound: at most 64 MiB.
            let mut bytes = vec![0; usize::try_from(entry.length_bytes()).unwrap_or(0)];
            file.read_at(at, &mut bytes)?;
            all.push(StoredBitmap { at, entry: *entry, bytes });
            Ok(())
        })?;
        Ok(Self { all, directory: Some(directory), late: Vec::new() })
    }
}
