//! Runs programs with an engine in this process, and reports each on a line. The process may die at any program: the
//! line of a program is written as soon as it has run.

use std::cell::RefCell;
use std::convert::Infallible;
use std::error::Error;
use std::ops::{ControlFlow, Range};
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use qcowfuzz::findings::PanicNote;
use qcowfuzz::findings::minimizer::{MinimizeProgress, MinimizeSettings, minimize};
use qcowfuzz::harness::engine::Engine;
use qcowfuzz::harness::{Checks, Harness, KnownFindings, Pipeline};
use qcowfuzz::images::Limits;
use qcowfuzz::internal::images::entropy::Entropy;
use qcowfuzz::programs::Program;
use qcowfuzz::programs::generate::generate_any;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// The exit code of a process whose program used too much CPU time.
pub const HANG_CODE: i32 = 86;

/// The CPU time of one program at most.
const MAX_CPU_SECONDS: u64 = 20;

/// The address space of a process at most.
const MAX_MEMORY_BYTES: u64 = 4 << 30;

thread_local! {
    /// The last panic.
    static PANIC: RefCell<PanicNote> = RefCell::default();
}

/// The seed of the program that runs.
static RUNNING: AtomicU64 = AtomicU64::new(u64::MAX);

/// The result of one program.
#[derive(Debug, Default)]
pub struct Judged {
    /// The seed of the program.
    pub seed: u64,
    /// The engine does not know a feature of some image.
    pub unsupported: bool,
    /// The program ran without features that the engine does not know.
    pub folded: bool,
    /// The engine refused some image, as it may.
    pub refused: bool,
    /// The lines about idle oracles.
    pub idle: Vec<String>,
    /// The fingerprints of the findings: known ones that the run met, and the violation that ended it.
    pub fingerprints: Vec<String>,
}

impl Judged {
    /// Reads a line of a child.
    ///
    /// # Errors
    /// The line is not one.
    pub fn parse(line: &str) -> Result<Self, String> {
        let expected = || format!("found '{line}', expected the six fields of a run");
        let fields: Vec<_> = line.split('\t').collect();
        let [seed, unsupported, folded, refused, idle, fingerprints] = fields[..] else {
            return Err(expected());
        };
        Ok(Self {
            seed: seed.parse().map_err(|_| expected())?,
            unsupported: unsupported == "true",
            folded: folded == "true",
            refused: refused == "true",
            idle: parts(idle),
            fingerprints: parts(fingerprints),
        })
    }

    fn print(&self) {
        let Self { seed, unsupported, folded, refused, idle, fingerprints } = self;
        let idle = idle.join("|");
        // No fingerprint has such characters, unless an error text of a crate has.
        let clean = |text: &String| text.replace(['\t', '\n', '|'], " ");
        let fingerprints = fingerprints.iter().map(clean).collect::<Vec<_>>().join("|");
        println!("{seed}\t{unsupported}\t{folded}\t{refused}\t{idle}\t{fingerprints}");
    }
}

/// Returns the parts of a field that are not empty.
fn parts(field: &str) -> Vec<String> {
    field.split('|').filter(|part| !part.is_empty()).map(String::from).collect()
}

/// Returns the program of a seed: random bytes, and by turns a generated program.
pub fn program(seed: u64) -> Vec<u8> {
    if seed % 2 == 1 {
        return generate_any(seed, 12).encode();
    }
    let mut entropy = Entropy::new(seed);
    let records = 4 + entropy.below(40);
    let mut bytes: Vec<u8> = (0..20 + records * 8).map(|_| entropy.next_u64() as u8).collect();
    // The encoding of this version.
    bytes[0] = 0;
    bytes
}

/// A harness that is replaced after a panic.
struct Runner<E: Engine> {
    harness: Harness<E>,
    known: KnownFindings,
}

impl<E: Engine + Default> Runner<E> {
    fn new(known: KnownFindings) -> Self {
        Self { harness: Self::harness(&known), known }
    }

    fn harness(known: &KnownFindings) -> Harness<E> {
        Harness::new(E::default()).with_known(known.clone())
    }

    /// Runs a program. Also returns the details of the violation.
    fn run(&mut self, seed: u64, input: &[u8]) -> (Judged, String) {
        // After a panic, the harness is replaced.
        let ran = panic::catch_unwind(AssertUnwindSafe(|| {
            self.harness.run(input, Checks::AtCheckpoints)
        }));
        let mut judged = Judged { seed, ..Judged::default() };
        judged.fingerprints.extend_from_slice(self.harness.met());
        let mut detail = String::new();
        match ran {
            Ok(Ok(outcome)) => {
                judged.folded = outcome.folded;
                judged.unsupported = outcome.unsupported;
                judged.refused = outcome.refused > 0;
                judged.idle = outcome.unanswered.to_string().lines().map(String::from).collect();
            }
            Ok(Err(failure)) => {
                judged.folded = self.harness.pipeline().is_folded();
                judged.fingerprints.push(failure.violation.fingerprint());
                detail = failure.violation.detail;
            }
            Err(_) => {
                self.harness = Self::harness(&self.known);
                let note = PANIC.take();
                judged.fingerprints.push(note.fingerprint());
                detail = note.detail;
            }
        }
        (judged, detail)
    }
}

fn cpu_seconds() -> u64 {
    clock_gettime(ClockId::ProcessCPUTime).tv_sec.unsigned_abs()
}

/// Ends the process if one program uses too much CPU time.
fn watch() {
    let (mut seed, mut since) = (u64::MAX, 0);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let (now, running) = (cpu_seconds(), RUNNING.load(Ordering::Relaxed));
        if running != seed {
            (seed, since) = (running, now);
        } else if now - since > MAX_CPU_SECONDS {
            eprintln!("seed {seed}: more than {MAX_CPU_SECONDS} seconds of CPU time");
            std::process::exit(HANG_CODE);
        }
    }
}

/// Runs the programs of `seeds`, and prints a line for each.
///
/// # Errors
/// The limits cannot be set.
pub fn run_all<E: Engine + Default>(
    seeds: Range<u64>,
    known: KnownFindings,
) -> Result<(), Box<dyn Error>> {
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(MAX_MEMORY_BYTES), maximum })?;
    panic::set_hook(Box::new(|panic| PANIC.set(PanicNote::of(panic))));
    std::thread::spawn(watch);
    let mut runner = Runner::<E>::new(known);
    for seed in seeds {
        RUNNING.store(seed, Ordering::Relaxed);
        runner.run(seed, &program(seed)).0.print();
    }
    Ok(())
}

/// Runs a program, and prints its violation and the smallest program with the same fingerprint.
pub fn show<E: Engine + Default>(seed: u64, input: Vec<u8>) {
    println!("the program:\n{}", Program::decode(&input));
    panic::set_hook(Box::new(|panic| PANIC.set(PanicNote::of(panic))));
    let mut runner = Runner::<E>::new(KnownFindings::default());
    let (judged, detail) = runner.run(seed, &input);
    let Some(shown) = judged.fingerprints.last() else {
        println!("no violation was found");
        return;
    };
    println!("{shown}\n{detail}\n");
    let settings =
        MinimizeSettings { limits: Limits::WALKED, tries: 10_000, rerolls: 0, runs_here: true };
    let shows = &mut |input: &[u8]| {
        Ok::<_, Infallible>(runner.run(seed, input).0.fingerprints.contains(shown))
    };
    let go_on = &mut |_: &MinimizeProgress| ControlFlow::Continue(());
    let Ok(minimized) = minimize(&input, settings, shows, go_on);
    let (_, detail) = runner.run(seed, &minimized.input);
    // The program that ran, without what the engine does not claim.
    let mut pipeline = Pipeline::default();
    pipeline.load(&minimized.input, &E::default().claims());
    println!("minimized:\n{}{detail}", pipeline.program());
}
