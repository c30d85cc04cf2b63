//! The names that an image contains of other files.

/// The names of other files. The caller decides them by where it writes the image; the program does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// The backing file.
    pub backing: &'a [u8],
    /// The external data file.
    pub data_file: &'a [u8],
}

impl Default for Names<'_> {
    fn default() -> Self {
        Self { backing: b"backing", data_file: b"data" }
    }
}

/// Names of files do not fit into an image's first cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamesTooLong {
    /// The format allows no name of that length.
    #[error("the name of the backing file has {length_bytes} bytes, at most 1023 are allowed")]
    Backing {
        /// Its length.
        length_bytes: u64,
    },
    /// The first cluster is too small.
    #[error(
        "the names of other files take {needed_bytes} bytes of the first cluster, which has room for {room_bytes}"
    )]
    Header {
        /// What they need.
        needed_bytes: u64,
        /// What there is behind the shortest header.
        room_bytes: u64,
    },
}
