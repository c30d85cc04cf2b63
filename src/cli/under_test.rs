//! The implementation under test, with the known findings that `--known` adds, and without the claims that `--without`
//! drops.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::base::features::{Feature, FeatureSet};
use crate::base::files;
use crate::harness::KnownFindings;
use crate::harness::cases::implementation::Implementation;
use crate::processes::Executable;

use super::against::Against;
use super::engine;
use super::exit::CommandError;

/// The options about the implementation under test.
#[derive(Debug, clap::Args)]
pub struct UnderTestOptions {
    /// Set the known findings in this TOML file aside, too; with 'triage', also a folder of regressions. Only
    /// 'differential' and the commands that run inputs take it: fuzz, triage, minimize, replay, report, regress, bundle
    /// and state
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
        let engine =
            engine::arguments().into_iter().chain(self.against.as_ref().map(Against::argument));
        Ok(Executable::new(path, engine.chain(self.files.iter().map(option)).chain(without)))
    }

    /// Returns a text that changes with all that decides how an input runs, beside the executable and the target.
    pub fn identity(&self) -> String {
        let second = self.against.as_ref().map_or(String::new(), Against::identity);
        let without = match self.unclaimed == FeatureSet::EMPTY {
            true => String::new(),
            false => format!("without {}", self.unclaimed),
        };
        format!("{}{:?}{second}{without}", engine::identity(), self.known)
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
