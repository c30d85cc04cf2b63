//! Stands in for the runner's image: the demands of test_all.py and bad_build_check on a folder of targets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use tempfile::TempDir;

use super::step;
use crate::process::{attached, captured, command, end, output, quiet};

/// Fewer calls are no ASan build to bad_build_check.
const MIN_ASAN_CALLS: usize = 1000;
const MIN_SEEDS: usize = 10;
const RUNS: usize = 1000;
/// The exit code of `timeout` if the time is over.
const TIMED_OUT: i32 = 124;
/// The container without its folders. A hang must not stop CI for hours; the longest run takes a few seconds. The
/// options of ASan are the image's, as far as they decide which bugs are found and printed. A coverage build uses the
/// last variable.
const CONTAINER: &str = "300 bwrap --die-with-parent --unshare-all --new-session --proc /proc \
    --ro-bind-try /usr /usr --ro-bind-try /bin /bin --ro-bind-try /lib /lib --ro-bind-try /lib64 /lib64 \
    --clearenv --setenv PATH /out:/llvm/bin:/usr/bin --setenv ASAN_OPTIONS \
    alloc_dealloc_mismatch=0:allocator_may_return_null=1:check_malloc_usable_size=0:detect_leaks=1:\
    detect_odr_violation=0:detect_stack_use_after_return=1:handle_abort=1:handle_sigill=1:\
    quarantine_size_mb=10:strict_memcmp=1:symbolize=1:use_sigaltstack=1 \
    --setenv LLVM_PROFILE_FILE /tmp/%1m.profraw";
/// The image's bounds for a run.
const BOUNDS: [&str; 3] = ["-rss_limit_mb=2560", "-timeout=25", "-artifact_prefix=/tmp/"];
const PROBE: &str = "! touch /out/probe && ! touch /probe && touch /tmp/probe && [ ! -e /dev/null ] && echo restricted";

/// A container with a folder of targets: only /tmp is writable, and there is no /dev.
pub struct Sandbox {
    out: PathBuf,
    llvm: PathBuf,
    /// The folder that is /tmp inside.
    pub tmp: TempDir,
}

impl Sandbox {
    /// Creates a container, and checks that it restricts its processes.
    pub fn new(out: &Path, llvm: &Path) -> Result<Self> {
        let tmp = tempfile::Builder::new().prefix("oss-fuzz-check-").tempdir()?;
        let this = Self { out: out.canonicalize()?, llvm: llvm.to_owned(), tmp };
        let (code, output) = this.run("/out", &["/usr/bin/env", "sh", "-c", PROBE])?;
        let is_restricted = code == 0 && output.ends_with("restricted\n");
        ensure!(is_restricted, "bwrap does not make all but /tmp read-only here: {output}");
        Ok(this)
    }

    /// Returns the exit code and the output of a command in a folder.
    fn run(&self, folder: &str, words: &[&str]) -> Result<(i32, String)> {
        let mut bwrap = attached("timeout");
        bwrap.args(CONTAINER.split_whitespace());
        for (bind, from, to) in [
            ("--ro-bind", self.out.as_path(), "/out"),
            ("--ro-bind", &self.llvm, "/llvm"),
            ("--bind", self.tmp.path(), "/tmp"),
        ] {
            bwrap.arg(bind).arg(from).arg(to);
        }
        bwrap.args(["--remount-ro", "/", "--chdir", folder]);
        let (status, output) = captured(bwrap.args(words))?;
        match status.code() {
            Some(TIMED_OUT) => Err(anyhow!("{words:?}: no end in time")),
            Some(code) => Ok((code, output)),
            None => bail!("{words:?}: {status}"),
        }
    }

    /// Runs a target with its own options and dictionary. Returns the exit code and the output.
    pub fn fuzz(&self, target: &str, folder: &str, arguments: &[&str]) -> Result<(i32, String)> {
        let own = self.out.join(target).with_extension("options");
        let mut words = options(&fs::read_to_string(own).unwrap_or_default())
            .with_context(|| target.to_owned())?;
        if self.out.join(target).with_extension("dict").exists() {
            words.push(format!("-dict=/out/{target}.dict"));
        }
        let program = format!("/out/{target}");
        let mut all = [&[program.as_str()], &BOUNDS[..]].concat();
        all.extend(words.iter().map(String::as_str).chain(arguments.iter().copied()));
        self.run(folder, &all)
    }

    /// Returns an empty folder, which is /tmp/NAME inside.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.tmp.path().join(name);
        if path.exists() {
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// Puts the seeds of a target into /tmp/seeds. Returns how many there are.
    pub fn unpack_seeds(&self, target: &str) -> Result<usize> {
        let (folder, archive) =
            (self.folder("seeds")?, self.out.join(format!("{target}_seed_corpus.zip")));
        if archive.exists() {
            quiet(command("python3").args(["-m", "zipfile", "-e"]).args([&archive, &folder]))
                .with_context(|| target.to_owned())?;
        }
        Ok(names_in(&folder)?.len())
    }
}

/// Returns the section `[libfuzzer]` of a target's options as arguments.
pub fn options(text: &str) -> Result<Vec<String>> {
    let own = text.split_once("[libfuzzer]\n").context("no section [libfuzzer] in its options")?.1;
    let lines = own.split("\n[").next().unwrap_or_default().lines();
    let option = |line: &str| {
        let option = line.split_once('=');
        let (name, value) = option.with_context(|| format!("'{line}', expected NAME = VALUE"))?;
        Ok(format!("-{}={}", name.trim(), value.trim()))
    };
    lines.filter(|line| !line.is_empty() && !line.starts_with([';', '#'])).map(option).collect()
}

/// Returns the names of all files in a folder, sorted.
pub fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Returns the names of the fuzz targets in a folder, sorted. Finds them as the runner does.
pub fn targets_in(out: &Path) -> Result<Vec<String>> {
    let mut targets = Vec::new();
    for name in names_in(out)? {
        let (path, entry) = (out.join(&name), b"LLVMFuzzerTestOneInput");
        let metadata = fs::metadata(&path)?;
        let is_program = metadata.is_file() && metadata.permissions().mode() & 0o111 != 0;
        if is_program && fs::read(path)?.windows(entry.len()).any(|bytes| bytes == entry) {
            targets.push(name);
        }
    }
    ensure!(!targets.is_empty(), "{}: no fuzz target", out.display());
    Ok(targets)
}

/// Checks every target of a folder.
pub fn check(out: &Path, llvm: &Path) -> Result<()> {
    let (targets, sandbox) = (targets_in(out)?, Sandbox::new(out, llvm)?);
    for target in &targets {
        step(&format!("{target}: ASan, seeds, {RUNS} runs where only /tmp is writable"), || {
            check_asan(&sandbox, target)?;
            check_seeds(&sandbox, target)
        })?;
    }
    Ok(())
}

/// A target without ASan runs well, and misses bugs of memory.
fn check_asan(sandbox: &Sandbox, target: &str) -> Result<()> {
    // Without reading on behind the last one that is needed: seconds for each target.
    let script = "objdump -d --no-show-raw-insn \"$0\" | grep -c -m \"$1\" 'call.*<__asan' || true";
    let mut search = attached("sh");
    search.args(["-c", script]).arg(sandbox.out.join(target)).arg(MIN_ASAN_CALLS.to_string());
    let count = output(&mut search)?;
    let calls: usize = count.trim().parse()?;
    let expected = format!("expected at least {MIN_ASAN_CALLS}: it is built without");
    ensure!(calls >= MIN_ASAN_CALLS, "{target}: {calls} calls of ASan, {expected}");
    Ok(())
}

/// All seeds run without a finding: a seed that crashes would be reported for ever. The target writes to /tmp alone.
fn check_seeds(sandbox: &Sandbox, target: &str) -> Result<()> {
    let seeds = sandbox.unpack_seeds(target)?;
    let found = format!("{target}: {seeds} seeds in its seed corpus");
    ensure!(seeds >= MIN_SEEDS, "{found}, expected at least {MIN_SEEDS}");
    let working = sandbox.folder("working")?;
    let answer = sandbox.fuzz(target, "/tmp/working", &["-runs=0", "/tmp/seeds"])?;
    expect_done(&format!("{target}: a seed of its corpus fails"), answer, seeds)?;
    // A target that ignores a failing write survives a read-only folder.
    let written = names_in(&working)?.join(", ");
    ensure!(written.is_empty(), "{target}: it writes into its working directory: {written}");
    sandbox.unpack_seeds(target)?;
    let runs = format!("-runs={RUNS}");
    let answer = sandbox.fuzz(target, "/out", &[&runs, "-seed=1", "/tmp/seeds"])?;
    expect_done(&format!("{target}: {RUNS} runs where only /tmp is writable"), answer, RUNS)
}

/// Fails unless libFuzzer knew all options and made all runs.
fn expect_done(what: &str, (code, output): (i32, String), runs: usize) -> Result<()> {
    if let Some((_, flag)) = output.split_once("unrecognized flag '") {
        bail!("{what}: libFuzzer knows no option {}", flag.split('\'').next().unwrap_or(flag));
    }
    let done = output.lines().find_map(|line| line.strip_prefix("Done ")?.split(' ').next());
    let done: usize = done.and_then(|done| done.parse().ok()).unwrap_or(0);
    let is_done = code == 0 && done >= runs;
    ensure!(is_done, "{}\n{what}: exit code {code}, expected 0 and {runs} runs", end(&output));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_those_of_the_section() {
        let text = "; a comment\n[env]\na = 1\n\n[libfuzzer]\n# another\nmax_len = 64\n";
        assert_eq!(options(text).unwrap(), ["-max_len=64"]);
        assert!(options("").is_err() && options("[env]\na = 1\n").is_err());
        assert!(options("[libfuzzer]\nmax_len 64\n").is_err());
    }
}
