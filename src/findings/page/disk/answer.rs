//! One row of the picture.

use crate::findings::records::MapRecord;

/// The extents of the disk according to one reader.
pub struct ReaderExtents<'a> {
    /// The name of the reader in keys.
    pub key: &'static str,
    /// The name of the reader for people.
    pub who: String,
    /// The extents that it reported.
    pub records: &'a [MapRecord],
    /// A remark about the extents, or the reason why there are none.
    pub said: Option<String>,
    /// The extents that the page shows, with their indices.
    pub chosen: Vec<(usize, &'a MapRecord)>,
}
