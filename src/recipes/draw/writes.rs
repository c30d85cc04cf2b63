//! Draws requests for qemu-io: data, zeros and discards, anywhere on the disk.

use crate::disk::image_format::ImageFormat;
use crate::images::content::LOOK_BYTES;
use crate::images::format::looks;

use crate::recipes::pattern::Pattern;
use crate::recipes::recipe::{ABORT, COMPRESSED_WRITE, Command};

use super::Draft;

/// The length of a file of noise in bytes. qemu-io repeats it.
const PATTERN_BYTES: u64 = 16 << 10;
/// The longest write in bytes.
const MAX_WRITE_BYTES: u64 = 512 << 10;

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteKind {
    Data,
    Zeros,
    Discard,
}

impl Draft<'_> {
    /// Fills a new image with data and zeros, or leaves it empty.
    pub(super) fn fill(&mut self) {
        if self.percent(8) {
            return;
        }
        let count = 6 + self.choices.below(20);
        self.requests(count, |draft| match draft.choices.below(10) {
            0 => WriteKind::Zeros,
            1 => WriteKind::Discard,
            _ => WriteKind::Data,
        });
    }

    /// Adds a command of qemu-io with up to `count` requests.
    pub(super) fn requests(&mut self, count: u64, kind: impl Fn(&mut Self) -> WriteKind) {
        let mut requests = Vec::new();
        for _ in 0..count {
            let kind = kind(self);
            match self.top.is_stream {
                true => requests.push(self.next_in_stream()),
                false => requests.extend(self.request(kind)),
            }
        }
        // A compressed write may destroy data if the cluster before it was freed: the fault `compressed-overwrite` of
        // `docs/differential.md`. So compressed writes come first.
        requests.sort_by_key(|request| !request.starts_with(COMPRESSED_WRITE));
        // A process that dies leaves its tables as they are in the file: dirty images, leaks.
        if self.percent(4) {
            requests.push(ABORT.to_string());
        }
        let (file, format) = (self.top.file.clone(), self.top.format.name());
        let options = match self.percent(15) {
            true => vec!["-t".to_string(), "unsafe".to_string(), "--image-opts".to_string()],
            false => ["-t", "unsafe", "-f", format].map(str::to_string).to_vec(),
        };
        let file = match options.len() {
            3 => format!("driver={format},file.driver=file,file.filename={file}"),
            _ => file,
        };
        self.commands.push(Command::QemuIo { options, requests, file });
    }

    fn request(&mut self, kind: WriteKind) -> Vec<String> {
        let (at, length) = self.place();
        vec![match kind {
            WriteKind::Zeros => {
                let unmap = if self.percent(40) { " -u" } else { "" };
                format!("write -q -z{unmap} {at} {length}")
            }
            WriteKind::Discard => format!("discard -q {at} {length}"),
            WriteKind::Data => return self.data(at, length),
        }]
    }

    fn data(&mut self, at: u64, length: u64) -> Vec<String> {
        vec![match self.choices.below(12) {
            0 => format!("write -q -P 0 {at} {length}"),
            1..=3 => {
                let content =
                    Pattern::Noise { rng_seed: self.choices.below(4), length: PATTERN_BYTES };
                let file = self.pattern(content);
                format!("write -q -s {file} {at} {length}")
            }
            4 => self.look(),
            5 if self.top.format == ImageFormat::Qcow2 && !self.top.has_data_file => {
                return self.compressed(at);
            }
            _ => format!("write -q -P {} {at} {length}", 1 + self.choices.below(255)),
        }]
    }

    /// Returns writes of one to three compressed clusters. QEMU compresses the clusters of one request in threads, and
    /// places each when its thread is ready: two images of one such recipe would differ. So each has its request.
    fn compressed(&mut self, at: u64) -> Vec<String> {
        let unit = self.top.unit;
        let (first, count) = (at / unit, 1 + self.choices.below(3));
        let pattern = self.choices.below(256);
        let starts = (first..first.saturating_add(count)).map(|number| number.saturating_mul(unit));
        starts.map(|start| format!("{COMPRESSED_WRITE} -P {pattern} {start} {unit}")).collect()
    }

    /// Returns a write of a sector that looks like a partition table or another file, where a reader would look for it.
    fn look(&mut self) -> String {
        let index = match self.percent(40) {
            true => 0,
            false => self.choices.below(looks::all().len() as u64) as usize,
        };
        let file = self.pattern(Pattern::Look(index));
        let length = LOOK_BYTES as u64;
        let is_at_end = looks::all().get(index).is_some_and(|look| look.form.is_at_end);
        let at = if is_at_end { self.top.size.saturating_sub(length) / length * length } else { 0 };
        format!("write -q -s {file} {at} {length}")
    }

    /// Returns the next compressed write of a stream, which QEMU appends to the file.
    fn next_in_stream(&mut self) -> String {
        let unit = self.top.unit;
        let at = self.top.stream_end.saturating_add(unit.saturating_mul(self.choices.below(6)));
        self.top.stream_end = at.saturating_add(unit);
        format!("{COMPRESSED_WRITE} -P {} {at} {unit}", self.choices.below(256))
    }

    /// Draws a range of guest bytes: anywhere or near the start; in whole units, whole sectors or neither.
    pub(super) fn place(&mut self) -> (u64, u64) {
        let (size, unit) = (self.top.size.max(1), self.top.unit.max(512));
        let reach = match self.choices.below(4) {
            0 => size.min(unit.saturating_mul(16)),
            _ => size,
        };
        let grain = self.one_of(&[1, 512, 4096, unit, unit]).unwrap_or(1);
        let at = self.choices.below(reach) / grain * grain;
        let most = match self.choices.below(8) {
            0 => MAX_WRITE_BYTES,
            1..=4 => unit.saturating_mul(2),
            _ => 4096,
        };
        let length = 1 + self.choices.below(most.min(MAX_WRITE_BYTES));
        let length = length.next_multiple_of(grain.min(4096));
        (at, length.min(size - at).max(1))
    }
}
