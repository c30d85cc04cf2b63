//! Engines whose open disks answer in a wrong way, for reading or for writing.

use small_writer::WriterFault;
use test_support::prelude::*;

use super::{found_in, knowing, programs};

/// The number of cuts: one of them is at a moment at which the writer has changed the file.
const CUTS: u64 = 8;

/// A fault of the disks that are opened for reading only, and one of those that are written.
#[derive(Clone)]
struct Altered {
    opened: Fault,
    written: Fault,
}

/// A wrong answer of an open disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// The last byte of each read is another one.
    Bytes,
    /// The disk is a sector too long.
    Size,
    /// Discards fail.
    Discard,
    /// Flushes fail.
    Flush,
    /// Discards and flushes fail.
    DiscardAndFlush,
}

/// Our walker with faults.
fn altered(
    walker: WritingWalker,
    opened: Fault,
    written: Fault,
) -> Changed<Altered, WritingWalker> {
    Changed { change: Altered { opened, written }, engine: walker }
}

impl Change for Altered {
    fn opened(&self, opening: Opening, _: &Chain, _: &mut Inner) -> Answer<Self> {
        let fault = if opening == Opening::Write { self.written } else { self.opened };
        Ok(Self { opened: fault, written: fault })
    }

    fn size(&self, disk: &mut Inner) -> u64 {
        disk.virtual_size_bytes() + if self.opened == Fault::Size { 512 } else { 0 }
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        disk.read(guest, into)?;
        if let (Fault::Bytes, Some(byte)) = (self.opened, into.last_mut()) {
            *byte = !*byte;
        }
        Ok(())
    }

    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        match (request, self.opened) {
            (Request::Discard { .. }, Fault::Discard | Fault::DiscardAndFlush)
            | (Request::Flush, Fault::Flush | Fault::DiscardAndFlush) => {
                Err(EngineError::from(std::io::Error::other("planted")))
            }
            (Request::Write { .. } | Request::Flush, _)
            | (Request::Discard { .. }, Fault::Flush) => disk.request(request),
            _ => Err(EngineError::NoAnswer),
        }
    }
}

/// A closed file, and one after a cut, are read through the engine, too.
#[test]
fn wrong_reads_of_an_image_that_is_opened_again_are_found() {
    for (opened, after_cut, closed) in [
        (Fault::Bytes, "power_cut: the rest, opened again, ", "written: the rest, opened again, "),
        (Fault::Size, "power_cut: virtual size, ", "model: virtual size, "),
    ] {
        let engine = altered(WritingWalker::default(), opened, Fault::None);
        let mut target = TargetKind::Writes.judging(engine);
        let found: Vec<String> =
            programs().iter().filter_map(|program| found_in(&mut target, program)).collect();
        for start in [after_cut, closed] {
            assert!(found.iter().any(|name| name.starts_with(start)), "{start}: {found:?}");
        }
    }
}

/// The files of a cut are there, even if a later request fails and the harness knows that error.
#[test]
fn cuts_before_a_known_error_are_judged() {
    let cuts = (0..CUTS).map(|choice| format!("sync kind=kill choice={choice}\n"));
    let operations = format!(
        "write at=start+0 clusters=2\nsync kind=flush choice=0\nwrite at=start+3 clusters=1\n{}\
         discard at=start+0 clusters=1\n",
        cuts.collect::<String>()
    );
    let program = lines::program("cluster_bits=9 size=9<<9+0", &operations);
    let known = known(&["written: discard, *"]);
    for (walker, expected) in [
        (WritingWalker::default(), None),
        (
            WritingWalker::default().with_fault(WriterFault::DirtyWhileOpen),
            Some("killed: dirty bit, clear → set"),
        ),
    ] {
        let engine = altered(walker, Fault::None, Fault::Discard);
        let mut target = knowing(engine, known.clone());
        assert_eq!(found_in(&mut target, &program).as_deref(), expected);
        if expected.is_none() {
            assert_eq!(target.met().len(), 1, "the known error was met");
        }
    }
}

/// Runs these operations on a disk of nine clusters, with the finding `aside` set aside. Returns the fingerprint of the
/// new finding.
fn found_beside(
    engine: Changed<Altered, WritingWalker>,
    aside: &str,
    operations: &str,
) -> Option<String> {
    let operations = format!("write at=start+0 clusters=2\nsync kind=kill choice=0\n{operations}");
    let mut target = knowing(engine, known(&[aside]));
    let found = found_in(&mut target, &lines::program("cluster_bits=9 size=9<<9+0", &operations));
    assert_eq!(target.met().len(), 1, "the known finding was met");
    found
}

#[test]
fn the_requests_after_a_known_error_are_judged() {
    let operations = "discard at=start+0 clusters=1\nwrite_at at=start+0 inside=0 length=5<<0\n\
                      sync kind=flush choice=0\n";
    let walker = WritingWalker::default();
    let known = "written: discard, *";
    for (written, expected) in [
        (Fault::Discard, None),
        (Fault::DiscardAndFlush, Some("written: flush, an answer → an error (planted)")),
    ] {
        let engine = altered(walker.clone(), Fault::None, written);
        assert_eq!(found_beside(engine, known, operations).as_deref(), expected);
    }
}

#[test]
fn the_sessions_after_a_known_leak_are_judged() {
    let operations = "discard at=start+0 clusters=1\ncheckpoint\n\
                      write at=start+3 clusters=1\nsync kind=flush choice=0\n";
    let walker = WritingWalker::default().with_fault(WriterFault::CountNotLowered);
    let engine = altered(walker, Fault::None, Fault::Flush);
    let found = found_beside(engine, "refcounts: *, free → counted", operations);
    assert_eq!(found.as_deref(), Some("written: flush, an answer → an error (planted)"));
}
