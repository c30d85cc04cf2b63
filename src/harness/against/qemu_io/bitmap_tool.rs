//! qemu-img, for changes of persistent dirty bitmaps.

use crate::disk::storage::Storage;
use crate::formats::qcow2::bitmap;
use crate::formats::qcow2::constants::BITMAP_FIXED_BYTES;
use crate::formats::qcow2::head::Head;
use crate::harness::engine::{Answer, BitmapChange, EngineError};
use crate::harness::engines::image_program::is_plain;
use crate::harness::files::chain::ChainFile;

use super::image_tool::{self, ToolAnswer, new_name};
use super::recorded::ImageOptions;

/// Returns the names of the bitmaps of an image, in the order of its directory.
pub(super) fn names(file: &ChainFile) -> Answer<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    if let Some(extension) = &Head::read(file)?.bitmaps {
        bitmap::each_entry(file, extension, |_, at, entry| {
            let mut name = vec![0; usize::from(entry.name_bytes)];
            let behind = BITMAP_FIXED_BYTES as u64;
            file.read_at(at + behind + u64::from(entry.extra_bytes), &mut name)?;
            names.push(name);
            Ok(())
        })?;
    }
    Ok(names)
}

/// Returns the name of the bitmap at `index`, or a new one, if a command can have it.
pub(super) fn name(names: &[Vec<u8>], index: usize, change: BitmapChange) -> Answer<String> {
    if let BitmapChange::Add { .. } = change {
        return Ok(new_name(names.iter().map(Vec::as_slice)));
    }
    let name = names.get(index).filter(|name| !name.is_empty() && is_plain(name));
    let name = name.ok_or_else(|| EngineError::unsupported("such a bitmap"))?;
    // All bytes are ASCII.
    Ok(String::from_utf8_lossy(name).into_owned())
}

/// Changes a bitmap of the image that `options` name.
pub(super) fn run(name: &str, change: BitmapChange, options: &ImageOptions) -> ToolAnswer {
    let flags = match change {
        BitmapChange::Add { granularity_bits, is_enabled } => {
            let disabled = if is_enabled { "" } else { " --disable" };
            format!("--add -g {}{disabled}", 1u64 << granularity_bits)
        }
        BitmapChange::Remove => "--remove".to_string(),
        BitmapChange::Clear => "--clear".to_string(),
        BitmapChange::Enable => "--enable".to_string(),
        BitmapChange::Disable => "--disable".to_string(),
    };
    let options = &options.alone;
    image_tool::run(&format!("qemu-img bitmap {flags} --image-opts '{options}' {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_name_is_free_and_others_are_plain() {
        let names: Vec<Vec<u8>> =
            ["new-0", "", "b\u{e9}", "b4"].map(|name| name.as_bytes().to_vec()).to_vec();
        let add = BitmapChange::Add { granularity_bits: 9, is_enabled: true };
        assert_eq!(name(&names, 4, add).unwrap(), "new-1");
        let found = [0, 1, 2, 3, 4].map(|index| name(&names, index, BitmapChange::Clear).ok());
        let [first, last] = ["new-0", "b4"].map(|name| Some(name.to_string()));
        assert_eq!(found, [first, None, None, last, None]);
    }
}
