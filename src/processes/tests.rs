//! Processes that do not end by themselves, want too much, or leave others behind. They are shells, and this test
//! executable itself.

#![cfg(feature = "cli")]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};
use std::{fs, io};

use rustix::process::{Pid, getpgid};

use super::*;

/// A time that is over in no test.
const LONG: Duration = Duration::from_secs(60);

fn shell(line: &str) -> Executable {
    Executable::new("sh", ["-c".into(), line.into()])
}

fn reply(line: &str, timeout: Duration) -> Reply {
    run(&shell(line), timeout).unwrap()
}

/// Asks a shell `question`. Returns its first line, or the reason why there is none.
fn ask(line: &str, question: &[u8], time: TimeLimit) -> Result<String, NoAnswer> {
    let mut process = PipedProcess::start(&shell(line), 8).unwrap();
    first_line(&mut process, question, time)
}

fn first_line(
    process: &mut PipedProcess,
    question: &[u8],
    time: TimeLimit,
) -> Result<String, NoAnswer> {
    let mut answer = String::new();
    let mut take = |bytes: &[u8]| {
        let end = bytes.iter().position(|byte| *byte == b'\n');
        answer.push_str(&String::from_utf8_lossy(&bytes[..end.unwrap_or(0)]));
        Ok((end.map_or(0, |end| end + 1), end.is_some()))
    };
    let bounds = Bounds { time, unread_bytes: 1 << 20, stored_bytes: 1 << 20 };
    process.exchange(question, &mut take, bounds)?;
    Ok(answer)
}

/// Waits until a process is gone, or only its parent has not noticed its end.
fn assert_gone(pid: &str) {
    let start = Instant::now();
    let stat = Path::new("/proc").join(pid.trim()).join("stat");
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        assert!(start.elapsed() < LONG, "process {pid} lives on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn outputs_and_ends_are_kept() {
    let answer = reply("printf out; printf err >&2; exit 3", LONG);
    assert_eq!((answer.end, answer.is_success()), (ProcessEnd::Exit(3), false));
    assert_eq!((answer.stdout, answer.stderr), (b"out".to_vec(), b"err".to_vec()));
    assert_eq!(reply("kill -9 $$", LONG).end, ProcessEnd::Signal(9));
    // More than two pipes hold, on both outputs.
    let long = reply("head -c 300000 /dev/zero; head -c 300000 /dev/zero >&2", LONG);
    assert_eq!((long.stdout.len(), long.stderr.len()), (300_000, 300_000));
    let folder = tempfile::tempdir().unwrap();
    let asked = Executable::shell("f() { echo $PWD $NAME $2; }; f").with(["a", "b c"]);
    let asked = asked.in_folder(Some(folder.path())).with_variable("NAME", "value");
    let expected = format!("{} value b c\n", folder.path().display());
    assert_eq!(run(&asked, LONG).unwrap().text(), expected);
    assert_eq!(shell("exit 7").run_silently().unwrap(), ProcessEnd::Exit(7));
    let missing = run(&Executable::new("/no/such", []), LONG);
    assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_process_that_hangs_is_stopped() {
    let second = Duration::from_secs(1);
    let answer = reply("printf begun; exec sleep 100", second);
    assert_eq!((answer.end, answer.stdout), (ProcessEnd::Timeout, b"begun".to_vec()));
    // It hangs after it closed its outputs.
    assert_eq!(reply("exec sleep 100 >&- 2>&-", second).end, ProcessEnd::Timeout);
    // A child of the shell holds the pipes.
    let begun = Instant::now();
    assert_eq!(reply("sleep 100; true", second).end, ProcessEnd::Timeout);
    assert!(begun.elapsed() < Duration::from_secs(50));
}

#[test]
fn a_process_that_prints_too_much_is_stopped() {
    for line in ["cat /dev/zero", "cat /dev/zero >&2"] {
        let mut process = PipedProcess::start(&shell(line), usize::MAX).unwrap();
        let end = first_line(&mut process, b"", TimeLimit::Clock(LONG));
        assert!(matches!(end, Err(NoAnswer::Ended(ProcessEnd::TooMuchOutput))), "{end:?}");
        assert!(process.unread().len().max(process.stderr_text().len()) < 2 << 20);
    }
}

#[test]
fn a_process_that_fills_its_folder_is_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let start = |line: &str| {
        PipedProcess::start(&shell(line).in_folder(Some(folder.path())), usize::MAX).unwrap()
    };
    // A hole stores nothing.
    let mut process = start("truncate -s 1T hole; sleep 1; echo done");
    assert_eq!(first_line(&mut process, b"", TimeLimit::Clock(LONG)).unwrap(), "done");
    let mut process = start("head -c 2000000 /dev/urandom >file; exec sleep 100");
    let limit = TimeLimit::Cpu { used: LONG, idle: LONG };
    let end = first_line(&mut process, b"", limit);
    assert!(matches!(end, Err(NoAnswer::Ended(ProcessEnd::TooMuchOutput))), "{end:?}");
}

#[test]
fn questions_are_answered() {
    let mut process = PipedProcess::start(&shell("exec cat"), 8).unwrap();
    let limit = TimeLimit::Clock(LONG);
    for question in ["one", "two"] {
        let line = format!("{question}\n");
        assert_eq!(first_line(&mut process, line.as_bytes(), limit).unwrap(), question);
    }
    // More than a pipe holds, in both directions.
    let long = "x".repeat(300_000) + "\n";
    assert_eq!(first_line(&mut process, long.as_bytes(), limit).unwrap(), long.trim_end());
    let more = first_line(&mut process, b"one\ntwo\n", limit);
    let Err(NoAnswer::Wrong(error)) = more else { panic!("{more:?}") };
    assert_eq!(
        error.to_string(),
        r"expected nothing after the last answer, found 4 bytes: 'two\n'"
    );
}

#[test]
fn a_process_without_answers_has_an_end() {
    let end = |line: &str, time: TimeLimit| match ask(line, &[b'\n'; 1 << 20], time) {
        Err(NoAnswer::Ended(end)) => Some(end),
        Err(NoAnswer::Closed) => None,
        other => panic!("{other:?}"),
    };
    let clock = TimeLimit::Clock(LONG);
    assert_eq!(end("exit 4", clock), Some(ProcessEnd::Exit(4)));
    assert_eq!(end("ulimit -c 0; kill -SEGV $$", clock), Some(ProcessEnd::Signal(11)));
    // It lives on.
    assert_eq!(end("exec sleep 100 >&-", TimeLimit::Cpu { used: LONG, idle: LONG }), None);
    let short = Duration::from_millis(200);
    assert_eq!(end("exec sleep 100", TimeLimit::Clock(short)), Some(ProcessEnd::Timeout));
    let idle = TimeLimit::Cpu { used: LONG, idle: short };
    assert_eq!(end("exec sleep 100", idle), Some(ProcessEnd::Timeout));
    let busy = TimeLimit::Cpu { used: short, idle: LONG };
    assert_eq!(end("while :; do :; done", busy), Some(ProcessEnd::Timeout));
}

#[test]
fn the_last_bytes_of_standard_error_are_kept() {
    let line = "printf 'long and last words' >&2; exec sleep 100 >&-";
    let mut process = PipedProcess::start(&shell(line), 10).unwrap();
    let closed = first_line(&mut process, b"", TimeLimit::Cpu { used: LONG, idle: LONG });
    assert!(matches!(closed, Err(NoAnswer::Closed)), "{closed:?}");
    assert_eq!(process.stderr_text(), "last words");
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "there is no /proc")]
fn no_children_are_left_behind() {
    // The process ends by itself, and its child holds no pipe.
    let ended = reply("sleep 1000 >/dev/null 2>&1 & echo $!", LONG);
    assert_eq!(ended.end, ProcessEnd::Exit(0));
    assert_gone(&ended.text());
    // Its time is over; a grandchild has another parent.
    let late = reply("(sleep 1000 & echo $!); wait; sleep 1000", Duration::from_secs(1));
    assert_eq!(late.end, ProcessEnd::Timeout);
    assert_gone(&late.text());
    // The value that stands for it is gone.
    let mut process = PipedProcess::start(&shell("sleep 1000 & echo $!; wait"), 8).unwrap();
    let child = first_line(&mut process, b"", TimeLimit::Clock(LONG)).unwrap();
    drop(process);
    assert_gone(&child);
}

#[test]
#[cfg_attr(not(target_os = "linux"), ignore = "there is no /proc")]
fn a_command_ends_with_the_process_that_started_it() {
    const STARTS: &str = "QCOWFUZZ_TEST_STARTS";
    let name = "processes::tests::a_command_ends_with_the_process_that_started_it";
    if std::env::var_os(STARTS).is_some() {
        let line = "sh -c 'echo command $$; exec sleep 1000'";
        let mut command = PipedProcess::start(&Executable::command(line, 1 << 20), 8).unwrap();
        println!("\n{}", first_line(&mut command, b"", TimeLimit::Clock(LONG)).unwrap());
        std::process::abort();
    }
    let ran = run(&this_test(name).with_variable(STARTS, "1"), LONG).unwrap();
    let text = ran.text();
    let pid = text
        .lines()
        .find_map(|line| line.strip_prefix("command "))
        .unwrap_or_else(|| panic!("{text}"));
    assert_gone(pid);
}

#[test]
fn only_a_process_that_shares_the_group_gets_the_signals_of_the_terminal() {
    let group = |executable: Executable| {
        let (process, _outputs) = executable.start().unwrap();
        let pid = Pid::from_raw(i32::try_from(process.id()).unwrap());
        (getpgid(pid).unwrap(), pid.unwrap())
    };
    let (own, pid) = group(shell("exec sleep 100"));
    assert_eq!(own, pid);
    assert_eq!(group(shell("exec sleep 100").sharing_group()).0, getpgid(None).unwrap());
}

/// Returns this test executable, which runs the test with this name only.
fn this_test(name: &str) -> Executable {
    let executable = Executable::new(std::env::current_exe().unwrap(), []);
    executable.with(["--exact", name, "--nocapture"])
}

/// Allocates more than any limit of these tests.
fn allocate() {
    black_box(Vec::<u8>::with_capacity(black_box(64 << 30)));
}

#[test]
fn memory_is_bounded() {
    const ALLOCATES: &str = "QCOWFUZZ_TEST_ALLOCATES";
    if std::env::var_os(ALLOCATES).is_some() {
        allocate();
        return;
    }
    let name = "processes::tests::memory_is_bounded";
    let path = std::env::current_exe().unwrap();
    let line = format!("env {ALLOCATES}=1 '{}' --exact {name} --nocapture", path.display());
    let ran = run(&Executable::command(&line, 4 << 20), LONG).unwrap();
    assert_eq!(ran.end, ProcessEnd::Signal(6), "{}", ran.text());
    let end = ran.end.explained_by(&ran.message());
    assert_eq!(end.fingerprint(), "memory: allocation, within the limit → beyond");
}

#[test]
fn a_process_enforces_its_own_limits() {
    const LIMIT: &str = "QCOWFUZZ_TEST_LIMIT";
    const SURVIVED: &str = "many short runs are over";
    let name = "processes::tests::a_process_enforces_its_own_limits";
    let limits = |milliseconds: u64, memory_mib: u64| ProcessLimits {
        cpu_time: Duration::from_millis(milliseconds),
        memory_mib,
    };
    match std::env::var(LIMIT).as_deref() {
        Ok("memory") => {
            let _runs = limits(60_000, 4096).enforce().unwrap();
            allocate();
            return;
        }
        Ok(_) => {
            let runs = limits(200, 0).enforce().unwrap();
            let start = Instant::now();
            // Each run is within the limit, all together are not.
            while start.elapsed() < Duration::from_secs(1) {
                runs.begin_run();
            }
            eprintln!("{SURVIVED}");
            while start.elapsed() < LONG {}
            return;
        }
        Err(_) => {}
    }
    let ran = |limit: &str| run(&this_test(name).with_variable(LIMIT, limit), LONG).unwrap();
    let ended = |ran: &Reply| ran.end.within_limits(&ran.message());
    assert_eq!(ended(&ran("memory")), Some(ProcessEnd::OutOfMemory));
    let late = ran("time");
    assert_eq!(ended(&late), Some(ProcessEnd::Timeout));
    assert!(late.message().contains(SURVIVED), "{}", late.message());
}
