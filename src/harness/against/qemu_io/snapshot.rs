//! A snapshot as QEMU reads it: `qemu-img convert -l` copies its disk to a file. The copy has as many bytes as the
//! active disk. So the table of snapshots says how many of them count, and a longer snapshot is not compared.

use std::path::Path;

use crate::disk::offsets::GuestOffset;
use crate::formats::qcow2::header::Header;
use crate::harness::against::second_opinion::windows::SECTOR_BYTES;
use crate::harness::engine::{Answer, EngineError, OpenDisk, Opened};
use crate::harness::engines::image_program::{
    ConvertedFile, ImageCommands, NamedSnapshot, snapshots,
};
use crate::harness::files::chain::Chain;

/// The largest disk that is copied, in bytes: the copy lies where the files of the image do, which may be memory.
const MAX_COPIED_BYTES: u64 = 64 << 20;
/// The name of the copy.
const COPY: &str = "snapshot.raw";

/// Opens the snapshot at `index` of the image in the file `path`, which is that at the top of `chain`.
pub(super) fn open<'s>(chain: &Chain, path: &Path, index: u32) -> Opened<'s> {
    let file = chain.image();
    let (snapshots, nth) = (snapshots(file, &Header::read(file)?)?, index as usize);
    let string = NamedSnapshot::string_of(&snapshots, nth)?;
    let size_bytes = snapshots.get(nth).map_or(0, |snapshot| snapshot.size_bytes);
    let size_bytes = size_bytes / SECTOR_BYTES * SECTOR_BYTES;
    let (Some(folder), true) = (path.parent(), size_bytes <= MAX_COPIED_BYTES) else {
        return Err(EngineError::NoAnswer);
    };
    let source = path.to_string_lossy();
    let convert = ["convert", "-q", "-U", "-t", "unsafe", "-l", string, "-f", "qcow2", "-O", "raw"];
    let files = [&*source, COPY];
    ImageCommands { line: "qemu-img", folder }.answer(&[&convert[..], &files].concat())?;
    let copy = ConvertedFile::open(folder.join(COPY))?;
    match copy.length_bytes()? < size_bytes {
        true => Err(EngineError::NoAnswer),
        false => Ok(Box::new(CopiedDisk { copy, size_bytes })),
    }
}

/// The disk of a snapshot.
#[derive(Debug)]
struct CopiedDisk {
    copy: ConvertedFile,
    size_bytes: u64,
}

impl OpenDisk for CopiedDisk {
    fn virtual_size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.copy.read(guest, into)
    }
}
