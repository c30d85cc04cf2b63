//! Parts of a file outside its disk: its end, holes, tables past the end of the disk.

use qcowfuzz::formats::qcow2::entry::Layout;
use test_support::prelude::*;

use qcowfuzz::disk::error::StorageError;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::internal::images::qcow2::FileEnd;
use qcowfuzz::internal::images::qcow2::placement::Policy;
use qcowfuzz::internal::programs::interpreter::Effect;
use qcowfuzz::internal::programs::journal::JournalRecord;
use qcowfuzz::internal::programs::prologue::Prologue;
use qcowfuzz::walkers;
use qcowfuzz::walkers::map_extents;

use super::{ANYWHERE, Part, Trace};

// The ends of a file. A file has at most one of them.
pub const PAYLOAD_BYTE: &str = "a file that ends with a payload's last byte";
pub const PAYLOAD_SECTOR: &str = "a file that ends with a payload's last sector";
pub const CUT_DATA: &str = "a file that ends inside the last cluster of data";
pub const ZERO_TAIL: &str = "zeros behind the last cluster";
pub const GARBAGE_TAIL: &str = "garbage behind the last cluster";

/// Places refcount blocks and tables in gaps of the file, so that they do not follow the part.
const INTO_A_GAP: fn(&mut Prologue) = |prologue| {
    (prologue.blocks, prologue.table) = (Policy::FirstHole, Policy::FirstHole);
};

/// The parts of a file outside its disk.
pub const PARTS: &[Part] = &[
    Part {
        name: PAYLOAD_BYTE,
        prepare: INTO_A_GAP,
        lines: |_| {
            "place policy=append\nreserve gap=200<<0\n\
             compress at=start+4 clusters=1 shape=text skew=fresh+501\n\
             place policy=first\nend_file end=content tail=0<<0"
                .to_string()
        },
        had: |trace| payload_end(trace).is_some_and(|(end, file)| end == file && end % 512 != 0),
    },
    Part {
        name: PAYLOAD_SECTOR,
        prepare: INTO_A_GAP,
        lines: |_| {
            "place policy=append\nreserve gap=200<<0\n\
             compress at=start+4 clusters=1 shape=speck skew=fresh+12001\n\
             place policy=first\nend_file end=sector tail=0<<0"
                .to_string()
        },
        had: |trace| {
            payload_end(trace).is_some_and(|(end, file)| {
                (1..512).contains(&(file - end)) && file % 512 == 0 && end % 512 != 0
            })
        },
    },
    Part {
        name: CUT_DATA,
        prepare: INTO_A_GAP,
        lines: |_| {
            "place policy=append\nreserve gap=200<<0\nzero at=start+4 clusters=1 keep=no\n\
             discard at=start+4 clusters=1\npreallocate at=start+4 clusters=1\n\
             place policy=first\nend_file end=content tail=0<<0"
                .to_string()
        },
        had: |trace| {
            let cluster = trace.vm.builder().plan().geometry.cluster_size.bytes();
            let file = image(trace).length_bytes();
            tail(trace).is_none()
                && !file.is_multiple_of(cluster)
                && trace.vm.journal().records.iter().any(|record| match record {
                    JournalRecord::Written { clusters, host, write, .. } => {
                        let end = host.get() + clusters * cluster;
                        write.0 == 0 && (end - cluster + 1..end).contains(&file)
                    }
                    _ => false,
                })
        },
    },
    Part {
        name: ZERO_TAIL,
        prepare: ANYWHERE,
        lines: |_| "end_file end=zeros tail=77<<9".to_string(),
        had: |trace| tail(trace) == Some(FileEnd::Zeros),
    },
    Part {
        name: GARBAGE_TAIL,
        prepare: ANYWHERE,
        lines: |_| "end_file end=garbage tail=3<<12".to_string(),
        had: |trace| tail(trace) == Some(FileEnd::Garbage),
    },
    Part {
        name: "data that were never written",
        prepare: ANYWHERE,
        lines: |_| "preallocate at=last+0 clusters=4\npreallocate at=end-2 clusters=1".to_string(),
        had: |trace| trace.changed(|one| matches!(one, Operation::Preallocate { .. })),
    },
    Part {
        name: "a refcount table with spare clusters",
        prepare: ANYWHERE,
        lines: |_| "spare table=3 l1=0<<0".to_string(),
        had: |trace| header(trace).refcount_table_clusters > 3,
    },
    Part {
        name: "refcount blocks that count nothing",
        prepare: ANYWHERE,
        lines: |entropy| format!("spare_blocks blocks=2 distance={}", entropy.below(300)),
        had: |trace| trace.changed(|one| matches!(one, Operation::SpareBlocks { .. })),
    },
    Part {
        name: "an L1 table with spare entries",
        prepare: ANYWHERE,
        lines: |_| "spare table=3 l1=130<<0".to_string(),
        had: |trace| {
            let header = header(trace);
            let needed = header.geometry.l1_entries_for(header.size_bytes);
            u64::from(header.l1_entries) > needed
        },
    },
    Part {
        name: "clusters past the end, in the last L2 table",
        prepare: ANYWHERE,
        lines: |_| {
            "beyond table=0 distance=0 clusters=2 kind=data\n\
             beyond table=0 distance=3 clusters=1 kind=compressed\n\
             beyond table=0 distance=5 clusters=3 kind=allocated"
                .to_string()
        },
        had: |trace| hidden(trace).0,
    },
    Part {
        name: "clusters past the end, in further L2 tables",
        prepare: ANYWHERE,
        lines: |_| {
            "spare table=3 l1=9<<0\n\
             beyond table=3 distance=7 clusters=2 kind=data\n\
             beyond table=9 distance=0 clusters=1 kind=zeros"
                .to_string()
        },
        had: |trace| hidden(trace).1,
    },
    Part {
        name: "a disk that grew over what lay past its end",
        prepare: ANYWHERE,
        lines: |_| {
            "resize size=20<<21+600\nbeyond table=0 distance=0 clusters=3 kind=data\n\
             resize size=30<<21+0"
                .to_string()
        },
        had: |trace| {
            trace.operations.windows(3).any(|three| {
                let all_changed = three.iter().all(|(_, effect)| *effect == Effect::Changed);
                let resized = |at: usize| matches!(three[at].0, Operation::Resize { .. });
                let beyond = matches!(three[1].0, Operation::Beyond { .. });
                all_changed && resized(0) && beyond && resized(2)
            })
        },
    },
];

/// Returns the image that a program builds.
fn image(trace: &Trace) -> &Image {
    &trace.images.top().image
}

fn header(trace: &Trace) -> Header {
    Head::read(image(trace)).unwrap().header
}

/// Returns the end of the file that the program chose, if it chose one.
fn tail(trace: &Trace) -> Option<FileEnd> {
    let mut ends = trace.top_operations().iter().rev().filter_map(|(one, _)| match one {
        Operation::EndFile { end, tail } => Some((*end, tail.units())),
        _ => None,
    });
    ends.next().filter(|(_, bytes)| *bytes > 0).map(|(end, _)| end)
}

/// Returns the end offsets of the last payload and of the file.
fn payload_end(trace: &Trace) -> Option<(u64, u64)> {
    let ends = trace.vm.journal().records.iter().filter_map(|record| match record {
        JournalRecord::Compressed { host, length_bytes, .. } => {
            Some(host.get() + u64::from(*length_bytes))
        }
        _ => None,
    });
    let file = image(trace).length_bytes();
    Some((ends.filter(|end| *end <= file).max()?, file))
}

/// An image with another virtual size in its header.
struct Larger<'a> {
    image: &'a Image,
    size_bytes: u64,
}

impl Storage for Larger<'_> {
    fn length_bytes(&self) -> u64 {
        self.image.length_bytes()
    }

    fn read_at(&self, offset: HostOffset, into: &mut [u8]) -> Result<(), StorageError> {
        self.image.read_at(offset, into)?;
        if offset == HostOffset::ZERO {
            into[24..32].copy_from_slice(&self.size_bytes.to_be_bytes());
        }
        Ok(())
    }
}

/// Reports whether the last L2 table, and whether further ones, map clusters past the end of the disk.
fn hidden(trace: &Trace) -> (bool, bool) {
    let image = image(trace);
    let header = Head::read(image).unwrap().header;
    let geometry = &header.geometry;
    let cluster = geometry.cluster_size.bytes();
    let end = header.size_bytes.next_multiple_of(cluster);
    let last_table = header.size_bytes.next_multiple_of(geometry.l2_span_bytes());
    let size_bytes = u64::from(header.l1_entries) * geometry.l2_span_bytes();
    let disk = Larger { image, size_bytes };
    let disk = Disk::open_alone(ImageFormat::Qcow2, &disk).unwrap();
    let (mut in_last, mut further) = (false, false);
    let beyond = Window { start: GuestOffset::new(end), length_bytes: u64::MAX };
    let see = &mut |extent: Extent| {
        if extent.mapping.present {
            in_last |= extent.start.get() < last_table;
            further |= extent.start.get() + extent.length_bytes > last_table;
        }
        ControlFlow::Continue(())
    };
    map_extents(&disk, beyond, &mut walkers::WalkScratch::new(), see).unwrap();
    (in_last, further)
}
