//! Engines that change files on the side. The oracles judge the parts that a writer has to leave alone or to keep.

use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::prelude::{Chain, Engine, Facts, HostOffset, Opened, Storage};
use qcowfuzz::programs::text::assemble;
use small_writer::{WriterFault, WritingWalker};

use super::{LEAST, PROGRAMS, found, found_in};

/// The byte of `autoclear_features` with the bits for bitmaps and a raw data file.
const AUTOCLEAR_LOW_BYTE: u64 = 95;

/// The purpose for which an image is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    ToRead,
    ToWrite,
}

/// Changes files of an image that is about to be opened.
type Meddle = dyn Fn(Opening, &Chain);

/// Our walker, which does something to the files of each image before it opens it.
struct Meddling {
    walker: WritingWalker,
    meddle: Box<Meddle>,
}

impl Meddling {
    fn new(meddle: impl Fn(Opening, &Chain) + 'static) -> Self {
        Self { walker: WritingWalker::default(), meddle: Box::new(meddle) }
    }

    /// Creates an engine that clears the bit for bitmaps when it opens an image for writing, as a writer does that does
    /// not support bitmaps.
    fn dropping_bitmaps(walker: WritingWalker) -> Self {
        let dropped = |opening, chain: &Chain| {
            if opening == Opening::ToWrite {
                chain.image().write_at(HostOffset::new(AUTOCLEAR_LOW_BYTE), &[0]).unwrap();
            }
        };
        Self { walker, meddle: Box::new(dropped) }
    }
}

impl Engine for Meddling {
    fn facts(&self) -> Facts {
        Facts { write_claims: self.walker.facts().write_claims, ..Facts::new("meddling") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        (self.meddle)(Opening::ToRead, chain);
        self.walker.open(chain)
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        (self.meddle)(Opening::ToWrite, chain);
        self.walker.open_to_write(chain)
    }
}

/// Writes to the layers below, and ignores the errors.
fn cut_layers_below(opening: Opening, chain: &Chain) {
    if opening == Opening::ToWrite {
        for layer in &chain.layers()[1..] {
            let _ = layer.image.set_length(0);
        }
    }
}

/// Writes to an image that is opened for reading, and ignores the error.
fn write_to_read_image(opening: Opening, chain: &Chain) {
    if opening == Opening::ToRead {
        let _ = chain.image().write_at(HostOffset::new(4), &[0]);
    }
}

#[test]
fn writes_to_files_that_are_open_for_reading_are_found() {
    for (engine, expected) in [
        (Meddling::new(cut_layers_below), "written: layer below, unchanged → a write"),
        // The files of a cut are open for reading, too.
        (Meddling::new(write_to_read_image), ": image opened again, unchanged → a write"),
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
    let text = "image version=3 cluster_bits=9 refcount_order=4 features=none size=9<<9+0 rng_seed=0 \
                blocks=append table=append tolerance=0 data_in=file\nwrite at=start+0 clusters=1\n\
                write at=start+2 clusters=1\ncheckpoint\n";
    let engine = Meddling::new(|opening, chain| {
        if let (Opening::ToWrite, Some(file)) = (opening, chain.data_file()) {
            file.write_at(HostOffset::new(600), b"!").unwrap();
        }
    });
    let found = found_in(&mut TargetKind::Writes.judging(engine), &assemble(text).unwrap());
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
        let text = format!(
            "image version=3 cluster_bits=9 refcount_order=4 features=none size=9<<9+0 rng_seed=0 \
             blocks=append table=append tolerance=0{image}\nwrite at=start+0 clusters=1\n{before}\
             sync kind=flush choice=0\nwrite at=start+3 clusters=1\n"
        );
        assemble(&text).unwrap()
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
        let engine = Meddling::new(move |opening, chain| {
            if opening == Opening::ToWrite {
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
    let image = "image version=3 cluster_bits=9 refcount_order=4 features=feature_names size=9<<9+0 \
                 rng_seed=0 blocks=append table=append tolerance=0 data_in=raw_file\n";
    let text = format!("{image}write at=start+0 clusters=1\ncheckpoint\n");
    let program = assemble(&text).unwrap();
    for (changed, expected) in [
        // The last byte of the first cluster, the lowest one of `compatible_features`, and the second cluster.
        (511, None),
        (87, Some("written: file without a request, unchanged → changed")),
        (1023, Some("written: file without a request, unchanged → changed")),
    ] {
        let engine = Meddling::new(move |opening, chain| {
            if opening == Opening::ToWrite {
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
    let text = "image version=3 cluster_bits=9 refcount_order=4 features=none size=256<<9+0 rng_seed=0 \
                blocks=append table=append tolerance=0\nbitmap granularity=9 flags=none name=5\n\
                fill_bitmap index=0 entry=0 entries=1 fill=bits\nwrite at=start+0 clusters=9\n\
                sync kind=flush choice=0\nwrite at=start+100 clusters=2\ndiscard at=start+1 clusters=2\n";
    let program = assemble(text).unwrap();
    for (walker, expected) in [
        (WritingWalker::default(), None),
        (
            WritingWalker::default().with_fault(WriterFault::CountNotLowered),
            Some("refcounts: unreferenced cluster, free → counted"),
        ),
        (
            WritingWalker::default().with_fault(WriterFault::CopiedNotSet),
            Some("refcounts: data, copied → not copied"),
        ),
    ] {
        let mut target = TargetKind::Writes.judging(Meddling::dropping_bitmaps(walker));
        assert_eq!(found_in(&mut target, &program).as_deref(), expected);
        let mut low = [0xff];
        let image = target.written().unwrap().image();
        image.read_at(HostOffset::new(AUTOCLEAR_LOW_BYTE), &mut low).unwrap();
        assert_eq!(low, [0], "the bitmaps are dropped");
    }
}
