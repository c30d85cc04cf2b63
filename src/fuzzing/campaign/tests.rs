//! Tests of the supervisor. The workers are shell scripts, one for each way in which a worker can end.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::base::files;
use crate::harness::targets::TargetKind;
use crate::harness::{Checks, KnownFindings};
use crate::processes::{Executable, ProcessLimits};

use super::*;

/// A campaign of one job in `dir`. Its workers run `script`, in which `$state` is the folder of the campaign's state.
fn plan(dir: &Path, script: &str) -> CampaignPlan {
    let places = Places::new(dir.to_path_buf(), None, TargetKind::Hostile, false).unwrap();
    let script = format!("state='{}/state/hostile'; {script}", dir.display());
    let arguments = ["-c", &script].map(OsString::from);
    CampaignPlan {
        executable: Executable::new("/bin/sh", arguments),
        build: String::new(),
        target: TargetKind::Hostile,
        known: KnownFindings::default(),
        places,
        jobs: 1,
        rng_seed: 1,
        max_operations: 10,
        runs: None,
        end: None,
        generated: false,
        exhaustive: None,
        checks: Checks::default(),
        until_found: false,
        limits: ProcessLimits { cpu_time: Duration::from_secs(60), memory_mib: 0 },
    }
}

fn run(plan: &CampaignPlan) -> Finished {
    let campaign = Campaign::start(plan, Arc::new(AtomicBool::new(false))).unwrap();
    campaign.supervise(&mut |_| {})
}

/// Reports some progress and ends, as a worker whose work is done.
const DONE: &str = r#"echo '{"Progress":[{"runs":7,"inputs":3,"edges":2,"rare_events":1},{}]}'; echo '{"End":[[0,1],{}]}'; exit 0"#;

/// Writes an input to the slot, as a worker before a run. The number of the run is 1, the length 3.
const ENTER: &str = r"printf '\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0bad' > $state/job-0.input";

#[test]
fn a_worker_that_is_done_ends_the_campaign() {
    let dir = tempfile::tempdir().unwrap();
    let plan = plan(dir.path(), DONE);
    let finished = run(&plan);
    assert_eq!((finished.runs, finished.progress[0].inputs, finished.covered.len()), (7, 3, 2));
    assert!(finished.found.is_empty() && finished.failure.is_none(), "{finished:?}");
    let summary = CampaignSummary::new(&plan, Duration::from_secs(2), &finished).unwrap();
    assert_eq!((summary.runs, summary.seconds, summary.inputs), (7, 2.0, 0));
    assert!(summary.edges >= 2 && summary.found.is_empty(), "{summary:?}");
}

#[test]
fn an_input_that_ends_workers_is_a_finding_and_another_worker_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    // The input also ends a process that runs nothing else. The second worker finds it among the killers.
    let script = format!(
        "for it in \"$@\"; do test \"$it\" = --only && kill -ABRT $$; done
         ls $state/killers/* > $state/seen 2>&1 && {{ {DONE}; }}
         {ENTER}; kill -ABRT $$"
    );
    let plan = plan(dir.path(), &script);
    let finished = run(&plan);
    let found: Vec<_> = finished.found.iter().collect();
    let [(fingerprint, bug)] = found[..] else { panic!("{found:?}") };
    assert_eq!(fingerprint, "process: end, an answer → signal: 6 (SIGABRT)");
    assert_eq!((bug.times, bug.shortest_bytes), (1, 3));
    assert_eq!(bug.detail, "no process survives this input");
    let artifacts = files::list(plan.places.artifacts().unwrap().dir()).unwrap();
    assert_eq!(std::fs::read(&artifacts[0]).unwrap(), b"bad");
    assert!(bug.file.starts_with("crash-") && artifacts[0].ends_with(&bug.file));
    assert_eq!(finished.runs, 7);
}

#[test]
fn a_run_that_takes_too_long_is_ended_and_found() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "ls $state/killers/* > $state/seen 2>&1 && {{ {DONE}; }}
         {ENTER}; exec sleep 1000"
    );
    let limits = ProcessLimits { cpu_time: Duration::from_millis(30), memory_mib: 0 };
    let plan = CampaignPlan { limits, ..plan(dir.path(), &script) };
    let start = Instant::now();
    let finished = run(&plan);
    let found: Vec<_> = finished.found.iter().collect();
    let [(fingerprint, bug)] = found[..] else { panic!("{found:?}") };
    assert_eq!(fingerprint, "process: end, an answer → none");
    assert!(bug.file.starts_with("timeout-") && start.elapsed() < Duration::from_secs(500));
}

#[test]
fn an_input_is_not_to_blame_when_the_system_kills_its_worker() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "echo again >> $state/started; test $(wc -l < $state/started) = 3 && {{ {DONE}; }}
         {ENTER}; kill -9 $$"
    );
    let finished = run(&plan(dir.path(), &script));
    assert!(finished.found.is_empty() && finished.failure.is_none(), "{finished:?}");
    assert_eq!(finished.runs, 7);
}

#[test]
fn an_allocation_beyond_the_limit_is_a_finding() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "for it in \"$@\"; do test \"$it\" = --only && kill -ABRT $$; done
         ls $state/killers/* > $state/seen 2>&1 && {{ {DONE}; }}
         {ENTER}; echo 'memory allocation of 7 bytes failed' >&2; kill -ABRT $$"
    );
    let finished = run(&plan(dir.path(), &script));
    let found: Vec<_> = finished.found.iter().map(|(fingerprint, _)| fingerprint).collect();
    assert_eq!(found, ["memory: allocation, within the limit → beyond"]);
}

#[test]
fn workers_that_end_outside_of_runs_end_the_job() {
    let dir = tempfile::tempdir().unwrap();
    let finished = run(&plan(dir.path(), "echo again >> $state/started; exit 3"));
    let failure = "job 0: 3 workers ended one after the other outside of a run: exit status: 3";
    assert_eq!(finished.failure.as_deref(), Some(failure));
    let started = std::fs::read_to_string(dir.path().join("state/hostile/started")).unwrap();
    assert_eq!(started.lines().count(), 3);
}

#[test]
fn a_worker_that_cannot_go_on_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let finished = run(&plan(dir.path(), r#"echo '{"Failed":"disk full"}'"#));
    assert_eq!(finished.failure.as_deref(), Some("disk full"));
}

#[test]
fn two_campaigns_do_not_share_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let places = plan(dir.path(), "").places;
    let lock = places.lock().unwrap();
    assert!(matches!(places.lock(), Err(CampaignError::Busy { .. })));
    drop(lock);
    places.lock().unwrap();
}

#[test]
fn a_campaign_begins_clean() {
    let dir = tempfile::tempdir().unwrap();
    let places = plan(dir.path(), "").places;
    places.killers().unwrap().add("", b"bad").unwrap();
    std::fs::write(places.scratch().join("half"), "").unwrap();
    std::fs::write(places.state(0), "{}").unwrap();
    assert_eq!(
        places.rng_seed(None).unwrap_err().to_string().split(": ").nth(1),
        Some("not the state of a campaign")
    );
    places.clean(false).unwrap();
    let state = || files::list(&dir.path().join("state/hostile")).unwrap();
    assert!(files::list(places.scratch()).unwrap().is_empty() && state() == [places.state(0)]);
    assert!(files::list(places.killers().unwrap().dir()).unwrap().is_empty());
    places.clean(true).unwrap();
    assert!(state().is_empty());
    assert_eq!((places.rng_seed(None).unwrap(), places.rng_seed(Some(9)).unwrap()), (1, 9));
}
