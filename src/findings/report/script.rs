//! The script of a finding for people without this project: it repeats the session of the code under test with public
//! tools, then shows what is wrong with the written image. Only engines that record their sessions have one
//! ([`Engine::record_script`](crate::harness::engine::Engine::record_script)).

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use crate::findings::runner::Runner;
use crate::harness::Checks;
use crate::harness::cases::implementation::{Implementation, no_observer};
use crate::images::files::FileNames;
use crate::processes::{self, Executable, Reply, TemporaryFolder};

use super::Report;

/// A file of a script, which lies beside it.
#[derive(Debug, PartialEq, Eq)]
pub struct ScriptFile {
    /// Its name.
    pub name: String,
    /// Its content.
    pub bytes: Vec<u8>,
}

/// The name of the script.
const NAME: &str = "show.sh";
/// The name of a file with the reason why there is no script.
const LEFT_OUT: &str = "left-out.txt";
/// The first words of fingerprints about a file that a session has left in the middle.
const OF_CUTS: [&str; 2] = ["power_cut: ", "killed: "];
/// The number of bytes of the guest that a script shows.
const SHOWN_BYTES: u64 = 16;
/// The time on the clock in which a script must end.
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the script of the finding that `report` is about, with the files that it needs; or a file with the reason
/// why there is none; or nothing if the implementation records no sessions. The script was run, and shows the finding.
///
/// # Errors
/// The system refuses a file, or the shell does not start.
pub fn files(
    implementation: &Implementation,
    report: &Report,
    input: &[u8],
) -> io::Result<Vec<ScriptFile>> {
    let recorded = TemporaryFolder::on_disk()?;
    let implementation = implementation.clone().recording_script(recorded.path());
    let names = FileNames::default();
    Runner::new(&implementation, report.target, names, no_observer()).run(input, Checks::default());
    if !recorded.path().join("session.sh").exists() {
        return Ok(Vec::new());
    }
    let session = fs::read_to_string(recorded.path().join("session.sh"))?;
    let script = Script { session, ending: ending(report) };
    match script.shows(report, recorded.path())? {
        Ok(()) => script.files(report, &recorded.path().join("before")),
        Err(why) => Ok(vec![ScriptFile { name: LEFT_OUT.to_string(), bytes: why.into_bytes() }]),
    }
}

/// The lines of a script.
struct Script {
    /// The session, which sets `image`.
    session: String,
    /// The lines that show the fault of the image.
    ending: String,
}

/// Returns the lines that show what is wrong with the image.
fn ending(report: &Report) -> String {
    let read = |guest: u64| {
        // A read ends with the disk.
        format!(
            "qemu-io -r --image-opts \"$image\" -c 'read -v {guest} {SHOWN_BYTES}' | sed '/bytes.*ops/d'\n"
        )
    };
    let check = "qemu-img check -U --image-opts \"$image\" 2>&1 || true\n".to_string();
    check + &report.guest_offset.map(read).unwrap_or_default()
}

impl Script {
    /// Runs the script on copies, and compares what it shows at its end with the files that the session has left.
    /// Returns the reason if it does not show the finding.
    fn shows(&self, report: &Report, recorded: &Path) -> io::Result<Result<(), String>> {
        if OF_CUTS.iter().any(|of_cut| report.judgement().starts_with(of_cut)) {
            let why =
                "the finding is about the file that a cut leaves: no command of qemu-io cuts so\n";
            return Ok(Err(why.to_string()));
        }
        let (before, after) = (recorded.join("before"), recorded.join("after"));
        let ran = run(&[&before], &format!("{}{}", self.session, self.ending))?;
        if fs::read_dir(&after)?.next().is_none() {
            // QEMU has ended: the script must end so, too.
            return Ok(match ran.is_success() {
                true => Err(left_out("the process does not end", &ran)),
                false => Ok(()),
            });
        }
        let image = self.session.lines().next().unwrap_or_default();
        let expected = run(&[&before, &after], &format!("{image}\n{}", self.ending))?;
        Ok(match ran.stdout.ends_with(&expected.stdout) {
            true => Ok(()),
            false => Err(left_out(&format!("expected\n{}", expected.text()), &ran)),
        })
    }

    /// Returns the script and the other files.
    fn files(&self, report: &Report, before: &Path) -> io::Result<Vec<ScriptFile>> {
        let Self { session, ending } = self;
        let detail = report.detail.iter().flat_map(|detail| detail.lines());
        let comments: String = detail.map(|line| format!("# {line}\n")).collect();
        let text = format!("{HEAD}# {}\n{comments}{START}{session}{ending}", report.judgement());
        let mut files = vec![ScriptFile { name: NAME.to_string(), bytes: text.into_bytes() }];
        let mut names: Vec<_> = fs::read_dir(before)?
            .map(|it| it.map(|it| it.file_name()))
            .collect::<Result<_, _>>()?;
        names.sort();
        for name in names {
            let bytes = fs::read(before.join(&name))?;
            files.push(ScriptFile { name: name.to_string_lossy().into_owned(), bytes });
        }
        Ok(files)
    }
}

/// Runs lines with a shell, on copies of the files in some folders; those of a later one replace others of their name.
fn run(folders: &[&Path], lines: &str) -> io::Result<Reply> {
    let scratch = TemporaryFolder::on_disk()?;
    for folder in folders {
        for file in fs::read_dir(folder)? {
            let file = file?;
            fs::copy(file.path(), scratch.path().join(file.file_name()))?;
        }
    }
    let arguments = ["-c".into(), format!("set -e; cd \"$0\"\n{lines}").into()];
    let shell = Executable::new("sh", arguments.into_iter().chain([scratch.path().into()]));
    processes::run(&shell, LIMIT)
}

/// Returns the reason why there is no script.
fn left_out(what: &str, found: &Reply) -> String {
    let found = found.text();
    format!("The session, repeated by a script, does not show the finding. {what}\nfound\n{found}")
}

/// The first lines of a script: how to use it.
const HEAD: &str = "#!/bin/sh
# Shows a bug of QEMU with qemu-io and qemu-img alone, on copies of the files beside it, which stay if a folder is given:
#   sh show.sh [FOLDER]
# What was found:
";
/// The lines before the session.
const START: &str = r#"set -e
from=$(cd "$(dirname "$0")" && pwd)
to=${1:-$(mktemp -d)}
mkdir -p "$to"
for file in "$from"/*; do test -d "$file" || cp "$file" "$to"; done
cd "$to"
test -n "$1" || trap 'rm -r "$to"' EXIT
"#;
