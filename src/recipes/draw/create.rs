//! Draws the disk with which an iteration begins.

use crate::disk::image_format::ImageFormat;

use crate::recipes::pattern::Pattern;
use crate::recipes::recipe::{Command, DiskOperation};

use super::options::Options;
use super::{Draft, DraftImage};

/// The largest VMDK disk in bytes: more than two files of 2 GiB. `qemu-img map` asks for the grains of 64 KiB one by
/// one, and a chain on 50 GiB takes it 16 seconds.
pub(super) const MAX_VMDK_BYTES: u64 = 5 << 30;
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

    /// Draws a format. qcow2 has the most structures, and QEMU reports nothing of VHDX.
    pub(super) fn format(&mut self) -> ImageFormat {
        match self.choices.below(20) {
            0..=8 => ImageFormat::Qcow2,
            9..=12 => ImageFormat::Vmdk,
            13..=15 => ImageFormat::Vpc,
            16 | 17 => ImageFormat::Raw,
            18 => ImageFormat::Vhdx,
            _ => ImageFormat::Vdi,
        }
    }

    fn create_one(&mut self, format: ImageFormat) {
        let size = match format {
            ImageFormat::Vmdk => self.size().min(MAX_VMDK_BYTES),
            _ => self.size(),
        };
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

    /// Puts an overlay on top: VMDK on VMDK, or qcow2 on any format. Its size may differ.
    pub(super) fn put_overlay(&mut self) {
        let backing = self.top.clone();
        let format = match backing.format {
            ImageFormat::Vmdk if self.percent(60) => ImageFormat::Vmdk,
            _ => ImageFormat::Qcow2,
        };
        // QEMU gives a VMDK overlay the size of its parent.
        let size = match self.choices.below(8) {
            _ if format == ImageFormat::Vmdk => None,
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
        self.img([
            "convert",
            "-q",
            "-t",
            "unsafe",
            "-S",
            "512",
            "-f",
            "raw",
            "-O",
            "qcow2",
            "-o",
            "cluster_size=512",
            &source,
            &file,
        ]);
        self.top = DraftImage {
            file,
            size,
            format: ImageFormat::Qcow2,
            unit: STRIPE_BYTES,
            ..DraftImage::default()
        };
    }
}
