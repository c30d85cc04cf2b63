//! The questions of the self-test, the mistakes of adapters, and the probes that find them: an engine that gave a wrong
//! answer about a plain image is asked again, and its answers are compared with those that each mistake causes.

use std::fmt;

use crate::disk::offsets::GuestOffset;
use crate::disk::storage::Storage;
use crate::harness::engine::questions::QuestionKind;
use crate::harness::engine::{Engine, OpenDisk};
use crate::harness::files::chain::Chain;
use crate::harness::model::{Model, PieceState, Visible};
use crate::harness::oracles::{self, Violation};
use crate::harness::{Harness, Walker};
use crate::images::content::{STAMP_BYTES, WriteNumber, stamp};

/// A question of the self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SelfTestQuestion {
    /// The image opens, and the disk has the right size.
    Size,
    /// The data at the edges of each part of the disk.
    Data,
    /// All bytes of the last 4 KiB of the disk.
    End,
    /// The status of bytes.
    Status,
    /// The extents.
    Map,
    /// The disk of a snapshot: all of the questions above.
    Snapshot,
}

impl SelfTestQuestion {
    /// The questions about each image, in their order.
    pub(super) const EACH: [Self; 5] = [Self::Size, Self::Data, Self::End, Self::Status, Self::Map];

    /// Returns the name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Size => "size",
            Self::Data => "data",
            Self::End => "end",
            Self::Status => "status",
            Self::Map => "map",
            Self::Snapshot => "snapshot",
        }
    }

    /// Returns the kinds of questions that reach the engine, the judged one last. All questions about a snapshot are
    /// one.
    pub(super) const fn kinds(self) -> &'static [QuestionKind] {
        use QuestionKind::{Map, Open, Read, Snapshots, Status};
        match self {
            Self::Size => &[Open],
            Self::Data | Self::End => &[Open, Read],
            Self::Status => &[Open, Status],
            Self::Map => &[Open, Map],
            Self::Snapshot => &[Open, Read, Status, Map, Snapshots],
        }
    }
}

impl fmt::Display for SelfTestQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A plain image that was built, and its model.
pub(super) struct BuiltImage {
    pub(super) chain: Chain,
    pub(super) model: Model,
}

impl BuiltImage {
    /// Builds the image of a program.
    pub(super) fn new(program: &[u8]) -> Self {
        let mut harness = Harness::new(Walker::default());
        harness.build(program);
        let mut model = Model::new();
        model.replay(harness.vm().journals());
        Self { chain: Chain::new(harness.images()), model }
    }
}

/// The number of bytes that a probe reads.
const PROBE_BYTES: u64 = 512;

/// A mistake of an adapter, with the answers that it causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterMistake {
    /// The size is that of the image file.
    SizeOfFile,
    /// The size counts sectors.
    SizeInSectors,
    /// The size is rounded, and the policy does not say so.
    SizeRounded,
    /// Reads return the file's bytes.
    FileBytes,
    /// Reads return bytes of another guest offset.
    OtherOffset {
        /// The guest offset that the harness asked for.
        asked: u64,
        /// The guest offset of the bytes.
        found: u64,
    },
    /// Reads leave the buffer alone, or some of it.
    BufferUntouched,
    /// Data of a layer below read as zeros.
    BackingNotAttached,
    /// Data of a data file read as zeros, or as bytes of the image.
    DataFileNotAttached,
    /// Only a read at the end of the disk fails.
    ErrorAtTheEnd,
    /// A status has no length.
    EmptyRun,
    /// A status reaches past the end of the disk.
    RunPastTheEnd,
    /// The host offset is that of a cluster.
    HostOfCluster,
}

impl AdapterMistake {
    /// Reports whether the mistake is about other files than the image.
    pub(super) fn is_about_layers(&self) -> bool {
        matches!(self, Self::BackingNotAttached | Self::DataFileNotAttached)
    }
}

/// Prints the answers, and the mistake that causes them.
impl fmt::Display for AdapterMistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::SizeOfFile => "the size is that of the image file, expected that of the disk",
            Self::SizeInSectors => "the size counts sectors, expected bytes",
            Self::SizeRounded => {
                "the size is rounded, expected whole sectors: \
                 if the implementation returns the size in the header, state `size: Near`"
            }
            Self::FileBytes => "reads return the file's bytes, not the guest's",
            Self::OtherOffset { asked, found } => {
                return write!(
                    f,
                    "a read at guest offset {asked:#x} returns the bytes of {found:#x}"
                );
            }
            Self::BufferUntouched => {
                "the buffer was left as the harness filled it: a read must fill all of it"
            }
            Self::BackingNotAttached => {
                "the backing file was never attached: data of the layers below read as zeros"
            }
            Self::DataFileNotAttached => {
                "the data file was never attached: its data read as zeros or as bytes of the image"
            }
            Self::ErrorAtTheEnd => {
                "an error at the disk's end, but nowhere else: \
                 the adapter rounds the size, or the length of the read"
            }
            Self::EmptyRun => "the length of a status is 0, expected at least 1 byte",
            Self::RunPastTheEnd => {
                "the length of a status passes the end of the disk: cut it at the size"
            }
            Self::HostOfCluster => {
                "the host offset is that of the cluster, expected that of the byte asked for"
            }
        };
        f.write_str(text)
    }
}

/// Returns the mistake that causes the wrong answer of `engine` to `question` about the image of `program`, if it is
/// one of those that probes find.
pub(super) fn find(
    engine: &mut dyn Engine,
    question: SelfTestQuestion,
    program: &[u8],
    found: &Violation,
) -> Option<AdapterMistake> {
    let plain = BuiltImage::new(program);
    let facts = engine.facts();
    let mut disk = facts.rounded(engine.open(&plain.chain)).ok()?;
    match question {
        SelfTestQuestion::Size if found.field == "virtual size" => {
            of_size(&plain, disk.virtual_size_bytes())
        }
        SelfTestQuestion::Data => parts(&plain).find_map(|part| of_read(&mut *disk, &plain, &part)),
        SelfTestQuestion::End if found.error_kind().is_some() => {
            let mut into = [0; PROBE_BYTES as usize];
            let begins = disk.read(GuestOffset::ZERO, &mut into).is_ok();
            begins.then_some(AdapterMistake::ErrorAtTheEnd)
        }
        SelfTestQuestion::End => parts(&plain).find_map(|part| of_read(&mut *disk, &plain, &part)),
        SelfTestQuestion::Status => {
            parts(&plain).find_map(|part| of_status(&mut *disk, &plain, &part))
        }
        _ => None,
    }
}

/// Returns the parts of the disk.
fn parts(plain: &BuiltImage) -> impl Iterator<Item = Visible> {
    plain.model.visible().iter().copied()
}

fn of_size(plain: &BuiltImage, actual: u64) -> Option<AdapterMistake> {
    let (expected, file) = (plain.model.virtual_size_bytes(), plain.chain.image().length_bytes());
    if actual == file {
        Some(AdapterMistake::SizeOfFile)
    } else if actual.checked_mul(512) == Some(expected) {
        Some(AdapterMistake::SizeInSectors)
    } else {
        let is_near = actual != 0 && actual.abs_diff(expected) < 1 << 16;
        is_near.then_some(AdapterMistake::SizeRounded)
    }
}

fn of_read(disk: &mut dyn OpenDisk, plain: &BuiltImage, part: &Visible) -> Option<AdapterMistake> {
    let length = PROBE_BYTES.min(part.end - part.start) as usize;
    let guest = GuestOffset::new(part.start);
    let (mut bytes, mut again) = (vec![0xA5; length], vec![0x5A; length]);
    disk.read(guest, &mut bytes).ok()?;
    disk.read(guest, &mut again).ok()?;
    if bytes.iter().zip(&again).any(|(one, other)| (*one, *other) == (0xA5, 0x5A)) {
        return Some(AdapterMistake::BufferUntouched);
    }
    let mut expected = vec![0; length];
    oracles::data::expect(&plain.model, guest, &mut expected);
    if bytes == expected {
        return None;
    }
    let image = plain.chain.image();
    let in_image = |offset: u64| {
        let mut there = vec![0; length];
        image.read_exact_at(offset, &mut there).is_ok() && there == bytes
    };
    let zeros = bytes.iter().all(|byte| *byte == 0);
    match part.state() {
        _ if zeros && part.depth > 0 => return Some(AdapterMistake::BackingNotAttached),
        PieceState::Normal(host, _) if plain.chain.layers()[0].data_file.is_some() => {
            let is_elsewhere = zeros || in_image(host.get());
            return is_elsewhere.then_some(AdapterMistake::DataFileNotAttached);
        }
        _ => {}
    }
    let stamped = bytes.get(..STAMP_BYTES).and_then(stamped_offset);
    match stamped {
        _ if !zeros && in_image(part.start) => Some(AdapterMistake::FileBytes),
        Some(found) if found != part.start => {
            Some(AdapterMistake::OtherOffset { asked: part.start, found })
        }
        _ => None,
    }
}

/// Returns the guest offset in a stamp; `None` if `bytes` are not one.
fn stamped_offset(bytes: &[u8]) -> Option<u64> {
    let (offset, rest) = bytes.split_first_chunk::<8>()?;
    let (write, _) = rest.split_first_chunk::<4>()?;
    let (offset, write) = (u64::from_be_bytes(*offset), u32::from_be_bytes(*write));
    (stamp(GuestOffset::new(offset), WriteNumber(write)) == bytes).then_some(offset)
}

fn of_status(
    disk: &mut dyn OpenDisk,
    plain: &BuiltImage,
    part: &Visible,
) -> Option<AdapterMistake> {
    use crate::harness::engine::status::GuestStatus::{Data, Exact, Hole, Zeros};

    // Inside a cluster, if the part is longer than a byte.
    let inside = (part.end - part.start - 1).min(PROBE_BYTES + 1);
    for delta in [0, inside] {
        let guest = part.start + delta;
        let run = disk.status(GuestOffset::new(guest)).ok()?;
        if run.length_bytes == 0 {
            return Some(AdapterMistake::EmptyRun);
        }
        if run.length_bytes > plain.model.virtual_size_bytes() - guest {
            return Some(AdapterMistake::RunPastTheEnd);
        }
        let host = match run.status {
            Data(host) | Zeros(host) => host,
            Exact(mapping) => mapping.offset,
            _ => None,
        };
        let expected = match part.state() {
            PieceState::Normal(host, _) | PieceState::ZeroAllocated(host) => Some(host.get()),
            _ => None,
        };
        match (host, expected) {
            // The part begins at a cluster.
            (Some(actual), Some(cluster)) if delta > 0 && actual.get() == cluster => {
                return Some(AdapterMistake::HostOfCluster);
            }
            _ => {}
        }
        let has_data = matches!(part.state(), PieceState::Normal(..) | PieceState::Compressed(..));
        let denies_data = match run.status {
            Hole | Zeros(_) => true,
            Exact(mapping) => !mapping.data,
            _ => false,
        };
        if part.depth > 0 && has_data && denies_data {
            return Some(AdapterMistake::BackingNotAttached);
        }
    }
    None
}
