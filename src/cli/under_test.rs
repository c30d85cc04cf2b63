//! The options that choose the implementation under test and the one that judges it: `--engine-command`, `--against`,
//! the known findings that `--known` adds, the claims that `--without` drops.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::base::features::{Feature, FeatureSet};
use crate::base::files;
use crate::harness::KnownFindings;
use crate::harness::against::qemu_io::{CostlyComparisons, Qemu};
use crate::harness::cases::implementation::Implementation;
use crate::harness::engine::failure;
use crate::harness::engines::command::EngineCommand;
use crate::harness::engines::image_program::ImageProgram;
use crate::processes::Executable;

use super::output::{CommandError, ExitResult};

/// The options about the implementation under test.
#[derive(Debug, clap::Args)]
pub struct UnderTestOptions {
    /// Set the known findings in this TOML file aside, too; with 'triage', also a folder of regressions. Only
    /// 'differential' and the commands that run inputs take it: fuzz, triage, minimize, replay, report, regress, bundle
    /// and corpus
    #[arg(long, value_name = "FILE", global = true)]
    known: Vec<PathBuf>,
    /// Judge only images and requests without this feature, for example 'power cuts'; an unknown name lists all
    /// features. The commands that run inputs take this option
    #[arg(long, value_name = "FEATURE", global = true)]
    without: Vec<Feature>,
}

impl UnderTestOptions {
    /// Rejects the options for the verb `name`, which runs no implementation.
    pub fn reject(&self, name: &str) -> Result<(), CommandError> {
        match self.known.is_empty() {
            true => self.reject_without(name),
            false => Err(runs_no_inputs("--known", name)),
        }
    }

    /// Rejects `--without` for the verb `name`, which runs no implementation.
    pub fn reject_without(&self, name: &str) -> Result<(), CommandError> {
        match self.without.is_empty() {
            true => Ok(()),
            false => Err(runs_no_inputs("--without", name)),
        }
    }

    /// Returns the known findings of the files that `--known` names.
    pub fn known(&self) -> Result<KnownFindings, CommandError> {
        let files = self.known.iter().filter(|path| !path.is_dir());
        files
            .map(|path| read(path))
            .try_fold(KnownFindings::default(), |all, file| Ok(all.and(&file?)))
    }
}

/// An implementation, and what else a verb needs to run inputs with it.
pub struct UnderTest {
    /// The implementation, with its known findings and those of the option.
    pub implementation: Implementation,
    /// The known findings.
    pub known: KnownFindings,
    /// The folders of known bugs that the option names.
    pub folders: Vec<PathBuf>,
    /// The implementation that judges the images, too.
    pub against: Option<Against>,
    files: Vec<PathBuf>,
    unclaimed: FeatureSet,
}

impl UnderTest {
    /// Reads the files that the options name. `against` judges the images, too.
    pub fn new(
        implementation: Implementation,
        options: &UnderTestOptions,
        against: Option<Against>,
    ) -> Result<Self, CommandError> {
        let known = implementation.facts().known.and(&options.known()?);
        let (folders, files): (Vec<_>, Vec<_>) =
            options.known.iter().cloned().partition(|path| path.is_dir());
        let unclaimed = FeatureSet::of(&options.without);
        let implementation = implementation.knowing(known.clone()).without(unclaimed);
        let implementation = match &against {
            Some(against) => against.judge(implementation),
            None => implementation,
        };
        Ok(Self { implementation, known, folders, against, files, unclaimed })
    }

    /// Rejects folders, which only `triage` reads.
    pub fn reject_folders(&self) -> Result<(), CommandError> {
        match self.folders.first() {
            None => Ok(()),
            Some(path) => Err(CommandError::at(
                path,
                "is a folder, expected a file of known findings; only 'triage' reads folders",
            )),
        }
    }

    /// Returns the file of this process, even if another file has taken its name since. It is called with the same
    /// options `--engine-command`, `--engine-qemu-img`, `--against`, `--against-command`, `--known` and `--without`.
    pub fn executable(&self) -> Result<Executable, CommandError> {
        let running = Path::new("/proc/self/exe");
        let path = match running.exists() {
            true => running.to_path_buf(),
            false => std::env::current_exe().map_err(|error| {
                CommandError::Message(format!("cannot find the running executable: {error}"))
            })?,
        };
        let option = |file: &PathBuf| {
            let mut option = OsString::from("--known=");
            option.push(file);
            option
        };
        let without =
            self.unclaimed.iter().map(|it| OsString::from(format!("--without={}", it.name())));
        let engine = arguments().into_iter().chain(self.against.as_ref().map(Against::argument));
        Ok(Executable::new(path, engine.chain(self.files.iter().map(option)).chain(without)))
    }

    /// Returns a text that changes with all that decides how an input runs, beside the executable and the target.
    pub fn identity(&self) -> String {
        let second = self.against.as_ref().map_or(String::new(), Against::identity);
        let without = match self.unclaimed == FeatureSet::EMPTY {
            true => String::new(),
            false => format!("without {}", self.unclaimed),
        };
        format!("{}{:?}{second}{without}", identity(), self.known)
    }
}

/// Returns the error of an option that only commands that run inputs take.
fn runs_no_inputs(option: &str, name: &str) -> CommandError {
    CommandError::Message(format!(
        "{option}: '{name}' runs no inputs, expected a command that does"
    ))
}

/// Reads a file of known findings.
fn read(path: &Path) -> Result<KnownFindings, CommandError> {
    let text = String::from_utf8(files::read(path, u64::MAX)?)
        .map_err(|_| CommandError::at(path, "is not UTF-8, expected a text in TOML"))?;
    KnownFindings::parse(&text).map_err(|error| CommandError::at(path, error))
}

/// The options.
#[derive(Debug, clap::Args)]
pub struct EngineOption {
    /// Test the implementation behind this command, which a shell runs; docs/protocol.md describes its lines
    #[arg(long, global = true, value_name = "CMD")]
    engine_command: Option<String>,
    /// Test a program with the command line of qemu-img, which a shell runs: its verbs info, map, check and convert.
    /// docs/engines.md describes what it must print
    #[arg(long, global = true, value_name = "CMD", conflicts_with = "engine_command")]
    engine_qemu_img: Option<String>,
}

/// The implementation of this process that an option has chosen.
#[derive(Debug)]
struct Chosen {
    /// The option with its command. The processes that this one starts for its work need it, too.
    option: [String; 2],
    /// The statement of the command about itself, which may change while the command stays the same.
    statement: String,
}

static CHOSEN: OnceLock<Chosen> = OnceLock::new();

impl EngineOption {
    /// Starts the command, so that a mistake in it is reported at once. Returns the implementation behind it, if there
    /// is an option.
    pub fn start(&self) -> Result<Option<Implementation>, CommandError> {
        let (option, line, statement, implementation): (_, _, _, Implementation) =
            match (&self.engine_command, &self.engine_qemu_img) {
                (None, None) => return Ok(None),
                (Some(line), _) => {
                    let command = EngineCommand::start(line).map_err(CommandError::Message)?;
                    ("--engine-command", line, command.first_lines(), command.into())
                }
                (None, Some(line)) => {
                    let failed = |what| CommandError::Message(format!("--engine-qemu-img: {what}"));
                    let program = ImageProgram::start(line).map_err(failed)?;
                    ("--engine-qemu-img", line, program.identity(), program.into())
                }
            };
        let option = [option.to_string(), line.clone()];
        CHOSEN.get_or_init(|| Chosen { option, statement });
        Ok(Some(implementation))
    }
}

/// Returns a text that changes with the command and with its statement about itself. Both decide how an input runs. It
/// is empty without a command.
pub fn identity() -> String {
    CHOSEN.get().map_or(String::new(), |it| [&it.option.concat(), &*it.statement].concat())
}

/// Returns the arguments that choose the same implementation in another process.
pub fn arguments() -> Vec<OsString> {
    CHOSEN.get().into_iter().flat_map(|it| &it.option).map(OsString::from).collect()
}

/// Runs a verb. The failure of an engine is the failure of the verb.
pub fn caught(verb: impl FnOnce() -> ExitResult) -> ExitResult {
    failure::catch(verb).unwrap_or_else(|line| Err(CommandError::Message(line)))
}

/// The name of the installed QEMU.
const QEMU_NAME: &str = "qemu";

/// The options.
#[derive(Debug, clap::Args)]
pub struct AgainstOption {
    /// Compare each answer with that of another implementation: 'qemu', the installed qemu-io and qemu-img; or an
    /// implementation in this executable, such as 'map_extents'. docs/fuzz.md describes the comparison. The commands
    /// that take --known take this option
    #[arg(long, value_name = "NAME", global = true)]
    against: Option<String>,
    /// Compare each answer with that of the implementation behind this command, which a shell runs, as --engine-command
    #[arg(long, value_name = "CMD", global = true)]
    against_command: Option<String>,
}

/// The implementation that judges images, too.
pub enum Against {
    /// The installed QEMU.
    Qemu(Qemu),
    /// An implementation in this executable.
    Compiled(String, Implementation),
    /// The implementation behind a command.
    Command(String, EngineCommand),
}

impl AgainstOption {
    /// Rejects the options for the verb `name`, which runs no inputs.
    pub fn reject(&self, name: &str) -> Result<(), CommandError> {
        let option = match (&self.against, &self.against_command) {
            (None, None) => return Ok(()),
            (Some(_), _) => "--against",
            (None, Some(_)) => "--against-command",
        };
        Err(CommandError::Message(format!(
            "{option}: '{name}' runs no inputs, expected a command that does"
        )))
    }

    /// Starts the implementation that the options name, so that a mistake is reported at once. `compiled` are those in
    /// this executable.
    pub fn start(
        &self,
        costly: CostlyComparisons,
        compiled: &[Implementation],
    ) -> Result<Option<Against>, CommandError> {
        let failed =
            |option: &str, what: String| CommandError::Message(format!("{option}: {what}"));
        match (&self.against, &self.against_command) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => Err(failed(
                "--against-command",
                "found --against, too, expected one of them".into(),
            )),
            (None, Some(line)) => {
                let command =
                    EngineCommand::start(line).map_err(|what| failed("--against-command", what))?;
                Ok(Some(Against::Command(line.clone(), command)))
            }
            (Some(name), None) if name == QEMU_NAME => {
                let qemu = Qemu::start(costly).map_err(|what| failed("--against qemu", what))?;
                Ok(Some(Against::Qemu(qemu)))
            }
            (Some(name), None) => match compiled.iter().find(|it| it.facts().name == *name) {
                Some(found) => Ok(Some(Against::Compiled(name.clone(), found.clone()))),
                None => Err(failed("--against", unknown(name, compiled))),
            },
        }
    }
}

/// Returns the line about a name that no implementation has.
fn unknown(name: &str, compiled: &[Implementation]) -> String {
    let mut names = vec![QEMU_NAME.to_string()];
    for implementation in compiled {
        let name = implementation.facts().name.into_owned();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    format!("found '{name}', expected one of: {}", names.join(", "))
}

impl Against {
    /// Returns the name of the implementation, for reports.
    pub fn name(&self) -> String {
        match self {
            Self::Qemu(_) => "QEMU".to_string(),
            Self::Compiled(name, _) => name.clone(),
            Self::Command(_, command) => {
                Implementation::from(command.clone()).facts().name.into_owned()
            }
        }
    }

    /// Returns `implementation`, whose images this one judges, too.
    pub fn judge(&self, implementation: Implementation) -> Implementation {
        match self {
            Self::Qemu(qemu) => implementation.against(qemu),
            Self::Compiled(_, other) => implementation.against_engine(other.clone()),
            Self::Command(_, command) => implementation.against_engine(command.clone().into()),
        }
    }

    /// Returns the argument that chooses the same implementation in another process.
    pub fn argument(&self) -> OsString {
        OsString::from(match self {
            Self::Qemu(_) => format!("--against={QEMU_NAME}"),
            Self::Compiled(name, _) => format!("--against={name}"),
            Self::Command(line, _) => format!("--against-command={line}"),
        })
    }

    /// Returns a text that changes with the implementation, which decides how an input runs.
    pub fn identity(&self) -> String {
        match self {
            Self::Qemu(qemu) => format!("against qemu {}", qemu.version()),
            Self::Compiled(name, _) => format!("against {name}"),
            Self::Command(line, command) => {
                format!("against the command {line} {}", command.first_lines())
            }
        }
    }
}
