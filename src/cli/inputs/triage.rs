//! `triage`: groups the artifacts of a folder by bug.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::cli::options::{self, MemoryArgument};
use crate::cli::output::{
    CommandError, Exit, ExitResult, complain, counted, print, shown as printable,
};
use crate::cli::under_test::UnderTest;
use crate::findings::isolation::Isolation;
use crate::findings::triage::{self, Alike, KnownBugs, Triage, TriagedInput, TriagedKnown};
use crate::harness::KnownFinding;
use crate::harness::targets::TargetKind;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each input runs in a process of its own, so that a hang or a stack overflow is a finding like any \
other. A fingerprint is known if a file in the folder that --known names has it: files of \
'qcowfuzz regress --text', by default in tests/regressions, if that exists. The inputs of a fingerprint \
are listed by length, the shortest first. A bug may have several fingerprints: minimize one input of \
each, and compare the programs. The command also groups fingerprints whose smallest programs \
have the same features: they may be one bug. The known findings of the implementation, and those in the \
files that --known names, are set aside: the command lists them apart from the bugs, and names those \
that no input shows any more.

Exit codes: 0 no new fingerprint was found; 1 a new one was found; 2 an input could not be run.

Example: qcowfuzz triage artifacts/map_extents")]
pub struct Arguments {
    /// The folder of artifacts
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The fuzz target of the artifacts [default: the name of the folder, or map_extents if that is no target]
    #[arg(long, value_parser = options::target_parser())]
    target: Option<TargetKind>,
    /// Report a run that uses this much CPU time as a hang
    #[arg(long, value_name = "SECONDS", default_value_t = 25,
          value_parser = clap::value_parser!(u64).range(1..=1 << 32))]
    timeout: u64,
    #[command(flatten)]
    memory: MemoryArgument,
    /// Print the result as one JSON object
    #[arg(long)]
    json: bool,
}

/// The default folder of known bugs.
const REGRESSIONS: &str = "tests/regressions";
/// The maximum number of inputs of a bug in the text output.
const MOST_LISTED: usize = 8;

/// Groups the artifacts of a folder.
pub fn run(under_test: &UnderTest, arguments: &Arguments) -> ExitResult {
    let Arguments { dir, timeout, memory, .. } = arguments;
    let target = arguments.target.unwrap_or_else(|| target_named_by(dir));
    options::reject_reader(target, &under_test.implementation)?;
    if dir.is_file() {
        return Err(CommandError::at(dir, "is a file, expected a folder of artifacts"));
    }
    let mut regressions = KnownBugs::new();
    match &under_test.folders[..] {
        [] if Path::new(REGRESSIONS).is_dir() => {
            regressions = triage::known_bugs(Path::new(REGRESSIONS))?
        }
        folders => {
            for dir in folders {
                regressions.extend(triage::known_bugs(dir)?);
            }
        }
    }
    let (executable, limits) = (under_test.executable()?, memory.limits(*timeout));
    let isolation = Isolation { executable, target, limits };
    let mut triage = triage::triage(dir, &regressions, &under_test.known, &isolation)?;
    triage.note_alike(&target.claims_of(&under_test.implementation.facts()));
    triage.failures.iter().for_each(|line| complain(line));
    print(&triage, arguments.json, lines)?;
    match (triage.failures.len(), triage.new_bugs()) {
        (0, 0) => Ok(Exit::Nothing),
        (0, _) => Ok(Exit::Violation),
        (failures, _) => {
            let what = format_args!("{failures} of the files could not be run");
            Err(CommandError::at(dir, what))
        }
    }
}

/// Returns the target whose name the folder has, or the default target.
fn target_named_by(dir: &Path) -> TargetKind {
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    TargetKind::named(&name).unwrap_or_default()
}

fn lines(triage: &Triage, out: &mut impl Write) -> io::Result<()> {
    let Triage { dir, inputs, bugs, nothing, .. } = triage;
    let new = triage.new_bugs();
    let (inputs, count) = (counted(*inputs, "input"), counted(bugs.len(), "fingerprint"));
    writeln!(out, "{dir}: {inputs}, {count}, {new} of them new")?;
    for bug in bugs {
        match &bug.known {
            Some(path) => writeln!(out, "\nknown  {}\n       {path}", bug.fingerprint)?,
            None => writeln!(out, "\nnew    {}", bug.fingerprint)?,
        }
        writeln!(out, "       {}", counted(bug.inputs.len(), "input"))?;
        listed(&bug.inputs, out)?;
    }
    for Alike { features, fingerprints } in &triage.alike {
        writeln!(out, "\nperhaps one bug, because all smallest programs have {features}:")?;
        fingerprints.iter().try_for_each(|fingerprint| writeln!(out, "       {fingerprint}"))?;
    }
    let (shown, gone): (Vec<_>, Vec<_>) =
        triage.known.iter().partition(|known| !known.inputs.is_empty());
    for TriagedKnown { finding: KnownFinding { fingerprint, reason, link, .. }, inputs } in shown {
        writeln!(out, "\nset aside: {fingerprint}\n       {reason}")?;
        link.iter().try_for_each(|link| writeln!(out, "       {link}"))?;
        writeln!(out, "       {}", counted(inputs.len(), "input"))?;
        listed(inputs, out)?;
    }
    if !gone.is_empty() {
        writeln!(out, "\nset aside, but in no input any more: {}", counted(gone.len(), "finding"))?;
        gone.iter().try_for_each(|known| writeln!(out, "       {}", known.finding.fingerprint))?;
    }
    if !nothing.is_empty() {
        writeln!(out, "\nno violation any more: {}", counted(nothing.len(), "input"))?;
        listed(nothing, out)?;
    }
    Ok(())
}

fn listed(inputs: &[TriagedInput], out: &mut impl Write) -> io::Result<()> {
    for TriagedInput { path, bytes } in inputs.iter().take(MOST_LISTED) {
        let path: String = path.chars().map(printable).collect();
        writeln!(out, "       {bytes:>7} bytes  {path}")?;
    }
    match inputs.len().checked_sub(MOST_LISTED) {
        None | Some(0) => Ok(()),
        Some(more) => writeln!(out, "       … and {more} more (--json lists all)"),
    }
}
