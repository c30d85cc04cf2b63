//! The record of an image, with the keys of `qemu-img info --output=json`, for every format.

use serde::{Serialize, Serializer};

use super::text::Text;

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
