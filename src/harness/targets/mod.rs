//! The fuzz targets: their constant properties, their judges, and the list of them. The file beside this one judges how
//! an engine reads a valid image.
//!
//! `known_bytes`: an engine reads the bytes that commands of QEMU have written (`recipes`). Does not check other bytes,
//! nor those behind the end of the disk, because some formats round its size.

mod reading;

use std::borrow::Cow;

use crate::base::features::Feature;
use crate::base::ranges::KnownBytes;
use crate::disk::extent::Extent;
use crate::disk::image_format::ImageFormat;
use crate::disk::offsets::GuestOffset;
use crate::harness::cases::case::Case;
use crate::harness::cases::target::{CaseEnd, CaseRun, Definition, Expectation, Inputs, JudgeCase};
use crate::harness::engine::Facts;
use crate::harness::engine::claims::Claims;
use crate::harness::engine::tested::{TestedDisk, TestedEngine};
use crate::harness::files::chain::Chain;
use crate::harness::model::Model;
use crate::harness::oracles::damaged::raw::RawJudge;
use crate::harness::oracles::qcow2::recount::Recount;
use crate::harness::oracles::qcow2::refcounts;
use crate::harness::oracles::{OracleResult, damaged, violation_at};
use crate::harness::writing::WriterJudge;
use crate::harness::writing::hostile::HostileWriterJudge;
use crate::images::limits::Limits;

use reading::ReadingJudge;

macro_rules! targets {
    ($($(#[$attribute:meta])* $kind:ident = $definition:ident, judged by $judge:ty;)+) => {
        /// The fuzz targets of this project.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum TargetKind {
            $($(#[$attribute])* $kind,)+
        }

        impl TargetKind {
            /// All targets.
            pub const ALL: [Self; [$(Self::$kind),+].len()] = [$(Self::$kind),+];

            /// Returns the constant properties of the target.
            pub const fn definition(self) -> &'static Definition {
                match self {
                    $(Self::$kind => &$definition,)+
                }
            }

            /// Returns the name in Rust: that of the variant.
            pub(crate) const fn variant(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($kind),)+
                }
            }

            pub(super) fn judge(self) -> Box<dyn JudgeCase> {
                match self {
                    $(Self::$kind => Box::<$judge>::default(),)+
                }
            }
        }
    };
}

targets! {
    /// Programs that build valid images. All oracles judge them.
    #[default]
    MapExtents = MAP_EXTENTS, judged by ReadingJudge;
    /// Programs with larger limits. Only the refcounts of their images are judged.
    Refcounts = REFCOUNTS, judged by RefcountJudge;
    /// Programs that damage the images that they build.
    Hostile = HOSTILE, judged by HostileJudge;
    /// Image files of any content.
    RawImage = RAW_IMAGE, judged by FileJudge;
    /// Programs with requests. The engine writes to the image at the top.
    Writes = WRITES, judged by WriterJudge;
    /// Programs with requests that damage the image to which the engine writes.
    HostileWrites = HOSTILE_WRITES, judged by HostileWriterJudge;
    /// Disks that QEMU makes and changes.
    Recipes = RECIPES, judged by MadeDiskJudge;
}

impl TargetKind {
    /// Returns the targets that have a libFuzzer binary. The others run other programs.
    pub fn of_libfuzzer() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|kind| kind.definition().inputs != Inputs::Recipes)
    }

    /// Returns the target of that name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the name: on the command line, of the libFuzzer binary and of the corpus folder.
    pub const fn name(self) -> &'static str {
        self.definition().name
    }

    /// Returns the limits of its programs.
    pub const fn limits(self) -> Limits {
        self.definition().limits
    }

    /// Returns the claims by which its programs are folded.
    pub fn claims_of(self, facts: &Facts) -> Claims {
        (self.definition().claims)(facts)
    }

    /// Returns the input that is judged if `input` runs with an engine that states `facts`: a program without the
    /// features that the engine does not claim. Returns `input` itself if folding does not change it, and if it is no
    /// program. Judging the result changes nothing more, with these claims or without them.
    pub fn judged<'i>(self, facts: &Facts, input: &'i [u8]) -> Cow<'i, [u8]> {
        match self.runs_programs() {
            true => self.claims_of(facts).fold(input),
            false => Cow::Borrowed(input),
        }
    }

    /// Reports whether its inputs are programs.
    pub fn runs_programs(self) -> bool {
        self.definition().inputs == Inputs::Programs
    }
}

/// Serialises a target by its name.
#[cfg(feature = "fuzzer")]
impl serde::Serialize for TargetKind {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> serde::Deserialize<'de> for TargetKind {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = <String as serde::Deserialize>::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| serde::de::Error::custom(format!("no target {name}")))
    }
}

/// Programs that build valid images, with our walker as the first engine.
const MAP_EXTENTS: Definition = Definition {
    name: "map_extents",
    about: "A program: the harness builds its image, the engine walks it, and all oracles judge",
    inputs: Inputs::Programs,
    limits: Limits::WALKED,
    expectation: Expectation::Extents,
    claims: |facts| facts.claims,
    judges_structures: true,
    judges_memory: true,
};

/// The allocator alone, in geometries that are too large for a walk.
const REFCOUNTS: Definition = Definition {
    name: "refcounts",
    about: "A program with larger limits: the harness builds its image, and judges only the refcounts",
    inputs: Inputs::Programs,
    limits: Limits::ALLOCATED,
    expectation: Expectation::NotWalked,
    // The harness asks the engine nothing. Other formats have no refcounts.
    claims: |_| Claims::QCOW2,
    judges_structures: false,
    judges_memory: false,
};

/// Judges only the refcounts of the images that programs build.
#[derive(Debug, Default)]
struct RefcountJudge {
    recount: Recount,
}

impl JudgeCase for RefcountJudge {
    fn judge(
        &mut self,
        _engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let top = case.images.top();
        let set_aside = &mut |found| run.verdicts.set_aside(found);
        let checked = refcounts::check(&mut self.recount, &top.image, &top.out_of_date, set_aside);
        run.verdicts.judge(checked)?;
        Ok(CaseEnd::Judged)
    }
}

/// Programs that damage the images that they build.
const HOSTILE: Definition = Definition {
    name: "hostile",
    about: "A program that damages its image: the engine must stay within bounds when it reads the image",
    inputs: Inputs::Programs,
    limits: Limits::HOSTILE,
    expectation: Expectation::UntouchedExtents,
    claims: |facts| facts.claims,
    judges_structures: false,
    judges_memory: true,
};

/// Judges how an engine reads damaged images.
#[derive(Debug, Default)]
struct HostileJudge {
    model: Model,
    /// The extents of the disk without the damage.
    expected: Vec<Extent>,
    buffers: damaged::HostileBuffers,
}

impl JudgeCase for HostileJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let Self { model, expected, buffers } = self;
        model.replay(case.journals.iter().copied());
        model.extents(expected);
        let feedback = engine.facts().reads;
        run.begin_accesses(feedback);
        let judged = damaged::check(engine, (case, model, expected), run, buffers);
        run.end_accesses(feedback, case);
        judged
    }
}

/// Image files of any content.
const RAW_IMAGE: Definition = Definition {
    name: "raw_image",
    about: "An image file of any content: the answers of the walker must agree with each other",
    inputs: Inputs::Files,
    // No run of this target reads them.
    limits: Limits::WALKED,
    expectation: Expectation::Unknown,
    claims: |facts| facts.claims,
    judges_structures: false,
    judges_memory: true,
};

/// The maximum number of references that a recount of a file keeps. A file may name a table many times, and libFuzzer
/// ends a process that takes 2 GiB.
const MAX_FILE_REFERENCES: usize = 1 << 20;

/// Judges how an engine reads files of any content.
#[derive(Debug)]
struct FileJudge {
    recount: Recount,
    judge: RawJudge,
}

impl Default for FileJudge {
    fn default() -> Self {
        Self { recount: Recount::bounded(MAX_FILE_REFERENCES), judge: RawJudge::default() }
    }
}

impl JudgeCase for FileJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let top = case.images.top();
        if top.format == ImageFormat::Qcow2 {
            // The recount must end without a panic. Any result is correct for a file of any content.
            let _ = self.recount.recount(&top.image);
        }
        self.judge.judge(engine, run, case)
    }
}

/// Programs with requests, by which an engine writes to the image at the top.
const WRITES: Definition = Definition {
    name: "writes",
    about: "A program: the engine writes to the image that the harness has built, and its disk and file are judged",
    inputs: Inputs::Programs,
    limits: Limits::WRITTEN,
    expectation: Expectation::Written,
    claims: claims_of,
    judges_structures: true,
    // The log of an engine's writes counts as allocated.
    judges_memory: false,
};

/// Programs that damage an image, with requests by which an engine writes to it.
const HOSTILE_WRITES: Definition = Definition {
    name: "hostile_writes",
    about: "A program that damages its image: the engine must stay within bounds when it writes to the image",
    inputs: Inputs::Programs,
    limits: Limits::HOSTILE_WRITTEN,
    expectation: Expectation::Written,
    claims: claims_of,
    judges_structures: false,
    judges_memory: true,
};

/// Returns the claims by which programs are folded: those of the engine, without features that writers may change as
/// soon as they open an image.
fn claims_of(facts: &Facts) -> Claims {
    facts.write_claims().no(&[
        Feature::Dirty,
        Feature::OutOfDateRefcounts,
        Feature::Corrupt,
        Feature::UnknownBits,
    ])
}

/// Disks that QEMU makes and changes.
const RECIPES: Definition = Definition {
    name: "recipes",
    about: "Choices of commands by which the installed QEMU makes a disk: the engine's answers about it, and QEMU's",
    inputs: Inputs::Recipes,
    // The programs with which some recipes begin have limits of their own.
    limits: Limits::HOSTILE,
    expectation: Expectation::Bytes,
    claims: |facts| facts.claims,
    judges_structures: false,
    // The bound on memory depends on the tables of programs.
    judges_memory: false,
};

/// Judges how an engine reads the disks of recipes.
#[derive(Debug, Default)]
struct MadeDiskJudge {
    judge: RawJudge,
    buffer: Vec<u8>,
}

impl JudgeCase for MadeDiskJudge {
    fn judge(
        &mut self,
        engine: &mut TestedEngine,
        run: &mut CaseRun,
        case: &Case,
    ) -> OracleResult<CaseEnd> {
        let Self { judge, buffer } = self;
        let end = judge.judge(engine, run, case)?;
        if end == CaseEnd::Judged && !case.known.is_empty() {
            let chain = Chain::metered(case.images, run.meter);
            // The walk before has opened it.
            if let Ok(mut disk) = engine.open(&chain) {
                run.verdicts.judge(check_known_bytes(&mut disk, case.known, buffer))?;
            }
        }
        Ok(end)
    }
}

const KNOWN_BYTES: &str = "known_bytes";

/// Reads the places of `known` that lie on the disk.
fn check_known_bytes(
    disk: &mut TestedDisk,
    known: &[KnownBytes],
    buffer: &mut Vec<u8>,
) -> OracleResult {
    let size_bytes = disk.virtual_size_bytes();
    for KnownBytes { guest, bytes } in known {
        let there = size_bytes.saturating_sub(guest.get()).min(bytes.len() as u64) as usize;
        buffer.clear();
        buffer.resize(there, 0);
        if there == 0 {
            continue;
        }
        if disk.read(*guest, buffer).is_err() {
            // The oracle `data` and the second opinion judge errors.
            continue;
        }
        let pairs = bytes.iter().zip(buffer.iter());
        if let Some((at, (wanted, read))) = (0..).zip(pairs).find(|(_, (one, other))| one != other)
        {
            return different(*guest + at, *wanted, *read);
        }
    }
    Ok(())
}

/// Returns the violation for a byte.
fn different(guest: GuestOffset, wanted: u8, read: u8) -> OracleResult {
    let kinds = match (wanted, read) {
        (0, _) => ("zeros", "data"),
        (_, 0) => ("data", "zeros"),
        _ => ("data", "other data"),
    };
    violation_at(guest, KNOWN_BYTES, "byte", kinds, || {
        format!("expected {wanted:#04x}, the engine reads {read:#04x}")
    })
}
