//! Our walker with a planted fault in its answers.

use qcowfuzz::disk::extent::{Extent, Mapping, Visitor, Window};
use qcowfuzz::disk::offsets::{GuestOffset, HostOffset};
use qcowfuzz::harness::cases::implementation::{Implementation, no_observer};
use qcowfuzz::harness::engine::questions::{QuestionKind, QuestionKinds};
use qcowfuzz::harness::engine::status::GuestRun;
use qcowfuzz::harness::engine::{
    Answer, CheckCounts, Engine, EngineError, Facts, ImageInfo, ImageReport, NewImage, OpenDisk,
    Opened, ReportKind, Request,
};
use qcowfuzz::harness::files::chain::Chain;
use qcowfuzz::harness::targets::TargetKind;
use qcowfuzz::harness::{Checks, KnownFinding, KnownFindings};
use qcowfuzz::images::FileNames;
use small_writer::WritingWalker;

/// A program whose image has data, zeros and holes.
pub const PROGRAM: &str = "image version=3 cluster_bits=12 refcount_order=4 features=none size=64<<12+0 rng_seed=7 \
                           blocks=append table=append tolerance=0\n\
                           write at=start+1 clusters=2\n\
                           zero at=start+8 clusters=1 keep=no\n\
                           write at=start+20 clusters=2\n";

/// A fault of the walker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// None.
    None,
    /// Data in the image at the top are a hole.
    LostData,
    /// Data lie a sector farther behind.
    Displaced,
    /// The disk has a sector more.
    Longer,
    /// The first byte of data is another one.
    OtherByte,
    /// No image opens.
    Refuses,
    /// A walk ends with an error.
    FailedWalk,
    /// Reads fail.
    FailedReads,
    /// There are no maps.
    NoMap,
    /// There are no maps, and data have the status of a hole.
    NoMapAndWrongStatus,
    /// The first byte of data in a snapshot is another one.
    OtherByteInSnapshot,
    /// No snapshot opens.
    RefusesSnapshots,
    /// The image has one snapshot more than it says.
    OneSnapshotMore,
    /// A check finds an error.
    FindsErrors,
    /// A write has another first byte.
    WritesOtherByte,
    /// Writes fail.
    FailedWrites,
}

/// The walker with a fault. It reports no snapshots, and its check finds nothing.
#[derive(Debug)]
pub struct Faulty(WritingWalker, Fault);

impl Faulty {
    /// Creates the walker with a fault.
    pub fn new(fault: Fault) -> Self {
        Self(WritingWalker::default(), fault)
    }
}

impl Clone for Faulty {
    fn clone(&self) -> Self {
        Self::new(self.1)
    }
}

struct FaultyDisk<'s>(Box<dyn OpenDisk + 's>, Fault);

fn planted() -> EngineError {
    EngineError::untyped("planted")
}

impl Engine for Faulty {
    fn facts(&self) -> Facts {
        let facts = Facts { write_claims: self.0.facts().write_claims, ..Facts::new("faulty") };
        match self.1 {
            Fault::NoMap | Fault::NoMapAndWrongStatus => {
                let kinds = [QuestionKind::Open, QuestionKind::Status, QuestionKind::Read];
                Facts { answers: QuestionKinds::of(&kinds), ..facts }
            }
            _ => facts,
        }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        match self.1 {
            Fault::Refuses => Err(planted()),
            Fault::OtherByteInSnapshot => {
                Ok(Box::new(FaultyDisk(self.0.open(chain)?, Fault::None)))
            }
            fault => Ok(Box::new(FaultyDisk(self.0.open(chain)?, fault))),
        }
    }

    fn open_to_write<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        Ok(Box::new(FaultyDisk(self.0.open_to_write(chain)?, self.1)))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        match self.1 {
            Fault::RefusesSnapshots => Err(planted()),
            fault => Ok(Box::new(FaultyDisk(self.0.open_snapshot(chain, index)?, fault))),
        }
    }

    fn create(&mut self, chain: &Chain, image: &NewImage) -> Answer {
        self.0.create(chain, image)
    }
}

impl OpenDisk for FaultyDisk<'_> {
    fn virtual_size_bytes(&self) -> u64 {
        let size = self.0.virtual_size_bytes();
        if self.1 == Fault::Longer { size / 512 * 512 + 512 } else { size }
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        let fault = self.1;
        let mut change = |extent: Extent| {
            let mut mapping = extent.mapping;
            let is_data = mapping.data && mapping.depth == 0 && mapping.offset.is_some();
            match fault {
                Fault::LostData if is_data => mapping = Mapping::HOLE,
                Fault::Displaced if is_data => {
                    mapping.offset = mapping.offset.map(|at| HostOffset::new(at.get() + 512));
                }
                _ => {}
            }
            visitor.extent(Extent { mapping, ..extent })
        };
        self.0.map(window, &mut change)?;
        if fault == Fault::FailedWalk { Err(planted()) } else { Ok(()) }
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let run = self.0.status(guest)?;
        match self.1 {
            Fault::NoMapAndWrongStatus => Ok(GuestRun { status: Mapping::HOLE.into(), ..run }),
            _ => Ok(run),
        }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        self.0.read(guest, into)?;
        match self.1 {
            Fault::OtherByte | Fault::OtherByteInSnapshot => {
                into.iter_mut().find(|byte| **byte != 0).into_iter().for_each(|byte| *byte ^= 0x55);
            }
            Fault::FailedReads => return Err(planted()),
            _ => {}
        }
        Ok(())
    }

    fn report(&mut self, about: ReportKind) -> Answer<ImageReport> {
        let snapshots = Some(usize::from(self.1 == Fault::OneSnapshotMore));
        let errors = u64::from(self.1 == Fault::FindsErrors);
        Ok(match about {
            ReportKind::Info => ImageReport::Info(ImageInfo { snapshots, ..ImageInfo::default() }),
            ReportKind::Check => ImageReport::Check(CheckCounts { errors, leaks: 0 }),
        })
    }

    fn request(&mut self, request: &Request) -> Answer {
        match (self.1, request) {
            (Fault::WritesOtherByte, Request::Write { guest, bytes }) => {
                let mut bytes = bytes.to_vec();
                bytes.iter_mut().take(1).for_each(|byte| *byte ^= 0x55);
                self.0.request(&Request::Write { guest: *guest, bytes: &bytes })
            }
            (Fault::FailedWrites, Request::Write { .. }) => Err(planted()),
            _ => self.0.request(request),
        }
    }

    fn close(self: Box<Self>) -> Answer {
        self.0.close()
    }
}

/// Returns the first finding in `input` whose fingerprint begins with `prefix`, with all others set aside. `both` makes
/// the implementation with known findings and its second opinion.
pub fn first_finding(
    both: impl Fn(KnownFindings) -> Implementation,
    kind: TargetKind,
    input: &[u8],
    prefix: &str,
) -> Option<String> {
    let mut known = KnownFindings::default();
    loop {
        let mut target = kind.create(&both(known.clone()), FileNames::default(), no_observer());
        let failure = target.run(input, Checks::AtCheckpoints).err()?;
        let fingerprint = failure.violation.fingerprint();
        if fingerprint.starts_with(prefix) {
            // Another run gives the same finding.
            assert_eq!(target.run(input, Checks::AtCheckpoints).unwrap_err(), failure);
            return Some(fingerprint);
        }
        let reason = "an oracle of its own finds it".to_string();
        known = known.and(&KnownFindings::new([KnownFinding {
            fingerprint,
            reason,
            ..KnownFinding::default()
        }]));
    }
}
