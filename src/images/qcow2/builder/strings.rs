//! Strings of an image that are made of bytes which the program gives.

use crate::formats::qcow2::constants::MAX_BITMAP_NAME_BYTES;
use crate::images::qcow2::state::GivenString;

use super::Builder;

/// The longest id and the longest name of a snapshot that are made of given bytes: `qemu-img info` prints as many. In
/// images that may be malformed, they have any length.
const MAX_SNAPSHOT_STRING_BYTES: [usize; 2] = [127, 255];

/// The strings of an image that are unique among those of their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unique {
    BitmapName,
    SnapshotId,
    SnapshotName,
}

impl Builder {
    /// Makes the name of the next bitmap of given bytes. Returns `None` if no valid name can be made of them.
    pub fn bitmap_name(&mut self, bytes: &[u8]) -> Option<GivenString> {
        let most = usize::from(MAX_BITMAP_NAME_BYTES);
        self.unique_string(bytes, most, Unique::BitmapName, self.bitmaps.made + 1)
    }

    /// Makes the id of the next snapshot of given bytes. Returns `None` if no valid id can be made of them.
    pub fn snapshot_id(&mut self, bytes: &[u8]) -> Option<GivenString> {
        let [most, _] = MAX_SNAPSHOT_STRING_BYTES;
        self.unique_string(bytes, most, Unique::SnapshotId, self.snapshots.taken + 1)
    }

    /// Makes the name of the next snapshot of given bytes. Returns `None` if no valid name can be made of them.
    pub fn snapshot_name(&mut self, bytes: &[u8]) -> Option<GivenString> {
        let [_, most] = MAX_SNAPSHOT_STRING_BYTES;
        self.unique_string(bytes, most, Unique::SnapshotName, self.snapshots.taken + 1)
    }

    /// Sets the body of the first unknown extension of the header's style.
    pub fn set_extension_body(&mut self, bytes: &[u8]) {
        self.plan.extension_body = Some(self.given.add_string(bytes, bytes.len()));
    }

    /// Makes a string of given bytes, or uses them unchanged if the image may be malformed. A valid string is UTF-8
    /// without zeros, and no other of its kind equals it, nor any that is made of the number of its owner. If it would
    /// not be unique, a tilde and `number` follow.
    fn unique_string(
        &mut self,
        bytes: &[u8],
        most: usize,
        kind: Unique,
        number: u32,
    ) -> Option<GivenString> {
        if self.limits.attacks > 0 {
            let most = if kind == Unique::BitmapName { most } else { bytes.len() };
            return Some(self.given.add_string(bytes, most));
        }
        let valid = String::from_utf8_lossy(bytes).replace('\0', "0");
        let suffix = format!("~{number}");
        let alone = cut(&valid, most);
        let numbered = format!("{}{suffix}", cut(&valid, most - suffix.len()));
        let unique = [alone, &numbered].into_iter().find(|string| self.is_unique(string, kind));
        unique.map(|string| self.given.add_string(string.as_bytes(), most))
    }

    /// Reports whether a string can be the next one of its kind.
    fn is_unique(&self, string: &str, kind: Unique) -> bool {
        // Names of bitmaps that are made of a number begin with letters.
        let number = match kind {
            Unique::BitmapName => string.trim_start_matches('b'),
            Unique::SnapshotId | Unique::SnapshotName => string,
        };
        let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
        let is_taken = |other: Option<GivenString>| {
            other.is_some_and(|other| self.given.string(other) == string.as_bytes())
        };
        let mut bitmaps = self.bitmaps.live().iter();
        let mut snapshots = self.snapshots.live().iter();
        !is_number
            && !match kind {
                Unique::BitmapName => bitmaps.any(|one| is_taken(one.name)),
                Unique::SnapshotId => snapshots.any(|one| is_taken(one.details.id)),
                Unique::SnapshotName => snapshots.any(|one| is_taken(one.details.name)),
            }
    }
}

/// Returns the beginning of a string, at most `most` bytes of whole characters.
fn cut(string: &str, most: usize) -> &str {
    let end = (0..=most).rev().find(|end| string.is_char_boundary(*end));
    if string.len() <= most { string } else { string.get(..end.unwrap_or(0)).unwrap_or_default() }
}
