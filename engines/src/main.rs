//! Runs programs of all operations with a public crate as the engine, and prints the violations. The exit code is 1 if
//! one of them is not in `known/ENGINE.toml`.
//!
//!     cargo run --release --manifest-path engines/Cargo.toml -- ENGINE [--programs N] [--seed N]
//!     cargo run --release --manifest-path engines/Cargo.toml -- ENGINE --show SEED
//!     cargo run --release --manifest-path engines/Cargo.toml -- ENGINE --replay FILE
//!
//! The programs run in a child process, so that a crash of the crate costs only the program that caused it.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::Instant;

use qcowfuzz::harness::KnownFindings;
use qcowfuzz_engines::fstool::Fstool;
use qcowfuzz_engines::imago::Imago;
use qcowfuzz_engines::judge::{HANG_CODE, Judged, program, run_all, show};
use qcowfuzz_engines::known::{KnownFinding, known_findings};
use qcowfuzz_engines::qcow2_core::Qcow2Core;
use qcowfuzz_engines::qcow2_rs::Qcow2Rs;
use qcowfuzz_engines::rust_img_qcow2::RustImgQcow2;

/// The engines by their names.
macro_rules! engines {
    ($($name:literal => $engine:ty,)+) => {
        const NAMES: &[&str] = &[$($name),+];

        fn run_child(options: &Options) -> Result<(), Box<dyn Error>> {
            let seeds = options.seed..options.seed.saturating_add(options.programs);
            let known = known_findings(&options.engine)?.into_iter();
            let known = KnownFindings::new(known.map(|finding| finding.fingerprint));
            match options.engine.as_str() {
                $($name => run_all::<$engine>(seeds, known),)+
                _ => unreachable!("the parent has looked the name up"),
            }
        }

        fn run_show(options: &Options, seed: u64, input: Vec<u8>) {
            match options.engine.as_str() {
                $($name => show::<$engine>(seed, input),)+
                _ => unreachable!("the name was looked up"),
            }
        }
    };
}

engines! {
    "imago" => Imago,
    "qcow2_core" => Qcow2Core,
    "qcow2_rs" => Qcow2Rs,
    "rust_img_qcow2" => RustImgQcow2,
    "fstool" => Fstool,
}

/// The command line.
struct Options {
    engine: String,
    programs: u64,
    seed: u64,
    show: Option<u64>,
    replay: Option<PathBuf>,
    child: bool,
}

impl Options {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut arguments = arguments;
        let engine = arguments.next().unwrap_or_default();
        if !NAMES.contains(&engine.as_str()) {
            return Err(format!("no engine '{engine}', expected one of: {}", NAMES.join(", ")));
        }
        let mut options =
            Self { engine, programs: 1000, seed: 0, show: None, replay: None, child: false };
        while let Some(name) = arguments.next() {
            let mut number = || {
                let value = arguments.next().unwrap_or_default();
                value.parse().map_err(|_| format!("{name}: found '{value}', expected a number"))
            };
            match name.as_str() {
                "--programs" => options.programs = number()?,
                "--seed" => options.seed = number()?,
                "--show" => options.show = Some(number()?),
                "--replay" => options.replay = arguments.next().map(PathBuf::from),
                "--child" => options.child = true,
                _ => {
                    return Err(format!(
                        "no option '{name}', expected --programs, --seed, --show or --replay"
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// The sums of all runs.
#[derive(Default)]
struct Tally {
    runs: u64,
    unsupported: u64,
    folded: u64,
    refused: u64,
    idle: BTreeSet<String>,
    /// For each fingerprint, the number of its programs and the seed of the first.
    found: BTreeMap<String, (u64, u64)>,
}

impl Tally {
    fn add(&mut self, judged: Judged) {
        self.runs += 1;
        self.unsupported += u64::from(judged.unsupported);
        self.folded += u64::from(judged.folded);
        self.refused += u64::from(judged.refused);
        self.idle.extend(judged.idle);
        for fingerprint in judged.fingerprints {
            self.found.entry(fingerprint).or_insert((0, judged.seed)).0 += 1;
        }
    }

    fn print(&self, engine: &str, seconds: f64) {
        let percent = |count: u64| 100.0 * count as f64 / self.runs.max(1) as f64;
        println!("{engine}: {} runs, {:.0} a second", self.runs, self.runs as f64 / seconds);
        println!("thrown away: {} ({:.2} %)", self.unsupported, percent(self.unsupported));
        println!("folded: {} ({:.1} %)", self.folded, percent(self.folded));
        println!("refused: {} ({:.1} %)", self.refused, percent(self.refused));
        self.idle.iter().for_each(|line| println!("{line}"));
        let found: u64 = self.found.values().map(|(count, _)| count).sum();
        println!("violations: {found} ({:.1} %)", percent(found));
    }

    /// Prints the findings: first new ones, then known ones, then known ones that no program shows any more. Returns
    /// the number of new ones.
    fn print_findings(&self, known: &[KnownFinding]) -> usize {
        let mut rows: Vec<_> = self.found.iter().collect();
        rows.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
        let is_known =
            |fingerprint: &str| known.iter().any(|finding| finding.fingerprint == fingerprint);
        let (old, new): (Vec<_>, Vec<_>) = rows.into_iter().partition(|(it, _)| is_known(it));
        for (title, rows) in [("new", &new), ("known", &old)] {
            println!("{title}: {}", rows.len());
            for (fingerprint, (count, first)) in rows {
                println!("{count:7} × {fingerprint}; first seed {first}");
            }
        }
        let gone = known.iter().filter(|finding| !self.found.contains_key(&finding.fingerprint));
        for finding in gone {
            println!("known, but not found: {}", finding.fingerprint);
        }
        new.len()
    }
}

/// Describes the end of a process that did not end by itself.
fn fingerprint_of_death(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(HANG_CODE), _) => "hang: too much CPU time".into(),
        (_, Some(signal)) => format!("killed: signal {signal}"),
        (code, None) => format!("killed: exit code {code:?}"),
    }
}

/// Runs the programs in child processes. A child that dies is replaced by one that begins after its last program.
fn supervise(options: &Options) -> Result<Tally, Box<dyn Error>> {
    let (mut tally, mut seed) = (Tally::default(), options.seed);
    let end = options.seed.saturating_add(options.programs);
    while seed < end {
        let mut child = Command::new(std::env::current_exe()?)
            .args([&options.engine, "--child", "--seed", &seed.to_string()])
            .args(["--programs", &(end - seed).to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = child.stdout.take().ok_or("the child has no output")?;
        for line in BufReader::new(stdout).lines() {
            let judged = Judged::parse(&line?)?;
            seed = judged.seed + 1;
            tally.add(judged);
        }
        let status = child.wait()?;
        if seed < end {
            let fingerprints = vec![fingerprint_of_death(status)];
            tally.add(Judged { seed, fingerprints, ..Judged::default() });
            seed += 1;
        }
    }
    Ok(tally)
}

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("qcowfuzz-engines: {error}");
            return Ok(ExitCode::from(2));
        }
    };
    if let Some(path) = &options.replay {
        let input = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        run_show(&options, 0, input);
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(seed) = options.show {
        run_show(&options, seed, program(seed));
        return Ok(ExitCode::SUCCESS);
    }
    if options.child {
        run_child(&options)?;
        return Ok(ExitCode::SUCCESS);
    }
    let start = Instant::now();
    let tally = supervise(&options)?;
    tally.print(&options.engine, start.elapsed().as_secs_f64());
    let new = tally.print_findings(&known_findings(&options.engine)?);
    Ok(if new == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
