//! libFuzzer on the targets: for some runs from the committed corpora, and for a night.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use crate::oss_fuzz::options_of;
use crate::process::{
    captured, command, end, files_below, output, quiet, replace, root, target_folder,
};
use crate::tree::sanitized;

/// The toolchain that has sanitizers.
const NIGHTLY: &str = "nightly";

/// Returns the targets, or all if there are none.
fn targets_or_all(targets: &[String], toolchain: &str) -> Result<Vec<String>> {
    let list = output(command("cargo").args([&format!("+{toolchain}"), "fuzz", "list"]))?;
    match targets {
        [] => Ok(list.lines().map(str::to_owned).collect()),
        _ => Ok(targets.to_vec()),
    }
}

/// Returns a command that runs a target with the options that it has on OSS-Fuzz. It runs from a folder of finds, to
/// which libFuzzer writes, and from the committed corpus.
fn fuzz(toolchain: &str, build: &[&str], target: &str, finds: &Path) -> Result<Command> {
    let mut command = command("cargo");
    command.args([&format!("+{toolchain}"), "fuzz", "run"]).args(build).arg(target).arg(finds);
    command.args([&format!("corpus/{target}"), "--"]);
    command.args(options_of(target)?);
    sanitized(&mut command);
    Ok(command)
}

/// The options of `fuzz-smoke`.
#[derive(Args)]
pub struct Smoke {
    /// The toolchain: nightly has AddressSanitizer, another runs without a sanitizer
    #[arg(long, default_value = NIGHTLY)]
    toolchain: String,
    /// Runs of each target
    #[arg(long, default_value_t = 5_000)]
    runs: u64,
    /// The targets [default: all]
    targets: Vec<String>,
}

/// Fuzzes targets from their committed corpora. A finding is a failure, and so is a target without the extra counters
/// of `src/fuzzing/feedback`. With AddressSanitizer, zstd's C code must have its checks, too.
pub fn smoke(Smoke { toolchain, runs, targets }: &Smoke) -> Result<()> {
    let nightly = toolchain == NIGHTLY;
    let build: &[&str] = &["--no-trace-compares", "-s", "none"];
    for target in targets_or_all(targets, toolchain)? {
        println!("\n-- {target} on {toolchain}: {runs} runs from its corpus");
        let finds = tempfile::tempdir()?;
        let build = if nightly { &build[..1] } else { build };
        let mut fuzz = fuzz(toolchain, build, &target, finds.path())?;
        // libFuzzer takes the last of two options of the same name.
        fuzz.args([&format!("-runs={runs}"), "-seed=1", "-max_len=512"]);
        let (status, log) = captured(&mut fuzz)?;
        println!("{log}");
        ensure!(status.success(), "{target}: {status}, expected success");
        // The linker drops a section that nothing references, and only libFuzzer's start-up shows it.
        let is_it = |line: &str| line.starts_with("INFO: ") && line.contains(" Extra Counters");
        ensure!(log.lines().any(is_it), "{target}: expected the extra counters of src/fuzzing");
    }
    if nightly { zstd_is_sanitized() } else { Ok(()) }
}

/// Checks that the last build of zstd calls AddressSanitizer.
fn zstd_is_sanitized() -> Result<()> {
    let is_it = |path: &PathBuf| {
        path.ends_with("libzstd.a") && path.to_string_lossy().contains("/release/build/zstd-sys-")
    };
    let builds = files_below(&target_folder("fuzz"))?.into_iter().filter(is_it);
    let last = builds.max_by_key(|path| fs::metadata(path).and_then(|it| it.modified()).ok());
    let last = last.context("no libzstd.a, expected that of the targets")?;
    let symbols = output(command("nm").arg(&last).stderr(Stdio::null()))?;
    let calls = symbols.contains(" U __asan_report_load");
    ensure!(calls, "{}: no calls of AddressSanitizer, expected them", last.display());
    Ok(())
}

/// The options of `nightly-fuzz`.
#[derive(Args)]
pub struct Night {
    /// The folder of corpora, artifacts, logs and the summary
    dir: PathBuf,
    /// Seconds for each target
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The targets [default: all]
    targets: Vec<String>,
    /// Fuzz a crate of engines/, optimized as its users build it, without a sanitizer. Only new findings are a failure
    #[arg(long)]
    engine: Option<String>,
    /// Build without compare tracing. A night is long enough to find constants, seconds are not
    #[arg(long)]
    no_trace_compares: bool,
}

/// Fuzzes targets on all cores, one after the other, and continues after a finding. Keeps the corpora, from which the
/// next run continues, the inputs that failed, and libFuzzer's output. `summary.md` contains the output of `qcowfuzz
/// triage` on these inputs; it is also appended to `$GITHUB_STEP_SUMMARY`. Fails if an input failed.
pub fn night(options: &Night) -> Result<()> {
    fs::create_dir_all(&options.dir)?;
    let dir = options.dir.canonicalize()?;
    // The command with the small writer: the artifacts of `writes` need an engine that writes, as its target has. Not
    // optimised: with debug assertions, as the targets.
    let own = "build -q --locked --example small_writer".to_owned();
    let (build, triage) = match &options.engine {
        None => (own, target_folder("").join("debug/examples/small_writer")),
        Some(name) => (
            format!("build -q --locked --release --manifest-path engines/Cargo.toml --bin {name}"),
            target_folder("engines").join("release").join(name),
        ),
    };
    quiet(command("cargo").args(build.split(' ')))?;

    let mut found = 0;
    let mut summary = format!("# Fuzzing, {} s for each target\n", options.seconds);
    for target in targets_or_all(&options.targets, NIGHTLY)? {
        let grown = night_of(options, &dir, &target)?;
        // By the paths that the uploaded folder has.
        let artifacts = format!("artifacts/{target}");
        let mut triage = command(&triage);
        triage.args(["triage", "--target", &target]);
        if options.engine.is_none() {
            triage.arg("--known").arg(root().join("tests/regressions"));
        }
        let (status, bugs) = captured(triage.arg(&artifacts).current_dir(&dir))?;
        ensure!(matches!(status.code(), Some(0 | 1)), "triage: {status}: {bugs}");
        let chapter = format!("\n## {target}: {grown}\n\n```text\n{bugs}```\n");
        println!("{chapter}");
        summary += &chapter;
        replace(&dir.join("summary.md"), &summary)?;
        found += match &options.engine {
            None => files_below(&dir.join(artifacts))?.len(),
            Some(_) => usize::from(!status.success()),
        };
    }
    if let Some(page) = std::env::var_os("GITHUB_STEP_SUMMARY") {
        let mut page = OpenOptions::new().create(true).append(true).open(page)?;
        page.write_all(summary.as_bytes())?;
    }
    ensure!(found == 0, "{found} failures; {} lists them", dir.join("summary.md").display());
    Ok(())
}

/// Fuzzes one target, and returns how its corpus has grown.
fn night_of(options: &Night, dir: &Path, target: &str) -> Result<String> {
    let [corpus, artifacts, log] =
        ["corpus", "artifacts", "log"].map(|it| dir.join(it).join(target));
    for folder in [&corpus, &artifacts, &dir.join("log")] {
        fs::create_dir_all(folder)?;
    }
    let before = files_below(&corpus)?.len();
    let of_engine: Vec<_> = match &options.engine {
        None => Vec::new(),
        Some(name) => {
            ["--fuzz-dir", "engines/fuzz", "-O", "-s", "none", "--features", name].to_vec()
        }
    };
    let traces = options.no_trace_compares.then_some("--no-trace-compares");
    let build: Vec<_> = of_engine.into_iter().chain(traces).collect();
    let mut fuzz = fuzz(NIGHTLY, &build, target, &corpus)?;
    // In fork mode, libFuzzer adds an input to the corpus only for new features, so the corpus stays small.
    let jobs = std::thread::available_parallelism().map_or(1, usize::from);
    fuzz.args([format!("-fork={jobs}"), format!("-max_total_time={}", options.seconds)]);
    fuzz.args(["-ignore_crashes=1", &format!("-artifact_prefix={}/", artifacts.display())]);
    if options.engine.is_some() {
        fuzz.args(["-timeout=25", "-rss_limit_mb=4096"]);
    }
    let file = File::create(&log)?;
    let status = fuzz.stdout(file.try_clone()?).stderr(file).status()?;
    let log = String::from_utf8_lossy(&fs::read(log)?).into_owned();
    if !log.lines().any(|line| line.starts_with("INFO: fuzzed for")) {
        bail!("{}\n{target} ended before its time: {status}", end(&log));
    }
    Ok(format!("{before} → {} inputs", files_below(&corpus)?.len()))
}
