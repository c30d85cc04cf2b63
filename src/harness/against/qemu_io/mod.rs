//! QEMU in the loop: a long-running qemu-io judges the images of a run. It opens each image, reports its size and what
//! the image at the top allocates, and compares the data that it reads with the engine's. A whole `qemu-img map`
//! compares all fields of a share of the runs, which also compares the bytes of snapshots with those of
//! `qemu-img convert -l`; and `qemu-img check` judges files that an engine has left.
//! `docs/differential.md` describes the comparison and the named differences.
//!
//! Does not check the text of an error, data beyond 4 MiB of an image and inside of large holes, extents behind the
//! first tables of a very large disk, snapshots behind the fourth, their extents, and images whose bytes change during
//! reads.

pub(crate) mod answers;
mod commands;
mod compare;
mod disk;
mod engine;
mod in_flight;
mod injected;
mod maps;
mod qemu_img;
mod recorded;
mod script;
mod session;

use std::fmt::Debug;
use std::rc::Rc;

use crate::disk::observer::{Observer, SecondAnswer};
use crate::harness::against::second_engine::SecondEngine;
use crate::harness::against::second_opinion::{JudgedImage, ReadDisk, SecondOpinion};
use crate::harness::cases::implementation::Implementation;
use crate::harness::engine::EngineError;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::files::chain::Chain;
use crate::harness::oracles::{OracleResult, SetAside, Violation, disagreement};

use answers::ORACLE;
use compare::QemuComparison;
pub use disk::QemuDisk;
pub use engine::QemuEngine;
pub(crate) use session::printed_version;

/// The runs that make costly comparisons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostlyComparisons {
    /// Every run, so that a command shows all that a campaign can find.
    #[default]
    Always,
    /// Runs chosen by the checksum of their input: one run in 64 compares a whole map, and one in eight compares images
    /// whose disks have more than 65,536 tables.
    Drawn,
}

/// The QEMU that judges images: the programs qemu-io and qemu-img on the path.
#[derive(Clone, Debug)]
pub struct Qemu {
    version: Rc<str>,
    costly: CostlyComparisons,
}

impl Qemu {
    /// Starts both programs once, to find out their version.
    ///
    /// # Errors
    /// Returns one line for the user: a program does not start, or qemu-io lacks a driver.
    pub fn start(costly: CostlyComparisons) -> Result<Self, String> {
        let version = session::version()?.into();
        printed_version("qemu-img")?;
        Ok(Self { version, costly })
    }

    /// Returns the version of qemu-io.
    pub fn version(&self) -> &str {
        &self.version
    }
}

impl Implementation {
    /// Returns the implementation, whose images `qemu` judges, too.
    pub fn against(self, qemu: &Qemu) -> Self {
        let costly = qemu.costly;
        let path = "qcowfuzz::harness::against::qemu_io";
        let qemu = format!("{path}::Qemu::start({path}::CostlyComparisons::Always).unwrap()");
        let written = self.written_with(Some(format!(".against(&{qemu})")));
        written.judged_by(move |observer| opinion(costly, observer))
    }
}

/// Returns the opinion of QEMU, which starts with the first image. It reports its answers to `observer`.
pub(crate) fn opinion(
    costly: CostlyComparisons,
    observer: &Rc<dyn Observer>,
) -> Box<dyn SecondOpinion> {
    Box::new(QemuJudge {
        costly,
        compares_maps: false,
        compares_large: false,
        comparison: QemuComparison::default(),
        snapshots: SecondEngine::new(&QemuEngine::default().into()),
        observer: Rc::clone(observer),
    })
}

/// Judges images by QEMU.
struct QemuJudge {
    costly: CostlyComparisons,
    /// This run compares whole maps, and checks files that an engine has left.
    compares_maps: bool,
    /// This run compares images with many tables.
    compares_large: bool,
    comparison: QemuComparison,
    /// Compares snapshots.
    snapshots: SecondEngine,
    observer: Rc<dyn Observer>,
}

impl Debug for QemuJudge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("QemuJudge").field("comparison", &self.comparison).finish_non_exhaustive()
    }
}

impl SecondOpinion for QemuJudge {
    fn begin_run(&mut self, checksum: u32) {
        let always = self.costly == CostlyComparisons::Always;
        self.compares_maps = always || checksum.is_multiple_of(64);
        self.compares_large = always || (checksum >> 6).is_multiple_of(8);
        self.snapshots.begin_run(checksum);
    }

    fn judge(
        &mut self,
        image: &JudgedImage,
        disk: Option<&mut TestedDisk>,
        set_aside: &mut SetAside,
    ) -> OracleResult<bool> {
        let mut disk = disk;
        let read: &mut ReadDisk<'_> = &mut |at, into| match &mut disk {
            Some(disk) => disk.read(at, into),
            None => Err(EngineError::NoAnswer),
        };
        let Self { comparison, observer, compares_maps, compares_large, .. } = self;
        // QEMU would follow the names of extents that a file of any content has.
        if image.is_any_content && image.chain.layers().iter().any(|it| !it.extents.is_empty())
            || answers::has_many_tables(image) && !*compares_large
            || !comparison.hold(image.chain, image.is_damaged)
        {
            return Ok(false);
        }
        let mut answer = |answer: SecondAnswer| observer.second(answer);
        let judged = match comparison.judge(image, read, &mut answer) {
            Err(found) => Err(confirmed(comparison, image, read, found)),
            Ok(()) if *compares_maps => comparison.whole_map(image, &mut answer),
            Ok(()) => Ok(()),
        };
        let judged = judged.or_else(|mut found| {
            found.detail = answers::without_paths(&found.detail);
            set_aside(found)
        });
        judged.map(|()| true)
    }

    fn judge_snapshots(
        &mut self,
        engine: &mut TestedEngine,
        image: &JudgedImage,
        set_aside: &mut SetAside,
    ) -> OracleResult {
        match self.compares_maps {
            true => self.snapshots.judge_snapshots(engine, image, set_aside),
            false => Ok(()),
        }
    }

    fn judge_left(&mut self, files: &Chain) -> OracleResult<bool> {
        if !self.compares_maps
            || answers::is_long_to_check(files)
            || !self.comparison.hold(files, false)
        {
            return Ok(false);
        }
        self.comparison.check(files).map(|()| true)
    }
}

/// Confirms a difference by a new process, and by a whole map whose result joins the detail.
fn confirmed(
    comparison: &mut QemuComparison,
    image: &JudgedImage,
    read: &mut ReadDisk<'_>,
    mut found: Box<Violation>,
) -> Box<Violation> {
    comparison.restart();
    let again = comparison.judge(image, read, &mut |_| {}).err();
    if again.as_ref().map(|again| again.fingerprint()) != Some(found.fingerprint()) {
        let second = again.map_or("nothing".to_string(), |again| again.to_string());
        let detail = format!("found first: {found}; found by a new process: {second}");
        return disagreement(ORACLE, "answers of two processes", ("the same", "others"), detail);
    }
    comparison.restart();
    let map = match comparison.whole_map(image, &mut |_| {}) {
        Ok(()) => "qemu-img map shows no difference".to_string(),
        Err(other) => format!("qemu-img map: {}", other.detail),
    };
    found.detail = format!("{}\n{map}", found.detail);
    found
}
