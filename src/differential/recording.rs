//! Recordings: QEMU's answers and the images, in one file. A recording is compared later, where QEMU is missing or has
//! another version.
//!
//! A recording is a tar archive. `recording.json` comes first. Each iteration has a folder with the files of its disk
//! after the last step, with the bytes that QEMU read (`qemu.raw`), and at last `answers.json`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use tar::{Archive, Builder, Entry, Header};

use super::campaign::{DifferentialError, MAX_LEFT_OUT, NoIteration, Plan};
use super::compare::{RawFiles, Replies, compare};
use super::divergence::Divergence;
use super::iteration::{Course, DISK_FOLDER, RecipeRunner, meet};
use super::minimize::MinimizedRecipe;
use super::reports::Reports;
use super::sides::Sides;
use super::summary::{CampaignResults, Summary};
use super::workdir::{WorkFolder, files_below, remove, settle, stamps, unchanged};
use crate::base::error::Error;
use crate::base::files::{Existing, create};
use crate::disk::storage::{FileStorage, Storage};
use crate::harness::KnownFindings;
use crate::processes::Reply;
use crate::recipes::RecipeError;
use crate::recipes::recipe::{DiskQuestion, Recipe, RecipeStep};

/// The version of the layout of recordings.
const RECORDING_VERSION: u32 = 2;
/// The first file of a recording.
const HEAD_FILE: &str = "recording.json";
/// The last file of a recording: the number of its iterations.
const END_FILE: &str = "end.json";
/// The last file of an iteration.
const ANSWERS_FILE: &str = "answers.json";
/// The bytes that QEMU read.
const READ_FILE: &str = "qemu.raw";

/// The facts about a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordingHead {
    /// The version of the layout.
    version: u32,
    /// The version of qemu-img.
    qemu_version: String,
    /// The seed of the campaign.
    rng_seed: u64,
}

/// An iteration of a recording.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedIteration {
    iteration: u64,
    /// The recipe, whose commands were carried out.
    recipe: Recipe,
    /// QEMU's answers to the questions of the last step.
    answers: Vec<RecordedAnswer>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct RecordedAnswer {
    question: DiskQuestion,
    #[serde(flatten)]
    reply: Reply,
}

/// The most stored bytes of the files of an iteration. Larger ones are left out.
const MAX_RECORDED_BYTES: u64 = 8 << 20;

/// Carries out the iterations of a plan, one after the other, and records QEMU's answers after the last step.
/// Iterations with absolute names are left out, because another machine has other folders. Returns the number of
/// iterations that were recorded.
///
/// # Errors
/// The file exists or cannot be written, or an iteration cannot be carried out.
pub fn write(
    path: &Path,
    plan: &Plan,
    folder: &WorkFolder,
    stop: &AtomicBool,
    watch: &impl Fn(u64),
) -> Result<u64, DifferentialError> {
    let (mut recorded, mut failure) = (0, None);
    let written = create(path, Existing::Keep, |file| {
        let mut archive = Builder::new(file);
        let result = append_all(&mut archive, plan, folder, stop, watch);
        recorded = result.unwrap_or_else(|error| {
            failure = Some(error);
            0
        });
        match failure {
            // The error that is reported is the one above. The file does not appear.
            Some(_) => Err(io::ErrorKind::Interrupted.into()),
            None => archive.finish(),
        }
    });
    match (failure, written) {
        (Some(failure), _) => Err(failure),
        (None, written) => Ok(written.map(|()| recorded)?),
    }
}

fn append_all(
    archive: &mut Builder<&File>,
    plan: &Plan,
    folder: &WorkFolder,
    stop: &AtomicBool,
    watch: &impl Fn(u64),
) -> Result<u64, DifferentialError> {
    let head = RecordingHead {
        version: RECORDING_VERSION,
        qemu_version: plan.sides.qemu.version.clone(),
        rng_seed: plan.rng_seed,
    };
    append_json(archive, Path::new(HEAD_FILE), &head)?;
    let (mut number, mut recorded, mut left_out) = (plan.first, 0, 0);
    while recorded < plan.iterations && !stop.load(Ordering::Relaxed) {
        if left_out >= MAX_LEFT_OUT {
            return Err(NoIteration(plan.first).into());
        }
        let Some((found, recipe)) = plan.next(number) else {
            return Err(NoIteration(number).into());
        };
        number = found.saturating_add(1);
        if !recipe.names_its_folder() && append(archive, plan, folder, found, recipe)? {
            (recorded, left_out) = (recorded + 1, 0);
            watch(recorded);
        } else {
            left_out += 1;
        }
    }
    append_json(archive, Path::new(END_FILE), &recorded)?;
    Ok(recorded)
}

/// Carries out an iteration and appends it. Returns false if it is too large, or QEMU crashed.
fn append(
    archive: &mut Builder<&File>,
    plan: &Plan,
    folder: &WorkFolder,
    number: u64,
    recipe: Recipe,
) -> Result<bool, DifferentialError> {
    let job = folder.job(0)?;
    let runner = RecipeRunner { sides: &plan.sides, known: &plan.known, folder: &job };
    let course = runner.run(&recipe.without_questions());
    if let Some(met) = course.met.as_ref().filter(|_| course.is_failed()) {
        return Err(DifferentialError::Failed { number, what: met.divergence.detail.clone() });
    }
    // A crash of QEMU is for a campaign to find.
    let Some(last) = recipe.steps.last().filter(|_| course.met.is_none()) else { return Ok(false) };
    let (disk, read) = (runner.disk_folder(), job.join(READ_FILE));
    settle(&disk).map_err(|error| Error::file(&disk, error))?;
    let mut answers = Vec::with_capacity(last.questions.len());
    for question in &last.questions {
        let output = read.to_string_lossy();
        let reply = plan.sides.ask_qemu(question, &last.disk, &disk, &output);
        let reply = reply.map_err(|error| {
            let what = RecipeError::Process(error).to_string();
            DifferentialError::Failed { number, what }
        })?;
        answers.push(RecordedAnswer { question: question.clone(), reply });
    }
    let mut files = files_below(&disk).map_err(|error| Error::file(&disk, error))?;
    files.extend(read.exists().then_some(read));
    if stored_bytes(&files)? > MAX_RECORDED_BYTES {
        return Ok(false);
    }
    let inside = Path::new(&number.to_string()).to_path_buf();
    for file in files {
        // The disk lies in a subfolder of the folder in which QEMU's data lie.
        let to = inside.join(file.strip_prefix(&job).unwrap_or(&file));
        archive.append_path_with_name(&file, to).map_err(|error| Error::file(&file, error))?;
    }
    append_json(
        archive,
        &inside.join(ANSWERS_FILE),
        &RecordedIteration { iteration: number, recipe, answers },
    )?;
    Ok(true)
}

fn stored_bytes(files: &[PathBuf]) -> Result<u64, Error> {
    files.iter().try_fold(0_u64, |sum, path| {
        let stored = FileStorage::open(path)?.allocated_bytes();
        let length = || fs::metadata(path).map_or(u64::MAX, |metadata| metadata.len());
        Ok(sum.saturating_add(stored.unwrap_or_else(length)))
    })
}

fn append_json(
    archive: &mut Builder<&File>,
    path: &Path,
    value: &impl Serialize,
) -> Result<(), DifferentialError> {
    let failed = |error: io::Error| Error::file(path, error);
    let bytes = serde_json::to_vec(value).map_err(|error| failed(error.into()))?;
    let mut header = Header::new_gnu();
    header.set_size(bytes.len() as u64);
    header.set_mode(0o644);
    Ok(archive.append_data(&mut header, path, bytes.as_slice()).map_err(failed)?)
}

impl Recipe {
    /// Reports whether a command has the absolute path of the folder in it.
    fn names_its_folder(&self) -> bool {
        self.commands().iter().any(|command| command.contains("$PWD"))
    }

    /// Returns the commands alone.
    fn without_questions(&self) -> Self {
        let mut recipe = self.clone();
        recipe.steps.iter_mut().for_each(|step| step.questions.clear());
        recipe
    }
}

/// Has the program under test answer the questions of a recording, and compares its answers with QEMU's. The first new
/// divergence of each iteration is reported, and not minimized. `sides` gets the version of QEMU that the recording
/// names.
///
/// # Errors
/// The recording cannot be read, or an iteration cannot be carried out.
pub fn check(
    path: &Path,
    sides: &mut Sides,
    known: &KnownFindings,
    folder: &WorkFolder,
    reports: &Reports,
) -> Result<Summary, DifferentialError> {
    let malformed = |what: String| DifferentialError::Malformed { path: path.to_path_buf(), what };
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    let mut archive = Archive::new(file);
    let mut entries = archive.entries().map_err(|error| malformed(error.to_string()))?;
    let first = entries.next().ok_or_else(|| malformed("it is empty".to_string()))?;
    let head = head(first).map_err(malformed)?;
    sides.qemu.version = head.qemu_version;
    let results = CampaignResults::new(head.rng_seed, sides, known, reports);
    let mut job = folder.job(0)?;
    let mut is_whole = false;
    for entry in entries {
        let mut entry = entry.map_err(|error| malformed(error.to_string()))?;
        is_whole = entry.path().is_ok_and(|path| path == Path::new(END_FILE));
        if is_whole {
            continue;
        }
        let Some(name) = inside(&entry) else {
            return Err(malformed("it has a file outside of its folders".to_string()));
        };
        if name == Path::new(ANSWERS_FILE) {
            let recorded: RecordedIteration =
                serde_json::from_reader(entry).map_err(|error| malformed(error.to_string()))?;
            let course = course(&recorded, sides, known, &job);
            let origin = results.origin(recorded.iteration, &recorded.recipe);
            if results.count(origin, &course)
                && let Some(met) = course.met
            {
                let as_found = MinimizedRecipe::as_found(&recorded.recipe, met);
                results.report(origin, &as_found, &job.join(DISK_FOLDER))?;
            }
            job = folder.job(0)?;
        } else {
            let target = job.join(&name);
            let unpacked = fs::create_dir_all(target.parent().unwrap_or(&job))
                .and_then(|()| entry.unpack(&target));
            unpacked.map_err(|error| Error::file(&target, error))?;
        }
    }
    if !is_whole {
        return Err(malformed("it ends before its last file".to_string()));
    }
    Ok(results.finish(true)?)
}

fn head(entry: io::Result<Entry<'_, File>>) -> Result<RecordingHead, String> {
    let mut entry = entry.map_err(|error| error.to_string())?;
    let mut text = String::new();
    match entry.path() {
        Ok(path) if path == Path::new(HEAD_FILE) => {}
        _ => return Err(format!("it does not begin with {HEAD_FILE}")),
    }
    entry.read_to_string(&mut text).map_err(|error| error.to_string())?;
    let head: RecordingHead = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    match head.version {
        RECORDING_VERSION => Ok(head),
        other => Err(format!("it has version {other}")),
    }
}

/// Returns the path of an archive entry inside the folder of its iteration. Returns `None` unless the entry is a
/// regular file in that folder.
fn inside(entry: &Entry<'_, File>) -> Option<PathBuf> {
    let path = entry.path().ok()?;
    let kind = entry.header().entry_type();
    let is_plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    let mut parts = path.components();
    parts.next();
    let inside = parts.as_path().to_path_buf();
    let is_file = kind.is_file() || kind.is_gnu_sparse();
    (is_plain && is_file && inside.components().next().is_some()).then_some(inside)
}

/// Compares the answers of an iteration, whose files lie in `job`, up to the first divergence that is not known.
fn course(
    recorded: &RecordedIteration,
    sides: &Sides,
    known: &KnownFindings,
    job: &Path,
) -> Course {
    let (mut course, recipe) = (Course::default(), &recorded.recipe);
    let last = recipe.steps.len().saturating_sub(1);
    let Some(step) = recipe.steps.get(last) else { return course };
    for asked in recorded.answers.iter().filter(|asked| sides.tested.answers(&asked.question)) {
        course.comparisons.push(asked.question.name());
        let question = Some(asked.question.clone());
        match answer(asked, sides, step, job) {
            Ok(Ok(())) => {}
            Ok(Err((divergence, tested))) => {
                let answers = Some((asked.reply.clone(), Some(tested)));
                course.record(known, recipe, meet(divergence, last, step, question, answers));
            }
            Err(error) => course = course.failed(recipe, (last, question), &error),
        }
        if course.met.is_some() {
            break;
        }
    }
    course
}

/// Has the program under test answer a question, and compares the answer. A divergence comes with the answer.
fn answer(
    recorded: &RecordedAnswer,
    sides: &Sides,
    step: &RecipeStep,
    job: &Path,
) -> Result<Result<(), (Divergence, Reply)>, RecipeError> {
    let (disk, output) = (job.join(DISK_FOLDER), job.join("tested.raw"));
    settle(&disk).map_err(|error| RecipeError::file(&disk, error))?;
    let before = stamps(&disk)?;
    let asked = sides.ask_tested(&recorded.question, &step.disk, &disk, &output.to_string_lossy());
    let tested = asked.map_err(RecipeError::Process)?;
    let after = stamps(&disk)?;
    let [qemu, ours] = [recorded.reply.clone(), tested.clone()].map(without_disk_size);
    let answers = Replies::new(sides, &qemu, &ours);
    let files = RawFiles { qemu: &job.join(READ_FILE), tested: &output };
    let compared = unchanged("tested", &before, &after)
        .and_then(|()| compare(&recorded.question, answers, files));
    remove(&output)?;
    Ok(compared.map_err(|divergence| (divergence, tested)))
}

/// Removes the number of bytes that a file occupies: other file systems store the same file in other blocks.
fn without_disk_size(mut reply: Reply) -> Reply {
    let text = String::from_utf8_lossy(&reply.stdout);
    let lines = text.split_inclusive('\n').map(|line| match line.trim_start() {
        start if start.starts_with("\"actual-size\":") => {
            let end = line.trim_end_matches(['\n', ',']).len();
            format!("\"actual-size\": 0{}", line.get(end..).unwrap_or_default())
        }
        _ => line.to_string(),
    });
    reply.stdout = lines.collect::<String>().into_bytes();
    reply
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::ProcessEnd;
    use crate::recipes::draw;

    #[test]
    fn a_recording_asks_the_questions_of_the_last_step_only() {
        let recipe = draw::recipe(1, 0);
        assert!(recipe.without_questions().steps.iter().all(|step| step.questions.is_empty()));
        assert!(recipe.steps.last().unwrap().questions.contains(&DiskQuestion::Read));
    }

    #[test]
    fn the_occupied_bytes_are_not_compared() {
        let text = "{\n    \"actual-size\": 4096,\n    \"x\": [\n        \"actual-size\": 1\n]}\n";
        let reply = Reply { end: ProcessEnd::Exit(0), stdout: text.into(), stderr: Vec::new() };
        let expected = "{\n\"actual-size\": 0,\n    \"x\": [\n\"actual-size\": 0\n]}\n";
        assert_eq!(String::from_utf8(without_disk_size(reply).stdout).unwrap(), expected);
    }
}
