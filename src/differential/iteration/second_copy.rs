//! The program under test as a tool: it performs the commands of qemu-img on its own copy of the disk. QEMU then
//! answers questions about both disks. Their maps without offsets, the exit codes of their checks, and their bytes must
//! be the same.
//!
//! QEMU performs the requests of qemu-io on both disks. The harness writes the files of guest data for both. The disks
//! are not compared after damage, because the same damage hits different structures in images that different programs
//! have made.

use std::fs;
use std::path::{Path, PathBuf};

use crate::differential::compare::{self, RawFiles};
use crate::differential::divergence::{Divergence, DivergenceKind};
use crate::differential::sides::Sides;
use crate::differential::workdir::{remove, settle};
use crate::processes::Reply;
use crate::recipes::RecipeError;
use crate::recipes::perform::{Performed, QemuTool};
use crate::recipes::recipe::{Command, DiskQuestion, RecipeStep, verb_of};
use crate::recipes::workshop::Workshop;

/// The folder of the copy, in the folder of an iteration. Its name is as long as that of the first disk, so that
/// absolute names in images have the same length.
const COPY_FOLDER: &str = "copy";

/// A difference between the two disks, or between the ends of two commands.
pub(super) struct OtherResult {
    pub(super) divergence: Divergence,
    /// The question to QEMU about both disks; none about the ends of commands.
    pub(super) question: Option<DiskQuestion>,
    /// The replies about QEMU's disk, and about the copy.
    pub(super) replies: (Reply, Reply),
}

/// The disk on which the program under test performs the commands.
pub(super) struct SecondCopy<'r> {
    sides: &'r Sides,
    /// The folder of the iteration.
    outer: PathBuf,
    workshop: Workshop<'r>,
    /// Nothing has damaged the disk.
    is_sound: bool,
}

impl<'r> SecondCopy<'r> {
    /// Creates an empty folder in `outer`.
    pub(super) fn create(sides: &'r Sides, outer: &Path) -> Result<Self, RecipeError> {
        let folder = outer.join(COPY_FOLDER);
        fs::create_dir_all(&folder).map_err(|error| RecipeError::file(&folder, error))?;
        let workshop = Workshop::new(&folder, |tool, words, folder| match tool {
            QemuTool::Img => sides.tested_tool(words, folder),
            QemuTool::Io => sides.qemu(tool, words, folder),
        });
        Ok(Self { sides, outer: outer.to_path_buf(), workshop, is_sound: true })
    }

    /// Performs a command on the copy, and returns the difference if it ends in another way than on QEMU's disk.
    /// `theirs` is the reply on QEMU's disk, if the command ran a tool.
    pub(super) fn change(
        &mut self,
        command: &Command,
        theirs: Option<&Reply>,
    ) -> Result<Option<OtherResult>, RecipeError> {
        self.is_sound &= !matches!(command, Command::Damage { .. });
        if !self.is_sound {
            return Ok(None);
        }
        let Performed::Reply(ours) = self.workshop.perform(command)? else { return Ok(None) };
        let Some(theirs) = theirs else { return Ok(None) };
        if theirs.end.code().is_none() {
            // QEMU has crashed, which is a finding of its own, and may have left anything.
            self.is_sound = false;
            return Ok(None);
        }
        let verb = match command {
            Command::QemuImg(words) => verb_of(words),
            _ => "io",
        };
        Ok(ends_of_command(verb, theirs, &ours).map(|divergence| OtherResult {
            divergence,
            question: None,
            replies: (theirs.clone(), ours),
        }))
    }

    /// Compares the disks after a step. `disk` is the folder of QEMU's disk.
    pub(super) fn compare(
        &self,
        step: &RecipeStep,
        disk: &Path,
    ) -> Result<Option<OtherResult>, RecipeError> {
        if !self.is_sound {
            return Ok(None);
        }
        let mut questions = vec![DiskQuestion::MAP, DiskQuestion::Check];
        // A step has the question `Read` only if its disk is small enough.
        if step.questions.contains(&DiskQuestion::Read) {
            questions.push(DiskQuestion::Read);
        }
        for question in questions {
            let mut other = self.ask(&question, step, disk)?;
            if other.is_some() {
                // The file system may have turned holes into zeros between the two questions.
                for folder in [disk, self.workshop.folder()] {
                    settle(folder).map_err(|error| RecipeError::file(folder, error))?;
                }
                other = self.ask(&question, step, disk)?;
            }
            if other.is_some() {
                return Ok(other);
            }
        }
        Ok(None)
    }

    /// Asks QEMU a question about both disks, and compares the answers.
    fn ask(
        &self,
        question: &DiskQuestion,
        step: &RecipeStep,
        disk: &Path,
    ) -> Result<Option<OtherResult>, RecipeError> {
        let outputs = ["qemu.raw", "copy.raw"].map(|name| self.outer.join(name));
        let ask = |folder: &Path, output: &Path| {
            let asked =
                self.sides.ask_qemu(question, &step.disk, folder, &output.to_string_lossy());
            asked.map_err(RecipeError::Process)
        };
        let theirs = ask(disk, &outputs[0])?;
        let ours = ask(self.workshop.folder(), &outputs[1])?;
        let files = RawFiles { qemu: &outputs[0], tested: &outputs[1] };
        let compared = compare::compare_results(question, (&theirs, &ours), files);
        outputs.iter().try_for_each(|output| remove(output))?;
        let question = Some(question.clone());
        Ok(compared.err().map(|divergence| OtherResult {
            divergence,
            question,
            replies: (theirs, ours),
        }))
    }
}

/// Compares the ends of a command of both programs.
fn ends_of_command(verb: &str, theirs: &Reply, ours: &Reply) -> Option<Divergence> {
    if theirs.end == ours.end {
        return None;
    }
    let detail = format!("qemu: {}\ntested: {}", theirs.message(), ours.message());
    let (kind, what) = match DivergenceKind::of_end(ours.end) {
        Some(kind) => (kind, format!("tested, {verb}, {}", ours.end.brief())),
        None => {
            let ends = format!("{verb}, {} → {}", theirs.end.brief(), ours.end.brief());
            (DivergenceKind::ExitCodeDivergence, ends)
        }
    };
    Some(Divergence::new(kind, what, detail))
}
