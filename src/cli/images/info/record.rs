//! The record of an image, with the keys of `qemu-img info --output=json`, for every format; and its human form, the
//! lines of `qemu-img info` (QEMU `block/qapi.c`, `bdrv_node_info_dump`).

use std::io::{self, Write};
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
    /// The size of the disk in bytes. For a file: its length, rounded up to whole sectors.
    pub virtual_size: u64,
    /// The path of the image or of the file. It may be relative.
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
    /// Prints the record and the records of its children in the human form.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        node(self, 0, "/", out)
    }

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

    /// Returns a path unchanged.
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

/// Returns the character at the beginning of `bytes`, and the length of its byte sequence, which is at least 1. The
/// character is `None` if the sequence is malformed. QEMU reads sequences of up to six bytes, refuses noncharacters,
/// and accepts the encoding of zero in two bytes.
fn first_character(bytes: &[u8]) -> (Option<char>, usize) {
    let Some((first, rest)) = bytes.split_first() else { return (None, 1) };
    let (length, lowest) = match first.leading_ones() {
        0 => return (Some(char::from(*first)), 1),
        2 => (2, 0x80),
        3 => (3, 0x800),
        4 => (4, 0x1_0000),
        5 => (5, 0x20_0000),
        6 => (6, 0x400_0000),
        // A continuation byte, or 0xFE or 0xFF, which occur in no sequence.
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

fn node(info: &InfoRecord, depth: usize, path: &str, out: &mut impl Write) -> io::Result<()> {
    let indent = " ".repeat(4 * depth);
    // A node without children is a file.
    let [filename, format, size] = match info.children.is_empty() {
        true => ["filename", "protocol type", "file length"],
        false => ["image", "file format", "virtual size"],
    };
    line(out, &indent, filename, &info.filename, "")?;
    writeln!(out, "{indent}{format}: {}", info.format)?;
    let bytes = info.virtual_size;
    writeln!(out, "{indent}{size}: {} ({bytes} bytes)", size_text(bytes))?;
    let on_disk = info.actual_size.map_or("unavailable".into(), size_text);
    writeln!(out, "{indent}disk size: {on_disk}")?;
    if let Some(cluster_size) = info.cluster_size {
        writeln!(out, "{indent}cluster_size: {cluster_size}")?;
    }
    if info.dirty_flag == Some(true) {
        writeln!(out, "{indent}cleanly shut down: no")?;
    }
    backing_file(info, &indent, out)?;
    snapshots(&info.snapshots, &indent, out)?;
    if let Some(specific) = info.format_specific.as_ref().filter(|it| !it.data.0.is_empty()) {
        writeln!(out, "{indent}Format specific information:")?;
        details(&specific.data, depth + 1, out)?;
    }
    for child in &info.children {
        let path = format!("{path}{}", child.name);
        writeln!(out, "{indent}Child node '{path}':")?;
        node(&child.info, depth + 1, &format!("{path}/"), out)?;
    }
    Ok(())
}

/// Writes a line with a name, which need not be UTF-8.
fn line(
    out: &mut impl Write,
    indent: &str,
    key: &str,
    name: &Text,
    behind: &str,
) -> io::Result<()> {
    write!(out, "{indent}{key}: ")?;
    out.write_all(name.bytes())?;
    writeln!(out, "{behind}")
}

fn backing_file(info: &InfoRecord, indent: &str, out: &mut impl Write) -> io::Result<()> {
    let Some(name) = &info.backing_filename else { return Ok(()) };
    match info.full_backing_filename.as_ref().filter(|full| *full != name) {
        None => line(out, indent, "backing file", name, "")?,
        Some(full) => {
            write!(out, "{indent}backing file: ")?;
            out.write_all(name.bytes())?;
            line(out, "", " (actual path", full, ")")?;
        }
    }
    match &info.backing_filename_format {
        None => Ok(()),
        Some(format) => line(out, indent, "backing file format", format, ""),
    }
}

fn snapshots(snapshots: &[SnapshotInfo], indent: &str, out: &mut impl Write) -> io::Result<()> {
    if snapshots.is_empty() {
        return Ok(());
    }
    writeln!(out, "{indent}Snapshot list:")?;
    let [id, tag, size, date, clock] = ["ID", "TAG", "VM_SIZE", "DATE", "VM_CLOCK"];
    writeln!(out, "{indent}{id:<7} {tag:<16} {size:>8} {date:>19} {clock:>15} {:>10}", "ICOUNT")?;
    for snapshot in snapshots {
        out.write_all(indent.as_bytes())?;
        padded(&snapshot.id, 7, out)?;
        padded(&snapshot.name, 16, out)?;
        // QEMU casts the length here, so that it is not negative.
        let size = size_text(snapshot.vm_state_size.cast_unsigned());
        let (date, clock) = (date_text(snapshot.date_sec), clock_text(snapshot));
        let icount = snapshot.icount.map_or("--".into(), |count| count.to_string());
        writeln!(out, "{size:>8} {date:>19} {clock:>15} {icount:>10}")?;
    }
    Ok(())
}

/// Writes a name and a space. The name takes at least `width` bytes.
fn padded(name: &Text, width: usize, out: &mut impl Write) -> io::Result<()> {
    out.write_all(name.bytes())?;
    let missing = width.saturating_sub(name.bytes().len());
    write!(out, "{:missing$} ", "")
}

/// Returns a time since 1970 as a date in UTC.
fn date_text(seconds: u32) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March, so that the leap day is their last. A cycle of 400 years has 146,097 days.
    let since_year_0 = days + 719_468;
    let (cycle, day) = (since_year_0 / 146_097, since_year_0 % 146_097);
    let year_of_cycle = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day_of_month = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = cycle * 400 + year_of_cycle + u32::from(month <= 2);
    let (hours, minutes) = (of_day / 3600, of_day / 60 % 60);
    format!("{year:04}-{month:02}-{day_of_month:02} {hours:02}:{minutes:02}:{:02}", of_day % 60)
}

fn clock_text(snapshot: &SnapshotInfo) -> String {
    let seconds = snapshot.vm_clock_sec;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let milliseconds = snapshot.vm_clock_nsec / 1_000_000;
    format!("{hours:04}:{minutes:02}:{:02}.{milliseconds:03}", seconds % 60)
}

/// Returns a number of bytes as QEMU prints it (`util/cutils.c`, `size_to_str`): the unit in which it is below 1000,
/// and three digits.
fn size_text(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    // 1000 of a unit are 2^10 here, so that the number of bits decides.
    let scaled = bytes as f64 * 1.024;
    let unit = (scaled.max(1.0).log2() / 10.0) as usize;
    let unit = unit.min(UNITS.len() - 1);
    let value = bytes as f64 / (1u64 << (10 * unit)) as f64;
    format!("{} {}B", three_digits(value), UNITS[unit])
}

/// Returns a number as C's `%0.3g` prints it: three digits without the zeros at their end.
fn three_digits(value: f64) -> String {
    let scientific = format!("{value:.2e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    match usize::try_from(2 - exponent) {
        Ok(decimals) => trimmed(&format!("{value:.decimals$}")),
        Err(_) => format!("{}e+{exponent:02}", trimmed(digits)),
    }
}

fn details(details: &Details, depth: usize, out: &mut impl Write) -> io::Result<()> {
    for (key, value) in &details.0 {
        write!(out, "{:1$}{2}:", "", 4 * depth, key.replace('-', " "))?;
        detail(value, depth, out)?;
    }
    Ok(())
}

/// Prints a value after its key: on the same line, or on lines that are indented further.
fn detail(value: &Detail, depth: usize, out: &mut impl Write) -> io::Result<()> {
    match value {
        Detail::Text(text) => {
            out.write_all(b" ")?;
            out.write_all(text.bytes())?;
            writeln!(out)
        }
        Detail::Number(number) => writeln!(out, " {number}"),
        Detail::Flag(flag) => writeln!(out, " {flag}"),
        Detail::Group(group) => {
            writeln!(out)?;
            details(group, depth + 1, out)
        }
        Detail::List(list) => {
            writeln!(out)?;
            for (index, value) in list.iter().enumerate() {
                write!(out, "{:1$}[{index}]:", "", 4 * (depth + 1))?;
                detail(value, depth + 1, out)?;
            }
            Ok(())
        }
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

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "0.977 KiB"),
            (197_120, "192 KiB"),
            (5_257_216, "5.01 MiB"),
            (1_023_488, "1e+03 KiB"),
            (1 << 40, "1 TiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size_text(bytes), text);
        }
    }

    #[test]
    fn dates_are_in_utc() {
        for (seconds, date) in [
            (0, "1970-01-01 00:00:00"),
            (951_827_696, "2000-02-29 12:34:56"),
            (951_868_800, "2000-03-01 00:00:00"),
            (u32::MAX, "2106-02-07 06:28:15"),
        ] {
            assert_eq!(date_text(seconds), date);
        }
    }
}
