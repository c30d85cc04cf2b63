//! Compares the program under test with a recording.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use tar::{Archive, Entry};

use super::{
    ANSWERS_FILE, END_FILE, HEAD_FILE, READ_FILE, RECORDING_VERSION, RecordedAnswer,
    RecordedIteration, RecordingError, RecordingHead,
};
use crate::base::error::Error;
use crate::differential::compare::{RawFiles, Replies, compare};
use crate::differential::divergence::Divergence;
use crate::differential::iteration::{Course, DISK_FOLDER, meet};
use crate::differential::minimize::MinimizedRecipe;
use crate::differential::reports::Reports;
use crate::differential::sides::Sides;
use crate::differential::summary::{Summary, Tally};
use crate::differential::workdir::{WorkFolder, remove, settle, stamps, unchanged};
use crate::harness::KnownFindings;
use crate::processes::Reply;
use crate::recipes::RecipeError;
use crate::recipes::recipe::RecipeStep;

/// Has the program under test answer the questions of a recording, and compares its answers with QEMU's. The first new
/// divergence of each iteration is reported, and not minimized. `sides` gets the version of QEMU that the recording names.
///
/// # Errors
/// The recording cannot be read, or an iteration cannot be carried out.
pub fn check(
    path: &Path,
    sides: &mut Sides,
    known: &KnownFindings,
    folder: &WorkFolder,
    reports: &Reports,
) -> Result<Summary, RecordingError> {
    let malformed = |what: String| RecordingError::Malformed { path: path.to_path_buf(), what };
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    let mut archive = Archive::new(file);
    let mut entries = archive.entries().map_err(|error| malformed(error.to_string()))?;
    let first = entries.next().ok_or_else(|| malformed("it is empty".to_string()))?;
    let head = head(first).map_err(malformed)?;
    sides.qemu.version = head.qemu_version;
    let tally = Tally::new(head.rng_seed, sides, known, reports);
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
            let origin = tally.origin(recorded.iteration, &recorded.recipe);
            if tally.count(origin, &course)
                && let Some(met) = course.met
            {
                let as_found = MinimizedRecipe::as_found(&recorded.recipe, met);
                tally.report(origin, &as_found, &job.join(DISK_FOLDER))?;
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
    Ok(tally.finish(true)?)
}

fn head(entry: std::io::Result<Entry<'_, File>>) -> Result<RecordingHead, String> {
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

/// Returns the path of a regular file in the folder of its iteration, unless it leads elsewhere.
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

    #[test]
    fn the_occupied_bytes_are_not_compared() {
        let text = "{\n    \"actual-size\": 4096,\n    \"x\": [\n        \"actual-size\": 1\n]}\n";
        let reply = Reply { end: ProcessEnd::Exit(0), stdout: text.into(), stderr: Vec::new() };
        let expected = "{\n\"actual-size\": 0,\n    \"x\": [\n\"actual-size\": 0\n]}\n";
        assert_eq!(String::from_utf8(without_disk_size(reply).stdout).unwrap(), expected);
    }
}
