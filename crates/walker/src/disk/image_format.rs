//! The formats of the files in a chain.

/// The list of formats: calls the macro `$with` with all of them. A format has a line here, and a folder (or a file) of
/// the name behind `in`: in `formats` of this package, which implements the format's layer, and in `images` of the fuzz
/// harness, which builds images.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_format {
    ($with:ident) => {
        $with! {
            /// A qcow2 image, which may have a backing file of its own.
            #[default]
            Qcow2 = "qcow2" in qcow2,
            /// A raw file: guest data from the first byte to the last.
            Raw = "raw" in raw,
            /// A VHD image, which QEMU calls vpc.
            Vpc = "vpc" in vpc,
            /// A VHDX image.
            Vhdx = "vhdx" in vhdx,
            /// A VMDK image: a sparse extent, or a descriptor that names the files of its extents.
            Vmdk = "vmdk" in vmdk,
        }
    };
}

#[doc(hidden)]
pub use for_each_format;

macro_rules! image_format {
    ($($(#[$about:meta])* $format:ident = $name:literal in $drawer:ident,)*) => {
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
        }
    };
}

for_each_format!(image_format);

impl ImageFormat {
    /// Returns the format of that name. `name` ends at its first zero byte at the latest.
    pub fn named(name: &[u8]) -> Option<Self> {
        let name = name.split(|byte| *byte == 0).next()?;
        Self::ALL.into_iter().find(|format| format.name().as_bytes() == name)
    }
}
