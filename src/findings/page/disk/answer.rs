//! One row of the picture.

use crate::findings::records::MapRecord;

/// The extents of the disk according to one reader.
pub struct Answer<'a> {
    /// Who, as it is written in keys.
    pub key: &'static str,
    /// Who, as people call them.
    pub who: String,
    /// Their extents.
    pub records: &'a [MapRecord],
    /// What is to be said of these, or why there are none.
    pub said: Option<String>,
    /// Those that are shown, by their places.
    pub chosen: Vec<(usize, &'a MapRecord)>,
}
