//! The options of a new image, as `-o` lists them: `cluster_size=4k,extended_l2=on`.

use crate::cli::options;
use crate::disk::clusters::ClusterSize;
use crate::formats::qcow2::constants::{
    MAX_CLUSTER_BITS, MAX_REFCOUNT_ORDER, MIN_EXTENDED_L2_CLUSTER_BITS,
};
use crate::formats::qcow2::geometry::{Geometry, Version};
use crate::walkers::{PlannedImage, PlannedQcow2};

/// log2 of the cluster size without an option.
const DEFAULT_CLUSTER_BITS: u32 = 16;

/// The kind of an option's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OptionKind {
    Switch,
    Size,
    Number,
    Text,
}

/// The options of a file in any format.
const OF_FILES: &[(&str, OptionKind)] = &[
    ("size", OptionKind::Size),
    ("preallocation", OptionKind::Text),
    ("nocow", OptionKind::Switch),
    ("extent_size_hint", OptionKind::Size),
];

/// The other options of a qcow2 image.
const OF_QCOW2: &[(&str, OptionKind)] = &[
    ("backing_file", OptionKind::Text),
    ("backing_fmt", OptionKind::Text),
    ("cluster_size", OptionKind::Size),
    ("compat", OptionKind::Text),
    ("compression_type", OptionKind::Text),
    ("data_file", OptionKind::Text),
    ("data_file_raw", OptionKind::Switch),
    ("encryption", OptionKind::Switch),
    ("extended_l2", OptionKind::Switch),
    ("lazy_refcounts", OptionKind::Switch),
    ("refcount_bits", OptionKind::Number),
];

/// The options of a new image.
#[derive(Debug)]
pub struct PlannedOptions {
    /// The image.
    pub image: PlannedImage,
    /// The size of its disk, if there is such an option.
    pub size_bytes: Option<u64>,
}

impl PlannedOptions {
    /// Parses the lists of options of an image in `format`, raw or qcow2. If an option occurs twice, the last value
    /// counts.
    pub fn parse(format: &str, lists: &[String]) -> Result<Self, String> {
        let is_qcow2 = format == "qcow2";
        let known = if is_qcow2 { OF_QCOW2 } else { &[] };
        let mut options = OptionValues::default();
        for list in lists {
            options.add(list, format, &[OF_FILES, known].concat())?;
        }
        let size_bytes = options.size("size")?;
        let image =
            if is_qcow2 { PlannedImage::Qcow2(options.qcow2()?) } else { PlannedImage::Raw };
        Ok(Self { image, size_bytes })
    }
}

/// Names and values, in the order of the lists. The values are of the right kind.
#[derive(Debug, Default)]
struct OptionValues(Vec<(String, String)>);

impl OptionValues {
    /// Adds the options in a list, each of which must be one of `known`.
    fn add(
        &mut self,
        list: &str,
        format: &str,
        known: &[(&str, OptionKind)],
    ) -> Result<(), String> {
        let commas = list.len() - list.trim_end_matches(',').len();
        // A comma in a value is written twice.
        if list.is_empty() || list.starts_with(',') || commas % 2 == 1 {
            return Err(format!("invalid options '{list}', expected NAME=VALUE,..."));
        }
        let mut rest = list;
        while !rest.is_empty() {
            let (name, value, after) = next_option(rest);
            rest = after;
            if name.starts_with("encrypt.") {
                return Err(format!("option '{name}': encryption is not supported"));
            }
            let Some((_, kind)) = known.iter().find(|(it, _)| *it == name) else {
                return Err(format!("option '{name}' is unknown for the format {format}"));
            };
            let is_valid = match kind {
                OptionKind::Switch => switch(&value).is_some(),
                OptionKind::Size => options::parse_size(&value).is_ok(),
                OptionKind::Number => number(&value).is_some(),
                OptionKind::Text => true,
            };
            if !is_valid {
                return Err(wrong(name, &value, kind.expected()));
            }
            self.0.push((name.to_string(), value));
        }
        Ok(())
    }

    /// Returns the last value of an option.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    fn size(&self, name: &str) -> Result<Option<u64>, String> {
        self.get(name).map(options::parse_size).transpose()
    }

    /// Returns the qcow2 image with these options (QEMU `block/qcow2.c`, `qcow2_measure`).
    fn qcow2(&self) -> Result<PlannedQcow2, String> {
        let extended_l2 = self.get("extended_l2").and_then(switch).unwrap_or(false);
        let cluster_size = self.cluster_size(extended_l2)?;
        let version = match self.get("compat") {
            Some("0.10") => Version::V2,
            Some("1.1") | None => Version::V3,
            Some(value) => return Err(wrong("compat", value, "0.10 or 1.1")),
        };
        let allocates_data = match self.get("preallocation") {
            None | Some("off" | "metadata") => false,
            Some("falloc" | "full") => true,
            Some(value) => {
                return Err(wrong("preallocation", value, "off, metadata, falloc or full"));
            }
        };
        let geometry = Geometry {
            version,
            cluster_size,
            refcount_order: self.refcount_order(version)?,
            extended_l2,
            compression: Default::default(),
            data_file: false,
        };
        let has_backing_file = self.get("backing_file").is_some();
        Ok(PlannedQcow2 { geometry, has_backing_file, allocates_data })
    }

    fn cluster_size(&self, extended_l2: bool) -> Result<ClusterSize, String> {
        let bytes = self.size("cluster_size")?.unwrap_or(1 << DEFAULT_CLUSTER_BITS);
        let is_valid = bytes.is_power_of_two() && bytes.ilog2() <= MAX_CLUSTER_BITS;
        let size = ClusterSize::from_bits(bytes.trailing_zeros()).filter(|_| is_valid);
        let value = bytes.to_string();
        match size {
            Some(size) if extended_l2 && size.bits() < MIN_EXTENDED_L2_CLUSTER_BITS => {
                Err(wrong("cluster_size", &value, "at least 16384 with extended_l2=on"))
            }
            Some(size) => Ok(size),
            None => Err(wrong("cluster_size", &value, "a power of two from 512 to 2097152")),
        }
    }

    fn refcount_order(&self, version: Version) -> Result<u32, String> {
        let bits = self.get("refcount_bits").and_then(number).unwrap_or(16);
        let value = bits.to_string();
        if !bits.is_power_of_two() || bits.ilog2() > MAX_REFCOUNT_ORDER {
            return Err(wrong("refcount_bits", &value, "a power of two from 1 to 64"));
        }
        match version {
            Version::V2 if bits != 16 => Err(wrong("refcount_bits", &value, "16 with compat=0.10")),
            _ => Ok(bits.ilog2()),
        }
    }
}

impl OptionKind {
    fn expected(self) -> &'static str {
        match self {
            Self::Switch => "on or off",
            Self::Size => "a number of bytes, or a number with a suffix (k, M, G, T, P, E)",
            Self::Number => "a number",
            Self::Text => "text",
        }
    }
}

/// Returns the message about a wrong value.
fn wrong(name: &str, value: &str, expected: &str) -> String {
    format!("option '{name}' is '{value}', expected {expected}")
}

/// Splits the first option off a list. Returns its name, its value, and the rest of the list. A name without a value
/// has the value `on`. If it begins with "no", the rest is the name, and the value is `off` (QEMU `util/qemu-option.c`,
/// `get_opt_name_value`).
fn next_option(list: &str) -> (&str, String, &str) {
    let end = list.find(['=', ',']).unwrap_or(list.len());
    let (name, rest) = list.split_at(end);
    let Some(rest) = rest.strip_prefix('=') else {
        let rest = rest.strip_prefix(',').unwrap_or(rest);
        return match name.strip_prefix("no") {
            Some(name) => (name, "off".to_string(), rest),
            None => (name, "on".to_string(), rest),
        };
    };
    let (mut value, mut rest) = (String::new(), rest);
    loop {
        let Some((part, after)) = rest.split_once(',') else {
            value.push_str(rest);
            return (name, value, "");
        };
        value.push_str(part);
        match after.strip_prefix(',') {
            Some(after) => {
                value.push(',');
                rest = after;
            }
            None => return (name, value, after),
        }
    }
}

/// Parses a switch as QEMU does.
fn switch(value: &str) -> Option<bool> {
    match value {
        "on" | "yes" | "true" | "y" => Some(true),
        "off" | "no" | "false" | "n" => Some(false),
        _ => None,
    }
}

/// Parses a number as C does: decimal, octal after a 0, or hexadecimal.
fn number(value: &str) -> Option<u64> {
    let hexadecimal = value.strip_prefix("0x").or_else(|| value.strip_prefix("0X"));
    let (digits, radix) = match (hexadecimal, value.strip_prefix('0')) {
        (Some(digits), _) => (digits, 16),
        (None, Some(digits)) if !digits.is_empty() => (digits, 8),
        _ => (value, 10),
    };
    let digits_only = digits.chars().all(|digit| digit.is_digit(radix));
    digits_only.then(|| u64::from_str_radix(digits, radix).ok()).flatten()
}
