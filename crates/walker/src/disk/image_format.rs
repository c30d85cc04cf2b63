//! The formats of the files in a chain.

/// The format of a file in a chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ImageFormat {
    /// A qcow2 image, which may have a backing file of its own.
    #[default]
    Qcow2,
    /// A raw file: guest data from the first byte to the last.
    Raw,
    /// A VHD image, which QEMU calls vpc.
    Vpc,
    /// A VHDX image.
    Vhdx,
    /// A VMDK image: a sparse extent, or a descriptor that names the files of its extents.
    Vmdk,
}

impl ImageFormat {
    /// All formats.
    pub const ALL: [Self; 5] = [Self::Qcow2, Self::Raw, Self::Vpc, Self::Vhdx, Self::Vmdk];

    /// Returns the format's name, as QEMU spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
            Self::Vpc => "vpc",
            Self::Vhdx => "vhdx",
            Self::Vmdk => "vmdk",
        }
    }

    /// Returns the format of that name. `name` ends at its first zero byte at the latest.
    pub fn named(name: &[u8]) -> Option<Self> {
        let name = name.split(|byte| *byte == 0).next()?;
        Self::ALL.into_iter().find(|format| format.name().as_bytes() == name)
    }
}
