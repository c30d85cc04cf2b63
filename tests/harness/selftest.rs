//! The self-test passes for our walker, and names the mistake of each adapter in which one is planted.

use qcowfuzz::base::features::FeatureSet;
use qcowfuzz::harness::selftest::{
    AccessOrder, SelfTest, SelfTestAnswer, SelfTestQuestion, self_test,
};
use qcowfuzz::prelude::*;
use test_support::prelude::*;

/// An adapter of our walker, with a planted mistake.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Planted {
    #[default]
    Nothing,
    FileSize,
    SectorSize,
    ExactSize,
    FileBytes,
    FirstBytes,
    Untouched,
    HalfUntouched,
    NoBacking,
    NoDataFile,
    DataFromImage,
    WholeReads,
    NoLength,
    PastTheEnd,
    HostOfCluster,
    HoleAbove,
    WrongBytes,
    OnlyZeros,
    Panics,
    RefusesZstd,
    RefusesZstdAsClaimed,
    Unclaimed,
    AnswersNothing,
    WrongSnapshot,
}

use Planted::*;

struct Adapter {
    walker: Walker,
    planted: Planted,
}

struct AdapterDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    chain: Chain,
    planted: Planted,
}

impl Engine for Adapter {
    fn facts(&self) -> Facts {
        Facts {
            claims: {
                match self.planted {
                    Unclaimed => Claims::ALL.no(&[Feature::Zstd]),
                    RefusesZstdAsClaimed => Claims::ALL.refuse_or_be_right(&[Feature::Zstd]),
                    _ => Claims::ALL,
                }
            },
            ..Facts::new("planted")
        }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        let mut header = [0; 8];
        chain.image().read_exact_at(72, &mut header)?;
        // The incompatible feature of zstd.
        let zstd = u64::from_be_bytes(header) & 8 != 0;
        if zstd && matches!(self.planted, RefusesZstd | RefusesZstdAsClaimed) {
            return Err(EngineError::unsupported("zstd is not supported"));
        }
        let (disk, planted) = (self.walker.open(chain)?, self.planted);
        Ok(Box::new(AdapterDisk { disk, chain: chain.clone(), planted }))
    }

    fn open_snapshot<'s>(&'s mut self, chain: &'s Chain, index: u32) -> Opened<'s> {
        let (planted, other) = (self.planted, chain.clone());
        let disk = match planted {
            WrongSnapshot => self.walker.open(chain)?,
            _ => self.walker.open_snapshot(chain, index)?,
        };
        Ok(Box::new(AdapterDisk { disk, chain: other, planted }))
    }
}

impl AdapterDisk<'_> {
    fn mapping(&mut self, guest: GuestOffset) -> Answer<Mapping> {
        match self.disk.status(guest)?.status {
            GuestStatus::Exact(mapping) => Ok(mapping),
            status => panic!("{status}"),
        }
    }
}

impl OpenDisk for AdapterDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        let size = self.disk.virtual_size_bytes();
        match self.planted {
            FileSize => self.chain.image().length_bytes(),
            SectorSize => size / 512,
            // Rounded to 4 KiB.
            ExactSize => size.next_multiple_of(4096),
            _ => size,
        }
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answer {
        let image = self.chain.image().clone();
        let mapping = self.mapping(guest);
        let is = |planted: Planted| self.planted == planted;
        match mapping {
            _ if is(FileBytes) => return Ok(image.read_exact_at(guest.get(), into)?),
            _ if is(FirstBytes) => return self.disk.read(GuestOffset::ZERO, into),
            _ if is(Untouched) => return Ok(()),
            _ if is(AnswersNothing) => return Err(EngineError::NoAnswer),
            _ if is(Panics) => panic!("planted"),
            _ if is(WholeReads) => {
                let end = guest.get() + (into.len() as u64).next_multiple_of(8192);
                if end > self.disk.virtual_size_bytes() {
                    return Err(EngineError::untyped("past the end"));
                }
            }
            Ok(mapping) if is(NoBacking) && mapping.depth > 0 => {
                into.fill(0);
                return Ok(());
            }
            Ok(Mapping { offset: Some(host), .. })
                if self.chain.layers()[0].data_file.is_some() =>
            {
                if is(NoDataFile) {
                    into.fill(0);
                    return Ok(());
                } else if is(DataFromImage) {
                    return Ok(image.read_exact_at(host.get(), into)?);
                }
            }
            _ => {}
        }
        let length = if is(HalfUntouched) { into.len() / 2 } else { into.len() };
        self.disk.read(guest, &mut into[..length])?;
        match self.planted {
            WrongBytes => into[0] ^= 1,
            OnlyZeros => into.fill(0),
            _ => {}
        }
        Ok(())
    }

    fn status(&mut self, guest: GuestOffset) -> Answer<GuestRun> {
        let mapping = self.mapping(guest)?;
        let run = GuestRun { length_bytes: 1, status: GuestStatus::Exact(mapping) };
        Ok(match self.planted {
            AnswersNothing => return Err(EngineError::NoAnswer),
            NoLength => GuestRun { length_bytes: 0, ..run },
            PastTheEnd => GuestRun { length_bytes: 1 << 30, ..run },
            HostOfCluster => {
                let mut bits = [0; 4];
                self.chain.image().read_exact_at(20, &mut bits)?;
                let cluster = 1 << u32::from_be_bytes(bits);
                let begin = |host: HostOffset| HostOffset::new(host.get() / cluster * cluster);
                let host = mapping.offset.map(begin);
                let status = match mapping.data && !mapping.compressed {
                    true => GuestStatus::Data(host),
                    false => run.status,
                };
                GuestRun { status, ..run }
            }
            HoleAbove if mapping.depth > 0 => GuestRun { status: GuestStatus::Hole, ..run },
            _ => run,
        })
    }

    fn map(&mut self, window: Window, visitor: &mut dyn Visitor) -> Answer {
        match self.planted {
            Nothing => self.disk.map(window, visitor),
            _ => Err(EngineError::NoAnswer),
        }
    }
}

fn test(planted: Planted) -> SelfTest {
    self_test(&move || Box::new(Adapter { walker: Walker::default(), planted }))
}

/// Returns a line for each wrong answer: the image, the question, the mistake or the first line of the violation.
fn wrong(test: &SelfTest) -> Vec<String> {
    let line = |row: &qcowfuzz::harness::selftest::SelfTestRow| {
        let SelfTestAnswer::Wrong { mistake, violation, .. } = &row.answer else { unreachable!() };
        let what = mistake.map(|it| it.to_string());
        let what = what.unwrap_or_else(|| violation.lines().next().unwrap().to_string());
        format!("{}, {}: {what}", row.image, row.question)
    };
    test.wrong().map(line).collect()
}

/// The lines of the mistake that is planted must include `expected`; no line has another mistake.
fn finds(planted: Planted, expected: &str) -> Vec<String> {
    let lines = wrong(&test(planted));
    assert!(lines.iter().any(|line| line.contains(expected)), "{planted:?}: {lines:#?}");
    lines
}

#[test]
fn our_walker_passes() {
    let writing = self_test(&|| Box::new(WritingWalker::default()));
    for test in [test(Nothing), self_test(&|| Box::new(Walker::default())), writing] {
        assert_eq!(wrong(&test), [""; 0]);
        assert!(test.passed());
        // Every image is asked about, and nothing is skipped.
        let right =
            |row: &&qcowfuzz::harness::selftest::SelfTestRow| row.answer == SelfTestAnswer::Right;
        let (rows, right) = (test.rows.len(), test.rows.iter().filter(right).count());
        assert_eq!((rows, right), (47 * 5 + 1, rows));
    }
}

#[test]
fn a_writer_has_the_same_accesses_in_every_run() {
    let checks = self_test(&|| Box::new(WritingWalker::default())).accesses;
    let measured: Vec<_> = checks.iter().map(|it| (it.writing, it.measured)).collect();
    let ordered = Some(AccessOrder::Ordered);
    assert_eq!(measured, [(false, ordered), (true, ordered)]);
    assert!(checks.iter().all(|it| !it.is_wrong() && it.fitting() == it.declared));
}

#[test]
fn mistakes_about_the_size_are_named() {
    finds(FileSize, "one cluster, size: the size is that of the image file");
    finds(SectorSize, "one cluster, size: the size counts sectors, expected bytes");
    let lines = finds(ExactSize, "size inside a sector, size: the size is rounded");
    // A disk of whole clusters has the right size. The bytes past the end of the other one are another question.
    assert!(lines.iter().all(|line| line.contains("size inside a sector, ")), "{lines:#?}");
}

#[test]
fn mistakes_about_data_are_named() {
    finds(FileBytes, "one cluster, data: reads return the file's bytes, not the guest's");
    finds(
        FirstBytes,
        "clusters in reverse order, data: a read at guest offset 0x10000 returns the bytes of 0x0",
    );
    finds(Untouched, "one cluster, data: the buffer was left as the harness filled it");
    finds(HalfUntouched, "one cluster, data: the buffer was left as the harness filled it");
    let lines = finds(NoBacking, "qcow2 backing file, data: the backing file was never attached");
    let has_layers = |line: &String| {
        [" backing file, ", " on a ", " parent, "].iter().any(|it| line.contains(it))
    };
    assert!(lines.iter().all(has_layers), "{lines:#?}");
    // The images without a backing file are right, so that the mistake is named for each of the others.
    let data = lines.iter().filter(|line| line.contains(", data: "));
    assert!(data.clone().all(|line| line.contains("never attached")), "{lines:#?}");
    for planted in [NoDataFile, DataFromImage] {
        let lines = finds(planted, "data file, data: the data file was never attached");
        assert!(lines.iter().all(|line| line.starts_with("data file, ")), "{lines:#?}");
    }
    finds(WholeReads, "size inside a sector, end: an error at the disk's end, but nowhere else");
}

#[test]
fn mistakes_about_statuses_are_named() {
    finds(NoLength, "one cluster, status: the length of a status is 0");
    finds(PastTheEnd, "one cluster, status: the length of a status passes the end of the disk");
    finds(HostOfCluster, "one cluster, status: the host offset is that of the cluster");
    finds(HoleAbove, "qcow2 backing file, status: the backing file was never attached");
}

#[test]
fn other_wrong_answers_are_violations() {
    let lines =
        finds(WrongBytes, "one cluster, data: data: normal, what was written → other bytes");
    assert!(lines.iter().all(|line| !line.contains("never attached")), "{lines:#?}");
    // Images in one file are read wrong, too.
    let lines = finds(OnlyZeros, "qcow2 backing file, data: data: normal");
    assert!(lines.iter().all(|line| !line.contains("never attached")), "{lines:#?}");
    finds(Panics, "one cluster, data: a panic: planted");
    finds(WrongSnapshot, "snapshot, snapshot: snapshots: ");
    let refused =
        "zstd, size: open: image, an answer → a feature is unsupported (zstd is not supported)";
    assert_eq!(finds(RefusesZstd, refused), [refused]);
}

#[test]
fn a_refused_feature_becomes_a_claim() {
    let refused = |planted| test(planted).refused();
    assert_eq!(refused(RefusesZstd), FeatureSet::of(&[Feature::Zstd]));
    for planted in [Nothing, RefusesZstdAsClaimed, WrongBytes, Panics, WholeReads] {
        assert_eq!(refused(planted), FeatureSet::EMPTY, "{planted:?}");
    }
}

#[test]
fn claims_are_respected_and_no_answer_is_no_success() {
    let skipped = |test: &SelfTest| {
        let row = test.rows.iter().find(|row| row.image == "zstd").unwrap().clone();
        assert_eq!(row.question, SelfTestQuestion::Size);
        match row.answer {
            SelfTestAnswer::Skipped(reason) => reason,
            answer => panic!("{answer:?}"),
        }
    };
    let unclaimed = test(Unclaimed);
    assert!(unclaimed.passed());
    assert_eq!(skipped(&unclaimed), "not claimed: compression type zstd");
    let refused = test(RefusesZstdAsClaimed);
    assert!(refused.passed());
    assert_eq!(skipped(&refused), "refused, as claimed: zstd is not supported");
    let silent = test(AnswersNothing);
    assert_eq!(wrong(&silent), [""; 0]);
    assert!(!silent.has_answers() && !silent.passed());
}
