//! The options with which images are created.

use crate::disk::image_format::ImageFormat;
use crate::images::format::CreateOption;
use crate::images::list::drawer;

use super::{Draft, DraftImage};

/// The largest disk that is preallocated, in bytes.
const MAX_PREALLOCATED_BYTES: u64 = 16 << 20;
/// The largest disk whose clusters are preallocated without data, in bytes.
const MAX_PREALLOCATED_TABLES_BYTES: u64 = 64 << 20;
/// The largest disk with a raw data file, in bytes. QEMU allocates all of its clusters, and `qemu-img convert` reads
/// them all: 25 GiB take it 40 seconds.
const MAX_DATA_FILE_RAW_BYTES: u64 = 256 << 20;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The options of a new image, and the image as it will be.
pub(super) struct Options {
    /// The words behind `-o`, separated by commas.
    pub text: String,
    pub image: DraftImage,
}

impl Draft<'_> {
    /// Draws a virtual size in bytes. Some sizes end in the middle of a cluster, and some in the middle of a sector.
    pub(super) fn size(&mut self) -> u64 {
        let size = match self.choices.below(100) {
            0..=5 => MIB,
            6..=35 => 4 * MIB,
            36..=70 => 16 * MIB,
            71..=90 => 64 * MIB,
            91..=95 => 256 * MIB,
            96..=98 => GIB,
            _ => self.choices.below(64 * GIB),
        };
        match self.choices.below(6) {
            0 => size.saturating_add(512 * (1 + self.choices.below(4000))),
            1 => size.saturating_add(1 + self.choices.below(300_000)),
            _ => size,
        }
        .max(512)
    }

    /// Draws the options of a new image. An image on a backing file is not preallocated with data.
    pub(super) fn options(&mut self, format: ImageFormat, size: u64, is_overlay: bool) -> Options {
        let file = self.place_of(format);
        let image = DraftImage { file, format, size, unit: 64 * KIB, ..DraftImage::default() };
        match format {
            ImageFormat::Qcow2 => self.qcow2(image, is_overlay),
            ImageFormat::Raw => {
                let preallocation = match size {
                    0..=MAX_PREALLOCATED_BYTES => self.word(&["off", "falloc", "full"]),
                    _ => "off",
                };
                let image = DraftImage { unit: 4 * KIB, ..image };
                Options { text: format!("preallocation={preallocation}"), image }
            }
            ImageFormat::Vmdk => self.vmdk(image, is_overlay),
            _ => self.drawer_options(image),
        }
    }

    /// Draws a value for each option of the drawer. Large disks are not preallocated.
    fn drawer_options(&mut self, image: DraftImage) -> Options {
        let drawer = drawer(image.format);
        let is_large = image.size > MAX_PREALLOCATED_TABLES_BYTES;
        let mut text = String::new();
        let mut unit = drawer.created_block_bytes();
        for CreateOption { name, values, of_large_disk } in drawer.create_options() {
            let value = match of_large_disk.filter(|_| is_large) {
                Some(value) => value,
                None => self.word(values),
            };
            if *name == "block_size" {
                unit = value.parse().unwrap_or(unit);
            }
            let comma = if text.is_empty() { "" } else { "," };
            text += &format!("{comma}{name}={value}");
        }
        Options { text, image: DraftImage { unit, ..image } }
    }

    fn qcow2(&mut self, image: DraftImage, is_overlay: bool) -> Options {
        let size = image.size;
        let is_version_2 = self.percent(12);
        let smallest = match size {
            0..=16_777_216 => 9,
            16_777_217..=1_073_741_824 => 12,
            _ => 16,
        };
        let cluster_bits = match self.percent(25) {
            true => 16,
            false => smallest + self.choices.below(22 - smallest),
        };
        let unit = 1 << cluster_bits;
        if is_version_2 {
            let preallocation = self.preallocation(size, is_overlay, false);
            let text = format!("compat=0.10,cluster_size={unit}{preallocation}");
            let image = DraftImage { unit, ..image };
            return Options { text, image };
        }
        let extended_l2 = cluster_bits >= 14 && self.percent(35);
        let refcount_bits = match self.percent(60) {
            true => 16,
            false => self.one_of(&[1, 2, 4, 8, 32, 64]).unwrap_or(16),
        };
        // QEMU looks for a data file in the current folder, and for a backing file in that of the image. So no image in
        // a subfolder has a data file.
        let has_data_file = !is_overlay && self.percent(12) && !image.file.contains('/');
        let compression = self.word(&["zlib", "zstd"]);
        let lazy = self.word(&["off", "off", "on"]);
        let on = |value: bool| if value { "on" } else { "off" };
        let mut text = format!(
            "compat=1.1,cluster_size={unit},refcount_bits={refcount_bits},extended_l2={},\
             compression_type={compression},lazy_refcounts={lazy}",
            on(extended_l2)
        );
        text += &self.preallocation(size, is_overlay, extended_l2);
        if has_data_file {
            text += &format!(",data_file={}.data", image.file);
            if self.percent(50) && size <= MAX_DATA_FILE_RAW_BYTES {
                text += ",data_file_raw=on";
            }
        }
        Options { text, image: DraftImage { unit, has_data_file, ..image } }
    }

    /// Returns the option, with the comma before it. QEMU refuses most values for overlays.
    fn preallocation(&mut self, size: u64, is_overlay: bool, extended_l2: bool) -> String {
        let value = if is_overlay && !extended_l2 || size > MAX_PREALLOCATED_TABLES_BYTES {
            "off"
        } else if size > MAX_PREALLOCATED_BYTES {
            self.word(&["off", "off", "off", "metadata"])
        } else {
            self.word(&["off", "off", "off", "off", "metadata", "falloc", "full"])
        };
        format!(",preallocation={value}")
    }

    fn vmdk(&mut self, image: DraftImage, is_overlay: bool) -> Options {
        let kind = match image.size {
            _ if is_overlay => self.word(&["monolithicSparse", "twoGbMaxExtentSparse"]),
            0..=MAX_PREALLOCATED_TABLES_BYTES => self.word(&[
                "monolithicSparse",
                "monolithicSparse",
                "monolithicFlat",
                "twoGbMaxExtentSparse",
                "twoGbMaxExtentFlat",
                "streamOptimized",
            ]),
            _ => self.word(&["monolithicSparse", "monolithicSparse", "twoGbMaxExtentSparse"]),
        };
        let adapter = self.word(&["ide", "buslogic", "lsilogic", "legacyESX"]);
        let mut text = format!("subformat={kind},adapter_type={adapter}");
        if kind.ends_with("Sparse") && self.percent(40) {
            text += ",zeroed_grain=on";
        }
        text += match self.choices.below(4) {
            0 => ",compat6=on",
            1 => ",hwversion=13",
            2 => ",toolsversion=1234",
            _ => "",
        };
        Options { text, image: DraftImage { is_stream: kind == "streamOptimized", ..image } }
    }
}
