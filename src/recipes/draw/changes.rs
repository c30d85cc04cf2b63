//! Draws the operations that change a disk.

use super::create::Options;
use super::writes::WriteKind;
use super::{Draft, DraftImage};
use crate::disk::image_format::ImageFormat;
use crate::images::format::list::drawer;
use crate::recipes::recipe::{Command, DiskOperation};

/// The bytes of a piece of damage.
const DAMAGE_BYTES: usize = 8;
/// The damage lies in the first clusters, where QEMU puts the tables of a new image.
const DAMAGED_CLUSTERS: u64 = 5;
/// The damage lies in this first part of a cluster.
const DAMAGED_PART_BYTES: u64 = 2048;
/// The first entries of a table, which lie in this part, are those that a small disk uses.
const FIRST_ENTRIES_BYTES: u64 = 32;
/// The largest disk that an operation may write whole, in bytes.
pub(super) const MAX_FILLED_BYTES: u64 = 64 << 20;
/// The most clusters that a disk loses: QEMU discards them one by one, and 300,000 take it more than ten seconds.
const MAX_CUT_CLUSTERS: u64 = 1 << 15;
/// The largest clusters, in bytes, of an image whose refcounts get another width. QEMU visits each entry of each block
/// that the refcount table could have: 2^37 entries, and ten minutes, for an empty image with clusters of 2 MiB.
const MAX_REFCOUNT_AMEND_CLUSTER: u64 = 16 << 10;
/// The largest growth of a disk in bytes.
const MAX_GROWTH_BYTES: u64 = 4 << 20;

impl Draft<'_> {
    /// Draws one operation.
    pub(super) fn change(&mut self) {
        let operation = self.operation();
        match operation {
            DiskOperation::Create | DiskOperation::Write => self.requests_of(WriteKind::Data),
            DiskOperation::Zero => self.requests_of(WriteKind::Zeros),
            DiskOperation::Discard => self.requests_of(WriteKind::Discard),
            DiskOperation::Resize => self.resize(),
            DiskOperation::Snapshot => self.snapshot(),
            DiskOperation::Convert => self.convert(),
            DiskOperation::Rebase => self.rebase(),
            DiskOperation::Commit => self.commit(),
            DiskOperation::Amend => self.amend(),
            DiskOperation::Bitmap => self.bitmap(),
            DiskOperation::Damage => self.damage(),
            DiskOperation::Repair => self.repair(),
        }
        self.finish(operation);
    }

    /// Draws which operation comes next: each equally often, but damage takes a part of the draws of repair.
    fn operation(&mut self) -> DiskOperation {
        let is_drawn = |operation: &DiskOperation| {
            !matches!(operation, DiskOperation::Create | DiskOperation::Damage)
        };
        let drawn: Vec<_> = DiskOperation::ALL.iter().copied().filter(is_drawn).collect();
        match self.one_of(&drawn) {
            Some(DiskOperation::Repair) if self.percent(30) => DiskOperation::Damage,
            operation => operation.unwrap_or(DiskOperation::Write),
        }
    }

    fn requests_of(&mut self, kind: WriteKind) {
        let count = 1 + self.choices.below(8);
        self.requests(count, |_| kind);
    }

    fn resize(&mut self) {
        let size = self.top.size;
        let shrinks = self.percent(45);
        let most = self.top.unit.max(512).saturating_mul(MAX_CUT_CLUSTERS);
        let size = match shrinks {
            true => size.saturating_sub(self.choices.below(size.min(most))).max(512),
            false => size.saturating_add(1 + self.choices.below(MAX_GROWTH_BYTES)),
        };
        let size = if self.percent(70) { size.next_multiple_of(512) } else { size };
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        let text = size.to_string();
        match (shrinks, self.top.format) {
            (true, _) => self.img(["resize", "-q", "--shrink", "-f", format, &file, &text]),
            (false, ImageFormat::Qcow2 | ImageFormat::Raw) => {
                let value = self.word(&["off", "off", "metadata", "falloc", "full"]);
                let value = format!("--preallocation={value}");
                self.img(["resize", "-q", &value, "-f", format, &file, &text]);
            }
            (false, _) => self.img(["resize", "-q", "-f", format, &file, &text]),
        }
        self.top.size = size;
    }

    /// Changes internal snapshots, or puts an overlay on top and fills it.
    fn snapshot(&mut self) {
        if self.top.format != ImageFormat::Qcow2 || self.percent(25) {
            self.put_overlay();
            return self.fill();
        }
        let file = self.top.file.clone();
        if self.top.snapshots.is_empty() || self.percent(60) {
            let name = format!("snapshot{}", self.steps.len());
            self.img(["snapshot", "-q", "-c", &name, &file]);
            self.top.snapshots.push(name);
            // After it, a write copies clusters that are shared.
            let count = self.choices.below(4);
            self.requests(count, |_| WriteKind::Data);
        }
        let known = self.top.snapshots.clone();
        let Some(name) = known.get(self.choices.below(known.len() as u64) as usize) else { return };
        match self.choices.below(6) {
            0 | 1 => self.img(["snapshot", "-q", "-a", name, &file]),
            2 | 3 => {
                self.img(["snapshot", "-q", "-d", name, &file]);
                self.top.snapshots.retain(|other| other != name);
            }
            _ => {}
        }
    }

    /// Copies the disk to an image of any format. The copy is the disk from now on.
    fn convert(&mut self) {
        let size = self.top.size;
        let format = match self.format() {
            format if size > drawer(format).max_created_bytes() => ImageFormat::Qcow2,
            format => format,
        };
        let Options { text, image } = self.options(format, size, false);
        let (source, source_format) = (self.top.file.clone(), self.top.format.name());
        let target = image.file.clone();
        let mut words = ["convert", "-q", "-t", "unsafe"].map(str::to_string).to_vec();
        // An existing target may hold anything: qemu-img writes all zeros.
        let is_made_before = self.percent(25) && !image.is_stream && size <= MAX_FILLED_BYTES;
        if is_made_before {
            let size = size.to_string();
            self.img(["create", "-q", "-f", format.name(), "-o", &text, &target, &size]);
            words.push("-n".to_string());
        }
        if format == ImageFormat::Qcow2 && !image.has_data_file && self.percent(40) {
            words.push("-c".to_string());
        }
        if self.percent(40) {
            // With 0, qemu-img writes all zeros.
            let unit = match size {
                0..=MAX_FILLED_BYTES => self.word(&["0", "4k", "512", "64k"]),
                _ => self.word(&["4k", "512", "64k"]),
            };
            words.extend(["-S", unit].map(str::to_string));
        }
        words.extend(["-O", format.name()].map(str::to_string));
        if !is_made_before {
            words.extend(["-o".to_string(), text]);
        }
        match self.percent(20) {
            true => {
                let source =
                    format!("driver={source_format},file.driver=file,file.filename={source}");
                words.extend(["--image-opts".to_string(), source]);
                if is_made_before {
                    // With --image-opts, an existing target needs its options, too.
                    words.push("--target-image-opts".to_string());
                    words.retain(|word| word != "-O" && word != format.name());
                    let target =
                        format!("driver={},file.driver=file,file.filename={target}", format.name());
                    words.push(target);
                } else {
                    words.push(target);
                }
            }
            false => words.extend(["-f", source_format, &source, &target].map(str::to_string)),
        }
        self.commands.push(Command::QemuImg(words));
        self.top = image;
        self.below.clear();
    }

    /// Changes options of a qcow2 image.
    fn amend(&mut self) {
        let option = match self.choices.below(6) {
            0 => "compat=0.10".to_string(),
            1 => "compat=1.1".to_string(),
            2 => format!("lazy_refcounts={}", self.word(&["on", "off"])),
            3 if self.top.unit <= MAX_REFCOUNT_AMEND_CLUSTER => {
                format!("refcount_bits={}", self.word(&["1", "4", "8", "16", "64"]))
            }
            3 => "lazy_refcounts=on".to_string(),
            4 => format!("size={}", self.top.size.saturating_add(65_536)),
            _ => format!("data_file_raw={}", self.word(&["on", "off"])),
        };
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        self.img(["amend", "-q", "-f", format, "-o", &option, &file]);
    }

    /// Adds one to three bitmaps, and changes bitmaps. Only qcow2 images have them, so most other disks get an overlay
    /// before.
    fn bitmap(&mut self) {
        if self.top.format != ImageFormat::Qcow2 && self.percent(60) {
            self.put_overlay();
        }
        for _ in 0..1 + self.choices.below(3) {
            self.add_bitmap();
        }
        // Enabled bitmaps record these writes.
        let count = self.choices.below(4);
        self.requests(count, |_| WriteKind::Data);
        for _ in 0..1 + self.choices.below(3) {
            self.change_bitmap();
        }
    }

    fn add_bitmap(&mut self) {
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        let name = format!("bitmap{}-{}", self.steps.len(), self.commands.len());
        let grain = self.word(&["512", "4096", "65536", "1M"]);
        self.img(["bitmap", "--add", "-g", grain, "-f", format, &file, &name]);
        self.top.bitmaps.push(name);
    }

    fn change_bitmap(&mut self) {
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        let known = self.top.bitmaps.clone();
        let mut chosen = || known.get(self.choices.below(known.len() as u64) as usize);
        let (Some(one), Some(other)) = (chosen(), chosen()) else { return };
        match self.choices.below(10) {
            0..=3 if one != other => {
                self.img(["bitmap", "--merge", other, "-f", format, &file, one]);
            }
            0..=3 => self.img(["bitmap", "--clear", "-f", format, &file, one]),
            4 | 5 => self.img(["bitmap", "--disable", "-f", format, &file, one]),
            6 | 7 => self.img(["bitmap", "--enable", "-f", format, &file, one]),
            _ => {
                self.img(["bitmap", "--remove", "-f", format, &file, one]);
                self.top.bitmaps.retain(|other| other != one);
            }
        }
    }

    /// Repairs an image, which is damaged before in most draws.
    fn repair(&mut self) {
        if self.percent(70) {
            self.damage();
        }
        let file = self.top.file.clone();
        let what = self.word(&["leaks", "all", "all"]);
        let format = self.top.format.name();
        self.img(["check", "-q", "-f", format, "-r", what, &file]);
    }

    /// Changes eight bytes of an image, in most draws among the first entries of a table.
    fn damage(&mut self) {
        let unit = self.top.unit.clamp(512, 2 << 20);
        let reach = if self.percent(70) { FIRST_ENTRIES_BYTES } else { DAMAGED_PART_BYTES };
        let place = self.choices.below(unit.min(reach)) / 8 * 8;
        let at =
            unit.saturating_mul(1 + self.choices.below(DAMAGED_CLUSTERS)).saturating_add(place);
        let byte = self.choices.below(4) as u8;
        let bytes = hex::encode([byte; DAMAGE_BYTES]);
        self.commands.push(Command::Damage { file: self.top.file.clone(), at, bytes });
    }
}

impl Draft<'_> {
    /// Changes the backing file of the top image. An image without one gets an overlay before.
    pub(super) fn rebase(&mut self) {
        if self.below.is_empty() {
            self.put_overlay();
            self.requests(3, |_| WriteKind::Data);
        }
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        // A safe rebase reads, and may write, the whole disk.
        let is_large = self.top.size > MAX_FILLED_BYTES;
        match self.choices.below(4) {
            0 if !is_large => {
                self.img(["rebase", "-q", "-f", format, "-b", "", &file]);
                self.below.clear();
            }
            0 | 1 => {
                self.img(["rebase", "-q", "-u", "-f", format, "-b", "", &file]);
                self.below.clear();
            }
            kind => self.rebase_to_another(kind == 2 && !is_large),
        }
    }

    fn rebase_to_another(&mut self, is_safe: bool) {
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        // The image two layers down, or a copy of the one below.
        let (other, from) = match self.below.get(1) {
            Some(lower) if self.choices.one_in(2) => (lower.clone(), 1),
            _ => {
                let Some(lower) = self.below.first().cloned() else { return };
                (self.copy_of(&lower), 0)
            }
        };
        let name = self.backing_name(&file, &other.file);
        let mut words = vec!["rebase", "-q", "-f", format];
        if !is_safe {
            words.push("-u");
        }
        words.extend(["-b", &name, "-F", other.format.name(), &file]);
        self.commands.push(Command::QemuImg(words.into_iter().map(str::to_string).collect()));
        self.below.drain(..from);
        if let Some(lower) = self.below.first_mut() {
            *lower = other;
        }
    }

    /// Has an image copied, with all below it, to one image of the same format.
    fn copy_of(&mut self, image: &DraftImage) -> DraftImage {
        let file = self.name(image.format);
        let format = image.format.name();
        self.img(["convert", "-q", "-t", "unsafe", "-f", format, "-O", format, &image.file, &file]);
        DraftImage {
            file,
            unit: image.unit,
            size: image.size,
            format: image.format,
            ..DraftImage::default()
        }
    }

    /// Moves the content of the top image down. Later operations go on with the lower image, or with the emptied one.
    pub(super) fn commit(&mut self) {
        if self.below.is_empty() {
            self.put_overlay();
            self.requests(5, |_| WriteKind::Data);
        }
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        match self.choices.below(3) {
            0 => self.img(["commit", "-q", "-d", "-t", "unsafe", "-f", format, &file]),
            _ => self.img(["commit", "-q", "-t", "unsafe", "-f", format, &file]),
        }
        if self.choices.one_in(2) {
            let lower = self.below.remove(0);
            let size = lower.size.max(self.top.size);
            self.top = DraftImage { size, ..lower };
        }
    }
}
