//! The formats of the files in a chain.

/// The list of formats: calls the macro `$with` with all of them. A format has a line here, with its name in QEMU and
/// its facts ([`FormatFacts`]). It has a folder (or a file) of the name behind `in`, its drawer: in `formats` of this
/// package, which implements the format's layer, and in `images` of the fuzz harness, which builds images.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_format {
    ($with:ident $($more:tt)*) => {
        $with! {
            $($more)*
            /// A qcow2 image, which may have a backing file of its own.
            #[default]
            Qcow2 = "qcow2" in qcow2 [has_backing_files],
            /// A raw file: guest data from the first byte to the last.
            Raw = "raw" in raw [shows_file_holes],
            /// A VHD image, which QEMU calls vpc.
            Vpc = "vpc" in vpc [shows_file_holes],
            /// A VHDX image.
            Vhdx = "vhdx" in vhdx [hides_place_of_zeros, is_all_data_for_qemu],
            /// A VMDK image: a sparse extent, or a descriptor that names the files of its extents.
            Vmdk = "vmdk" in vmdk [has_backing_files, has_own_parents, has_extents],
            /// A VDI image, of VirtualBox.
            Vdi = "vdi" in vdi [shows_file_holes],
        }
    };
}

/// The list of formats without qcow2 and raw, which many places name: calls `$with` as [`for_each_format`] does.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_other_format {
    ($with:ident) => {
        $crate::disk::image_format::for_each_format!(for_each_other_format of $with);
    };
    (
        of $with:ident
        $(#[$about_qcow2:meta])* Qcow2 = $qcow2:literal in $qcow2_drawer:ident $qcow2_facts:tt,
        $(#[$about_raw:meta])* Raw = $raw:literal in $raw_drawer:ident $raw_facts:tt,
        $($others:tt)*
    ) => {
        $with! { $($others)* }
    };
}

#[doc(hidden)]
pub use for_each_format;
#[doc(hidden)]
pub use for_each_other_format;

macro_rules! image_format {
    (
        $($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident [$($fact:ident),*],)*
    ) => {
        /// The format of a file in a chain.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum ImageFormat {
            $($(#[$about])* $format,)*
        }

        impl ImageFormat {
            /// All formats.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$format),*];

            /// Returns the format's name, as QEMU spells it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$format => $name,)*
                }
            }

            /// Returns the facts about images of the format.
            pub const fn facts(self) -> FormatFacts {
                match self {
                    $(Self::$format => FormatFacts { $($fact: true,)* ..FormatFacts::NONE },)*
                }
            }
        }
    };
}

for_each_format!(image_format);

impl ImageFormat {
    /// Returns the formats whose images may have extents.
    pub fn with_extents() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|format| format.facts().has_extents)
    }

    /// Returns the format of that name. `name` ends at its first zero byte at the latest.
    pub fn named(name: &[u8]) -> Option<Self> {
        let name = name.split(|byte| *byte == 0).next()?;
        Self::ALL.into_iter().find(|format| format.name().as_bytes() == name)
    }
}

/// Facts about the images of a format that decide what a guest sees, and what a reader can report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormatFacts {
    /// An image may lie on another one, which decides about the ranges that the image leaves unallocated.
    pub has_backing_files: bool,
    /// An image lies only on images in its own format, and names the identity of the one below it.
    pub has_own_parents: bool,
    /// An image may consist of several files: itself, and one for each of its extents.
    pub has_extents: bool,
    /// Readers report holes of the file as zeros with a host offset: some images store data at their guest offset.
    pub shows_file_holes: bool,
    /// Readers report no host offset for a block of zeros, even if the file has space for the block.
    pub hides_place_of_zeros: bool,
    /// QEMU's driver reports all of the disk as data, and no host offset.
    pub is_all_data_for_qemu: bool,
}

impl FormatFacts {
    /// The facts about a format without any of these properties.
    const NONE: Self = Self {
        has_backing_files: false,
        has_own_parents: false,
        has_extents: false,
        shows_file_holes: false,
        hides_place_of_zeros: false,
        is_all_data_for_qemu: false,
    };
}
