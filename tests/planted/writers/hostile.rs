//! The target `hostile_writes` can fail: engines that take damage for a reason to change what is not damaged, that lose
//! writes beside damage, or that write to other files. Without a fault, the small writer passes.

use qcowfuzz::formats::qcow2::entry::L1Entry;
use qcowfuzz::formats::qcow2::header::Header;
use qcowfuzz::formats::qcow2::table::HostTable;
use qcowfuzz::programs::generate::generate_writes;
use test_support::prelude::*;

use super::found_in;

/// The number of generated programs.
const DAMAGED: u64 = 400;
/// The opcodes of `patch`, `trap`, `fail_read` and `truncate`.
const ATTACKS: [u8; 4] = [27, 28, 29, 30];

/// A damaged entry, and a write and a read beside it. The cluster at the end of the disk has an entry, too.
const BESIDE: &str = "write at=start+0 clusters=6\nwrite at=end-1 clusters=1\n\
                      patch part=l2 depth=0 nth=0 transform=misalign value=0\n\
                      write_at at=start+3 inside=100 length=20<<2\nread_at at=start+3 length=20<<4\n";

/// A fault of an engine that opens an image with an entry off a cluster boundary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reaction {
    /// It clears the L2 table with the entry when it opens the image.
    TableCleared,
    /// It takes writes and does not carry them out.
    WritesLost,
    /// It cuts the layer below.
    CutBelow,
}

/// Our writer with such a fault.
#[derive(Clone)]
struct Reacting {
    reaction: Reaction,
    /// The image has such an entry.
    is_damaged: bool,
}

/// Returns the L2 tables with an entry off a cluster boundary.
fn damaged_tables(chain: &Chain) -> Vec<HostTable> {
    let image = chain.image();
    let Ok(header) = Header::read(image) else { return Vec::new() };
    let (mut l2_tables, mut damaged) = (Vec::new(), Vec::new());
    let cluster = header.geometry.cluster_size.bytes();
    let _ = HostTable::active_l1(&header).each_entry(image, &mut [0; 4096], |entry| {
        l2_tables.extend(L1Entry(entry.word).table());
        Ok(ControlFlow::Continue(()))
    });
    for start in l2_tables {
        let table = HostTable::l2(&header.geometry, start);
        let _ = table.each_entry(image, &mut [0; 4096], |entry| {
            let offset = entry.word & 0x00ff_ffff_ffff_fe00;
            if !offset.is_multiple_of(cluster) {
                damaged.push(table);
            }
            Ok(ControlFlow::Continue(()))
        });
    }
    damaged
}

impl Change for Reacting {
    fn begin(&mut self, opening: Opening, chain: &Chain) -> Answer {
        if opening != Opening::Write {
            return Ok(());
        }
        let damaged = damaged_tables(chain);
        self.is_damaged = !damaged.is_empty();
        match self.reaction {
            Reaction::TableCleared => damaged.iter().try_for_each(|table| {
                let zeros = vec![0; table.length_bytes as usize];
                Ok(chain.image().write_at(table.start, &zeros)?)
            }),
            Reaction::CutBelow if self.is_damaged => {
                // It ignores the error.
                for layer in &chain.layers()[1..] {
                    let _ = layer.image.set_length(0);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        match (self.reaction, request) {
            (Reaction::WritesLost, Request::Write { .. }) if self.is_damaged => Ok(()),
            _ => disk.request(request),
        }
    }
}

fn judging(engine: impl Engine + 'static) -> Harness {
    TargetKind::HostileWrites.judging(engine)
}

#[test]
fn engines_that_spoil_what_is_not_damaged_are_found() {
    let beside =
        |above: &str| lines::program("cluster_bits=12 size=90<<12+0", &format!("{above}{BESIDE}"));
    let overlay = "write at=start+9 clusters=1\n\
                   overlay version=3 cluster_bits=12 refcount_order=4 features=none data_in=image size=same\n";
    // Planted: "a table with a damaged entry is cleared", "writes beside a damaged entry are lost",
    // "a layer below a damaged image is cut".
    for (reaction, program, expected) in [
        (
            Reaction::TableCleared,
            beside(""),
            "hostile_writes: the rest, the bytes of the guest → zeros",
        ),
        (
            Reaction::WritesLost,
            beside(""),
            "hostile_writes: a write, the bytes of the guest → other bytes",
        ),
        (Reaction::CutBelow, beside(overlay), "hostile_writes: layer below, unchanged → a write"),
    ] {
        let engine = Changed::writer(Reacting { reaction, is_damaged: false });
        assert_eq!(
            found_in(&mut judging(engine), &program).as_deref(),
            Some(expected),
            "{reaction:?}"
        );
        assert_eq!(found_in(&mut judging(WritingWalker::default()), &program), None);
    }
}

/// Returns a program with requests and up to three attacks, before and behind them.
fn damaged(number: u64) -> Program {
    let mut program = generate_writes(number, 12);
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for _ in 0..1 + number % 3 {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let mut record = state.to_be_bytes();
        record[0] = ATTACKS[(state >> 40) as usize % 4];
        // The first parts are those of qcow2 images, and of the top layer.
        record[1] %= 8;
        record[2] %= 2;
        let at = (state >> 20) as usize % (program.operations.len() + 1);
        program.operations.splice(at..at, Operation::decode(&record));
    }
    program
}

#[test]
fn a_writer_without_a_fault_passes_on_damaged_images() {
    let mut target = judging(WritingWalker::default());
    let (mut opened, mut written) = (0, 0);
    let seeds = corpus::inputs("hostile_writes");
    let programs = (0..DAMAGED).map(damaged).chain(seeds.iter().map(|seed| Program::decode(seed)));
    for (number, program) in programs.enumerate() {
        let run = target.run(&program.encode(), Checks::AtCheckpoints);
        let outcome = run.unwrap_or_else(|failure| panic!("{number}: {}", failure.violation));
        opened += usize::from(outcome.refused == 0 && !outcome.unsupported);
        let left = target.left().map(|files| files.image.length_bytes());
        written += usize::from(left > Some(target.image().length_bytes()));
    }
    assert!(opened > 200 && written > 60, "{opened} opened, {written} longer");
}
