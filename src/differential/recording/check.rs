//! Compares the program under test with a recording.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Component, Path, PathBuf};
use std::time::Instant;

use tar::{Archive, Entry};

use super::{
    ANSWERS_FILE, END_FILE, HEAD_FILE, READ_FILE, RECORDING_VERSION, RecordedAnswer,
    RecordedIteration, RecordingError, RecordingHead,
};
use crate::base::error::Error;
use crate::differential::compare::{RawFiles, Replies, compare};
use crate::differential::divergence::Divergence;
use crate::differential::iteration::{Course, DISK_FOLDER, Met, meet};
use crate::differential::minimize::MinimizedRecipe;
use crate::differential::reports::summary::{FoundDivergence, Summary};
use crate::differential::reports::{ReportOrigin, Reports};
use crate::differential::sides::Sides;
use crate::differential::workdir::{WorkFolder, remove, settle, stamps, unchanged};
use crate::harness::KnownFindings;
use crate::processes::Reply;
use crate::recipes::RecipeError;
use crate::recipes::recipe::RecipeStep;

/// Has the program under test answer the questions of a recording, and compares its answers with QEMU's. Divergences
/// are reported, and not minimized. `sides` gets the version of QEMU that the recording names.
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
    let start = Instant::now();
    let malformed = |what: String| RecordingError::Malformed { path: path.to_path_buf(), what };
    let file = File::open(path).map_err(|error| Error::file(path, error))?;
    let mut archive = Archive::new(file);
    let mut entries = archive.entries().map_err(|error| malformed(error.to_string()))?;
    let first = entries.next().ok_or_else(|| malformed("it is empty".to_string()))?;
    let head = head(first).map_err(malformed)?;
    sides.qemu.version = head.qemu_version.clone();
    let mut summary = Summary {
        rng_seed: head.rng_seed,
        qemu_version: head.qemu_version,
        tested: sides.tested.name(),
        ..Summary::default()
    };
    let checker = Checker { sides, known, reports };
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
            checker.iteration(&recorded, &job, &mut summary)?;
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
    summary.is_complete = true;
    summary.measure(start.elapsed(), sides.cpu.seconds());
    Ok(summary)
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

struct Checker<'c> {
    sides: &'c Sides,
    known: &'c KnownFindings,
    reports: &'c Reports,
}

impl Checker<'_> {
    /// Compares all answers of an iteration, whose files lie in `job`.
    fn iteration(
        &self,
        recorded: &RecordedIteration,
        job: &Path,
        summary: &mut Summary,
    ) -> Result<(), RecordingError> {
        let mut course = Course::default();
        let last = recorded.recipe.steps.len().saturating_sub(1);
        let Some(step) = recorded.recipe.steps.get(last) else { return Ok(()) };
        for answer in
            recorded.answers.iter().filter(|answer| self.sides.tested.answers(&answer.question))
        {
            course.comparisons.push(answer.question.name());
            let question = Some(answer.question.clone());
            let met = match self.answer(answer, step, job) {
                Ok(Ok(())) => None,
                Ok(Err((divergence, tested))) => {
                    let answers = Some((answer.reply(), Some(tested)));
                    Some(meet(divergence, last, step, question, answers))
                }
                Err(error) => {
                    Course::default().failed(&recorded.recipe, (last, question), &error).met
                }
            };
            if let Some(met) = met {
                self.note(recorded, met, job, summary, &mut course)?;
            }
        }
        let origin = self.origin(recorded, summary);
        summary.count_known(origin, self.known, &course);
        summary.distribution.add(&recorded.recipe, &course);
        Ok(())
    }

    fn answer(
        &self,
        recorded: &RecordedAnswer,
        step: &RecipeStep,
        job: &Path,
    ) -> Result<Result<(), (Divergence, Reply)>, RecipeError> {
        let (disk, output) = (job.join(DISK_FOLDER), job.join("tested.raw"));
        settle(&disk).map_err(|error| RecipeError::file(&disk, error))?;
        let before = stamps(&disk)?;
        let asked =
            self.sides.ask_tested(&recorded.question, &step.disk, &disk, &output.to_string_lossy());
        let tested = asked.map_err(RecipeError::Process)?;
        let after = stamps(&disk)?;
        let [qemu, ours] = [recorded.reply(), tested.clone()].map(without_disk_size);
        let answers = Replies::new(self.sides, &qemu, &ours);
        let files = RawFiles { qemu: &job.join(READ_FILE), tested: &output };
        let compared = unchanged("tested", &before, &after)
            .and_then(|()| compare(&recorded.question, answers, files));
        remove(&output)?;
        Ok(compared.map_err(|divergence| (divergence, tested)))
    }

    fn origin<'r>(
        &'r self,
        recorded: &'r RecordedIteration,
        summary: &Summary,
    ) -> ReportOrigin<'r> {
        ReportOrigin {
            rng_seed: summary.rng_seed,
            iteration: recorded.iteration,
            recipe: &recorded.recipe,
            sides: self.sides,
        }
    }

    /// Counts a divergence, and reports it if it is new.
    fn note(
        &self,
        recorded: &RecordedIteration,
        met: Met,
        job: &Path,
        summary: &mut Summary,
        course: &mut Course,
    ) -> Result<(), RecordingError> {
        let Some(met) = course.set_aside(self.known, &recorded.recipe, met) else {
            return Ok(());
        };
        if let Some(found) = summary.found.get_mut(&met.fingerprint) {
            found.times = found.times.saturating_add(1);
            return Ok(());
        }
        let origin = self.origin(recorded, summary);
        let minimized = MinimizedRecipe::as_found(&recorded.recipe, met);
        let report = self.reports.write(origin, &minimized, &job.join(DISK_FOLDER))?;
        summary.found.insert(report.fingerprint.clone(), FoundDivergence::of(&report, 1));
        Ok(())
    }
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
