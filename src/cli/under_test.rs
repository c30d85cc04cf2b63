//! The options that choose the implementation under test and those beside it: `--engine-command`, `--in-turn`,
//! `--against`, the known findings that `--known` adds, the claims that `--without` drops.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::base::features::{Feature, FeatureSet};
use crate::base::files;
use crate::harness::KnownFindings;
use crate::harness::against::qemu_io::{CostlyComparisons, Qemu, QemuEngine};
use crate::harness::cases::implementation::Implementation;
use crate::harness::engines::command::EngineCommand;
use crate::harness::engines::image_program::ImageProgram;
use crate::harness::targets::TargetKind;
use crate::processes::Executable;
use crate::recipes::recipe::quoted;

use super::output::CommandError;

/// The options about the implementation under test.
#[derive(Debug, Default, clap::Args)]
pub struct UnderTestOptions {
    /// Set the known findings in this TOML file aside, too; with 'triage', also a folder of regressions. Only
    /// 'differential' and the commands that run inputs take it: fuzz, triage, minimize, replay, report, regress, bundle
    /// and corpus
    #[arg(long, value_name = "FILE", global = true)]
    known: Vec<PathBuf>,
    /// Judge only images and requests without this feature, for example 'power cuts'; '?' lists all features.
    /// The commands that run inputs take this option
    #[arg(long, value_name = "FEATURE", global = true)]
    without: Vec<Feature>,
    /// Test the implementation behind this command, which a shell runs; docs/engines.md describes its lines
    #[arg(long, global = true, value_name = "CMD")]
    engine_command: Option<String>,
    /// Test a program with the command line of qemu-img, which a shell runs: its verbs info, map, check and convert.
    /// docs/engines.md describes what it must print
    #[arg(long, global = true, value_name = "CMD", conflicts_with = "engine_command")]
    engine_qemu_img: Option<String>,
    /// Let another implementation open the image every second time that a program opens it for writing, after a crash,
    /// too: 'qemu', or an implementation in this executable. The commands that take --known take this option
    #[arg(long, value_name = "NAME", global = true)]
    in_turn: Option<String>,
    /// Compare each answer with that of another implementation: 'qemu', the installed qemu-io and qemu-img; or an
    /// implementation in this executable, such as 'map_extents'. docs/differential.md describes the comparison. The
    /// commands that take --known take this option
    #[arg(long, value_name = "NAME", global = true)]
    against: Option<String>,
    /// Compare each answer with that of the implementation behind this command, which a shell runs, as --engine-command
    #[arg(long, value_name = "CMD", global = true)]
    against_command: Option<String>,
}

/// An implementation that an option has chosen.
pub struct Chosen {
    /// The name of the implementation, for reports.
    pub name: String,
    /// The argument that chooses the same implementation in another process.
    argument: String,
    /// A text that changes with the implementation. It contains the command line and the facts that the command states
    /// about itself, because both decide how an input runs.
    identity: String,
    implementation: ChosenImplementation,
}

enum ChosenImplementation {
    /// The installed QEMU.
    Qemu(Qemu),
    /// One in this executable, or behind a command.
    Engine(Implementation),
}

/// The name of the installed QEMU.
const QEMU_NAME: &str = "qemu";

impl UnderTestOptions {
    /// Returns the name of each field, by which the parser knows the option, and whether the user has set it.
    pub fn given(&self) -> [(&'static str, bool); 7] {
        [
            ("known", !self.known.is_empty()),
            ("without", !self.without.is_empty()),
            ("engine_command", self.engine_command.is_some()),
            ("engine_qemu_img", self.engine_qemu_img.is_some()),
            ("in_turn", self.in_turn.is_some()),
            ("against", self.against.is_some()),
            ("against_command", self.against_command.is_some()),
        ]
    }

    /// Reports whether the implementation under test is a command, and not in this executable.
    pub fn has_command(&self) -> bool {
        self.engine_command.is_some() || self.engine_qemu_img.is_some()
    }

    /// Rejects the options for the verb `name`, which runs no inputs, except for the options `taken`.
    pub fn reject(&self, name: &str, taken: &[&str]) -> Result<(), CommandError> {
        let mut given = self.given().into_iter();
        match given.find(|(id, is_given)| *is_given && !taken.contains(id)) {
            Some((id, _)) => Err(CommandError::Message(format!(
                "--{}: '{name}' runs no inputs, expected a command that does",
                id.replace('_', "-")
            ))),
            None => Ok(()),
        }
    }

    /// Returns the known findings of the files that `--known` names.
    pub fn known(&self) -> Result<KnownFindings, CommandError> {
        let files = self.known.iter().filter(|path| !path.is_dir());
        files
            .map(|path| read(path))
            .try_fold(KnownFindings::default(), |all, file| Ok(all.and(&file?)))
    }

    /// Starts the implementation under test if an option names one, so that a mistake is reported at once.
    fn start_engine(&self) -> Result<Option<Chosen>, CommandError> {
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
        Ok(Some(Chosen {
            name: implementation.facts().name.into_owned(),
            argument: format!("{option}={line}"),
            identity: format!("{option}{line}{statement}"),
            implementation: ChosenImplementation::Engine(implementation),
        }))
    }

    /// Starts the implementation that judges the images, too, if an option names one. `compiled` are those in this
    /// executable.
    fn start_second(
        &self,
        costly: CostlyComparisons,
        compiled: &[Implementation],
    ) -> Result<Option<Chosen>, CommandError> {
        let failed =
            |option: &str, what: String| CommandError::Message(format!("{option}: {what}"));
        Ok(Some(match (&self.against, &self.against_command) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                let what = "found --against, too, expected one of them".to_string();
                return Err(failed("--against-command", what));
            }
            (None, Some(line)) => {
                let command =
                    EngineCommand::start(line).map_err(|what| failed("--against-command", what))?;
                let identity = format!("against the command {line} {}", command.first_lines());
                let engine = Implementation::from(command);
                Chosen {
                    name: engine.facts().name.into_owned(),
                    argument: format!("--against-command={line}"),
                    identity,
                    implementation: ChosenImplementation::Engine(engine),
                }
            }
            (Some(name), None) => named("--against", name, costly, compiled)?,
        }))
    }

    /// Starts the implementation that takes turns with the one under test, if an option names one.
    fn start_in_turn(
        &self,
        costly: CostlyComparisons,
        compiled: &[Implementation],
    ) -> Result<Option<Chosen>, CommandError> {
        self.in_turn.as_ref().map(|name| named("--in-turn", name, costly, compiled)).transpose()
    }
}

/// Returns the implementation that `option` names: QEMU, or one of those in this executable.
fn named(
    option: &str,
    name: &str,
    costly: CostlyComparisons,
    compiled: &[Implementation],
) -> Result<Chosen, CommandError> {
    let failed = |place: &str, what| CommandError::Message(format!("{place}: {what}"));
    let (identity, implementation) = if name == QEMU_NAME {
        let place = format!("{option} {QEMU_NAME}");
        let qemu = Qemu::start(costly).map_err(|what| failed(&place, what))?;
        (format!("{option} {name} {}", qemu.version()), ChosenImplementation::Qemu(qemu))
    } else {
        let found = compiled.iter().find(|it| it.facts().name == *name);
        let found = found.ok_or_else(|| failed(option, unknown(name, compiled)))?;
        (format!("{option} {name}"), ChosenImplementation::Engine(found.clone()))
    };
    let title = if name == QEMU_NAME { "QEMU" } else { name };
    Ok(Chosen {
        name: title.to_string(),
        argument: format!("{option}={name}"),
        identity,
        implementation,
    })
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
    pub against: Option<Chosen>,
    engine: Option<Chosen>,
    in_turn: Option<Chosen>,
    files: Vec<PathBuf>,
    unclaimed: FeatureSet,
}

impl UnderTest {
    /// Starts the implementations and reads the files that the options name. `own` is the implementation of this
    /// executable.
    pub fn new(
        own: Implementation,
        options: &UnderTestOptions,
        costly: CostlyComparisons,
    ) -> Result<Self, CommandError> {
        let engine = options.start_engine()?;
        let compiled = [Implementation::our_walker(), own.clone()];
        let against = options.start_second(costly, &compiled)?;
        let in_turn = options.start_in_turn(costly, &compiled)?;
        let implementation = match &engine {
            Some(Chosen { implementation: ChosenImplementation::Engine(it), .. }) => it.clone(),
            _ => own,
        };
        let implementation = match in_turn.as_ref().map(|it| &it.implementation) {
            Some(ChosenImplementation::Qemu(_)) => {
                implementation.in_turn_with(QemuEngine::under_test())
            }
            Some(ChosenImplementation::Engine(other)) => implementation.in_turn_with(other.clone()),
            None => implementation,
        };
        let known = implementation.facts().known.and(&options.known()?);
        let (folders, files): (Vec<_>, Vec<_>) =
            options.known.iter().cloned().partition(|path| path.is_dir());
        let unclaimed = FeatureSet::of(&options.without);
        let implementation = implementation.knowing(known.clone()).without(unclaimed);
        let implementation = match against.as_ref().map(|it| &it.implementation) {
            Some(ChosenImplementation::Qemu(qemu)) => implementation.against(qemu),
            Some(ChosenImplementation::Engine(other)) => {
                implementation.against_engine(other.clone())
            }
            None => implementation,
        };
        Ok(Self { implementation, known, folders, against, engine, in_turn, files, unclaimed })
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
    /// options as this process.
    pub fn executable(&self) -> Result<Executable, CommandError> {
        let running = Path::new("/proc/self/exe");
        let path = match running.exists() {
            true => running.to_path_buf(),
            false => std::env::current_exe().map_err(|error| {
                CommandError::Message(format!("cannot find the running executable: {error}"))
            })?,
        };
        let known = self.files.iter().map(|file| {
            let mut option = OsString::from("--known=");
            option.push(file);
            option
        });
        Ok(Executable::new(path, self.options().into_iter().map(OsString::from).chain(known)))
    }

    /// Returns the options that choose the same implementations and the same claims in another process.
    pub fn options(&self) -> Vec<String> {
        let chosen = [&self.engine, &self.in_turn, &self.against].into_iter().flatten();
        let chosen = chosen.map(|it| it.argument.clone());
        let without = self.unclaimed.iter().map(|it| format!("--without={}", it.name()));
        chosen.chain(without).collect()
    }

    /// Returns the command line that has this program run `verb` about the same implementation and `target`, as a shell
    /// reads it.
    pub fn command_line(&self, verb: &str, target: TargetKind) -> String {
        let program = std::env::args_os().next().unwrap_or_default().to_string_lossy().into_owned();
        let mut words = vec![program];
        words.extend(self.options());
        words.push(verb.to_string());
        if target != TargetKind::default() {
            words.extend(["--target", target.name()].map(String::from));
        }
        quoted(&words)
    }

    /// Returns a text that changes with all that decides how an input runs, beside the executable and the target.
    pub fn identity(&self) -> String {
        let [engine, in_turn, second] = [&self.engine, &self.in_turn, &self.against]
            .map(|chosen| chosen.as_ref().map_or("", |it| it.identity.as_str()));
        let without = match self.unclaimed == FeatureSet::EMPTY {
            true => String::new(),
            false => format!("without {}", self.unclaimed),
        };
        format!("{engine}{in_turn}{:?}{second}{without}", self.known)
    }
}

/// Reads a file of known findings.
fn read(path: &Path) -> Result<KnownFindings, CommandError> {
    let text = String::from_utf8(files::read(path, u64::MAX)?)
        .map_err(|_| CommandError::at(path, "is not UTF-8, expected a text in TOML"))?;
    KnownFindings::parse(&text).map_err(|error| CommandError::at(path, error))
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
