//! Disks that programs build: valid ones, and damaged ones.

use crate::base::limits::MAX_INPUT_BYTES;
use crate::disk::image_format::ImageFormat;
use crate::disk::storage::Storage;
use crate::programs::export;
use crate::programs::generate::{any_operation, generate_any};
use crate::programs::operation::Class;
use crate::programs::{Operation, Program};
use crate::walkers::Disk;

use crate::recipes::program::BuiltProgram;
use crate::recipes::recipe::Command;

use super::{Draft, DraftImage};

/// The largest disk of a program in bytes. qemu-img visits each L2 table of a disk, including missing ones.
const MAX_PROGRAM_DISK_BYTES: u64 = 1 << 30;
/// The highest total length of a program's files in bytes.
const MAX_PROGRAM_FILES_BYTES: u64 = 48 << 20;
/// The number of programs that are tried, until one is small enough.
const TRIES: usize = 64;
/// The number of operations: at least the first, less than the sum of both.
const OPERATIONS: (u64, u64) = (4, 30);

impl Draft<'_> {
    /// Draws a disk that a program builds. If no program is small enough, qemu-img makes the disk.
    pub(super) fn create_by_program(&mut self) {
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
