//! Engines that answer less than everything: the harness judges the answers that they give, names the oracles that are
//! idle, and finds a bug that is planted in each kind of answer.

use std::sync::{Arc, Mutex};
use test_support::prelude::*;

use qcowfuzz::base::features::Feature;
use qcowfuzz::harness::engine::claims::{CostPolicy, EnginePolicy, SizePolicy};
use qcowfuzz::harness::engine::questions::QuestionKind;
use qcowfuzz::harness::engine::status::GuestStatus;
use qcowfuzz::harness::files::chain::ChainFile;

type Answered = Result<(), EngineError>;
type OnRead = fn(&mut dyn OpenDisk, GuestOffset, &mut [u8]) -> Answered;
type OnStatus = fn(GuestOffset, Extent) -> GuestRun;

/// An engine that answers as these functions do. If one is `None`, the engine has no answer to such questions.
#[derive(Clone, Copy, Default)]
struct Answers {
    claims: Claims,
    open: Option<fn(&Chain) -> Answered>,
    read: Option<OnRead>,
    status: Option<OnStatus>,
}

struct Partial {
    walker: Walker,
    answers: Answers,
}

struct PartialDisk<'s> {
    disk: Box<dyn OpenDisk + 's>,
    answers: Answers,
}

impl Engine for Partial {
    fn facts(&self) -> Facts {
        Facts { claims: self.answers.claims, ..Facts::new("partial") }
    }

    fn open<'s>(&'s mut self, chain: &'s Chain) -> Opened<'s> {
        if let Some(open) = self.answers.open {
            open(chain)?;
        }
        Ok(Box::new(PartialDisk { disk: self.walker.open(chain)?, answers: self.answers }))
    }
}

impl OpenDisk for PartialDisk<'_> {
    fn virtual_size_bytes(&mut self) -> u64 {
        self.disk.virtual_size_bytes()
    }

    fn read(&mut self, guest: GuestOffset, into: &mut [u8]) -> Answered {
        match self.answers.read {
            Some(read) => read(&mut *self.disk, guest, into),
            None => Err(EngineError::NoAnswer),
        }
    }

    fn status(&mut self, guest: GuestOffset) -> Result<GuestRun, EngineError> {
        let Some(status) = self.answers.status else { return Err(EngineError::NoAnswer) };
        let window = Window { start: guest, length_bytes: u64::MAX };
        let mut first = None;
        self.disk.map(window, &mut |extent: Extent| {
            first = Some(extent);
            ControlFlow::Break(())
        })?;
        match first {
            Some(extent) => Ok(status(guest, extent)),
            None => Err(EngineError::untyped("past the end of the disk")),
        }
    }
}

fn sound_read(disk: &mut dyn OpenDisk, guest: GuestOffset, into: &mut [u8]) -> Answered {
    disk.read(guest, into)
}

/// Returns the status of a whole extent, as coarse as `coarse` makes it.
fn whole(extent: Extent, coarse: fn(Mapping) -> GuestStatus) -> GuestRun {
    GuestRun { length_bytes: extent.length_bytes, status: coarse(extent.mapping) }
}

fn kinds_only(mapping: Mapping) -> GuestStatus {
    match mapping {
        Mapping { compressed: true, .. } => GuestStatus::Compressed,
        Mapping { data: true, .. } => GuestStatus::Stored,
        Mapping { present: true, .. } => GuestStatus::Zeros(None),
        _ => GuestStatus::Hole,
    }
}

fn with_places(mapping: Mapping) -> GuestStatus {
    match mapping {
        Mapping { compressed: true, .. } => GuestStatus::Compressed,
        Mapping { data: true, offset, .. } => GuestStatus::Data(offset),
        Mapping { offset, .. } => GuestStatus::Zeros(offset),
    }
}

fn top_only(mapping: Mapping) -> GuestStatus {
    match mapping {
        Mapping { depth: 1.., .. } | Mapping { present: false, .. } => GuestStatus::Below,
        mapping => with_places(mapping),
    }
}

/// Returns all kinds of questions but the one that an engine answers.
fn idle_without(answered: QuestionKind) -> Vec<QuestionKind> {
    use QuestionKind::{
        ApplySnapshot, ChangeBitmap, Create, DeleteSnapshot, Discard, Flush, InFlight, Resize,
        TakeSnapshot, WriteZeroes, Writing,
    };
    // The target `map_extents` makes no requests.
    let structures = [TakeSnapshot, ApplySnapshot, DeleteSnapshot, ChangeBitmap];
    let requests = [Writing, WriteZeroes, Discard, Resize, Flush, InFlight, Create];
    let is_idle = |kind: &QuestionKind| {
        !matches!(*kind, QuestionKind::Open)
            && *kind != answered
            && !requests.contains(kind)
            && !structures.contains(kind)
    };
    QuestionKind::ALL.into_iter().filter(is_idle).collect()
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    corpus::seeds("map_extents")
}

/// Returns the fingerprints that the seeds show, with the kinds of questions that were not answered.
fn found(answers: Answers) -> (Vec<String>, Vec<QuestionKind>) {
    let mut harness = Harness::new(Partial { walker: Walker::default(), answers });
    let (mut fingerprints, mut unanswered) = (Vec::new(), Vec::new());
    for (_, seed) in seeds() {
        match harness.run(&seed, Checks::AtCheckpoints) {
            Ok(outcome) => unanswered.extend(outcome.unanswered.iter()),
            Err(failure) => fingerprints.push(failure.violation.fingerprint()),
        }
    }
    fingerprints.sort();
    fingerprints.dedup();
    let unanswered = QuestionKind::ALL.into_iter().filter(|kind| unanswered.contains(kind));
    (fingerprints, unanswered.collect())
}

#[test]
fn an_engine_that_only_reads_is_judged_by_its_data() {
    let sound = Answers { read: Some(sound_read), ..Answers::default() };
    let idle = idle_without(QuestionKind::Read);
    assert_eq!(found(sound), (Vec::new(), idle));
    let zeros: OnRead = |disk, guest, into| {
        disk.read(guest, into)?;
        into.fill(0);
        Ok(())
    };
    let (fingerprints, _) = found(Answers { read: Some(zeros), ..sound });
    assert!(fingerprints.contains(&"data: normal, what was written → zeros".into()));
    // A read of the file that fails must not become zeros.
    let careless: OnRead = |disk, guest, into| match disk.read(guest, into) {
        Err(EngineError::Storage(_)) => {
            into.fill(0);
            Ok(())
        }
        answer => answer,
    };
    let (fingerprints, _) = found(Answers { read: Some(careless), ..sound });
    assert!(!fingerprints.is_empty());
    assert!(fingerprints.iter().all(|it| it.starts_with("io: ")), "{fingerprints:?}");
}

/// Nothing but reads shows such a bug, so each run reads the inside of all clusters of a small disk.
#[test]
fn an_engine_that_only_reads_is_judged_by_the_inside_of_its_clusters() {
    let inside: OnRead = |disk, guest, into| {
        disk.read(guest, into)?;
        for (at, byte) in (guest.get()..).zip(into) {
            if (64..128).contains(&(at % 512)) {
                *byte = 0;
            }
        }
        Ok(())
    };
    let answers = Answers { read: Some(inside), ..Answers::default() };
    let mut harness = Harness::new(Partial { walker: Walker::default(), answers });
    let runs = seeds().into_iter().map(|(_, seed)| harness.run(&seed, Checks::AtCheckpoints));
    let found = runs.filter(Result::is_err).count();
    assert!(found >= 95, "{found} seeds");
}

#[test]
fn a_coarse_status_is_judged_by_the_part_that_it_states() {
    let idle = idle_without(QuestionKind::Status);
    let statuses: [OnStatus; 3] = [
        |_, extent| whole(extent, kinds_only),
        |_, extent| whole(extent, with_places),
        |_, extent| whole(extent, top_only),
    ];
    for status in statuses {
        let sound = Answers { status: Some(status), ..Answers::default() };
        assert_eq!(found(sound), (Vec::new(), idle.clone()));
    }
}

#[test]
fn a_wrong_status_is_found() {
    let wrong: [(OnStatus, &str); 6] = [
        (
            |_, extent| GuestRun { length_bytes: 0, status: kinds_only(extent.mapping) },
            "lookup: length, on the disk → another",
        ),
        (
            |_, extent| GuestRun { length_bytes: u64::MAX, status: kinds_only(extent.mapping) },
            "lookup: length, on the disk → another",
        ),
        (
            |_, _| GuestRun { length_bytes: 1, status: GuestStatus::Hole },
            "lookup: status, normal → hole",
        ),
        (
            |_, _| GuestRun { length_bytes: 1, status: GuestStatus::Below },
            "lookup: status, normal → below",
        ),
        (
            |_, extent| {
                whole(extent, |mapping| match with_places(mapping) {
                    GuestStatus::Data(Some(host)) => GuestStatus::Data(host.checked_add(512)),
                    GuestStatus::Data(None) => GuestStatus::Data(Some(HostOffset::ZERO)),
                    status => status,
                })
            },
            "lookup: status, normal → data",
        ),
        // A run that goes on past the end of its extent.
        (
            |guest, extent| {
                let run = whole(extent, kinds_only);
                let length_bytes = match guest.get() {
                    0 => run.length_bytes.saturating_add(1),
                    _ => run.length_bytes,
                };
                GuestRun { length_bytes, ..run }
            },
            "lookup: status, unallocated → stored",
        ),
    ];
    for (status, fingerprint) in wrong {
        let (fingerprints, _) = found(Answers { status: Some(status), ..Answers::default() });
        assert!(fingerprints.contains(&fingerprint.to_string()), "{fingerprint}: {fingerprints:?}");
    }
}

/// Refuses every image with compression type zstd, by bit 3 of the incompatible features.
fn no_zstd(chain: &Chain) -> Answered {
    for layer in chain.layers() {
        let mut bits = [0; 1];
        layer.image.read_at(HostOffset::new(79), &mut bits)?;
        let mut version = [0; 4];
        layer.image.read_at(HostOffset::new(4), &mut version)?;
        if u32::from_be_bytes(version) == 3 && bits[0] & 8 != 0 {
            return Err(EngineError::unsupported("zstd"));
        }
    }
    Ok(())
}

#[test]
fn a_claimed_feature_must_be_supported() {
    let refusing = Answers { open: Some(no_zstd), read: Some(sound_read), ..Answers::default() };
    let unsupported = vec!["open: image, an answer → a feature is unsupported (zstd)".to_string()];
    assert_eq!(found(refusing).0, unsupported);
    // The programs are folded.
    let claims = Claims::ALL.no(&[Feature::Zstd]);
    assert_eq!(found(Answers { claims, ..refusing }).0, Vec::<String>::new());
    let claims = Claims::ALL.refuse_or_be_right(&[Feature::Zstd]);
    assert_eq!(found(Answers { claims, ..refusing }).0, Vec::<String>::new());
}

#[test]
fn what_an_engine_may_refuse_it_must_not_answer_wrongly() {
    // One program of eight keeps the feature, by its rng_seed.
    let seed =
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/map_extents/zstd_crossing"));
    let mut program = qcowfuzz::programs::Program::decode(&seed.unwrap());
    program.prologue.rng_seed = 7;
    let claims = Claims::ALL.refuse_or_be_right(&[Feature::Zstd]);
    let run = |open, read| {
        let answers = Answers { claims, open, read: Some(read), status: None };
        let mut harness = Harness::new(Partial { walker: Walker::default(), answers });
        harness.run(&program.encode(), Checks::AtCheckpoints)
    };
    let refused = run(Some(no_zstd as fn(&Chain) -> Answered), sound_read as OnRead).unwrap();
    assert!(refused.refused > 0 && !refused.folded && !refused.unsupported);
    assert_eq!(run(None, sound_read).unwrap().refused, 0);
    let wrong: OnRead = |disk, guest, into| {
        disk.read(guest, into)?;
        into.fill(0xEE);
        Ok(())
    };
    let fingerprint = run(None, wrong).unwrap_err().violation.fingerprint();
    assert!(fingerprint.starts_with("data: "), "{fingerprint}");
}

/// The size that the header stores, and a bug that a difference of sizes must not hide.
#[derive(Clone)]
struct StoredSize {
    policy: EnginePolicy,
    reads_zeros: bool,
    file: Option<ChainFile>,
    size_bytes: u64,
}

impl Change for StoredSize {
    fn facts(&self, facts: Facts) -> Facts {
        Facts { policy: self.policy, ..facts }
    }

    /// The engine opens no snapshots.
    fn begin(&mut self, opening: Opening, _: &Chain) -> Answer {
        if opening == Opening::Read { Ok(()) } else { Err(EngineError::NoAnswer) }
    }

    fn opened(&self, _: Opening, chain: &Chain, _: &mut Inner) -> Answer<Self> {
        let mut size = [0; 8];
        chain.image().read_at(HostOffset::new(24), &mut size)?;
        let (file, size_bytes) = (Some(chain.image().clone()), u64::from_be_bytes(size));
        Ok(Self { file, size_bytes, ..self.clone() })
    }

    fn size(&self, _: &mut Inner) -> u64 {
        self.size_bytes
    }

    /// Returns zeros past the end of the disk, and other bytes behind the last whole sector.
    fn read(&mut self, disk: &mut Inner, guest: GuestOffset, into: &mut [u8]) -> Answered {
        let inside = |size: u64| {
            usize::try_from(size.saturating_sub(guest.get())).unwrap_or(usize::MAX).min(into.len())
        };
        let (walked, stored) = (inside(disk.virtual_size_bytes()), inside(self.size_bytes));
        if walked > 0 {
            disk.read(guest, &mut into[..walked])?;
        }
        into[walked..stored].fill(0x77);
        into[stored..].fill(0);
        if self.reads_zeros {
            into.fill(0);
        }
        Ok(())
    }

    fn status(&mut self, _: &mut Inner, _: GuestOffset) -> Answer<GuestRun> {
        Err(EngineError::NoAnswer)
    }

    fn report(&mut self, _: &mut Inner, _: ReportKind) -> Answer<ImageReport> {
        Err(EngineError::NoAnswer)
    }

    fn map(&mut self, disk: &mut Inner, window: Window, visitor: &mut dyn Visitor) -> Answered {
        // Reads far more than the tables.
        self.file.as_ref().unwrap().read_at(HostOffset::ZERO, &mut [0; 128 << 10])?;
        disk.map(window, visitor)
    }
}

#[test]
fn a_policy_excuses_the_size_and_the_cost_and_nothing_else() {
    let run = |size, cost, reads_zeros| {
        let policy = EnginePolicy { size, cost, ..EnginePolicy::default() };
        let change = StoredSize { policy, reads_zeros, file: None, size_bytes: 0 };
        let mut harness = Harness::new(Changed::walker(change));
        let mut found: Vec<_> = seeds()
            .iter()
            .filter_map(|(_, seed)| harness.run(seed, Checks::AtCheckpoints).err())
            .map(|failure| failure.violation.fingerprint())
            .collect();
        found.sort();
        found.dedup();
        found
    };
    let (near, judged, not_judged) = (SizePolicy::Near, CostPolicy::Judged, CostPolicy::NotJudged);
    assert_eq!(run(near, not_judged, false), Vec::<String>::new());
    let bytes_read = "bounds: bytes read, within bounds → more";
    let found = run(near, judged, false);
    assert!(found.iter().any(|it| it == bytes_read), "{found:?}");
    let larger = "model: virtual size, the journal's → larger";
    assert_eq!(run(SizePolicy::WholeSectors, not_judged, false), [larger]);
    let found = run(near, not_judged, true);
    assert!(found.iter().any(|it| it == "data: normal, what was written → zeros"), "{found:?}");
}

/// Files, with four bytes of each.
type KeptFiles = Vec<(ChainFile, [u8; 4])>;

/// Keeps the files of all chains, and reads them from another thread.
#[derive(Clone, Default)]
struct Hoarder(Arc<Mutex<KeptFiles>>);

impl Change for Hoarder {
    fn begin(&mut self, _: Opening, chain: &Chain) -> Answer {
        let file = chain.image().clone();
        let mut length = [0; 4];
        file.read_at(HostOffset::new(28), &mut length)?;
        self.0.lock().unwrap().push((file, length));
        Ok(())
    }
}

#[test]
fn an_engine_may_keep_its_files() {
    let hoarder = Hoarder::default();
    let kept = Arc::clone(&hoarder.0);
    let mut harness = Harness::new(Changed::walker(hoarder));
    for (name, seed) in seeds().into_iter().take(20) {
        let run = harness.run(&seed, Checks::AtCheckpoints);
        assert!(run.is_ok(), "{name}: {run:?}");
    }
    let kept = std::mem::take(&mut *kept.lock().unwrap());
    assert!(kept.len() > 20);
    let same = std::thread::spawn(move || {
        kept.iter().all(|(file, before)| {
            let mut now = [0; 4];
            file.read_at(HostOffset::new(28), &mut now).is_ok() && now == *before
        })
    });
    assert!(same.join().unwrap(), "later images were written over files that the engine keeps");
}

/// Our walker answers everything else.
#[test]
fn our_walker_leaves_no_oracle_idle_except_for_checks_of_vhd() {
    let mut harness = Harness::new(Walker::default());
    for (name, seed) in seeds() {
        let outcome = harness.run(&seed, Checks::AtCheckpoints).unwrap();
        let idle: Vec<_> = outcome.unanswered.iter().collect();
        let is_vhd = harness.images().top().format == ImageFormat::Vpc;
        assert!(idle.is_empty() || is_vhd && idle == [QuestionKind::Check], "{name}: {idle:?}");
    }
}
