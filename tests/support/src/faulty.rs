//! Our walker with a planted fault in its answers.

use crate::prelude::*;
use qcowfuzz::harness::KnownFinding;
use qcowfuzz::harness::engine::questions::{QuestionKind, QuestionKinds};
use qcowfuzz::harness::engine::{CheckCounts, ImageInfo};

/// Returns a program whose image has data, zeros and holes, with more operations at its end.
pub fn program(more: &str) -> Vec<u8> {
    let operations = "write at=start+1 clusters=2\nzero at=start+8 clusters=1 keep=no\nwrite at=start+20 clusters=2\n";
    lines::encoded("cluster_bits=12 size=64<<12+0 rng_seed=7", &format!("{operations}{more}"))
}

/// Returns a program without crashes and requests in flight, after which no other implementation is compared.
pub fn comparable(mut program: Program) -> Program {
    let ends = |it: &Operation| matches!(it, Operation::Crash { .. } | Operation::InFlight { .. });
    program.operations.retain(|it| !ends(it));
    program
}

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

fn planted() -> EngineError {
    EngineError::untyped("planted")
}

impl Change for Fault {
    fn facts(&self, facts: Facts) -> Facts {
        match self {
            Fault::NoMap | Fault::NoMapAndWrongStatus => {
                let kinds = [QuestionKind::Open, QuestionKind::Status, QuestionKind::Read];
                Facts { answers: QuestionKinds::of(&kinds), ..facts }
            }
            _ => facts,
        }
    }

    fn begin(&mut self, opening: Opening, _: &Chain) -> Answer {
        match (&self, opening) {
            (Fault::Refuses, Opening::Read) | (Fault::RefusesSnapshots, Opening::Snapshot) => {
                Err(planted())
            }
            _ => Ok(()),
        }
    }

    fn opened(&self, opening: Opening, _: &Chain, _: &mut Inner) -> Answer<Self> {
        let is_of_snapshot = *self == Fault::OtherByteInSnapshot;
        Ok(if is_of_snapshot && opening == Opening::Read { Fault::None } else { *self })
    }

    fn size(&self, disk: &mut Inner) -> u64 {
        let size = disk.virtual_size_bytes();
        if *self == Fault::Longer { size / 512 * 512 + 512 } else { size }
    }

    fn map(&mut self, disk: &mut Inner, window: Window, visitor: &mut dyn Visitor) -> Answer {
        disk.map(window, &mut |extent: Extent| {
            let mut mapping = extent.mapping;
            let is_data = mapping.data && mapping.depth == 0 && mapping.offset.is_some();
            match self {
                Fault::LostData if is_data => mapping = Mapping::HOLE,
                Fault::Displaced if is_data => {
                    mapping.offset = mapping.offset.map(|at| HostOffset::new(at.get() + 512));
                }
                _ => {}
            }
            visitor.extent(Extent { mapping, ..extent })
        })?;
        if *self == Fault::FailedWalk { Err(planted()) } else { Ok(()) }
    }

    fn status(&mut self, disk: &mut Inner, guest: GuestOffset) -> Answer<GuestRun> {
        let run = disk.status(guest)?;
        match self {
            Fault::NoMapAndWrongStatus => Ok(GuestRun { status: Mapping::HOLE.into(), ..run }),
            _ => Ok(run),
        }
    }

    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answer {
        disk.read(guest, into)?;
        match self {
            Fault::OtherByte | Fault::OtherByteInSnapshot => {
                into.iter_mut().find(|byte| **byte != 0).into_iter().for_each(|byte| *byte ^= 0x55);
            }
            Fault::FailedReads => return Err(planted()),
            _ => {}
        }
        Ok(())
    }

    /// Reports no snapshots, and a check that finds nothing.
    fn report(&mut self, _: &mut Inner, about: ReportKind) -> Answer<ImageReport> {
        let snapshots = Some(usize::from(*self == Fault::OneSnapshotMore));
        let errors = u64::from(*self == Fault::FindsErrors);
        Ok(match about {
            ReportKind::Info => ImageReport::Info(ImageInfo { snapshots, ..ImageInfo::default() }),
            ReportKind::Check => ImageReport::Check(CheckCounts { errors, leaks: 0 }),
        })
    }

    fn request(&mut self, disk: &mut Inner, request: &Request) -> Answer {
        match (self, request) {
            (Fault::WritesOtherByte, Request::Write { guest, bytes }) => {
                let mut bytes = bytes.to_vec();
                bytes.iter_mut().take(1).for_each(|byte| *byte ^= 0x55);
                disk.request(&Request::Write { guest: *guest, bytes: &bytes })
            }
            (Fault::FailedWrites, Request::Write { .. }) => Err(planted()),
            (_, request) => disk.request(request),
        }
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
        let finding = KnownFinding { fingerprint, reason, ..KnownFinding::default() };
        known = known.and(&KnownFindings::new([finding]));
    }
}
