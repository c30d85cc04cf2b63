//! The rules of the oracle `refusal`, compared with qemu-img: it refuses each image, and each read, that breaks a rule.

use std::ffi::OsStr;
use std::path::Path;

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::disk::offsets::HostOffset;
use qcowfuzz::disk::storage::{FileStorage, Storage, each_data};
use qcowfuzz::images::Image;
use qcowfuzz::internal::images::damage::BrokenEntry;
use qcowfuzz::internal::images::format::list::drawer;

use crate::qemu::{self, Checked};
use crate::tally::Tally;

/// Refused images that break no rule: QEMU does not read the copy of a structure, checks more entries than
/// those that map the disk, or refuses what the format allows; or the rules leave out the files that an image names.
const WITHOUT_RULE: &str = "refused images that break no rule";
/// The number of images that break a rule.
pub const WITH_RULE: &str = "images that break a rule";

/// Returns the counts of a format, with their lowest values. Random images may miss a rule; `tests/qemu_refusals.rs`
/// has images for each of them.
pub fn bounds(format: ImageFormat) -> impl Iterator<Item = (&'static str, u64)> {
    let drawer = drawer(format);
    let rules = drawer.open_rules().into_iter().chain(drawer.entry_rules().iter().copied());
    rules.chain([WITHOUT_RULE]).map(|rule| (rule, 0))
}

/// Reads the data of a file into memory.
fn image_of(path: &Path) -> Checked<Image> {
    let file = FileStorage::open(path).map_err(|error| error.to_string())?;
    let mut image = Image::default();
    let all = HostOffset::ZERO..HostOffset::new(file.length_bytes());
    let mut scratch = vec![0; 1 << 16];
    let read = each_data(&file, all, &mut scratch, |data| {
        image.write(data.offset, data.bytes);
        Ok::<_, StorageError>(std::ops::ControlFlow::Continue(()))
    });
    let _ = read.map_err(|error| error.to_string())?;
    image.seal(file.length_bytes());
    image.cut(file.length_bytes());
    Ok(image)
}

/// Checks that QEMU refuses the image at `path`, or a read of it, if that breaks a rule. `refused` is the error of
/// qemu-img. Counts the broken rules.
pub fn compare(
    path: &Path,
    format: ImageFormat,
    refused: Option<&str>,
    tally: &mut Tally,
) -> Checked<()> {
    let image = image_of(path)?;
    match (drawer(format).broken_at_open(&image), refused) {
        (Some(rule), Some(_)) => {
            tally.add(rule, 1);
            tally.add(WITH_RULE, 1);
        }
        (Some(rule), None) => return Err(format!("qemu-img opens an image that breaks: {rule}")),
        (None, _) => {
            let mut broken: Vec<BrokenEntry> = Vec::new();
            drawer(format).broken_entries(&image, &mut |entry| {
                if broken.iter().all(|other| other.rule != entry.rule) {
                    broken.push(entry);
                }
            });
            for entry in &broken {
                let is_refused = refused.is_some() || !reads(path, format, entry)?;
                if !is_refused
                    || refused.is_none() && format != ImageFormat::Vmdk && !entry.is_mapped
                {
                    return Err(format!("qemu-img answers, and the image has {entry:?}"));
                }
                tally.add(entry.rule, 1);
            }
            tally.add(WITH_RULE, u64::from(!broken.is_empty()));
            if refused.is_some() && broken.is_empty() {
                tally.add(WITHOUT_RULE, 1);
            }
        }
    }
    Ok(())
}

/// Reports whether qemu-io reads the first byte of the range that an entry maps.
fn reads(path: &Path, format: ImageFormat, entry: &BrokenEntry) -> Checked<bool> {
    let command = format!("read {} 1", entry.guest.start);
    let arguments = ["-r", "-f", format.name(), "-c", &command].map(OsStr::new);
    let output = qemu::run("qemu-io", &[&arguments[..], &[path.as_os_str()]].concat())?;
    Ok(output.status.success())
}
