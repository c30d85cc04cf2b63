//! Engines whose open disks answer in a wrong way, for reading or for writing.

use qcowfuzz::harness::KnownFindings;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::prelude::{
    Answer, Chain, Engine, EngineError, Facts, GuestOffset, OpenDisk, Opened, Request,
};
use qcowfuzz::programs::text::assemble;
use small_writer::{WriterFault, WritingWalker};

use super::{found_in, knowing, programs};

/// The number of cuts: one of them is at a moment at which the writer has changed the file.
const CUTS: u64 = 8;

/// Our walker, with a fault of the disks that it opens for reading only, and one of those that it writes.
#[derive(Clone)]
struct Altered {
    walker: WritingWalker,
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

struct AlteredDisk<'s>(Box<dyn OpenDisk + 's>, Fault);

impl Engine for Altered {
    fn facts(&self) -> Facts {
        Facts { write_claims: self.walker.facts().write_claims, ..Facts::new("altered") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(AlteredDisk(self.walker.open(chain)?, self.opened)))
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(AlteredDisk(self.walker.open_to_write(chain)?, self.written)))
    }
}

impl OpenDisk for AlteredDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        self.0.virtual_size_bytes() + if self.1 == Fault::Size { 512 } else { 0 }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read(guest, into)?;
        if let (Fault::Bytes, Some(byte)) = (self.1, into.last_mut()) {
            *byte = !*byte;
        }
        Ok(())
    }

    fn request(&mut self, request: &Request) -> Answer {
        let planted = || Err(EngineError::from(std::io::Error::other("planted")));
        match (request, self.1) {
            (Request::Discard { .. }, Fault::Discard | Fault::DiscardAndFlush)
            | (Request::Flush, Fault::Flush | Fault::DiscardAndFlush) => planted(),
            (Request::Write { .. } | Request::Flush, _)
            | (Request::Discard { .. }, Fault::Flush) => self.0.request(request),
            _ => Err(EngineError::NoAnswer),
        }
    }

    fn close(self: Box<Self>) -> Answer {
        self.0.close()
    }
}

/// A closed file, and one after a cut, are read through the engine, too.
#[test]
fn wrong_reads_of_an_image_that_is_opened_again_are_found() {
    for (opened, after_cut, closed) in [
        (Fault::Bytes, "power_cut: the rest, opened again, ", "written: the rest, opened again, "),
        (Fault::Size, "power_cut: virtual size, ", "model: virtual size, "),
    ] {
        let mut target = TargetKind::Writes.judging(Altered {
            walker: WritingWalker::default(),
            opened,
            written: Fault::None,
        });
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
    let text = format!(
        "image version=3 cluster_bits=9 refcount_order=4 features=none size=9<<9+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nwrite at=start+0 clusters=2\n\
         sync kind=flush choice=0\nwrite at=start+3 clusters=1\n{}discard at=start+0 clusters=1\n",
        cuts.collect::<String>()
    );
    let program = assemble(&text).unwrap();
    let known = "[[finding]]\nfingerprint = 'written: discard, *'\nreason = 'Planted.'";
    let known = KnownFindings::parse(known).unwrap();
    for (walker, expected) in [
        (WritingWalker::default(), None),
        (
            WritingWalker::default().with_fault(WriterFault::DirtyWhileOpen),
            Some("killed: dirty bit, clear → set"),
        ),
    ] {
        let engine = Altered { walker, opened: Fault::None, written: Fault::Discard };
        let mut target = knowing(engine, known.clone());
        assert_eq!(found_in(&mut target, &program).as_deref(), expected);
        if expected.is_none() {
            assert_eq!(target.met().len(), 1, "the known error was met");
        }
    }
}

/// Runs these operations on a disk of nine clusters, with `known` set aside. Returns the fingerprint of the new
/// finding.
fn found_beside(engine: Altered, known: &str, operations: &str) -> Option<String> {
    let text = format!(
        "image version=3 cluster_bits=9 refcount_order=4 features=none size=9<<9+0 rng_seed=0 \
         blocks=append table=append tolerance=0\nwrite at=start+0 clusters=2\nsync kind=kill choice=0\n{operations}"
    );
    let known = format!("[[finding]]\nfingerprint = '{known}'\nreason = 'Planted.'");
    let mut target = knowing(engine, KnownFindings::parse(&known).unwrap());
    let found = found_in(&mut target, &assemble(&text).unwrap());
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
        let engine = Altered { walker: walker.clone(), opened: Fault::None, written };
        assert_eq!(found_beside(engine, known, operations).as_deref(), expected);
    }
}

#[test]
fn the_sessions_after_a_known_leak_are_judged() {
    let operations = "discard at=start+0 clusters=1\ncheckpoint\n\
                      write at=start+3 clusters=1\nsync kind=flush choice=0\n";
    let walker = WritingWalker::default().with_fault(WriterFault::CountNotLowered);
    let engine = Altered { walker, opened: Fault::None, written: Fault::Flush };
    let found = found_beside(engine, "refcounts: *, free → counted", operations);
    assert_eq!(found.as_deref(), Some("written: flush, an answer → an error (planted)"));
}
