//! QEMU as an engine: a long-running qemu-io opens the images, reads them and writes to them. It is the reference
//! implementation of writing.
//!
//! QEMU writes to copies of the image and of its data file, and records each write and each flush. The engine repeats
//! them in the files of the chain, so that the harness sees their order.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::disk::offsets::HostOffset;
use crate::formats::qcow2::header::Header;
use crate::harness::cases::implementation::{Expression, Implementation};
use crate::harness::engine::{AccessFeedback, Answer, Engine, Facts, NewImage, Opened};
use crate::harness::files::chain::{Chain, ChainFile};

use super::commands::{QemuCommands, not_given_without_room};
use super::disk::QemuDisk;
use super::qemu_img;
use super::recorded::{RecordedFiles, data_file_options, name_of, unreadable};
use super::script::SessionScript;

/// The bytes of a new image that are copied at once.
const NEW_PIECE_BYTES: usize = 64 << 10;

/// QEMU under test.
#[derive(Debug, Default)]
pub struct QemuEngine {
    commands: QemuCommands,
}

impl QemuEngine {
    /// Returns QEMU as the implementation under test.
    pub fn under_test() -> Implementation {
        let expression = "qcowfuzz::harness::against::qemu_io::QemuEngine::default()";
        Implementation::from(Self::default()).written_as(Expression::Engine(expression.into()))
    }
}

/// A clone has a process and files of its own, and no script.
impl Clone for QemuEngine {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl Engine for QemuEngine {
    fn facts(&self) -> Facts {
        // QEMU reads copies of the files, and the harness sees no access.
        Facts { reads: AccessFeedback::None, ..Facts::new("qemu") }
    }

    fn begin_run(&mut self) {
        self.commands.io.begin_run();
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let path = self.commands.files.write(chain)?;
        let header = Header::read(chain.image())?;
        let data_files = data_file_options(chain, 0);
        self.commands
            .open_with(format_args!("-r -o driver=qcow2{data_files} {}", name_of(&path)))?;
        self.opened(&header, None, Some(chain))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let path = self.commands.files.write(chain)?;
        let header = Header::read(chain.image())?;
        // QEMU writes to the file from now on.
        self.commands.files.forget();
        let mut recorded = RecordedFiles::new(chain, path);
        if let Some(script) = &mut self.commands.script {
            let layers = chain.layers().iter();
            let files = layers.flat_map(|it| [Some(&it.image), it.data_file.as_ref()]);
            let names = files.flatten().map(ChainFile::name);
            script.begin(&recorded, names);
        }
        self.commands.open_recorded(&mut recorded).map_err(not_given_without_room)?;
        self.opened(&header, Some(recorded), None)
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        let path = self.commands.files.write(chain)?;
        qemu_img::open_snapshot(chain, &path, index)
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        let path = self.commands.files.write(chain)?;
        self.commands.files.forget();
        qemu_img::create(&path, image)?;
        copy(&path, chain.image())
    }

    fn record_script(&mut self, folder: &Path) {
        self.commands.script = Some(SessionScript::new(folder));
    }
}

/// Copies the file at `path` to a file of a chain that has its length, or is shorter. Holes stay holes.
fn copy(path: &Path, into: &ChainFile) -> Answer {
    let mut file = File::open(path).unwrap_or_else(|error| unreadable(&error));
    let (mut piece, mut at) = ([0; NEW_PIECE_BYTES], 0u64);
    loop {
        let count = file.read(&mut piece).unwrap_or_else(|error| unreadable(&error));
        let bytes = &piece[..count];
        if bytes.iter().any(|byte| *byte != 0) {
            into.write_at(HostOffset::new(at), bytes)?;
        }
        // A file ends before 2^63.
        at = at.saturating_add(count as u64);
        if count == 0 {
            return Ok(into.set_length(at)?);
        }
    }
}

impl QemuEngine {
    /// Returns the disk that qemu-io has just opened. qemu-io prints rounded sizes only. So the header states the size,
    /// and QEMU must read the last byte and none behind it.
    fn opened<'s>(
        &'s mut self,
        header: &Header,
        written: Option<RecordedFiles>,
        chain: Option<&'s Chain>,
    ) -> Opened<'s> {
        let size_bytes = header.virtual_size_bytes();
        let cluster_bits = header.geometry.cluster_size.bits();
        let disk = QemuDisk {
            commands: &mut self.commands,
            size_bytes,
            cluster_bits,
            written,
            chain,
            is_open: true,
        };
        if let Some(last) = size_bytes.checked_sub(1) {
            disk.commands.say(format_args!("read -q {last} 1"), "")?;
        }
        disk.commands.say(format_args!("read -q {size_bytes} 1"), "read failed: ")?;
        Ok(Box::new(disk))
    }
}
