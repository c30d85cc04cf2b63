//! A job of a campaign, and the worker that does it now.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use qcowfuzz::fuzzing::corpus;
use qcowfuzz::fuzzing::embedded::state::State;
use qcowfuzz::fuzzing::embedded::{Findings, Progress};

use crate::cli::exit::Failure;
use qcowfuzz::harness::targets::TargetKind;

use super::places::Places;
use super::slot::Running;
use super::worker::Message;

/// What a campaign is to do.
pub struct Plan<'p> {
    pub places: &'p Places,
    pub target: TargetKind,
    pub jobs: usize,
    pub rng_seed: u64,
    pub max_operations: usize,
    /// Which code is run: see [`build`].
    pub build: String,
    /// How many runs, of all jobs together.
    pub runs: Option<u64>,
    pub end: Option<Instant>,
    /// End as soon as something is found.
    pub until_found: bool,
    /// After so long, a run hangs.
    pub timeout: Duration,
}

/// What is heard of the worker of a job: a message, or that there are no more.
pub type Heard = (usize, Option<Message>);

/// A job.
pub struct Job {
    number: usize,
    worker: Child,
    /// The worker ends with it.
    stdin: Option<ChildStdin>,
    /// How many runs campaigns before have made, and with how many this one ends.
    before: u64,
    until: Option<u64>,
    /// How far it is.
    pub progress: Progress,
    /// What it has found.
    pub found: Findings,
    /// The places of the counters that it covers, told at its end.
    pub covered: Vec<usize>,
    /// It has taken in the corpus, and saved that it did.
    begun: bool,
    /// Why it could not go on.
    pub failure: Option<String>,
    /// It has ended, and nobody goes on with it.
    pub done: bool,
    /// The number of its run, and since when it is that.
    run: (u64, Instant),
    hangs: bool,
    /// How many workers ended for nothing that they ran, one after the other, and how far the job was then.
    lost: (u32, u64),
}

/// What ended a worker.
pub enum End {
    /// Its work was done.
    Done,
    /// What it ran: in which way, and whether it had to be ended.
    Killer {
        /// The input.
        input: Vec<u8>,
        /// How its process ended.
        status: ExitStatus,
        /// It took too long.
        hangs: bool,
        /// Another process that ran nothing else ended too.
        alone: bool,
    },
    /// Something else.
    Other,
}

/// So many workers of a job may end for nothing that they ran, without any progress.
const MAX_LOST: u32 = 3;

impl Job {
    /// Starts a job, at what was saved of it.
    pub fn start(number: usize, plan: &Plan, heard: &Sender<Heard>) -> Result<Self, Failure> {
        let saved = plan.places.state(number);
        let before = if saved.exists() { State::read(&saved)?.runs() } else { 0 };
        let share = |runs: u64| {
            let jobs = plan.jobs as u64;
            runs / jobs + u64::from((number as u64) < runs % jobs)
        };
        let until = plan.runs.map(|runs| before.saturating_add(share(runs)));
        let (worker, stdin) = worker(number, until, true, plan, heard)?;
        Ok(Self {
            number,
            worker,
            stdin,
            before,
            until,
            progress: Progress { runs: before, ..Progress::default() },
            found: Findings::default(),
            covered: Vec::new(),
            begun: false,
            failure: None,
            done: false,
            run: (0, Instant::now()),
            hangs: false,
            lost: (0, before),
        })
    }

    /// Goes on where the worker that has ended had saved.
    pub fn restart(&mut self, plan: &Plan, heard: &Sender<Heard>) -> Result<(), Failure> {
        let begins = !self.begun;
        (self.worker, self.stdin) = worker(self.number, self.until, begins, plan, heard)?;
        self.run = (0, Instant::now());
        Ok(())
    }

    /// Has the worker end after its run.
    pub fn stop(&mut self) {
        self.stdin = None;
    }

    /// How many runs this campaign has made.
    pub fn runs(&self) -> u64 {
        self.progress.runs.saturating_sub(self.before)
    }

    /// Takes what the worker says.
    pub fn told(&mut self, message: Message) {
        match message {
            Message::Progress(progress, found) => {
                (self.progress, self.found, self.begun) = (progress, found, true);
            }
            Message::End(covered) => self.covered = covered,
            Message::Failed(line) => self.failure = Some(line),
        }
    }

    /// Finds out why the worker, of which nothing more is heard, has ended.
    pub fn ended(&mut self, plan: &Plan) -> Result<End, Failure> {
        let status = self.worker.wait().map_err(not_started)?;
        if status.success() {
            self.done = true;
            return Ok(End::Done);
        }
        let hangs = std::mem::take(&mut self.hangs);
        let input = Running::read(&plan.places.slot(self.number)).input;
        let alone = match &input {
            Some(input) => self.ends_processes(input, plan)?,
            None => false,
        };
        let (times, runs) = self.lost;
        let again = times > 0 && runs == self.progress.runs;
        self.lost = (if again { times + 1 } else { 1 }, self.progress.runs);
        match input {
            Some(input) if alone || self.lost.0 >= MAX_LOST => {
                Ok(End::Killer { input, status, hangs, alone })
            }
            None if self.lost.0 >= MAX_LOST => {
                let (job, what) =
                    (self.number, "workers ended one after the other outside of a run");
                Err(Failure::Told(format!("job {job}: {MAX_LOST} {what}: {status}")))
            }
            _ => Ok(End::Other),
        }
    }

    /// Whether a process that runs `input`, and nothing else, does not survive it.
    fn ends_processes(&self, input: &[u8], plan: &Plan) -> Result<bool, Failure> {
        let scratch = plan.places.scratch();
        let path = scratch.join(format!("suspect-{}", self.number));
        corpus::replace(&path, scratch, input)?;
        let mut command = command(self.number, plan)?;
        command.arg("--only").arg(&path).stdout(Stdio::null());
        let mut process = command.spawn().map_err(not_started)?;
        let end = Instant::now() + plan.timeout;
        let survived = loop {
            match process.try_wait().map_err(not_started)? {
                Some(status) => break status.success(),
                None if left(end).is_zero() => break false,
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        let _ = process.kill();
        let _ = process.wait();
        Ok(!survived)
    }

    /// Ends the worker where its run takes too long.
    pub fn end_hang(&mut self, plan: &Plan) {
        let running = Running::read(&plan.places.slot(self.number));
        if running.input.is_none() || running.number != self.run.0 {
            self.run = (running.number, Instant::now());
        } else if self.run.1.elapsed() > plan.timeout && !self.hangs {
            self.hangs = true;
            // Where it has ended by itself, that will be heard.
            let _ = self.worker.kill();
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // Whoever has ended already needs neither.
        let _ = self.worker.kill();
        let _ = self.worker.wait();
    }
}

/// This command, as a worker of a job. Its standard input has to stay open.
fn command(job: usize, plan: &Plan) -> Result<Command, Failure> {
    let Plan { places, target, jobs, rng_seed, max_operations, build, .. } = plan;
    let mut command = Command::new(executable().map_err(not_started)?);
    let option = |name: &str, path: &Path| {
        let mut option = OsString::from(name);
        option.push(path);
        option
    };
    command.args(["fuzz-worker", "--target", target.name(), "--build", build]);
    command.arg(option("--dir=", places.dir()));
    command.args(places.shared().map(|shared| option("--corpus=", shared)));
    for (name, number) in [
        ("--job", job as u64),
        ("--jobs", *jobs as u64),
        // Jobs of one seed go different ways.
        ("--rng-seed", rng_seed.wrapping_add(job as u64)),
        ("--max-operations", *max_operations as u64),
    ] {
        command.args([name, &number.to_string()]);
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    Ok(command)
}

/// Starts a worker, whose messages are passed on.
fn worker(
    job: usize,
    until: Option<u64>,
    begins: bool,
    plan: &Plan,
    heard: &Sender<Heard>,
) -> Result<(Child, Option<ChildStdin>), Failure> {
    let mut command = command(job, plan)?;
    let until = until.map(|runs| ("--until", runs));
    let left = plan.end.map(|end| ("--milliseconds", left(end).as_millis() as u64));
    for (name, number) in until.into_iter().chain(left) {
        command.args([name, &number.to_string()]);
    }
    command.args(begins.then_some("--begins"));
    let mut worker = command.spawn().map_err(not_started)?;
    let (stdin, stdout, heard) = (worker.stdin.take(), worker.stdout.take(), heard.clone());
    std::thread::spawn(move || {
        for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()) {
            let Ok(line) = line else { break };
            // A worker that ends in the middle of a line has said nothing with it.
            if let Ok(message) = serde_json::from_str(&line) {
                let _ = heard.send((job, Some(message)));
            }
        }
        let _ = heard.send((job, None));
    });
    Ok((worker, stdin))
}

/// How long it is until `end`.
pub fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// Which code is run: a name of this executable's bytes.
pub fn build() -> Result<String, Failure> {
    let told = |error| Failure::Told(format!("the running executable: {error}"));
    let executable = executable().map_err(told)?;
    Ok(corpus::name(&std::fs::read(executable).map_err(told)?))
}

/// The file that is running now, also where another one has its name by now.
fn executable() -> io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() { Ok(running.to_path_buf()) } else { std::env::current_exe() }
}

fn not_started(error: io::Error) -> Failure {
    Failure::Told(format!("a worker: {error}"))
}
