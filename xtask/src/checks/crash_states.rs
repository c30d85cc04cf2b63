//! Proves that ClusterFuzz's own stack parser (PyPI: clusterfuzz) derives one crash state from one bug. Six bugs are
//! planted in one copy of the tree, two of them panics of the walker. Two inputs show each bug at different operations,
//! and libFuzzer finds it from an empty corpus; built with ASan and without a sanitizer, with symbols and without.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};

use crate::process::{command, expect, output, python, quiet, read, target_folder};
use crate::tree::{CANARY, Tree, sanitized};

/// The bugs with a program in `bugs/`.
const BUGS: [&str; 5] = [
    "data_past_the_end_refused",
    "last_cluster_over_reported",
    "layer_below_too_long",
    "compressed_read_rounded_down",
    "subclusters_from_the_top",
];

/// The program that shows the canary.
const OF_CANARY: &str = "; model: kind, zero-allocated → zero-plain
image version=3 cluster_bits=16 refcount_order=4 size=2<<16+0 rng_seed=0 blocks=append table=append tolerance=0 features=none
write at=start+0 clusters=1
zero at=start+0 clusters=1 keep=yes
";
/// A program whose fingerprint differs from that of `subclusters_from_the_top` only after the arrow.
const ALIKE: &str = "; model: kind, normal → unallocated subcluster
image version=3 cluster_bits=16 refcount_order=4 size=2<<16+0 rng_seed=0 blocks=append table=append tolerance=0 features=extended_l2
subclusters at=start+0 change=write first=0 count=1 stride=1
";

/// Parses the logs of a folder, and compares their states with the function by which ClusterFuzz groups testcases.
const PARSER: &str = r#"
import itertools, json, pathlib, sys
from clusterfuzz import stacktraces
from clusterfuzz._internal.crash_analysis.crash_comparer import CrashComparer

def parsed(log, symbolized):
    parser = stacktraces.StackParser(
        symbolized=symbolized, detect_ooms_and_hangs=True, detect_v8_runtime_errors=False)
    info = parser.parse(log)
    return [info.crash_type, info.crash_state]

logs = {path.name: path.read_text(errors="replace") for path in pathlib.Path(sys.argv[1]).iterdir()}
states = {name: [parsed(log, True), parsed(log, False)] for name, log in logs.items()}
pairs = itertools.permutations({state[0][1] for state in states.values()}, 2)
json.dump([states, [pair for pair in pairs if CrashComparer(*pair).is_similar()]], sys.stdout)
"#;

/// A crash type and a crash state.
type State = (String, String);

/// The output of the parser: by the name of a log, the states where the parser expects symbols, and where it expects
/// none; and the pairs of crash states that ClusterFuzz would group.
type Parsed = (BTreeMap<String, [State; 2]>, Vec<[String; 2]>);

/// Plants the bugs, makes the crashes and judges the output of the targets.
pub fn check() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let work = folder.path();
    // With ASan in the release profile, as `fuzz-smoke` builds it, and without a sanitizer in the dev profile.
    let programs = thread::scope(|scope| {
        let parser = scope.spawn(|| python("crash-states/venv", &["clusterfuzz==2.6.0"]));
        let asan = scope.spawn(|| build(work, "asan", "release", &[]));
        build(work, "none", "debug", &["--dev", "-s", "none"])?;
        asan.join().map_err(|_| anyhow!("the build panicked"))??;
        parser.join().map_err(|_| anyhow!("the installation panicked"))?
    })?;
    let mut texts = BTreeMap::from([(CANARY, OF_CANARY.to_owned()), ("alike", ALIKE.to_owned())]);
    for bug in BUGS {
        texts.insert(bug, read(&format!("bugs/{bug}.txt"))?);
    }
    let mut targets = on_inputs(work, &texts)?;
    for seed in 1..=4 {
        let mut target = command(work.join("asan"));
        target.args([&format!("-seed={seed}"), "-runs=200000", "-max_len=512"]);
        targets.push((format!("found-{seed}.asan-symbols"), target));
    }
    let logs = crash(work, targets)?;

    let mut parser = command(programs.join("python"));
    let parsed = output(parser.args(["-c", PARSER]).arg(work.join("logs")))?;
    let faults = faults(&logs, &serde_json::from_str(&parsed)?, &texts, &read("docs/crash.md")?);
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

/// Builds the target with the bugs, and copies it to the folder by its name.
fn build(work: &Path, name: &str, profile: &str, options: &[&str]) -> Result<()> {
    let planted = Tree::planted(&format!("crash-states-{name}"), &[&[CANARY], &BUGS[..]].concat())?;
    let mut build = planted.command("cargo");
    build.args(["+nightly", "fuzz", "build", "--no-trace-compares"]).args(options);
    quiet(sanitized(build.arg("map_extents")))?;
    let built = planted.target.join("x86_64-unknown-linux-gnu").join(profile).join("map_extents");
    fs::copy(&built, work.join(name)).with_context(|| built.display().to_string())?;
    Ok(())
}

/// Writes two inputs of each program: its own, and one of another geometry with more operations before. Returns the
/// targets that run them, each with the name of its log: BUG-NUMBER.BUILD.
fn on_inputs(work: &Path, texts: &BTreeMap<&str, String>) -> Result<Vec<(String, Command)>> {
    quiet(command("cargo").args(["build", "-q", "--locked", "--bin", "qcowfuzz"]))?;
    let mut targets = Vec::new();
    for (bug, text) in texts {
        let later = text.replace(" rng_seed=0", " rng_seed=9");
        let (head, body) = later.split_once("\nimage").context("a program without an image")?;
        let (image, body) = body.split_once('\n').context("a program without operations")?;
        let later = format!(
            "{head}\nimage{image}\nplace policy=random\nlookup at=start+0 inside=1\n{body}"
        );
        for (number, text) in [(1, text), (2, &later)] {
            let (source, input) = (work.join("text"), work.join(format!("{bug}-{number}")));
            fs::write(&source, text)?;
            let mut asm = command(target_folder("").join("debug/qcowfuzz"));
            expect(asm.arg("asm").arg(source).arg("-o").arg(&input), 0, "")?;
            // As ClusterFuzz runs it: ASan takes the signal, and names nothing.
            let bare = ("ASAN_OPTIONS", "symbolize=0:handle_abort=2:handle_segv=2");
            let none = ("RUST_BACKTRACE", "1");
            let builds = [
                ("asan", "symbols", None),
                ("asan", "bare", Some(bare)),
                ("none", "bare", Some(none)),
            ];
            for (build, shows, variable) in builds {
                let mut target = command(work.join(build));
                target.envs(variable).arg(&input);
                targets.push((format!("{bug}-{number}.{build}-{shows}"), target));
            }
        }
    }
    Ok(targets)
}

/// Runs the targets, which must end in a crash, and returns their logs. Two at a time: they are short.
fn crash(work: &Path, mut targets: Vec<(String, Command)>) -> Result<BTreeMap<String, String>> {
    let logs = work.join("logs");
    fs::create_dir(&logs)?;
    let mut found = BTreeMap::new();
    for pair in targets.chunks_mut(2) {
        let start = |(name, target): &mut (String, Command)| {
            let log = File::create(logs.join(&name))?;
            target.arg(format!("-artifact_prefix={}/", work.display()));
            Ok((name.clone(), target.stdout(log.try_clone()?).stderr(log).spawn()?))
        };
        for (name, mut running) in pair.iter_mut().map(start).collect::<Result<Vec<_>>>()? {
            ensure!(!running.wait()?.success(), "nothing was found: {name}");
            let log = fs::read(logs.join(&name))?;
            found.insert(name, String::from_utf8_lossy(&log).into_owned());
        }
    }
    Ok(found)
}

/// Returns the fingerprint: of a violation the message of the panic, of a panic the line before it.
fn fingerprint(log: &str) -> Option<&str> {
    let panicked = |line: &str| line.starts_with("thread ") && line.contains(" panicked at ");
    let mut lines = log.lines().skip_while(|line| !line.starts_with("panic: ") && !panicked(line));
    lines.next().and_then(|line| if panicked(line) { lines.next() } else { Some(line) })
}

/// Returns the fingerprint that a program states in its first line.
fn stated(text: &str) -> Option<&str> {
    text.lines().next()?.strip_prefix("; ")
}

/// Judges all logs, prints the states, and returns the faults.
fn faults(
    logs: &BTreeMap<String, String>,
    (parsed, similar): &Parsed,
    texts: &BTreeMap<&str, String>,
    page: &str,
) -> Vec<String> {
    let grouped = similar.iter().map(|pair| format!("ClusterFuzz groups two bugs: {pair:?}"));
    let mut faults: Vec<_> = grouped.collect();
    let mut states = BTreeMap::<&str, BTreeSet<&State>>::new();
    for (name, log) in logs {
        let (found, [state, without]) = (fingerprint(log).unwrap_or_default(), &parsed[name]);
        let text = texts.get(name.rsplitn(3, '-').last().unwrap_or_default());
        let report = log.rsplit("ERROR: ").next().unwrap_or_default();
        let names_functions = report.contains("in rust_fuzzer_test_input");
        let function = found.strip_prefix("panic: ").and_then(|it| it.rsplit_once(", "));
        let function = function.map_or("", |it| it.1);
        let is_word = !function.is_empty()
            && !function.contains(|it: char| it != '_' && !it.is_alphanumeric());
        let is_it =
            |frame: &str| frame.starts_with("crate::") && frame.ends_with(&format!("::{function}"));
        let checks = [
            (text.is_none_or(|text| stated(text) == Some(found)), "another fingerprint"),
            (names_functions == name.ends_with("symbols"), "the stack names functions, or not"),
            (state == without, "another state where the parser expects no symbols"),
            (state.0 == "ASSERT", "expected the crash type ASSERT"),
            (is_fixed(&state.1), "the state is not the same on each machine and at each commit"),
            (!is_word || state.1.lines().any(is_it), "no frame is the function that panicked"),
        ];
        let wrong = checks.iter().filter(|it| !it.0);
        faults.extend(wrong.map(|it| format!("{name}: {}: {found}, {:?}", it.1, parsed[name])));
        states.entry(found).or_default().insert(state);
    }
    let mut bugs = BTreeMap::<&State, &str>::new();
    for (found, its) in &states {
        println!("{found}: {its:?}");
        if its.len() > 1 {
            faults.push(format!("{found}: one bug, several states"));
        }
        let others = its.iter().filter_map(|it| bugs.insert(it, found));
        faults.extend(others.map(|other| format!("two bugs, one state: {found} / {other}")));
    }
    let is_shown = |(kind, state): &State| {
        let text = format!("    {kind}\n{state}").trim_end().replace('\n', "\n    ") + "\n";
        page.contains(&text)
    };
    let of_canary = stated(OF_CANARY).and_then(|it| states.get(it)?.first().copied());
    if !of_canary.is_some_and(is_shown) {
        faults.push("docs/crash.md shows another state of the canary".to_owned());
    }
    let oracles: BTreeSet<_> = states.keys().filter_map(|found| found.split(':').next()).collect();
    if oracles.len() < 3 || !oracles.contains("panic") {
        faults.push(format!("not enough was planted: violations of {oracles:?}"));
    }
    println!("crash-states: {} crashes, {} fingerprints", logs.len(), states.len());
    faults
}

/// Reports whether a state names no hook or signal handler, no folder of this machine and no line of the source.
fn is_fixed(state: &str) -> bool {
    let words = ["raise", "abort", "name_panics", "report", "0x", "+", "\n/", " /"];
    let is_line = |text: &str| text.starts_with(|it: char| it.is_ascii_digit());
    let has_word = words.iter().any(|it| state.contains(it)) || state.starts_with('/');
    !has_word && !state.split(':').skip(1).any(is_line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_found() {
        let judged = |states: [&str; 4], without: &str, kind: &str, similar: &[[String; 2]]| {
            let found = [stated(OF_CANARY).unwrap(), "data: b", "panic: c, f", "panic: c, f"];
            let name = |at: usize| format!("found-{at}.none-bare");
            let log = |at: usize| format!("thread 'x' panicked at y:\n{}\n", found[at]);
            let logs = (0..4).map(|at| (name(at), log(at))).collect();
            let state = |text: &str| (kind.to_owned(), text.to_owned());
            let both = |at: usize| [state(states[at]), state(&(states[at].to_owned() + without))];
            let parsed = ((0..4).map(|at| (name(at), both(at))).collect(), similar.to_vec());
            faults(&logs, &parsed, &BTreeMap::new(), "\n\n    ASSERT\n    canary\n\n").len()
        };
        let (sound, other) = (["canary", "b", "crate::f", "crate::f"], ["b".into(), "c".into()]);
        assert_eq!(judged(sound, "", "ASSERT", &[]), 0);
        assert_eq!(judged(["canary", "b", "crate::f", "crate::b::f"], "", "ASSERT", &[]), 1);
        assert_eq!(judged(["canary", "crate::f", sound[2], sound[3]], "", "ASSERT", &[]), 1);
        assert_eq!(judged(["another", "b", sound[2], sound[3]], "", "ASSERT", &[]), 1);
        assert_eq!(judged(["canary", "b", "crate::g", "crate::g"], "", "ASSERT", &[]), 2);
        assert_eq!(judged(sound, "x", "ASSERT", &[]), 4);
        assert_eq!(judged(sound, "", "Abort", &[]), 4 + 1);
        assert_eq!(judged(sound, "", "ASSERT", &[other]), 1);
        for text in ["raise\ncrate::a::f", "a+1\ncrate::a::f", "/a\ncrate::a::f", "a.rs:1"] {
            assert!(!is_fixed(text), "{text}");
        }
    }
}
