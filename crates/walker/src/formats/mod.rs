//! Each format has a folder, its drawer, that decodes the structures of its images and walks one layer. The other files
//! in this folder are shared by all drawers. This module puts all formats of the list `for_each_format`
//! (`disk::image_format`) behind one interface.

pub mod anatomy;
pub mod entries;
pub mod error;
mod layer;
pub mod qcow2;
pub mod rare_events;
mod raw;
pub mod vdi;
pub mod vhdx;
pub mod vmdk;
pub mod vpc;

use std::fmt;

use crate::disk::extent::Mapping;
use crate::disk::image_format::{ImageFormat, for_each_format};
use crate::disk::observer::{Observer, Rare};
use crate::disk::offsets::{GuestOffset, HostOffset};
use crate::disk::storage::{Layer, Storage, read_array};
use crate::formats::anatomy::{Anatomy, Part};
use crate::formats::error::{Flow, MapError};
use crate::formats::layer::{FormatLayer, ProbedBytes, ReadBuffers, WalkStates};
use crate::formats::qcow2::Qcow2;
use crate::formats::raw::Raw;
use crate::formats::vdi::Vdi;
use crate::formats::vhdx::Vhdx;
use crate::formats::vmdk::Vmdk;
use crate::formats::vpc::Vpc;

pub use layer::Declared;
pub(crate) use layer::{Cover, HoldingFile, Named, TablePieces, at_depth, go_on};
// The items that other folders use for images in several files.
pub use vmdk::constants::SPARSE_MAGIC;
pub use vmdk::descriptor::ExtentLine;
pub use vmdk::head::{Identity, ImageLayout};
pub use vmdk::tables::Tables;
pub use vmdk::{ExtentFacts, ExtentsFacts, extents_facts};

macro_rules! formats {
    (
        $($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident [$($fact:ident),*],)*
    ) => {
        /// An open layer of a chain.
        #[derive(Debug)]
        pub(crate) enum OpenLayer<'s, S: Storage + ?Sized> {
            $($format($format<'s, S>),)*
        }

        /// The buffers of all formats for reads of data.
        #[derive(Debug, Default)]
        pub(crate) struct Buffers {
            $($drawer: <$format<'static, [u8]> as FormatLayer<'static, [u8]>>::Buffers,)*
        }

        impl Buffers {
            /// Forgets all content that was read.
            pub(crate) fn forget(&mut self) {
                $(ReadBuffers::forget(&mut self.$drawer);)*
            }
        }

        /// The rare events: those of all formats, then those of each format.
        const RARE_EVENTS: &[&[Rare]] = &[
            Rare::OF_ALL_FORMATS,
            $(<$format<'_, [u8]> as FormatLayer<'_, [u8]>>::RARE_EVENTS,)*
        ];

        /// Evaluates an expression with the open layer.
        macro_rules! with_layer {
            ($of:expr, $layer:ident => $answer:expr) => {
                match $of {
                    $(OpenLayer::$format($layer) => $answer,)*
                }
            };
        }

        impl<'s, S: Storage + ?Sized> OpenLayer<'s, S> {
            /// Opens a layer of `format`, and returns its reference to the one below.
            pub(crate) fn open(
                layer: &Layer<'s, S>,
                format: ImageFormat,
                observer: &impl Observer,
            ) -> Result<(Self, Named), MapError> {
                match format {
                    $(ImageFormat::$format => {
                        let (opened, named) = $format::open(layer, observer)?;
                        Ok((Self::$format(opened), named))
                    })*
                }
            }

            /// Reads a part of one piece, see [`FormatLayer::read_piece`].
            pub(crate) fn read_piece(
                &self,
                guest: GuestOffset,
                into: &mut [u8],
                buffers: &mut Buffers,
            ) -> Result<bool, MapError> {
                match self {
                    $(Self::$format(layer) => {
                        layer.read_piece(guest, into, &mut buffers.$drawer)
                    })*
                }
            }

            /// Checks that the layer below has the content on which this one is based, if it has the same format.
            pub(crate) fn check_parent(&self, parent: &Self) -> Result<(), MapError> {
                match (self, parent) {
                    $((Self::$format(layer), Self::$format(parent)) => layer.check_parent(parent),)*
                    _ => Ok(()),
                }
            }
        }

        /// Returns the format of a file by its first bytes (QEMU `block.c`, `find_image_format`).
        ///
        /// # Errors
        /// The format is not one of [`ImageFormat`], or a read failed.
        pub fn probe<S: Storage + ?Sized>(storage: &S) -> Result<ImageFormat, MapError> {
            let first_bytes: ProbedBytes = read_array(storage, HostOffset::ZERO)?;
            $(if <$format<'_, S> as FormatLayer<'_, S>>::is_probed(&first_bytes) {
                return Ok(ImageFormat::$format);
            })*
            reject_other_formats(&first_bytes)?;
            Ok(ImageFormat::Raw)
        }

        /// Reads the declarations of the image of `layer`. Opens no other file.
        ///
        /// # Errors
        /// QEMU refuses the image, or a read failed.
        pub fn declared<S: Storage + ?Sized>(
            format: ImageFormat,
            layer: &Layer<'_, S>,
        ) -> Result<Declared, MapError> {
            match format {
                $(ImageFormat::$format => $format::declared(layer),)*
            }
        }

        /// Reports whether the image in `storage` has a parent that is not read. Then data of the parent read as zeros,
        /// as in QEMU.
        ///
        /// # Errors
        /// The image is malformed, or a read failed.
        pub fn has_unread_parent<S: Storage + ?Sized>(
            format: ImageFormat,
            storage: &S,
        ) -> Result<bool, MapError> {
            match format {
                $(ImageFormat::$format => {
                    <$format<'_, S> as FormatLayer<'_, S>>::has_unread_parent(storage)
                })*
            }
        }

        /// Checks the image of `layer` as `qemu-img check` does, without the image below. Calls `report` with each
        /// fault behind which the check goes on. Returns `None` if QEMU has no check for the format, and for qcow2,
        /// which [`check_qcow2`](crate::formats::qcow2::check::check_qcow2) checks.
        ///
        /// # Errors A fault that ends the check, as each fault in some formats does; or QEMU refuses the image, or a
        /// read failed.
        pub fn check<S: Storage + ?Sized>(
            format: ImageFormat,
            layer: &Layer<'_, S>,
            report: &mut dyn FnMut(&dyn fmt::Display),
        ) -> Option<Result<(), MapError>> {
            match format {
                $(ImageFormat::$format => $format::check(layer, report),)*
            }
        }

        /// Returns the parts that images of a format can have.
        pub fn parts_of(format: ImageFormat) -> &'static [Part] {
            match format {
                $(ImageFormat::$format => {
                    <$format<'_, [u8]> as FormatLayer<'_, [u8]>>::PARTS
                })*
            }
        }

        /// Returns the meaning of a field or an entry in words; without its meaning, the number. Entries of qcow2
        /// images need the geometry, and have no words here. `tables` are those of an extent of grains.
        pub fn spelled(
            format: ImageFormat,
            part: Part,
            name: &str,
            value: u64,
            tables: Option<&Tables>,
        ) -> String {
            match format {
                $(ImageFormat::$format => {
                    <$format<'_, [u8]> as FormatLayer<'_, [u8]>>::spelled(part, name, value, tables)
                })*
            }
        }

        impl Anatomy {
            /// Takes an image of `format` apart, up to `MAX_ELEMENTS` elements. A raw file has none.
            ///
            /// # Errors
            /// A structure that names others is malformed, or a read fails. The elements that were found before stay.
            pub fn read<S: Storage + ?Sized>(
                &mut self,
                format: ImageFormat,
                storage: &S,
            ) -> Result<(), MapError> {
                self.clear();
                match format {
                    $(ImageFormat::$format => {
                        <$format<'_, S> as FormatLayer<'_, S>>::take_apart(self, storage)
                    })*
                }
            }
        }
    };
}

for_each_format!(formats);

impl<'s, S: Storage + ?Sized> OpenLayer<'s, S> {
    /// Returns the states in which the walker reads the layer.
    #[inline]
    pub(crate) fn walk_states(&self) -> WalkStates {
        fn states<'s, S: Storage + ?Sized, L: FormatLayer<'s, S>>(_: &L) -> WalkStates {
            L::STATES
        }
        with_layer!(self, layer => states(layer))
    }

    /// Reports whether the disk ends at `end`, inside a block or a grain. It is always false for qcow2.
    pub(crate) fn is_cut_at(&self, end: GuestOffset) -> bool {
        end.get() == self.size_bytes() && with_layer!(self, layer => layer.is_cut_at(end))
    }

    /// Rejects a layer without a file that its image names.
    pub(crate) fn complete(self) -> Result<Self, MapError> {
        match with_layer!(&self, layer => layer.missing_file()) {
            Some(name) => Err(MapError::Missing(name)),
            None => Ok(self),
        }
    }

    /// Returns the size in bytes, a multiple of 512.
    #[inline]
    pub(crate) fn size_bytes(&self) -> u64 {
        with_layer!(self, layer => layer.size_bytes())
    }

    /// Returns the unit in which the layer stores data, see [`FormatLayer::block_bytes`].
    pub(crate) fn block_bytes(&self) -> Option<u64> {
        with_layer!(self, layer => layer.block_bytes())
    }

    /// Walks the window.
    pub(crate) fn walk(&self, pieces: &mut TablePieces, cover: &mut impl Cover) -> Flow {
        with_layer!(self, layer => layer.walk(pieces, cover))
    }

    /// Returns the mapping of a byte before the end of the layer.
    pub(crate) fn lookup(&self, guest: GuestOffset) -> Result<Mapping, MapError> {
        with_layer!(self, layer => layer.lookup(guest))
    }

    /// Returns the number of bytes that [`Self::read_piece`] can read at once; at least 1.
    #[inline]
    pub(crate) fn piece_bytes(&self, guest: GuestOffset) -> u64 {
        with_layer!(self, layer => layer.piece_bytes(guest))
    }

    /// Prepares the answers of [`Self::file_with_holes`].
    pub(crate) fn decide_host_holes(&mut self) {
        with_layer!(self, layer => layer.decide_host_holes());
    }

    /// Returns the file that QEMU asks for holes under a guest byte.
    pub(crate) fn file_with_holes(&self, guest: GuestOffset) -> Option<&'s S> {
        with_layer!(self, layer => layer.file_with_holes(guest))
    }

    /// Makes walks and look-ups report the layer as QEMU's driver does.
    pub(crate) fn report_as_qemu(&mut self) {
        with_layer!(self, layer => layer.report_as_qemu());
    }

    /// Returns the number of the extent that holds a guest byte, if the layer has extents.
    pub(crate) fn extent_index(&self, guest: GuestOffset) -> Option<usize> {
        with_layer!(self, layer => layer.extent_index(guest))
    }

    /// Changes to the disk of a snapshot.
    pub(crate) fn go_to_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        with_layer!(self, layer => layer.go_to_snapshot(index))
    }

    /// Changes to the clusters of a snapshot.
    pub(crate) fn use_table_of_snapshot(&mut self, index: u32) -> Result<(), MapError> {
        with_layer!(self, layer => layer.use_table_of_snapshot(index))
    }
}

/// The first bytes of files in other formats that QEMU recognizes when it probes a file. To read such a file as a raw
/// disk would return wrong data.
const OTHER_FORMATS: [&[u8]; 6] = [
    b"QED\0",
    b"LUKS\xba\xbe",
    b"WithoutFreeSpace",
    b"WithouFreSpacExt",
    b"Bochs Virtual HD Image",
    b"#!/bin/sh\n#V2.0 Format\nmodprobe cloop",
];

/// The first bytes of images in the first qcow format.
const QCOW_1: &[u8] = b"QFI\xfb\0\0\0\x01";

/// Rejects a file in a format that QEMU has and this walker has not. No format of the walker has these first bytes.
fn reject_other_formats(first_bytes: &ProbedBytes) -> Result<(), MapError> {
    if first_bytes.starts_with(QCOW_1) {
        return Err(MapError::Unsupported("image in the first qcow format"));
    }
    match OTHER_FORMATS.iter().any(|magic| first_bytes.starts_with(magic)) {
        true => Err(MapError::Unsupported("image in a format that only QEMU knows")),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_begins_with_its_version() {
        let is_vmdk = |text: &str| probe(text.as_bytes()) == Ok(ImageFormat::Vmdk);
        for text in ["version=1\n", "version=3\r\n", "# x\n  \n \r\nversion=2\n", "KDMV", "COWD"] {
            assert!(is_vmdk(text), "{text:?}");
        }
        let late = "#".repeat(502) + "\nversion=1\n";
        let later = "#".repeat(503) + "\nversion=1\n";
        assert!(!is_vmdk(&later) && !is_vmdk(&late) && is_vmdk(&late[1..]));
        for text in [
            "version=4\n",
            "version=1",
            "version=1 \n",
            "\nversion=1\n",
            "\t\nversion=1\n",
            "\r\nversion=1\n",
            " version=1\n",
            " x\nversion=1\n",
            "encoding=\"x\"\nversion=1\n",
        ] {
            assert!(!is_vmdk(text), "{text:?}");
        }
    }
}
