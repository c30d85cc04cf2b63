//! Engines that change files on the side. The oracles judge the parts that a writer has to leave alone or to keep.

use std::rc::Rc;

use small_writer::WriterFault;
use test_support::prelude::*;

use super::{LEAST, PROGRAMS, found, found_in};

/// The byte of `autoclear_features` with the bits for bitmaps and a raw data file.
const AUTOCLEAR_LOW_BYTE: u64 = 95;

/// Changes files of an image that is about to be opened.
type Meddle = dyn Fn(Opening, &Chain);

/// Does something to the files of each image before our walker opens it.
#[derive(Clone)]
struct Meddling(Rc<Meddle>);

impl Meddling {
    fn engine(meddle: impl Fn(Opening, &Chain) + 'static) -> Changed<Self, WritingWalker> {
        Changed::writer(Self(Rc::new(meddle)))
    }

    /// Creates an engine that clears the bit for bitmaps when it opens an image for writing, as a writer does that does
    /// not support bitmaps.
    fn dropping_bitmaps(engine: WritingWalker) -> Changed<Self, WritingWalker> {
        let dropped = Self::engine(|opening, chain| {
            if opening == Opening::Write {
                chain.image().write_at(HostOffset::new(AUTOCLEAR_LOW_BYTE), &[0]).unwrap();
            }
        });
        Changed { engine, ..dropped }
    }
}

impl Change for Meddling {
    fn begin(&mut self, opening: Opening, chain: &Chain) -> Answer {
        (self.0)(opening, chain);
        Ok(())
    }
}

/// Writes to the layers below, and ignores the errors.
fn cut_layers_below(opening: Opening, chain: &Chain) {
    if opening == Opening::Write {
        for layer in &chain.layers()[1..] {
            let _ = layer.image.set_length(0);
        }
    }
}

/// Writes to an image that is opened for reading, and ignores the error.
fn write_to_read_image(opening: Opening, chain: &Chain) {
    if opening == Opening::Read {
        let _ = chain.image().write_at(HostOffset::new(4), &[0]);
    }
}

#[test]
fn writes_to_files_that_are_open_for_reading_are_found() {
    for (engine, expected) in [
        (Meddling::engine(cut_layers_below), "written: layer below, unchanged → a write"),
        // The files of a cut are open for reading, too.
        (Meddling::engine(write_to_read_image), ": image opened again, unchanged → a write"),
    ] {
        let mut target = TargetKind::Writes.judging(engine);
        let found = (0..PROGRAMS).filter_map(|number| found(&mut target, number));
        let found: Vec<String> = found.take(LEAST).collect();
        assert_eq!(found.len(), LEAST, "{expected}");
        assert!(found.iter().all(|name| name.ends_with(expected)), "{expected}: {found:?}");
    }
}

/// An engine may not change the data file of an image that it opens, reads and closes.
#[test]
fn a_changed_byte_of_a_data_file_is_found() {
    let operations = "write at=start+0 clusters=1\nwrite at=start+2 clusters=1\ncheckpoint\n";
    let program = lines::program("cluster_bits=9 size=9<<9+0 data_in=file", operations);
    let engine = Meddling::engine(|opening, chain| {
        if let (Opening::Write, Some(file)) = (opening, chain.data_file()) {
            file.write_at(HostOffset::new(600), b"!").unwrap();
        }
    });
    let found = found_in(&mut TargetKind::Writes.judging(engine), &program);
    assert_eq!(found.as_deref(), Some("written: data file without a request, unchanged → changed"));
}

/// A part of an image that a writer keeps.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// A byte of the first snapshot's entry.
    Snapshot(u64),
    BackingName,
    DataFileName,
}

impl Kept {
    /// Returns the offset of a byte of the part in an image with clusters of 512 bytes.
    fn place(self, chain: &Chain) -> HostOffset {
        let mut first = [0; 512];
        chain.image().read_at(HostOffset::ZERO, &mut first).unwrap();
        let number = |at: usize| u64::from_be_bytes(first[at..at + 8].try_into().unwrap());
        HostOffset::new(match self {
            Self::Snapshot(at) => number(64) + at,
            Self::BackingName => number(8),
            Self::DataFileName => {
                let kind = first.windows(4).position(|bytes| bytes == b"DATA");
                kind.unwrap() as u64 + 8
            }
        })
    }
}

/// The oracles that read the disk do not see these parts.
#[test]
fn a_change_of_each_part_that_a_writer_keeps_is_found() {
    let program = |image: &str, before: &str| {
        let operations = format!(
            "write at=start+0 clusters=1\n{before}sync kind=flush choice=0\nwrite at=start+3 clusters=1\n"
        );
        lines::program(&format!("cluster_bits=9 size=9<<9+0 {image}"), &operations)
    };
    let snapshot = program("", "snapshot\n");
    let overlay =
        "overlay version=3 cluster_bits=9 refcount_order=4 features=none data_in=image size=same\n";
    let overlay = program("", overlay);
    let data_file = program(" data_in=file", "");
    for (part, program, expected) in [
        (Kept::Snapshot(19), &snapshot, "snapshot's date"),
        (Kept::Snapshot(23), &snapshot, "snapshot's date"),
        (Kept::Snapshot(31), &snapshot, "snapshot's clock"),
        (Kept::Snapshot(47), &snapshot, "snapshot's VM state"),
        (Kept::Snapshot(56), &snapshot, "snapshot's id"),
        (Kept::BackingName, &overlay, "backing file's name"),
        (Kept::DataFileName, &data_file, "data file's name"),
    ] {
        let engine = Meddling::engine(move |opening, chain| {
            if opening == Opening::Write {
                let (at, mut byte) = (part.place(chain), [0]);
                chain.image().read_at(at, &mut byte).unwrap();
                chain.image().write_at(at, &[byte[0] ^ 1]).unwrap();
            }
        });
        let found = found_in(&mut TargetKind::Writes.judging(engine), program);
        assert_eq!(found, Some(format!("written: {expected}, kept → changed")), "{part:?}");
    }
}

/// imago writes its own names of features when it clears the bit.
#[test]
fn a_header_may_be_written_again_without_the_bit_for_a_raw_data_file() {
    let image = "cluster_bits=9 features=feature_names size=9<<9+0 data_in=raw_file";
    let program = lines::program(image, "write at=start+0 clusters=1\ncheckpoint\n");
    for (changed, expected) in [
        // The last byte of the first cluster, the lowest one of `compatible_features`, and the second cluster.
        (511, None),
        (87, Some("written: file without a request, unchanged → changed")),
        (1023, Some("written: file without a request, unchanged → changed")),
    ] {
        let engine = Meddling::engine(move |opening, chain| {
            if opening == Opening::Write {
                chain.image().write_at(HostOffset::new(AUTOCLEAR_LOW_BYTE), &[0]).unwrap();
                chain.image().write_at(HostOffset::new(changed), b"!").unwrap();
            }
        });
        let found = found_in(&mut TargetKind::Writes.judging(engine), &program);
        assert_eq!(found.as_deref(), expected, "{changed}");
    }
}

/// Only the clusters of dropped bitmaps may be leaked, and the flags of the others must fit.
#[test]
fn wrong_counts_beside_dropped_bitmaps_are_found() {
    let operations = "bitmap granularity=9 flags=none name=5\n\
                      fill_bitmap index=0 entry=0 entries=1 fill=bits\nwrite at=start+0 clusters=9\n\
                      sync kind=flush choice=0\nwrite at=start+100 clusters=2\ndiscard at=start+1 clusters=2\n";
    let program = lines::program("cluster_bits=9 size=256<<9+0", operations);
    let with = |fault| WritingWalker::default().with_fault(fault);
    let free = "refcounts: unreferenced cluster, free → counted";
    for (walker, expected) in [
        (WritingWalker::default(), None),
        (with(WriterFault::CountNotLowered), Some(free)),
        (with(WriterFault::CopiedNotSet), Some("refcounts: data, copied → not copied")),
    ] {
        let mut target = TargetKind::Writes.judging(Meddling::dropping_bitmaps(walker));
        assert_eq!(found_in(&mut target, &program).as_deref(), expected);
        let mut low = [0xff];
        let image = target.written().unwrap().image();
        image.read_at(HostOffset::new(AUTOCLEAR_LOW_BYTE), &mut low).unwrap();
        assert_eq!(low, [0], "the bitmaps are dropped");
    }
}
