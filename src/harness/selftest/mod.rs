//! The self-test of an adapter: the harness asks an engine about plain images of its formats, and describes each wrong
//! answer as the mistake of an adapter that causes it, if it knows one.
//!
//! The oracles judge the answers. Does not notice an engine that never returns.

mod accesses;
mod images;
mod mistake;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::base::features::{Feature, FeatureSet};
use crate::disk::offsets::GuestOffset;
use crate::harness::cases::implementation::no_observer;
use crate::harness::engine::claims::{Claim, Claims};
use crate::harness::engine::known::{KnownFinding, KnownFindings};
use crate::harness::engine::questions::QuestionKinds;
use crate::harness::engine::tested::TestedEngine;
use crate::harness::engine::{Engine, ErrorKind, Facts, failure};
use crate::harness::oracles::{self, OracleResult, Violation};
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, Harness, Walker};
use crate::programs::text::assemble;

pub use accesses::{AccessCheck, AccessOrder};
pub(crate) use images::plain_images;
pub use mistake::{AdapterMistake, SelfTestQuestion};

use mistake::BuiltImage;

/// The formats of images. The self-test leaves out images of a format that the engine does not know.
const FORMATS: FeatureSet = FeatureSet::of_other_formats().with(FeatureSet::of(&[Feature::Qcow2]));
/// The number of bytes at the end of a disk that the self-test reads at once.
const END_BYTES: u64 = 4096;

/// The result of a self-test.
#[derive(Clone, Debug, Default)]
pub struct SelfTest {
    /// The answers, in the order of the questions.
    pub rows: Vec<SelfTestRow>,
    /// The accesses to the files: of the engine as a reader, and as a writer if it writes.
    pub accesses: Vec<AccessCheck>,
}

/// The answer to a question about a plain image.
#[derive(Clone, Debug)]
pub struct SelfTestRow {
    /// The name of the image.
    pub image: &'static str,
    /// The features of the image.
    pub features: FeatureSet,
    /// The question.
    pub question: SelfTestQuestion,
    /// The answer.
    pub answer: SelfTestAnswer,
}

/// The judgement of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelfTestAnswer {
    /// The answer is right.
    Right,
    /// The engine does not answer such questions.
    NoAnswer,
    /// The engine does not claim a feature of the image. The text names the feature, or repeats the engine's refusal.
    Skipped(String),
    /// The answer is wrong.
    Wrong {
        /// The mistake of an adapter that causes such answers. Without one, the implementation probably has a bug.
        mistake: Option<AdapterMistake>,
        /// The engine refused the image, or said that it does not support it.
        is_refusal: bool,
        /// The expected answer and the actual one, in the words of the oracle.
        violation: String,
    },
}

impl SelfTestRow {
    /// Returns the features of the image beside those that are `supported`, if the engine refuses it.
    fn refused(&self, supported: FeatureSet) -> FeatureSet {
        let is_refusal =
            matches!(self.answer, SelfTestAnswer::Wrong { mistake: None, is_refusal: true, .. });
        match is_refusal && supported != FeatureSet::EMPTY {
            true => self.features.without(supported),
            false => FeatureSet::EMPTY,
        }
    }

    /// Returns the text of the program that builds the image.
    pub fn program_text(&self) -> String {
        let image = plain_images().find(|image| image.name == self.image);
        image.map(|image| image.text()).unwrap_or_default()
    }
}

impl SelfTest {
    /// Returns the rows with wrong answers.
    pub fn wrong(&self) -> impl Iterator<Item = &SelfTestRow> {
        self.rows.iter().filter(|row| matches!(row.answer, SelfTestAnswer::Wrong { .. }))
    }

    /// Returns the features of a refused image that no image with right answers has.
    pub fn refused_in(&self, row: &SelfTestRow) -> FeatureSet {
        row.refused(self.supported())
    }

    /// Returns all features that the engine seems to refuse.
    pub fn refused(&self) -> FeatureSet {
        let supported = self.supported();
        self.rows.iter().fold(FeatureSet::EMPTY, |all, row| all.with(row.refused(supported)))
    }

    /// Returns the features of all images with right answers only.
    fn supported(&self) -> FeatureSet {
        let is_wrong = |image| self.wrong().any(|row| row.image == image);
        let right = self.rows.iter().filter(|row| row.answer == SelfTestAnswer::Right);
        let right = right.filter(|row| !is_wrong(row.image));
        right.fold(FeatureSet::EMPTY, |all, row| all.with(row.features))
    }

    /// Reports whether the engine answered at least one question about data or statuses.
    pub fn has_answers(&self) -> bool {
        let asks_more = |row: &&SelfTestRow| {
            // A size, a snapshot that opens and an empty disk are judged without answers.
            !matches!(row.question, SelfTestQuestion::Size | SelfTestQuestion::Snapshot)
                && !row.features.has(Feature::EmptyDisk)
        };
        let is_answered = |row: &SelfTestRow| {
            matches!(row.answer, SelfTestAnswer::Right | SelfTestAnswer::Wrong { .. })
        };
        self.rows.iter().filter(asks_more).any(is_answered)
    }

    /// Reports whether the engine has answered, no answer is wrong, and it declares no more about its accesses than it
    /// keeps.
    pub fn passed(&self) -> bool {
        let is_declared = !self.accesses.iter().any(AccessCheck::is_wrong);
        self.has_answers() && self.wrong().next().is_none() && is_declared
    }
}

/// Asks engines about all plain images of the formats that they know. `create` returns a new engine for each question,
/// so that no question suffers from a panic before it.
pub fn self_test(create: &dyn Fn() -> Box<dyn Engine>) -> SelfTest {
    let mut test = SelfTest::default();
    let mut wrong_before = Vec::new();
    for image in plain_images() {
        let program = match assemble(&image.text()) {
            Ok(program) => program.encode(),
            // A unit test assembles all of them.
            Err(error) => unreachable!("{}: {error}", image.name),
        };
        let facts = create().facts();
        let features = features(&program);
        let mut add = |question, answer| {
            test.rows.push(SelfTestRow { image: image.name, features, question, answer });
        };
        let claims = facts.claims;
        if claims.about(features) == Claim::No {
            let excluded = unclaimed(&claims, features);
            if excluded.meets(FORMATS) {
                continue;
            }
            let reason = format!("not claimed: {excluded}");
            add(SelfTestQuestion::Size, SelfTestAnswer::Skipped(reason));
            continue;
        }
        let mut wrong_size = KnownFindings::default();
        let has_snapshots = features.has(Feature::Snapshots);
        let snapshot = has_snapshots.then_some(SelfTestQuestion::Snapshot);
        for question in SelfTestQuestion::EACH.into_iter().chain(snapshot) {
            let asked =
                Asked { question, program: &program, features, facts: &facts, known: &wrong_size };
            let (mut answer, found) = asked.ask(create);
            if let SelfTestAnswer::Wrong { mistake, .. } = &mut answer
                && wrong_before.contains(&question)
            {
                // The engine has answered this question wrongly about an image in one file, too.
                mistake.take_if(|mistake| mistake.is_about_layers());
            }
            let is_open = found.as_ref().is_none_or(|found| found.oracle != "open");
            if let Some(found) = found
                && question == SelfTestQuestion::Size
            {
                // The other questions are judged all the same.
                let (fingerprint, reason) = (found.fingerprint(), "the row above".to_string());
                wrong_size = KnownFindings::new([KnownFinding {
                    fingerprint,
                    reason,
                    ..KnownFinding::default()
                }]);
            }
            let is_skipped = matches!(answer, SelfTestAnswer::Skipped(_));
            if let SelfTestAnswer::Wrong { mistake, .. } = &answer
                && !mistake.is_some_and(|mistake| mistake.is_about_layers())
            {
                wrong_before.push(question);
            }
            add(question, answer);
            if is_skipped || !is_open {
                break;
            }
        }
    }
    test.accesses = accesses::check(create);
    test
}

/// Returns the features of the images that a program builds.
fn features(program: &[u8]) -> FeatureSet {
    let mut harness = Harness::new(Walker::default());
    harness.build(program);
    harness.vm().features()
}

/// Returns those of `features` that `claims` exclude.
fn unclaimed(claims: &Claims, features: FeatureSet) -> FeatureSet {
    let is_excluded = |feature: &Feature| claims.about(FeatureSet::of(&[*feature])) == Claim::No;
    let excluded: Vec<_> = features.iter().filter(is_excluded).collect();
    FeatureSet::of(&excluded)
}

/// A question about the image of a program.
struct Asked<'a> {
    question: SelfTestQuestion,
    program: &'a [u8],
    features: FeatureSet,
    facts: &'a Facts,
    /// The finding about the size of the disk, if its answer was wrong.
    known: &'a KnownFindings,
}

impl Asked<'_> {
    /// Asks a new engine. Returns the answer, and the violation if it is wrong.
    fn ask(&self, create: &dyn Fn() -> Box<dyn Engine>) -> (SelfTestAnswer, Option<Violation>) {
        let claim = self.facts.claims.about(self.features);
        // The engine is not used again.
        let judged = catch_unwind(AssertUnwindSafe(|| match self.question {
            SelfTestQuestion::End => self.judge_end(create()),
            _ => self.judge(create),
        }));
        let found = match judged {
            Ok(Ok(answer)) => return (answer, None),
            Ok(Err(found)) => found,
            Err(panic) => {
                failure::pass_on(&*panic);
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                let violation = format!("a panic: {}", text.unwrap_or("without a message"));
                let answer = SelfTestAnswer::Wrong { mistake: None, is_refusal: false, violation };
                return (answer, None);
            }
        };
        if found.error_kind().is_some() && claim == Claim::RefuseOrBeRight {
            return (refused(&found.detail), None);
        }
        let (question, program) = (self.question, self.program);
        // An engine that panics here has answered the question before.
        let known = AssertUnwindSafe(|| mistake::find(&mut *create(), question, program, &found));
        let mistake = catch_unwind(known).unwrap_or_else(|panic| {
            failure::pass_on(&*panic);
            None
        });
        let is_refusal =
            found.oracle == "open" || found.error_kind() == Some(ErrorKind::Unsupported);
        let violation = found.to_string();
        (SelfTestAnswer::Wrong { mistake, is_refusal, violation }, Some(*found))
    }

    /// Has the oracles judge the answers to one kind of question.
    fn judge(&self, create: &dyn Fn() -> Box<dyn Engine>) -> OracleResult<SelfTestAnswer> {
        // The self-test reports each wrong answer: the findings that the engine knows are not set aside.
        let known = self.known.clone();
        let kinds = self.question.kinds();
        let answers = self.facts.answers.and(QuestionKinds::of(kinds));
        let facts = Facts { known, answers, ..self.facts.clone() };
        let engine = TestedEngine::new(create(), facts);
        let mut harness = Harness::of(TargetKind::MapExtents, engine, no_observer());
        let outcome = harness.run(self.program, Checks::AtCheckpoints);
        let outcome = outcome.map_err(|failure| Box::new(failure.violation))?;
        if outcome.refused > 0 {
            let plain = BuiltImage::new(self.program);
            let error = create().open(&plain.chain).err().map(|error| error.to_string());
            // An engine that opens the image has refused to answer about it.
            return Ok(refused(&error.unwrap_or_default()));
        }
        Ok(match kinds.last().is_some_and(|kind| outcome.unanswered.has(*kind)) {
            true => SelfTestAnswer::NoAnswer,
            false => SelfTestAnswer::Right,
        })
    }

    /// Has an oracle judge a read of the last bytes of the disk.
    fn judge_end(&self, engine: Box<dyn Engine>) -> OracleResult<SelfTestAnswer> {
        let plain = BuiltImage::new(self.program);
        let mut engine = TestedEngine::new(engine, self.facts.clone());
        engine.note_sizes(&plain.model);
        let opened = engine.open(&plain.chain);
        let mut disk =
            opened.map_err(|error| oracles::unexpected_error("open", "image", &error))?;
        let size = plain.model.virtual_size_bytes();
        // A shorter disk is read from its beginning.
        let start = size.saturating_sub(END_BYTES);
        let (start, length) = (GuestOffset::new(start), (size - start) as usize);
        let read = &mut |at, into: &mut [u8]| disk.read(at, into);
        let judged: OracleResult =
            oracles::data::check_range(read, &plain.model, start, length, &mut Default::default());
        match judged {
            Err(found) if found.error_kind() == Some(ErrorKind::NoAnswer) => {
                Ok(SelfTestAnswer::NoAnswer)
            }
            judged => judged.map(|()| SelfTestAnswer::Right),
        }
    }
}

/// Returns the answer of an engine that refuses an image with the text of an error, as it claims.
fn refused(error: &str) -> SelfTestAnswer {
    let first = error.lines().next().unwrap_or_default();
    SelfTestAnswer::Skipped(format!("refused, as claimed: {first}"))
}
