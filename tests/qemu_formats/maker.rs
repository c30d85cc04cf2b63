//! Makes images with qemu-img, and changes them with qemu-io.

use std::ffi::OsStr;
use std::path::Path;

use qcowfuzz::disk::image_format::ImageFormat;
use qcowfuzz::internal::images::entropy::Entropy;

use crate::comparison::one_of;
use crate::qemu::{self, Checked};

/// Creates an image of `size` bytes with these options of the format, and `more` options of the command.
pub fn create(
    path: &Path,
    format: ImageFormat,
    options: &str,
    size: u64,
    more: &[&OsStr],
) -> Checked<()> {
    let size = size.to_string();
    let mut arguments =
        ["create", "-q", "-f", format.name(), "-o", options].map(OsStr::new).to_vec();
    arguments.extend(more);
    arguments.extend([path.as_os_str(), OsStr::new(&size)]);
    qemu::img(&arguments).map(drop)
}

/// Writes data and zeros to an image of `size` bytes, a few times.
pub fn change(path: &Path, format: ImageFormat, size: u64, entropy: &mut Entropy) -> Checked<()> {
    let commands: Vec<String> = (0..entropy.below(5))
        .map(|_| {
            let (at, pattern) = (entropy.below(size / 512) * 512, entropy.below(256));
            let length = (512 * (1 + entropy.below(300))).min(size - at);
            let kind = one_of(entropy, [format!("write -P {pattern}"), "write -z".to_string()]);
            format!("{kind} {at} {length}")
        })
        .collect();
    qemu::io_with(path, &["-f", format.name()], &commands).map(drop)
}
