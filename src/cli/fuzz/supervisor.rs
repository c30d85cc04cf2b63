//! Looks after the workers of a campaign: starts them, hears what they say, and finds out what ended one.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use qcowfuzz::corpus;
use qcowfuzz::fuzzer::state::State;
use qcowfuzz::fuzzer::{Finding, Findings, Progress};

use crate::cli::Failure;
use crate::cli::runner::Target;

use super::places::Places;
use super::slot::Running;
use super::worker::Message;

/// What a campaign is to do.
pub struct Plan<'p> {
    pub places: &'p Places,
    pub target: Target,
    pub jobs: usize,
    pub rng_seed: u64,
    pub max_operations: usize,
    /// How many runs, of all jobs together.
    pub runs: Option<u64>,
    pub end: Option<Instant>,
    /// End as soon as something is found.
    pub until_found: bool,
    /// After so long, a run hangs.
    pub timeout: Duration,
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Finished {
    /// How many runs there were, those of campaigns before not included.
    pub runs: u64,
    /// What was found, by fingerprint.
    pub found: Findings,
    /// The places of the counters that are covered.
    pub covered: BTreeSet<usize>,
}

/// A job, and the worker that does it now.
struct Job {
    child: Child,
    /// The worker ends with it.
    stdin: Option<ChildStdin>,
    /// How many runs campaigns before have made, and with how many this one ends.
    before: u64,
    until: Option<u64>,
    progress: Progress,
    found: Findings,
    covered: Vec<usize>,
    /// It has taken in the corpus, and saved that it did.
    begun: bool,
    done: bool,
    /// The number of its run, and since when it is that.
    run: (u64, Instant),
    hangs: bool,
    /// What was run when a worker ended that, run alone, ends nothing; and how many workers ended so.
    suspect: Option<Vec<u8>>,
    lost: u32,
}

impl Drop for Job {
    fn drop(&mut self) {
        // Whoever has ended already needs neither.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// So many workers of a job may end outside of a run.
const MAX_LOST: u32 = 3;
/// How often the clock is looked at.
const TICK: Duration = Duration::from_millis(200);

/// The campaign.
pub struct Supervisor<'p> {
    plan: Plan<'p>,
    jobs: Vec<Job>,
    sender: Sender<(usize, Option<Message>)>,
    events: Receiver<(usize, Option<Message>)>,
    stop: Arc<AtomicBool>,
    /// What ended workers.
    found: Findings,
    start: Instant,
    bar: ProgressBar,
}

impl<'p> Supervisor<'p> {
    /// Starts all jobs. They end early when `stop` becomes true.
    pub fn start(plan: Plan<'p>, stop: Arc<AtomicBool>) -> Result<Self, Failure> {
        let (sender, events) = mpsc::channel();
        let (jobs, found, start) = (Vec::new(), Findings::default(), Instant::now());
        let bar = ProgressBar::new_spinner().with_style(
            ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}")
                .unwrap_or_else(|_| ProgressStyle::default_spinner()),
        );
        let mut supervisor = Self { plan, jobs, sender, events, stop, found, start, bar };
        for job in 0..supervisor.plan.jobs {
            let saved = supervisor.plan.places.state(job);
            let before = if saved.exists() { State::read(&saved)?.runs() } else { 0 };
            let share = |runs: u64| {
                let jobs = supervisor.plan.jobs as u64;
                runs / jobs + u64::from((job as u64) < runs % jobs)
            };
            let until = supervisor.plan.runs.map(|runs| before.saturating_add(share(runs)));
            let (child, stdin) = supervisor.spawn(job, until, true)?;
            supervisor.jobs.push(Job {
                child,
                stdin,
                before,
                until,
                progress: Progress { runs: before, ..Progress::default() },
                found: Findings::default(),
                covered: Vec::new(),
                begun: false,
                done: false,
                run: (0, Instant::now()),
                hangs: false,
                suspect: None,
                lost: 0,
            });
        }
        Ok(supervisor)
    }

    fn spawn(
        &self,
        job: usize,
        until: Option<u64>,
        import: bool,
    ) -> Result<(Child, Option<ChildStdin>), Failure> {
        let Plan { places, target, jobs, rng_seed, max_operations, end, .. } = &self.plan;
        let mut command = itself()?;
        command.args(["fuzz-worker", "--target", target.name(), "--dir"]).arg(places.dir());
        // Jobs of one seed go different ways.
        let rng_seed = rng_seed.wrapping_add(job as u64);
        let numbers = [
            ("--job", Some(job as u64)),
            ("--jobs", Some(*jobs as u64)),
            ("--rng-seed", Some(rng_seed)),
            ("--max-operations", Some(*max_operations as u64)),
            ("--until", until),
            ("--milliseconds", end.map(|end| left(end).as_millis() as u64)),
        ];
        for (name, number) in numbers {
            command.args(number.iter().flat_map(|number| [name.to_string(), number.to_string()]));
        }
        command.args(import.then_some("--import"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(not_started)?;
        let (stdin, stdout, sender) =
            (child.stdin.take(), child.stdout.take(), self.sender.clone());
        std::thread::spawn(move || {
            for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                let Ok(line) = line else { break };
                // A worker that ends in the middle of a line has said nothing with it.
                if let Ok(message) = serde_json::from_str(&line) {
                    let _ = sender.send((job, Some(message)));
                }
            }
            let _ = sender.send((job, None));
        });
        Ok((child, stdin))
    }

    /// Until all jobs have ended.
    pub fn watch(mut self) -> Result<Finished, Failure> {
        let mut looked = Instant::now();
        while self.jobs.iter().any(|job| !job.done) {
            match self.events.recv_timeout(TICK) {
                Ok((job, Some(message))) => self.told(job, message)?,
                Ok((job, None)) => self.ended(job)?,
                // It does not disconnect: a sender is kept for those to come.
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
            if self.plan.until_found && !self.all_found().is_empty() {
                self.stop.store(true, Ordering::Relaxed);
            }
            if self.stop.load(Ordering::Relaxed) {
                self.jobs.iter_mut().for_each(|job| drop(job.stdin.take()));
            }
            if looked.elapsed() >= TICK {
                looked = Instant::now();
                self.end_hangs();
                self.bar.set_message(self.line());
                self.bar.tick();
            }
        }
        self.bar.finish_and_clear();
        Ok(self.finished())
    }

    fn told(&mut self, job: usize, message: Message) -> Result<(), Failure> {
        let job = &mut self.jobs[job];
        match message {
            Message::Progress(progress, found) => {
                (job.progress, job.found, job.begun) = (progress, found, true);
            }
            Message::End(covered) => job.covered = covered,
            Message::Failed(line) => return Err(Failure::Told(line)),
        }
        Ok(())
    }

    /// A worker has ended.
    fn ended(&mut self, at: usize) -> Result<(), Failure> {
        let job = &mut self.jobs[at];
        let status = job.child.wait().map_err(not_started)?;
        if status.success() {
            job.done = true;
            return Ok(());
        }
        let hangs = std::mem::take(&mut job.hangs);
        match Running::read(&self.plan.places.slot(at)).input {
            Some(input) if self.ends_workers(at, &input)? => self.killer(&input, status, hangs)?,
            input => {
                let job = &mut self.jobs[at];
                job.lost += 1;
                if job.lost >= MAX_LOST {
                    let what = "workers ended outside of a run, expected to be left alone";
                    return Err(Failure::Told(format!("job {at}: {MAX_LOST} {what}: {status}")));
                }
                job.suspect = input;
            }
        }
        let late = self.plan.end.is_some_and(|end| left(end).is_zero());
        let (until, import) = (self.jobs[at].until, !self.jobs[at].begun);
        if late || self.stop.load(Ordering::Relaxed) {
            self.jobs[at].done = true;
            return Ok(());
        }
        let (child, stdin) = self.spawn(at, until, import)?;
        let job = &mut self.jobs[at];
        (job.child, job.stdin, job.run) = (child, stdin, (0, Instant::now()));
        Ok(())
    }

    /// Whether `input`, which a worker ran when it ended, is to blame: alone it ends another process, or it
    /// is the second time.
    fn ends_workers(&self, at: usize, input: &[u8]) -> Result<bool, Failure> {
        if self.jobs[at].suspect.as_deref() == Some(input) {
            return Ok(true);
        }
        let scratch = self.plan.places.scratch();
        let path = scratch.join(format!("suspect-{at}"));
        corpus::replace(&path, scratch, input)?;
        let mut command = itself()?;
        command.args(["replay", "--target", self.plan.target.name()]).arg(&path);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(not_started)?;
        let end = Instant::now() + self.plan.timeout;
        let answered = loop {
            match child.try_wait().map_err(not_started)? {
                // Whatever it found, it has said so.
                Some(status) => break matches!(status.code(), Some(0..=2)),
                None if left(end).is_zero() => break false,
                None => std::thread::sleep(TICK / 10),
            }
        };
        let _ = child.kill();
        let _ = child.wait();
        Ok(!answered)
    }

    /// An input that ends workers is a finding, and is not run again.
    fn killer(&mut self, input: &[u8], status: ExitStatus, hangs: bool) -> Result<(), Failure> {
        let Plan { places, timeout, .. } = &self.plan;
        places.killers()?.add("", input)?;
        let (prefix, actual) = match hangs {
            true => ("timeout-", format!("none in {} s", timeout.as_secs())),
            false => ("crash-", status.to_string()),
        };
        let fingerprint = format!("process: end, an answer → {actual}");
        let detail = "the process that ran it did not survive".to_string();
        let finding = Finding { fingerprint, detail };
        Ok(self.found.add(&places.artifacts()?, prefix, &finding, input)?)
    }

    /// Ends the workers whose run takes too long.
    fn end_hangs(&mut self) {
        for (at, job) in self.jobs.iter_mut().enumerate().filter(|(_, job)| !job.done) {
            let running = Running::read(&self.plan.places.slot(at));
            if running.input.is_none() || running.number != job.run.0 {
                job.run = (running.number, Instant::now());
            } else if job.run.1.elapsed() > self.plan.timeout && !job.hangs {
                job.hangs = true;
                // Where it has ended by itself, that will be heard.
                let _ = job.child.kill();
            }
        }
    }

    fn runs(&self) -> u64 {
        self.jobs.iter().map(|job| job.progress.runs.saturating_sub(job.before)).sum()
    }

    fn line(&self) -> String {
        let (runs, seconds) = (self.runs(), self.start.elapsed().as_secs_f64().max(1e-3));
        let most = |of: fn(&Progress) -> usize| self.jobs.iter().map(|job| of(&job.progress)).max();
        let (edges, rare) = (most(|it| it.edges), most(|it| it.rare_events));
        format!(
            "{runs} runs, {:.0}/s · {} edges, {} rare events · {} inputs · {} found",
            runs as f64 / seconds,
            edges.unwrap_or(0),
            rare.unwrap_or(0),
            most(|it| it.inputs).unwrap_or(0),
            self.all_found().len(),
        )
    }

    /// What all jobs have found, and what ended them.
    fn all_found(&self) -> Findings {
        let mut all = self.found.clone();
        self.jobs.iter().for_each(|job| all.extend(&job.found));
        all
    }

    fn finished(&self) -> Finished {
        let covered = self.jobs.iter().flat_map(|job| job.covered.iter().copied()).collect();
        Finished { runs: self.runs(), found: self.all_found(), covered }
    }
}

/// How long it is until `end`.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

/// This command, to be started once more.
fn itself() -> Result<Command, Failure> {
    std::env::current_exe().map(Command::new).map_err(not_started)
}

fn not_started(error: std::io::Error) -> Failure {
    Failure::Told(format!("a worker: {error}"))
}
