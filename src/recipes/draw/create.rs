//! Draws the disk with which an iteration begins.

use std::cmp::Reverse;

use super::{Draft, DraftImage};
use crate::base::limits::MAX_INPUT_BYTES;
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::images::format::list::drawer;
use crate::images::format::{CreateOption, DrawnOptions, NewDisk};
use crate::programs::generate::{any_operation, generate_any};
use crate::programs::operation::Class;
use crate::programs::{Operation, Program, export};
use crate::recipes::pattern::Pattern;
use crate::recipes::perform::BuiltProgram;
use crate::recipes::recipe::{Command, DiskOperation};
use crate::walkers::Disk;

/// The key of encrypted images.
const KEY: &str = "secret,id=key,data=qcowfuzz";
/// The unit of a disk with more than ten thousand extents, in bytes.
const STRIPE_BYTES: u64 = 512;
/// The lowest number of its pieces of data, and the number of possible ones.
const STRIPES: (u64, u64) = (5_100, 900);

impl Draft<'_> {
    /// Draws the first step.
    pub(super) fn create(&mut self) {
        match self.choices.below(100) {
            0..=17 => self.create_by_program(),
            18..=20 => self.create_stripes(),
            21..=44 => self.create_chain(),
            45 | 46 => self.create_encrypted(),
            _ => {
                let format = self.format();
                self.create_one(format);
            }
        }
        self.finish(DiskOperation::Create);
    }

    /// Draws a format.
    pub(super) fn format(&mut self) -> ImageFormat {
        let mut formats = ImageFormat::ALL.map(|format| (format, drawer(format).created_of_20()));
        // The most frequent format comes first.
        formats.sort_by_key(|(_, weight)| Reverse(*weight));
        let mut left = self.choices.below(formats.iter().map(|(_, weight)| weight).sum());
        let drawn = formats.into_iter().find(|(_, weight)| {
            let is_here = left < *weight;
            left = left.saturating_sub(*weight);
            is_here
        });
        drawn.map_or(ImageFormat::Qcow2, |(format, _)| format)
    }

    fn create_one(&mut self, format: ImageFormat) {
        let size = self.size().min(drawer(format).max_created_bytes());
        let Options { text, image } = self.options(format, size, false);
        let (file, size) = (image.file.clone(), size.to_string());
        self.img(["create", "-q", "-f", format.name(), "-o", &text, &file, &size]);
        self.top = image;
        self.fill();
    }

    fn create_chain(&mut self) {
        let format = self.format();
        self.create_one(format);
        for _ in 0..1 + self.choices.below(3) {
            self.put_overlay();
            self.fill();
        }
    }

    /// Puts an overlay on top: an image in the format below, if that has parents of its own, or qcow2 on any format.
    /// Its size may differ.
    pub(super) fn put_overlay(&mut self) {
        let backing = self.top.clone();
        let format = match backing.format {
            ImageFormat::Qcow2 => ImageFormat::Qcow2,
            other if other.facts().has_backing_files && self.percent(60) => other,
            _ => ImageFormat::Qcow2,
        };
        // QEMU gives an overlay in another format than qcow2 the size of its parent.
        let size = match self.choices.below(8) {
            _ if format != ImageFormat::Qcow2 => None,
            0 => Some(backing.size / 2 + 512),
            1 => Some(backing.size.saturating_add(700_000)),
            _ => None,
        };
        let length = size.unwrap_or(backing.size);
        let Options { text, image } = self.options(format, length, true);
        let name = self.backing_name(&image.file, &backing.file);
        let (file, backing_format) = (image.file.clone(), backing.format.name());
        let mut words = vec!["create", "-q", "-f", format.name(), "-o", &text, "-b", &name];
        words.extend(["-F", backing_format, &file]);
        let mut words: Vec<String> = words.into_iter().map(str::to_string).collect();
        words.extend(size.map(|size| size.to_string()));
        self.commands.push(Command::QemuImg(words));
        let lower = std::mem::replace(&mut self.top, image);
        self.below.insert(0, lower);
    }

    /// Creates an image that is encrypted by AES. Without the key, both sides refuse it. An image encrypted by LUKS has
    /// random bytes, and takes QEMU two seconds.
    fn create_encrypted(&mut self) {
        let size = self.size();
        let version = self.word(&["0.10", "1.1"]);
        let file = self.name(ImageFormat::Qcow2);
        let options = format!("compat={version},encrypt.format=aes,encrypt.key-secret=key");
        let text = size.to_string();
        self.img(["create", "-q", "--object", KEY, "-f", "qcow2", "-o", &options, &file, &text]);
        self.top = DraftImage { file, size, unit: 64 << 10, ..DraftImage::default() };
        let (at, length) = self.place();
        self.commands.push(Command::QemuIo {
            options: ["-t", "unsafe", "--object", KEY, "--image-opts"].map(str::to_string).to_vec(),
            requests: vec![format!("write -q -P 7 {at} {length}")],
            file: format!(
                "driver=qcow2,encrypt.key-secret=key,file.driver=file,file.filename={}",
                self.top.file
            ),
        });
    }

    /// Copies a raw file with thousands of small pieces of data to an image with small clusters.
    fn create_stripes(&mut self) {
        let (least, more) = STRIPES;
        let count = least + self.choices.below(more);
        let rng_seed = self.choices.long();
        let content = Pattern::Stripes { rng_seed, unit: STRIPE_BYTES, count };
        let source = self.pattern(content);
        let file = self.name(ImageFormat::Qcow2);
        let size = content.length();
        let line = "convert -q -t unsafe -S 512 -f raw -O qcow2 -o cluster_size=512";
        let words = line.split(' ').chain([&*source, &*file]).map(str::to_string);
        self.commands.push(Command::QemuImg(words.collect()));
        self.top = DraftImage {
            file,
            size,
            format: ImageFormat::Qcow2,
            unit: STRIPE_BYTES,
            ..DraftImage::default()
        };
    }
}

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
            _ => self.drawer_options(image, is_overlay),
        }
    }

    /// Draws options of the drawer: all at once, or a value for each. Large disks are not preallocated.
    fn drawer_options(&mut self, image: DraftImage, is_overlay: bool) -> Options {
        let drawer = drawer(image.format);
        let is_large = image.size > MAX_PREALLOCATED_TABLES_BYTES;
        let disk = NewDisk { is_overlay, is_large };
        if let Some(drawn) =
            drawer.draw_create_options(disk, &mut |bound| self.choices.below(bound))
        {
            let DrawnOptions { text, is_stream } = drawn;
            return Options { text, image: DraftImage { is_stream, ..image } };
        }
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
}

/// The largest disk of a program in bytes. qemu-img visits each L2 table of a disk, including missing ones.
const MAX_PROGRAM_DISK_BYTES: u64 = 1 << 30;
/// The highest total length of a program's files in bytes.
const MAX_PROGRAM_FILES_BYTES: u64 = 48 << 20;
/// The number of programs that are tried, until one is small enough.
const TRIES: usize = 64;
/// The lowest number of operations of a program, and the number of possible values from there on.
const OPERATIONS: (u64, u64) = (4, 30);

impl Draft<'_> {
    /// Draws a disk that a program builds. If no program is small enough, qemu-img makes the disk.
    fn create_by_program(&mut self) {
        let is_damaged = self.percent(30);
        for _ in 0..TRIES {
            let program = self.program(is_damaged);
            if let Some(image) = built(&program) {
                let file = self.name(image.format);
                let input = hex::encode(program.encode());
                self.commands.push(Command::Program { input, file: file.clone() });
                self.top = DraftImage { file, ..image };
                return;
            }
        }
        self.create_raw();
    }

    fn create_raw(&mut self) {
        let file = self.name(ImageFormat::Raw);
        self.img(["create", "-q", "-f", "raw", &file, "1M"]);
        let format = ImageFormat::Raw;
        self.top = DraftImage { file, format, size: 1 << 20, unit: 4096, ..DraftImage::default() };
    }

    fn program(&mut self, is_damaged: bool) -> Program {
        let (least, more) = OPERATIONS;
        let count = least + self.choices.below(more);
        let mut program = generate_any(self.choices.long(), count as usize);
        if !is_damaged {
            // A campaign runs all programs as those of `hostile`, which use given bytes unchanged.
            program
                .operations
                .retain(|one| !matches!(one, Operation::Bytes { .. } | Operation::Data(_)));
        }
        let attacks = if is_damaged { 1 + self.choices.below(2) } else { 0 };
        let mut added = 0;
        while added < attacks {
            let attack = any_operation(self.choices).filter(is_in_a_file);
            added += attack.iter().len() as u64;
            program.operations.extend(attack);
        }
        program
    }
}

/// Reports whether an operation damages the files. Reads fail in memory only.
fn is_in_a_file(operation: &Operation) -> bool {
    matches!(operation, Operation::Patch { .. } | Operation::Truncate { .. })
        && operation.class() == Class::Attacks
}

/// Builds a program, and describes its top image. Returns `None` if its files or its disk are too large.
fn built(program: &Program) -> Option<DraftImage> {
    let input = program.encode();
    if input.len() as u64 > MAX_INPUT_BYTES {
        return None;
    }
    let names = export::names("disk".as_ref());
    let BuiltProgram { vm, images } = BuiltProgram::new(&input, &names);
    let lengths = images.files(&names).map(|(_, image)| image.length_bytes());
    if lengths.fold(0, u64::saturating_add) > MAX_PROGRAM_FILES_BYTES {
        return None;
    }
    let format = images.layers().next()?.format;
    let layers: Vec<_> = images.layers().map(|files| files.layer()).collect();
    // A damaged image may not open.
    let size = Disk::open_as(format, &layers).map_or(0, |disk| disk.virtual_size_bytes());
    let unit = vm.builder().plan().geometry.cluster_size.bytes();
    (size <= MAX_PROGRAM_DISK_BYTES).then(|| DraftImage {
        format,
        size,
        unit,
        ..DraftImage::default()
    })
}
