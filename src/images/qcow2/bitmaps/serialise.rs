//! The bytes of bitmaps: the header extension, the directory, the tables, the bits.

use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::constants::AUTOCLEAR_BITMAPS;
use crate::images::content::{WriteNumber, stamp};
use crate::images::image::Image;
use crate::images::qcow2::encoding::bitmaps::{Directory, ONES, bits_at, bits_of_disk};

use crate::images::qcow2::builder::Builder;
use crate::images::qcow2::sparse_table;
use crate::images::qcow2::state::{Bitmap, Bits};

impl Bitmap {
    /// Writes the name: as many letters as there is room for, and the number in decimal.
    fn write_name(&self, name: &mut [u8]) {
        name.fill(b'b');
        let mut left = self.number;
        for byte in name.iter_mut().rev() {
            if left == 0 {
                break;
            }
            *byte = b'0' + (left % 10) as u8;
            left /= 10;
        }
    }
}

impl Builder {
    /// Returns the autoclear feature bits that the bitmaps need.
    pub(in crate::images::qcow2) fn bitmaps_autoclear(&self) -> u64 {
        let there = self.bitmaps.live > 0 || self.bitmaps.bit_left;
        if there { AUTOCLEAR_BITMAPS } else { 0 }
    }

    /// Returns the header extension of the bitmaps, or the one that deleted bitmaps have left.
    pub(in crate::images::qcow2) fn bitmaps_extension(&self) -> Option<Directory> {
        match self.bitmaps.live {
            0 => self.bitmaps.extension_left,
            live => Some(Directory {
                bitmaps: live as u32,
                length_bytes: self.bitmaps.directory_bytes(),
                offset: self.host_offset(self.bitmaps.directory.0),
            }),
        }
    }

    /// Writes directory, tables and bits.
    pub(in crate::images::qcow2) fn write_bitmaps(&self, image: &mut Image) {
        let mut at = self.host_offset(self.bitmaps.directory.0);
        for bitmap in self.bitmaps.live() {
            let table = self.host_offset(bitmap.table.0);
            let entry = bitmap.entry(table);
            let length = entry.length_bytes();
            let name = entry.write(image.place(at, length as usize));
            match bitmap.name {
                Some(given) => name.copy_from_slice(self.given.string(given)),
                None => bitmap.write_name(name),
            }
            at += length;
            sparse_table::write(image, table, &bitmap.entries, |bits| match bits {
                Bits::Ones => ONES,
                Bits::Stamp(cluster, _) => bits_at(self.host_offset(cluster)),
            });
            for (index, bits) in &bitmap.entries {
                if let Bits::Stamp(cluster, write) = bits {
                    self.write_bits(image, bitmap, *index, *cluster, *write);
                }
            }
        }
    }

    /// Writes the first bits of a cluster, as many as the disk has.
    fn write_bits(
        &self,
        image: &mut Image,
        bitmap: &Bitmap,
        index: u64,
        cluster: u64,
        write: WriteNumber,
    ) {
        let granularity_bits = bitmap.granularity_bits;
        let before = index * self.plan.geometry.cluster_size.bytes() * 8;
        let bits =
            bits_of_disk(self.plan.virtual_size_bytes(), granularity_bits).saturating_sub(before);
        let mut bytes = stamp(GuestOffset::new(before << granularity_bits), write);
        // The checksum comes first, because a cluster may have only a few bits.
        bytes.reverse();
        for (first, byte) in (0..).step_by(8).zip(&mut bytes) {
            let there = bits.saturating_sub(first).min(8);
            *byte &= ((1u16 << there) - 1) as u8;
        }
        image.write(self.host_offset(cluster), &bytes);
    }
}
