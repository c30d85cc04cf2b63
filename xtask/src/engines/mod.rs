//! The crates of `engines/` and the implementations behind the line protocol: their commands, and campaigns of them.

pub mod other_languages;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

use crate::oss_fuzz::options_of;
use crate::process::{attached, command, failed, root, run, target_folder};

/// libFuzzer's bounds of an input, those of the embedded loop.
const BOUNDS: [&str; 2] = ["-timeout=25", "-rss_limit_mb=4096"];
const MAX_ADDRESS_BYTES: u64 = 4096 << 20;

/// A built command of qcowfuzz, with the options that come before its verb.
pub struct Qcowfuzz {
    program: PathBuf,
    options: Vec<String>,
}

impl Qcowfuzz {
    /// Builds our own command.
    pub fn own(profile: &str) -> Result<Self> {
        Self::built("", "qcowfuzz", profile)
    }

    /// Builds the command that has a crate or an implementation behind the line protocol.
    pub fn of(engine: &str) -> Result<Self> {
        if root().join(format!("engines/src/bin/{engine}.rs")).exists() {
            return Self::built("engines", engine, "release");
        }
        ensure!(
            known_of(engine).exists(),
            "no engine '{engine}' in engines/src/bin/ or engines/other/known/"
        );
        Ok(Self::own("release")?.behind_protocol(engine, &[]))
    }

    fn built(workspace: &str, name: &str, profile: &str) -> Result<Self> {
        let manifest = Path::new(workspace).join("Cargo.toml");
        let build =
            format!("build --quiet --locked --bin {name} --profile {profile} --manifest-path");
        run(command("cargo").args(build.split(' ')).arg(manifest))?;
        let folder = if profile == "dev" { "debug" } else { profile };
        Ok(Self { program: target_folder(workspace).join(folder).join(name), options: Vec::new() })
    }

    /// Has the command use an implementation behind the line protocol. Each claim excludes a feature.
    pub fn behind_protocol(mut self, name: &str, claims: &[&str]) -> Self {
        let engine = format!("'{}' {name}", root().join("engines/other/engine").display());
        let engine = claims.iter().fold(engine, |text, claim| format!("{text} '{claim}'"));
        let options =
            ["--engine-command", &engine, "--known", &known_of(name).display().to_string()];
        self.options = options.map(str::to_owned).to_vec();
        self
    }

    /// Returns the command with a verb.
    pub fn verb(&self, verb: &str) -> Command {
        let mut command = attached(&self.program);
        command.args(&self.options).arg(verb);
        command
    }
}

/// Returns the known findings of an implementation behind the line protocol.
fn known_of(name: &str) -> PathBuf {
    root().join(format!("engines/other/known/{name}.toml"))
}

/// Runs a command that reports bugs, and returns whether there are new ones.
pub fn finds(command: &mut Command) -> Result<bool> {
    let status = command.status()?;
    match status.code() {
        Some(code @ (0 | 1)) => Ok(code == 1),
        _ => bail!("{}: {status}, expected 0 or 1", crate::process::text_of(command)),
    }
}

/// Fuzz an engine, continue where an earlier campaign was stopped, and fail if it shows a new finding
///
/// Everything is kept in DIR/ENGINE-TARGET-LOOP: the corpus, and the inputs that failed. libFuzzer tests the crates of
/// engines/ alone. A finding that ends its process ends libFuzzer: if it is known, libFuzzer starts again.
#[derive(clap::Args)]
pub struct CampaignArguments {
    /// A crate of engines/, or an implementation of engines/other/known/
    engine: String,
    /// The target: map_extents, hostile, writes, raw_image or recipes
    target: String,
    /// embedded or libfuzzer
    #[arg(value_name = "LOOP", value_parser = ["embedded", "libfuzzer"])]
    kind: String,
    /// The seconds of the campaign
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The seed of the random numbers
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// The folder of all campaigns
    #[arg(long, default_value = "target/campaigns")]
    dir: PathBuf,
}

/// Runs a campaign.
pub fn campaign(arguments: &CampaignArguments) -> Result<()> {
    let CampaignArguments { engine, target, kind, seconds, seed, dir } = arguments;
    let folder = root().join(dir).join(format!("{engine}-{target}-{kind}"));
    fs::create_dir_all(&folder)?;
    let qcowfuzz = Qcowfuzz::of(engine)?;
    let found = if kind == "libfuzzer" {
        let program = libfuzzer_target(engine, target)?;
        campaign_of_libfuzzer(arguments, &qcowfuzz, &program, &folder)?
    } else {
        let mut fuzz = qcowfuzz.verb("fuzz");
        let options = format!("--target {target} --rng-seed {seed} --seconds {seconds} --dir");
        finds(fuzz.args(options.split(' ')).arg(&folder))?
    };
    if found { Err(failed(format!("new findings in {}", folder.display()))) } else { Ok(()) }
}

/// Builds a libFuzzer target with a crate. Returns its path.
fn libfuzzer_target(engine: &str, target: &str) -> Result<PathBuf> {
    // Optimized, without overflow checks, as the embedded loop: both loops test the same code.
    let build = format!(
        "+nightly fuzz build --fuzz-dir engines/fuzz -O -s none --features {engine} {target}"
    );
    run(command("cargo").args(build.split(' ')))?;
    let release = target_folder("engines/fuzz").join("x86_64-unknown-linux-gnu/release");
    // The next crate's build replaces the binary. A campaign that runs keeps its own.
    let own = release.join(format!("{engine}-{target}"));
    fs::copy(release.join(target), own.with_extension("new"))?;
    fs::rename(own.with_extension("new"), &own)?;
    Ok(own)
}

/// Runs libFuzzer until the time is over or it has found something new, and returns whether it has.
fn campaign_of_libfuzzer(
    arguments: &CampaignArguments,
    qcowfuzz: &Qcowfuzz,
    program: &Path,
    folder: &Path,
) -> Result<bool> {
    let CampaignArguments { target, seconds, seed, .. } = arguments;
    let (corpus, artifacts) = (folder.join("corpus"), folder.join("artifacts"));
    let set_aside = folder.join("set-aside");
    for path in [&corpus, &artifacts, &set_aside] {
        fs::create_dir_all(path)?;
    }
    let (end, options) = (Instant::now() + Duration::from_secs(*seconds), options_of(target)?);
    for number in 0_u32.. {
        let left = end.saturating_duration_since(Instant::now()).as_secs();
        if left == 0 {
            break;
        }
        let mut fuzz = attached("prlimit");
        fuzz.arg(format!("--as={MAX_ADDRESS_BYTES}")).arg(program).arg(&corpus);
        if target == "raw_image" {
            fuzz.arg("corpus/raw_image");
        }
        fuzz.args(&options)
            .args(BOUNDS)
            .arg("-print_final_stats=1")
            .arg(format!("-max_total_time={left}"));
        // Each process has random numbers of its own.
        fuzz.arg(format!("-seed={}", seed.wrapping_mul(1_000_000).wrapping_add(number)));
        let status = fuzz.arg(format!("-artifact_prefix={}/", artifacts.display())).status()?;
        let is_empty = fs::read_dir(&artifacts)?.next().is_none();
        ensure!(status.success() || !is_empty, "libFuzzer: {status} without a finding");
        if !is_empty && finds(qcowfuzz.verb("triage").args(["--target", target]).arg(&artifacts))? {
            return Ok(true);
        }
        // Known findings, and inputs that show nothing in another process. Equal inputs have one name.
        for input in fs::read_dir(&artifacts)? {
            let input = input?;
            fs::rename(input.path(), set_aside.join(input.file_name()))?;
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a campaign of a second with an artifact or without, a program in the place of libFuzzer, and a triage that
    /// ends with this code. Returns whether it found something new, and whether it set the artifact aside.
    fn campaign_with(artifact: bool, program: &str, code: u8) -> (Result<bool>, bool) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("artifacts/crash-1");
        if artifact {
            fs::create_dir(dir.path().join("artifacts")).unwrap();
            fs::write(&path, "").unwrap();
        }
        let options = vec!["-c".to_owned(), format!("exit {code}")];
        let triage = Qcowfuzz { program: "sh".into(), options };
        let arguments = CampaignArguments {
            engine: "imago".to_owned(),
            target: "map_extents".to_owned(),
            kind: "libfuzzer".to_owned(),
            seconds: 2,
            seed: 1,
            dir: PathBuf::new(),
        };
        let found = campaign_of_libfuzzer(&arguments, &triage, Path::new(program), dir.path());
        (found, dir.path().join("set-aside/crash-1").exists())
    }

    #[test]
    fn a_new_finding_ends_a_campaign_and_a_known_one_does_not() {
        assert!(matches!(campaign_with(true, "true", 1), (Ok(true), false)));
        assert!(matches!(campaign_with(true, "true", 0), (Ok(false), true)));
        assert!(campaign_with(true, "true", 2).0.is_err());
        assert!(campaign_with(false, "false", 0).0.is_err());
    }
}
