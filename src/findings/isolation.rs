//! Runs inputs in other processes. If an input hangs, overflows the stack or raises a signal, only its process ends,
//! and the end is a finding.
//!
//! The caller names an executable. This module runs it as `EXECUTABLE run-inputs LIMITS --target TARGET [--twice]`, a
//! command of `qcowfuzz` that calls [`run_inputs()`]. LIMITS are the options of
//! [`ProcessLimits`](crate::processes::ProcessLimits); they hold for each
//! input. The process reads inputs from standard input, each as a frame: its length, 8 bytes, little endian, and its
//! bytes. For each, it prints one line with a JSON object ([`FinishedRun`]). If it cannot run an input, it ends with
//! exit code 2, and standard error has one line. It ends when its standard input closes.

mod isolated_run;
mod isolated_runs;
mod messages;
mod run_inputs;
mod run_process;

pub use isolated_run::{FinishedRun, IsolatedRun, Isolation, IsolationError, Repeat};
pub use isolated_runs::IsolatedRuns;
pub use messages::Messages;
pub use run_inputs::run_inputs;
pub(crate) use run_process::RUN_ERROR_BYTES;

#[cfg(test)]
pub(crate) mod tests {
    use std::ffi::OsString;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::harness::targets::TargetKind;
    use crate::processes::{Executable, ProcessEnd, ProcessLimits};

    /// Returns an isolation that runs `script` with a shell for each input. `$input` is a file with the input. The
    /// script prints one line.
    pub(crate) fn shell(script: &str) -> Isolation {
        let script = format!(
            r#"name=$(mktemp); exec 3<>"$name"; rm "$name"; input=/proc/$$/fd/3
            while length=$(head -c 8 | od -An -tu8) && test -n "$length"; do
                head -c $length >"$input"
                {script}
            done"#
        );
        let arguments = ["-c", &script].map(OsString::from);
        let executable = Executable::new("/bin/sh", arguments);
        let limits = ProcessLimits { cpu_time: Duration::from_secs(20), memory_mib: 0 };
        Isolation { executable, target: TargetKind::Hostile, limits }
    }

    fn run(script: &str) -> Result<IsolatedRun, String> {
        shell(script).isolated_run(b"an input").map_err(|error| error.to_string())
    }

    #[test]
    fn answers_are_read_and_ends_are_named() {
        let finished = |fingerprint: Option<&str>| {
            let fingerprint = fingerprint.map(str::to_string);
            Ok(IsolatedRun::Finished(FinishedRun { fingerprint, ..FinishedRun::default() }))
        };
        assert_eq!(run("echo '{\"verdict\":\"ok\"}'"), finished(None));
        let found = r#"echo '{"fingerprint":"model: kind, a → b"}'"#;
        assert_eq!(run(found), finished(Some("model: kind, a → b")));
        // The script prints the documented arguments and the content of the file.
        let arguments = r#"printf '{"fingerprint":"%s"}\n' "$0 $* $(cat "$input")""#;
        let limits = "--cpu-milliseconds 20000 --memory-mib 0";
        let passed = &*format!("run-inputs {limits} --target hostile --twice an input");
        assert_eq!(run(arguments), finished(Some(passed)));
        let fingerprint = |script: &str| run(script).map(|ran| ran.fingerprint());
        let signal = "process: end, an answer → signal: 11 (SIGSEGV)";
        assert_eq!(fingerprint("ulimit -c 0; kill -SEGV $$"), Ok(Some(signal.to_string())));
        // Code under test may end the process itself, and call that a success.
        for code in [0, 1, 101] {
            let end = format!("process: end, an answer → exit status: {code}");
            assert_eq!(fingerprint(&format!("exit {code}")), Ok(Some(end)));
        }
    }

    #[test]
    fn a_process_runs_inputs_until_one_ends_it() {
        // Each process counts its inputs, and survives two. No process survives the last one.
        let script = r#"n=$((n + 1)); grep -q bad "$input" && exit 3; test $n -lt 3 || exit 4
            echo "{\"fingerprint\":\"$n\"}""#;
        let mut runs = IsolatedRuns::new(shell(script), Repeat::Once);
        let shown = [&b"a"[..], b"b", b"c", b"d", b"bad", b"e"]
            .map(|input| runs.run(input).unwrap().fingerprint().unwrap());
        let end = "process: end, an answer → exit status: 3";
        assert_eq!(shown, ["1", "2", "1", "2", end, "1"]);
    }

    #[test]
    fn what_cannot_be_run_is_an_error_and_no_finding() {
        let refused = run("echo 'qcowfuzz: input: too long' >&2; exit 2");
        assert_eq!(refused, Err("input: too long".to_string()));
        assert!(run("echo nothing").unwrap_err().contains("expected ident"));
        let missing =
            Isolation { executable: Executable::new("/no/such/executable", []), ..shell("") };
        let error = missing.isolated_run(b"").unwrap_err();
        assert!(matches!(error, IsolationError::Process(_)), "{error}");
        // The input is not to blame when the system kills its process.
        assert!(run("kill -9 $$").unwrap_err().contains("the system killed the process"));
    }

    #[test]
    fn a_process_that_hangs_is_ended() {
        let start = Instant::now();
        let limits = ProcessLimits { cpu_time: Duration::from_millis(5), memory_mib: 0 };
        let hangs = Isolation { limits, ..shell("exec sleep 1000") }.isolated_run(b"");
        assert_eq!(hangs.unwrap(), IsolatedRun::Ended(ProcessEnd::Timeout));
        assert!(start.elapsed() < Duration::from_secs(100));
    }
}
