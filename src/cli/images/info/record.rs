//! The record of an image, with the keys of `qemu-img info --output=json`, for every format.

use std::path::Path;

use serde::{Serialize, Serializer};

use crate::walkers::chain::has_protocol;

/// A node of QEMU's graph: an image, or the file that it lies in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct InfoRecord {
    /// The nodes below an image. A file has none.
    pub children: Vec<Child>,
    /// The snapshots inside the image, in the order of their table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub snapshots: Vec<SnapshotInfo>,
    /// The format of the backing file, as the image states it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing_filename_format: Option<Text>,
    /// The size of the disk, or of the file in whole sectors, in bytes.
    pub virtual_size: u64,
    /// The name, as it was given.
    pub filename: Text,
    /// The unit in which the image stores data, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cluster_size: Option<u64>,
    /// The format, as QEMU spells it.
    pub format: &'static str,
    /// The bytes that the file takes on its file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub actual_size: Option<u64>,
    /// The facts that only this format has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub format_specific: Option<FormatSpecific>,
    /// The path of the backing file, resolved against the directory of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub full_backing_filename: Option<Text>,
    /// The backing file, as the image names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backing_filename: Option<Text>,
    /// The image was not closed properly. `None` if its driver does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dirty_flag: Option<bool>,
}

/// A node below an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Child {
    /// Its purpose.
    pub name: String,
    /// The node.
    pub info: InfoRecord,
}

/// A snapshot inside an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct SnapshotInfo {
    /// The number of instructions that the guest had run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub icount: Option<i64>,
    /// The nanoseconds within the second of `vm_clock_sec`.
    pub vm_clock_nsec: u64,
    /// The name.
    pub name: Text,
    /// The date, in seconds since 1970.
    pub date_sec: u32,
    /// The nanoseconds within this second.
    pub date_nsec: u32,
    /// The running time of the guest, in seconds.
    pub vm_clock_sec: u64,
    /// The id.
    pub id: Text,
    /// The length of the VM state in bytes. QEMU prints it as a signed number.
    pub vm_state_size: i64,
}

/// The facts that only one format has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FormatSpecific {
    /// The format.
    #[serde(rename = "type")]
    pub kind: &'static str,
    /// The facts.
    pub data: Details,
}

/// Facts with their keys, in the order in which QEMU prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details(pub Vec<(&'static str, Detail)>);

impl Serialize for Details {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, detail)| (key, detail)))
    }
}

/// The value of a fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Detail {
    /// A name, or a word.
    Text(Text),
    /// A number.
    Number(u64),
    /// A switch.
    Flag(bool),
    /// Values without keys.
    List(Vec<Detail>),
    /// Values with keys.
    Group(Details),
}

impl InfoRecord {
    /// Sets the backing file and its format, and resolves the name.
    pub fn set_backing_file(&mut self, name: Text, format: Option<Text>) {
        self.full_backing_filename = Some(name.resolved_against(&self.filename));
        self.backing_filename = Some(name);
        self.backing_filename_format = format;
    }
}

/// The bytes of a name, which need not be UTF-8. It contains no zero byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Text(Vec<u8>);

impl Text {
    /// Returns the name that ends before the first zero byte.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.split(|byte| *byte == 0).next().unwrap_or_default().to_vec())
    }

    /// Returns a path as it was given.
    pub fn of_path(path: &Path) -> Self {
        Self::new(path.as_os_str().as_encoded_bytes())
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns the name of a file that the image at `image` names. As in QEMU (`block.c`,
    /// `bdrv_make_absolute_filename`), a relative name follows the last slash of the image's name, and a name with a
    /// protocol stays as it is.
    pub fn resolved_against(&self, image: &Self) -> Self {
        if has_protocol(&self.0) || self.0.first() == Some(&b'/') {
            return self.clone();
        }
        let slash = image.0.iter().rposition(|byte| *byte == b'/');
        let directory = slash.and_then(|at| image.0.get(..=at)).unwrap_or_default();
        Self([directory, &self.0].concat())
    }

    /// Returns the text that QEMU prints as JSON (`util/unicode.c`, `mod_utf8_codepoint`): each malformed sequence
    /// becomes a replacement character.
    fn for_json(&self) -> String {
        let mut rest = self.0.as_slice();
        let mut text = String::new();
        while !rest.is_empty() {
            let (character, used) = first_character(rest);
            text.push(character.unwrap_or(char::REPLACEMENT_CHARACTER));
            rest = rest.get(used..).unwrap_or_default();
        }
        text
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.for_json())
    }
}

/// Returns the character at the beginning of `bytes`, or `None` if the sequence is malformed, and the number of bytes
/// of the sequence, which is at least 1. QEMU reads sequences of up to six bytes, refuses noncharacters, and accepts
/// the zero of two bytes.
fn first_character(bytes: &[u8]) -> (Option<char>, usize) {
    let Some((first, rest)) = bytes.split_first() else { return (None, 1) };
    let (length, lowest) = match first.leading_ones() {
        0 => return (Some(char::from(*first)), 1),
        2 => (2, 0x80),
        3 => (3, 0x800),
        4 => (4, 0x1_0000),
        5 => (5, 0x20_0000),
        6 => (6, 0x400_0000),
        // A continuation byte, or one that is in no sequence.
        _ => return (None, 1),
    };
    let mut code = u32::from(*first) & (0x7F >> length);
    let mut used = 1;
    for byte in rest.iter().take(length - 1).take_while(|byte| **byte & 0xC0 == 0x80) {
        code = code << 6 | u32::from(byte & 0x3F);
        used += 1;
    }
    let is_short = code < lowest && !(code == 0 && length == 2);
    let is_noncharacter = (0xFDD0..=0xFDEF).contains(&code) || code & 0xFFFE == 0xFFFE;
    match used < length || is_short || is_noncharacter {
        true => (None, used),
        false => (char::from_u32(code), used),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_resolved_against_the_directory_of_the_image() {
        for (image, name, resolved) in [
            ("o.qcow2", "b", "b"),
            ("./a//o.qcow2", "../b", "./a//../b"),
            ("/a/o.qcow2", "/b", "/b"),
            ("a/o.qcow2", "nbd:x", "nbd:x"),
            ("a/o.qcow2", "x/y:z", "a/x/y:z"),
        ] {
            let (image, name) = (Text::new(image.as_bytes()), Text::new(name.as_bytes()));
            assert_eq!(name.resolved_against(&image).bytes(), resolved.as_bytes());
        }
    }
}
