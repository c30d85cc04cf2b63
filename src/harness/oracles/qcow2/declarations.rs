//! The declarations of an image are those that the program meant: the name and the format of the backing file, the name
//! of the data file, the feature bits, the length of each snapshot's VM state, the flags and the granularity of each
//! bitmap, and the strings that the program gives. No two snapshots have the same id, and no two bitmaps the same name.
//! Bitmaps have no bits past the end of the disk (specification, "Bitmap data": "These bits must be zero"). A reader
//! that maps one disk ignores most of these, so the other oracles miss errors in them.
//!
//! Does not check fields that may have any value: dates, clocks, other bits of bitmaps, unknown feature bits and
//! extensions, the names of features. It looks for bits past the end of the disk in the first 16 bytes of a bitmap's
//! last cluster, and not in a bitmap in use.

use std::ops::Range;

use crate::disk::error::StorageError;
use crate::disk::offsets::HostOffset;
use crate::disk::storage::Storage;
use crate::formats::error::MapError;
use crate::formats::qcow2::bitmap::{
    BitmapCluster, BitmapEntry, BitmapTableEntry, BitmapsExtension, bits_for,
};
use crate::formats::qcow2::constants::{
    AUTOCLEAR_BITMAPS, AUTOCLEAR_RAW_DATA_FILE, BITMAP_AUTO, BITMAP_FIXED_BYTES,
    COMPATIBLE_LAZY_REFCOUNTS,
};
use crate::formats::qcow2::head::{Field, Head, HeaderExtension, each_extension};
use crate::formats::qcow2::header::Header;
use crate::formats::qcow2::{bitmap, snapshot};
use crate::harness::oracles::{OracleResult, violation};
use crate::images::files::image::Image;
use crate::images::files::{BitmapDeclaration, Declarations, StringOwner};

const ORACLE: &str = "declarations";

/// The oracle looks for bits past the end of the disk in this number of bytes. The build writes as many.
const TAIL_BYTES: usize = 16;

/// The autoclear feature bits that are known.
const AUTOCLEAR_KNOWN: u64 = AUTOCLEAR_BITMAPS | AUTOCLEAR_RAW_DATA_FILE;

/// Strings of one image.
#[derive(Debug, Default)]
struct Strings {
    bytes: Vec<u8>,
    ranges: Vec<Range<usize>>,
}

/// Reads the declarations of images. It reuses its buffers.
#[derive(Debug, Default)]
pub struct DeclarationReader {
    declared: Declarations,
    /// The ids of its snapshots.
    ids: Strings,
    /// The names of its bitmaps.
    names: Strings,
    snapshot_names: Strings,
    /// The body of a header extension.
    body: Vec<u8>,
    /// Some bitmap has a bit past the end of the disk.
    bits_past_the_end: bool,
}

impl DeclarationReader {
    /// Compares the declarations of the image in `storage`, which begins with `head`, with those that were meant.
    pub fn check(&mut self, head: &Head, storage: &Image, meant: &Declarations) -> OracleResult {
        if let Err(error) = self.read(head, storage) {
            return violation(ORACLE, "image", ("readable", "an error"), || error.to_string());
        }
        let Self { declared, ids, names, bits_past_the_end, .. } = self;
        let fields = [
            ("backing file's name", declared.backing_name == meant.backing_name),
            ("backing file's format", declared.backing_format == meant.backing_format),
            ("data file's name", declared.data_file_name == meant.data_file_name),
            ("feature bits", declared.features == meant.features),
            ("VM state", declared.vm_state_bytes == meant.vm_state_bytes),
            ("bitmap", declared.bitmaps == meant.bitmaps),
        ];
        if let Some((field, _)) = fields.iter().find(|(_, is_as_meant)| !is_as_meant) {
            let kinds = ("as meant", "different");
            return violation(ORACLE, field, kinds, || {
                format!("expected {meant:?}\nfound    {declared:?}")
            });
        }
        for (what, strings) in [("snapshot's id", ids), ("bitmap's name", names)] {
            if let Some(twice) = strings.first_twice() {
                let kinds = ("unique", "duplicate");
                return violation(ORACLE, what, kinds, || {
                    String::from_utf8_lossy(twice).into_owned()
                });
            }
        }
        if *bits_past_the_end {
            return violation(ORACLE, "bitmap", ("zeros past the disk", "bits"), String::new);
        }
        if let Some((owner, found)) = self.wrong_string(head, storage, meant) {
            return violation(ORACLE, "given string", ("as meant", "different"), || {
                format!("{owner:?}: found {}", String::from_utf8_lossy(found))
            });
        }
        Ok(())
    }

    /// Returns the first string that differs from the one that the program gives, with its owner.
    fn wrong_string(
        &mut self,
        head: &Head,
        storage: &Image,
        meant: &Declarations,
    ) -> Option<(StringOwner, &[u8])> {
        let Self { ids, names, snapshot_names, body, .. } = self;
        let wrong = meant.strings.iter().find(|(owner, string)| match *owner {
            StringOwner::BitmapName(index) => names.get(index) != *string,
            StringOwner::SnapshotId(index) => ids.get(index) != *string,
            StringOwner::SnapshotName(index) => snapshot_names.get(index) != *string,
            StringOwner::Extension(kind) => {
                read_extension(storage, &head.header, kind, body).is_err() || body != string
            }
        });
        wrong.map(|(owner, _)| match owner {
            StringOwner::BitmapName(index) => (owner, names.get(index)),
            StringOwner::SnapshotId(index) => (owner, ids.get(index)),
            StringOwner::SnapshotName(index) => (owner, snapshot_names.get(index)),
            StringOwner::Extension(_) => (owner, body.as_slice()),
        })
    }

    fn read(&mut self, head: &Head, storage: &Image) -> Result<(), MapError> {
        let Self { declared, ids, names, snapshot_names, bits_past_the_end, .. } = self;
        *bits_past_the_end = false;
        declared.clear();
        ids.clear();
        names.clear();
        snapshot_names.clear();
        let header = &head.header;
        read_field(storage, head.backing_name, &mut declared.backing_name)?;
        declared.backing_format = head.backing_format_in(storage)?;
        read_field(storage, head.data_file, &mut declared.data_file_name)?;
        declared.features = [
            header.incompatible,
            header.compatible & COMPATIBLE_LAZY_REFCOUNTS,
            header.autoclear & AUTOCLEAR_KNOWN,
        ];
        snapshot::each_entry(storage, header, |_, at, entry| {
            let extra = snapshot::extra_of(storage, at, entry)?;
            let in_fixed_part = u64::from(entry.vm_state_bytes);
            declared.vm_state_bytes.push(extra.vm_state_bytes.unwrap_or(in_fixed_part));
            let [id, name] = entry.strings_at(at);
            ids.read(storage, id, entry.id_bytes)?;
            snapshot_names.read(storage, name, entry.name_bytes)?;
            Ok(())
        })?;
        match &head.bitmaps {
            Some(extension) => self.read_bitmaps(storage, header, extension),
            None => Ok(()),
        }
    }

    fn read_bitmaps(
        &mut self,
        storage: &Image,
        header: &Header,
        extension: &BitmapsExtension,
    ) -> Result<(), MapError> {
        let Self { declared, names, bits_past_the_end, .. } = self;
        bitmap::each_entry(storage, extension, |_, at, entry| {
            // Readers ignore the bits of a bitmap in use, and its table may be that of another size.
            *bits_past_the_end |= !entry.in_use() && has_bits_past_the_end(storage, entry, header)?;
            declared.bitmaps.push(BitmapDeclaration {
                in_use: entry.in_use(),
                auto: entry.flags & BITMAP_AUTO != 0,
                granularity_bits: entry.granularity_bits,
            });
            // No file is long enough that this saturates: the entry was read from it.
            let name = at + BITMAP_FIXED_BYTES as u64;
            names.read(storage, name, entry.name_bytes)?;
            Ok(())
        })
    }
}

impl Strings {
    fn clear(&mut self) {
        self.bytes.clear();
        self.ranges.clear();
    }

    fn read(
        &mut self,
        storage: &Image,
        at: HostOffset,
        length_bytes: u16,
    ) -> Result<(), StorageError> {
        let start = self.bytes.len();
        let end = start + usize::from(length_bytes);
        self.bytes.resize(end, 0);
        self.ranges.push(start..end);
        storage.read_at(at, &mut self.bytes[start..])
    }

    /// Returns the string with this index; an empty one if there is none.
    fn get(&self, index: usize) -> &[u8] {
        let range = self.ranges.get(index).cloned().unwrap_or_default();
        self.bytes.get(range).unwrap_or_default()
    }

    /// Returns the first string that equals an earlier one. There are few strings.
    fn first_twice(&self) -> Option<&[u8]> {
        let string = |range: &Range<usize>| &self.bytes[range.clone()];
        let is_twice = |(before, range): &(usize, &Range<usize>)| {
            self.ranges[..*before].iter().any(|other| string(other) == string(range))
        };
        self.ranges.iter().enumerate().find(is_twice).map(|(_, range)| string(range))
    }
}

/// Reads the body of the first header extension of a type. Reads nothing if there is none.
fn read_extension(
    storage: &Image,
    header: &Header,
    wanted: u32,
    into: &mut Vec<u8>,
) -> Result<(), MapError> {
    into.clear();
    let mut found = None;
    each_extension(storage, header, |HeaderExtension { kind, at, length_bytes }| {
        let offset = HostOffset::new(at + HeaderExtension::FRONT_BYTES);
        if kind == wanted && found.is_none() {
            found = Some(Field { offset, length_bytes });
        }
        Ok(())
    })?;
    Ok(read_field(storage, found, into)?)
}

/// Reads a field of the first cluster, or a string of an entry. Reads nothing if there is no such field.
pub(super) fn read_field<S: Storage + ?Sized>(
    storage: &S,
    field: Option<Field>,
    into: &mut Vec<u8>,
) -> Result<(), StorageError> {
    let Some(Field { offset, length_bytes }) = field else { return Ok(()) };
    // The first cluster has at most 2 MiB.
    into.resize(length_bytes as usize, 0);
    storage.read_at(offset, into)
}

/// Reports whether a bitmap has a bit past the end of the disk, in the first [`TAIL_BYTES`] of its last cluster.
fn has_bits_past_the_end(
    storage: &Image,
    entry: &BitmapEntry,
    header: &Header,
) -> Result<bool, MapError> {
    let cluster_size = header.geometry.cluster_size;
    let bits = bits_for(header.virtual_size_bytes(), entry.granularity_bits);
    // The recount refuses a table without entries.
    let before = u64::from(entry.table_entries.saturating_sub(1));
    let mut word = [0; 8];
    // No file is long enough that this saturates: the recount has read the table.
    storage.read_at(entry.table_offset + before * 8, &mut word)?;
    let cluster = BitmapTableEntry(u64::from_be_bytes(word)).cluster(cluster_size);
    let Ok(BitmapCluster::Data(host)) = cluster else { return Ok(false) };
    let mut bytes = [0; TAIL_BYTES];
    storage.read_at(host, &mut bytes)?;
    // The recount has checked that the table is as long as the disk needs, so that this never saturates.
    let there = bits.saturating_sub(before * cluster_size.bytes() * 8);
    let is_set = |bit: u64| bytes[(bit / 8) as usize] & (1 << (bit % 8)) != 0;
    Ok((there..8 * TAIL_BYTES as u64).any(is_set))
}
