//! Carries out a recipe in a folder: QEMU performs the operations, both sides answer the questions, and the answers are
//! compared.

mod second_copy;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::compare::{self, RawFiles, Replies, data};
use super::divergence::{Divergence, DivergenceKind};
use super::sides::Sides;
use super::workdir::{remove, settle, stamps, unchanged};
use crate::findings::report::records::MapRecord;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, KnownFindings, Walker};
use crate::processes::Reply;
use crate::recipes::perform::{Performed, bytes_of};
use crate::recipes::recipe::{ABORT, AskedDisk, Command, DiskQuestion, Recipe, RecipeStep};
use crate::recipes::workshop::Workshop;
use crate::recipes::{RecipeError, without_numbers};
use second_copy::{OtherResult, SecondCopy};

/// The folder of the images, in the folder of an iteration.
pub(super) const DISK_FOLDER: &str = "disk";

/// A divergence, and where it was met.
#[derive(Clone, Debug)]
pub struct Met {
    /// The divergence.
    pub divergence: Divergence,
    /// The fingerprint.
    pub fingerprint: String,
    /// The index of the step.
    pub step: usize,
    /// The question, unless a command of QEMU is the finding.
    pub question: Option<DiskQuestion>,
    /// The answers of QEMU and of the program under test. A command has only QEMU's.
    pub answers: Option<(Reply, Option<Reply>)>,
}

/// The work of one iteration.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// The first divergence that is not known.
    pub met: Option<Met>,
    /// The first divergence of each known finding that the images showed, by the fingerprint in the list.
    pub known: BTreeMap<String, Met>,
    /// The name of the question of each comparison.
    pub comparisons: Vec<&'static str>,
}

/// The answers of both sides to a question.
struct Answered {
    qemu: Reply,
    tested: Reply,
    divergence: Option<Divergence>,
}

/// Carries out recipes.
pub struct RecipeRunner<'r> {
    /// The programs.
    pub sides: &'r Sides,
    /// The divergences that are known.
    pub known: &'r KnownFindings,
    /// An empty folder. The disk lies in a subfolder, so that no answer is written beside it.
    pub folder: &'r Path,
}

impl RecipeRunner<'_> {
    /// Carries out a recipe up to the first divergence that is not known. A program that cannot be started, and a file
    /// that cannot be read or written, count as such a divergence.
    pub fn run(&self, recipe: &Recipe) -> Course {
        let disk = self.disk_folder();
        let sides = self.sides;
        let workshop = Workshop::new(&disk, |tool, words, folder| sides.qemu(tool, words, folder));
        let (course, copy) = Default::default();
        let mut run = RecipeRun { runner: self, workshop, recipe, course, copy, at: (0, None) };
        match run.all() {
            Ok(()) => run.course,
            Err(error) => run.course.failed(recipe, run.at, &error),
        }
    }

    /// Returns the folder of the images.
    pub fn disk_folder(&self) -> PathBuf {
        self.folder.join(DISK_FOLDER)
    }
}

impl Course {
    /// Returns the course of a recipe that met an error of the campaign itself at a step or a question.
    pub(super) fn failed(
        mut self,
        recipe: &Recipe,
        (index, question): (usize, Option<DiskQuestion>),
        error: &RecipeError,
    ) -> Self {
        if let Some(step) = recipe.steps.get(index) {
            let divergence =
                Divergence::new(DivergenceKind::HarnessFailure, error.without_folder(), error);
            self.met = Some(meet(divergence, index, step, question, None));
        }
        self
    }

    /// Keeps a divergence of `recipe` if it is the first divergence of its known finding, or the first one that is not
    /// known.
    pub(super) fn record(&mut self, known: &KnownFindings, recipe: &Recipe, met: Met) {
        let known = match met.divergence.kind {
            DivergenceKind::HarnessFailure => None,
            _ => known.find_in(&met.fingerprint, &recipe.commands()),
        };
        match known {
            Some(known) => drop(self.known.entry(known.fingerprint.clone()).or_insert(met)),
            None => drop(self.met.get_or_insert(met)),
        }
    }

    /// Reports whether the campaign could not carry out the recipe.
    pub fn is_failed(&self) -> bool {
        self.met.as_ref().is_some_and(|met| met.divergence.kind == DivergenceKind::HarnessFailure)
    }
}

/// A recipe that is being carried out.
struct RecipeRun<'r> {
    runner: &'r RecipeRunner<'r>,
    workshop: Workshop<'r>,
    recipe: &'r Recipe,
    course: Course,
    /// The second copy of the disk, if the program under test performs the commands, too.
    copy: Option<SecondCopy<'r>>,
    /// The step and the question that are carried out.
    at: (usize, Option<DiskQuestion>),
}

impl RecipeRun<'_> {
    fn all(&mut self) -> Result<(), RecipeError> {
        let disk = self.workshop.folder();
        fs::create_dir_all(disk).map_err(|error| RecipeError::file(disk, error))?;
        if self.runner.sides.tested.executes() {
            self.copy = Some(SecondCopy::create(self.runner.sides, self.runner.folder)?);
        }
        for (index, step) in self.recipe.steps.iter().enumerate() {
            self.at = (index, None);
            self.change(index, step)?;
            self.compare_copy(index, step)?;
            for question in &step.questions {
                if self.course.met.is_some() {
                    return Ok(());
                }
                if self.runner.sides.tested.answers(question) {
                    self.at = (index, Some(question.clone()));
                    self.ask(index, step, question)?;
                }
            }
        }
        Ok(())
    }

    /// Performs the commands of a step.
    fn change(&mut self, index: usize, step: &RecipeStep) -> Result<(), RecipeError> {
        for command in &step.commands {
            if self.course.met.is_some() {
                break;
            }
            let divergence = judge_program(command)?;
            let performed = self.workshop.perform(command)?;
            let theirs = match &performed {
                Performed::Reply(reply) => Some(reply),
                Performed::Written | Performed::Program(_) => None,
            };
            let copied = self.copy.as_mut().map(|copy| copy.change(command, theirs)).transpose()?;
            let divergence = match performed {
                Performed::Written | Performed::Program(_) => divergence.map(|it| (it, None)),
                Performed::Reply(reply) => {
                    crash_or_hang(command, &reply).map(|it| (it, Some((reply, None))))
                }
            };
            if let Some((divergence, answers)) = divergence {
                self.record(meet(divergence, index, step, None, answers));
            }
            copied.flatten().into_iter().for_each(|other| self.record_result(index, step, other));
        }
        Ok(())
    }

    /// Compares the disk that the program under test has made with QEMU's.
    fn compare_copy(&mut self, index: usize, step: &RecipeStep) -> Result<(), RecipeError> {
        let Some(copy) = self.copy.as_ref().filter(|_| self.course.met.is_none()) else {
            return Ok(());
        };
        self.course.comparisons.push("result");
        if let Some(other) = copy.compare(step, self.workshop.folder())? {
            self.record_result(index, step, other);
        }
        Ok(())
    }

    /// Keeps a difference between the two disks, unless it is known.
    fn record_result(&mut self, index: usize, step: &RecipeStep, other: OtherResult) {
        let OtherResult { divergence, question, replies: (theirs, ours) } = other;
        let comparison = match &question {
            Some(question) => format!("result_{}", question.name()),
            None => "result".to_string(),
        };
        let fingerprint = divergence.fingerprint(&comparison, format_of(&step.disk));
        let answers = Some((theirs, Some(ours)));
        self.record(Met { divergence, fingerprint, step: index, question, answers });
    }

    /// Has both sides answer a question, and compares the answers.
    fn ask(
        &mut self,
        index: usize,
        step: &RecipeStep,
        question: &DiskQuestion,
    ) -> Result<(), RecipeError> {
        self.course.comparisons.push(question.name());
        let mut answered = self.answers(question, step)?;
        let is_unsettled = match question {
            DiskQuestion::Map { .. } | DiskQuestion::Info | DiskQuestion::Measure => {
                answered.divergence.as_ref().is_some_and(may_be_unsettled)
            }
            DiskQuestion::Check | DiskQuestion::Read => false,
        };
        if is_unsettled {
            // Between the two answers, the file system may have turned holes into zeros, and allocated blocks.
            let disk = self.workshop.folder();
            settle(disk).map_err(|error| RecipeError::file(disk, error))?;
            answered = self.answers(question, step)?;
        }
        let Answered { qemu, tested, divergence } = answered;
        if let Some(divergence) = divergence {
            let answers = Some((qemu, Some(tested)));
            self.record(meet(divergence, index, step, Some(question.clone()), answers));
        }
        Ok(())
    }

    fn answers(
        &mut self,
        question: &DiskQuestion,
        step: &RecipeStep,
    ) -> Result<Answered, RecipeError> {
        let (sides, folder) = (self.runner.sides, self.workshop.folder());
        let outputs = ["qemu.raw", "tested.raw"].map(|name| self.runner.folder.join(name));
        let [qemu_output, tested_output] =
            outputs.each_ref().map(|path| path.to_string_lossy().into_owned());
        let before = stamps(folder)?;
        let qemu = sides.ask_qemu(question, &step.disk, folder, &qemu_output);
        let qemu = qemu.map_err(RecipeError::Process)?;
        let between = stamps(folder)?;
        let tested = sides.ask_tested(question, &step.disk, folder, &tested_output);
        let tested = tested.map_err(RecipeError::Process)?;
        let after = stamps(folder)?;
        let files = RawFiles { qemu: &outputs[0], tested: &outputs[1] };
        let mut compared = unchanged("qemu", &before, &between)
            .and_then(|()| unchanged("tested", &between, &after))
            .and_then(|()| compare::compare(question, Replies::new(sides, &qemu, &tested), files));
        let map = match question {
            // The comparison reports an output that cannot be parsed.
            DiskQuestion::Map { .. } => {
                compare::parse_map(&qemu).map_or(Vec::new(), |list| list.records)
            }
            _ => Vec::new(),
        };
        if compared.is_ok() && qemu.is_success() {
            compared = self.third_answer(question, &step.disk.file, &map, files.qemu)?;
        }
        outputs.iter().try_for_each(|output| remove(output))?;
        Ok(Answered { qemu, tested, divergence: compared.err() })
    }

    /// Compares an answer on which both sides agree with the known bytes of the guest.
    fn third_answer(
        &self,
        question: &DiskQuestion,
        file: &str,
        map: &[MapRecord],
        read: &Path,
    ) -> Result<Result<(), Divergence>, RecipeError> {
        let Some(data) = self.workshop.guest().disk(file) else { return Ok(Ok(())) };
        match question {
            DiskQuestion::Read => data::compare_known(data, read, self.workshop.folder()),
            DiskQuestion::Map { .. } => {
                let zeros = map.iter().filter(|record| record.zero);
                let zeros = zeros.map(|record| record.guest());
                data::compare_zeros(data, zeros, self.workshop.folder())
            }
            _ => Ok(Ok(())),
        }
    }

    fn record(&mut self, met: Met) {
        self.course.record(self.runner.known, self.recipe, met);
    }
}

/// Reports whether the file system may be the reason of a divergence: a hole became zeros, or blocks were allocated.
fn may_be_unsettled(divergence: &Divergence) -> bool {
    use DivergenceKind::{ExtentCountDivergence, FieldDivergence};
    matches!(divergence.kind, ExtentCountDivergence | FieldDivergence)
}

/// Returns a divergence with its fingerprint.
pub(super) fn meet(
    divergence: Divergence,
    step_index: usize,
    step: &RecipeStep,
    question: Option<DiskQuestion>,
    answers: Option<(Reply, Option<Reply>)>,
) -> Met {
    let comparison = match (&question, &divergence.kind) {
        (Some(question), _) => question.name(),
        (None, DivergenceKind::ModelDivergence) => "program",
        (None, _) => step.operation.name(),
    };
    let format = format_of(&step.disk);
    let fingerprint = divergence.fingerprint(comparison, format);
    Met { divergence, fingerprint, step: step_index, question, answers }
}

/// Returns the format of a disk. The name of a file ends with it.
pub fn format_of(disk: &AskedDisk) -> &str {
    disk.file.rsplit_once('.').map_or("raw", |(_, format)| format)
}

/// Returns a finding if a command of QEMU crashed or hung. A crash that the request `abort` caused is no finding.
fn crash_or_hang(command: &Command, answer: &Reply) -> Option<Divergence> {
    let is_abort = |last: &String| last == ABORT;
    let wanted = matches!(command, Command::QemuIo { requests, .. } if requests.last().is_some_and(is_abort));
    let kind = DivergenceKind::of_end(answer.end)?;
    if wanted && kind == DivergenceKind::Signal {
        return None;
    }
    let message = answer.message();
    let last = message.lines().last().map_or(String::new(), without_numbers);
    let after = if last.is_empty() { "" } else { ", after: " };
    let what = format!("qemu, {}{after}{last}", answer.end.brief());
    Some(Divergence::new(kind, what, message))
}

/// Has our walker and all oracles judge the program of a command, and returns their finding.
fn judge_program(command: &Command) -> Result<Option<Divergence>, RecipeError> {
    let Command::Program { input, .. } = command else { return Ok(None) };
    let mut target = TargetKind::Hostile.judging(Walker::default());
    let found = target.run(&bytes_of(input)?, Checks::AtCheckpoints).err();
    Ok(found.map(|failure| {
        let violation = failure.violation;
        Divergence::new(DivergenceKind::ModelDivergence, violation.fingerprint(), &violation)
    }))
}
