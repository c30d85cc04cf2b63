//! The names of other files in an image.

/// The names of other files. The caller chooses them when it writes the image; the program does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// The name of the backing file.
    pub backing: &'a [u8],
    /// The name of the external data file.
    pub data_file: &'a [u8],
}

impl Default for Names<'_> {
    fn default() -> Self {
        Self { backing: b"backing", data_file: b"data" }
    }
}

/// The names of files do not fit into an image's first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesTooLong {
    /// The format does not allow a name of this length.
    #[error("the name of the backing file has {length_bytes} bytes, at most 1023 are allowed")]
    Backing {
        /// The length of the name.
        length_bytes: u64,
    },
    /// The first cluster is too small.
    #[error(
        "the names of other files take {needed_bytes} bytes of the first cluster, which has room for {room_bytes}"
    )]
    Header {
        /// The bytes that the names and necessary extensions need.
        needed_bytes: u64,
        /// The bytes after the shortest header.
        room_bytes: u64,
    },
}
