//! Carries out a recipe in a folder: QEMU performs the operations, both sides answer the questions, and the answers are
//! compared.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::compare::{self, RawFiles, Replies, version_of};
use super::divergence::{Divergence, DivergenceKind};
use super::guest::{self, GuestModel};
use super::perform::{IterationError, Performed, crash_or_hang, file_error, perform, remove};
use super::process::Reply;
use super::quirks::Quirk;
use super::recipe::{
    AskedDisk, Command, DiskOperation, DiskQuestion, OutputForm, Recipe, RecipeStep,
};
use super::sides::{Sides, Tested};
use super::stamps::{settle, stamps, unchanged};

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
    /// The answers of QEMU and of the program under test.
    pub answers: Option<(Reply, Reply)>,
}

/// The work of one iteration.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// The first divergence that no quirk explains.
    pub met: Option<Met>,
    /// The ids of the quirks that the images showed.
    pub quirks: BTreeSet<&'static str>,
    /// The operations that took effect.
    pub effects: Vec<DiskOperation>,
    /// The numbers of comparisons, by the name of the question.
    pub comparisons: Vec<&'static str>,
    /// The highest number of extents of a map of the whole disk.
    pub extents: usize,
    /// The highest end of data in guest bytes.
    pub data_end: u64,
    /// The time that QEMU's processes took, from their start to their end.
    pub qemu_time: Duration,
    /// The time that the processes of the program under test took.
    pub tested_time: Duration,
    /// For each step, the exit of each command and its messages.
    pub log: Vec<Vec<String>>,
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
    pub quirks: &'r [Quirk],
    /// An empty folder. The disk lies in a subfolder, so that no answer is written beside it.
    pub folder: &'r Path,
}

impl RecipeRunner<'_> {
    /// Carries out a recipe, until a divergence that is not known.
    ///
    /// # Errors
    /// A program cannot be started, or a file cannot be written.
    pub fn run(&self, recipe: &Recipe) -> Result<Course, IterationError> {
        let disk = self.disk_folder();
        fs::create_dir_all(&disk).map_err(|error| file_error(&disk, error))?;
        let (mut course, mut guest) = (Course::default(), GuestModel::default());
        for (index, step) in recipe.steps.iter().enumerate() {
            self.change(index, step, &mut guest, &mut course)?;
            for question in &step.questions {
                if course.met.is_some() {
                    return Ok(course);
                }
                if self.sides.tested.answers(question) {
                    self.ask(index, question, step, &guest, &mut course)?;
                }
            }
        }
        Ok(course)
    }

    /// Returns the folder of the images.
    pub fn disk_folder(&self) -> PathBuf {
        self.folder.join("disk")
    }

    /// Performs the commands of a step.
    fn change(
        &self,
        index: usize,
        step: &RecipeStep,
        guest: &mut GuestModel,
        course: &mut Course,
    ) -> Result<(), IterationError> {
        let mut has_effect = false;
        let mut log = Vec::with_capacity(step.commands.len());
        for command in &step.commands {
            if course.met.is_some() {
                break;
            }
            let start = Instant::now();
            let (message, divergence) = match perform(command, self.sides, &self.disk_folder())? {
                Performed::Written(divergence) => {
                    guest.wrote(command);
                    has_effect |= matches!(command, Command::Program { .. });
                    ("done".to_string(), divergence.map(|it| meet(it, index, step, None, None)))
                }
                Performed::Reply(reply) => {
                    course.qemu_time += start.elapsed();
                    guest.ran(command, &reply);
                    has_effect |= reply.is_success();
                    let message = format!("{}: {}", reply.end, reply.message().trim_end());
                    let answers = Some((reply.clone(), reply.clone()));
                    let ended = crash_or_hang(command, &reply);
                    (message, ended.map(|it| meet(it, index, step, None, answers)))
                }
            };
            log.push(message);
            if let Some(met) = divergence {
                self.record(met, course);
            }
        }
        if has_effect {
            course.effects.push(step.operation);
        }
        course.log.push(log);
        Ok(())
    }

    /// Has both sides answer a question, and compares the answers.
    fn ask(
        &self,
        index: usize,
        question: &DiskQuestion,
        step: &RecipeStep,
        guest: &GuestModel,
        course: &mut Course,
    ) -> Result<(), IterationError> {
        course.comparisons.push(question.name());
        let mut answered = self.answers(question, step, guest, course)?;
        if answered.divergence.is_some() && matches!(question, DiskQuestion::Map { .. }) {
            // Between the two answers, the file system may have turned holes into zeros.
            let folder = self.disk_folder();
            settle(&folder).map_err(|error| file_error(&folder, error))?;
            answered = self.answers(question, step, guest, course)?;
        }
        let Answered { qemu, tested, divergence } = answered;
        note_extents(question, &qemu, course);
        if let Some(divergence) = divergence {
            let answers = Some((qemu, tested));
            self.record(meet(divergence, index, step, Some(question.clone()), answers), course);
        }
        Ok(())
    }

    fn answers(
        &self,
        question: &DiskQuestion,
        step: &RecipeStep,
        guest: &GuestModel,
        course: &mut Course,
    ) -> Result<Answered, IterationError> {
        let folder = self.disk_folder();
        let outputs = ["qemu.raw", "tested.raw"].map(|name| self.folder.join(name));
        let [qemu_output, tested_output] =
            outputs.each_ref().map(|path| path.to_string_lossy().into_owned());
        let before = stamps(&folder)?;
        let mut start = Instant::now();
        let qemu = self.sides.ask_qemu(question, &step.disk, &folder, &qemu_output);
        let qemu = qemu.map_err(IterationError::Process)?;
        course.qemu_time += start.elapsed();
        let between = stamps(&folder)?;
        start = Instant::now();
        let tested = self.sides.ask_tested(question, &step.disk, &folder, &tested_output);
        let tested = tested.map_err(IterationError::Process)?;
        course.tested_time += start.elapsed();
        let after = stamps(&folder)?;
        let replies = Replies {
            qemu: &qemu,
            tested: &tested,
            version: version_of(&self.sides.qemu.version),
            has_known_messages: matches!(self.sides.tested, Tested::Ours(_)),
        };
        let files = RawFiles { qemu: &outputs[0], tested: &outputs[1] };
        let known = guest.disk(&step.disk.file).filter(|_| *question == DiskQuestion::Read);
        let compared = unchanged("qemu", &before, &between)
            .and_then(|()| unchanged("tested", &between, &after))
            .and_then(|()| compare::compare(question, replies, files))
            .and_then(|()| match known {
                Some(data) if qemu.is_success() => guest::compare(data, files.qemu, &folder),
                _ => Ok(()),
            });
        outputs.iter().try_for_each(|output| remove(output))?;
        Ok(Answered { qemu, tested, divergence: compared.err() })
    }

    /// Keeps a divergence, unless a quirk explains it.
    fn record(&self, met: Met, course: &mut Course) {
        match self.quirks.iter().find(|quirk| quirk.explains(&met.fingerprint)) {
            Some(quirk) => {
                course.quirks.insert(quirk.id);
            }
            None => course.met = course.met.take().or(Some(met)),
        }
    }
}

/// Returns a divergence with its fingerprint.
pub(super) fn meet(
    divergence: Divergence,
    step_index: usize,
    step: &RecipeStep,
    question: Option<DiskQuestion>,
    answers: Option<(Reply, Reply)>,
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

/// Notes how many extents the map of a whole disk has, and where its data end.
fn note_extents(question: &DiskQuestion, qemu: &Reply, course: &mut Course) {
    if let DiskQuestion::Map { form: OutputForm::Json, .. } = question
        && let Ok(list) = compare::parse_map(qemu)
    {
        course.extents = course.extents.max(list.records.len());
        let data = list.records.iter().filter(|record| record.data && !record.zero);
        let end = data.map(|record| record.guest().end).max().unwrap_or(0);
        course.data_end = course.data_end.max(end);
    }
}
