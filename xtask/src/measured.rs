//! The means of measurements: rows on disk, from which a killed one resumes, processes whose CPU time is limited, and
//! the pages in `docs/results`: one for each measurement, the current one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use wait4::Wait4;

use crate::process::{command, failed, output, root, text_of};

/// A file of tab-separated values, one row for each measurement. Each row is on disk before the next measurement
/// begins.
pub struct Measurements<const KEY: usize, const VALUES: usize> {
    path: PathBuf,
    rows: BTreeMap<[String; KEY], [String; VALUES]>,
}

impl<const KEY: usize, const VALUES: usize> Measurements<KEY, VALUES> {
    /// Opens or creates `measured.tsv` in a folder. The columns are those that name a measurement, and its values.
    pub fn open(folder: &Path, key: [&str; KEY], values: [&str; VALUES]) -> Result<Self> {
        let path = folder.join("measured.tsv");
        let head = [&key[..], &values[..]].concat().join("\t") + "\n";
        if !path.exists() {
            fs::create_dir_all(folder)?;
            replace(&path, &head)?;
        }
        let text = fs::read_to_string(&path)?;
        // A kill in the middle of a write leaves half a row behind.
        let complete = text.rfind('\n').map_or(0, |end| end + 1);
        File::options().write(true).open(&path)?.set_len(complete as u64)?;
        let rows = text[..complete].strip_prefix(&head).with_context(|| {
            format!("{}: expected the columns of this measurement; remove the file", path.display())
        })?;
        let row = |line: &str| {
            let mut cells = line.split('\t').map(str::to_owned);
            let (key, values) = (cells.by_ref().take(KEY).collect(), cells.collect());
            let (key, values): (Vec<_>, Vec<_>) = (key, values);
            key.try_into().ok().zip(values.try_into().ok()).with_context(|| {
                format!("{}: expected {} columns, found '{line}'", path.display(), KEY + VALUES)
            })
        };
        let rows = rows.lines().map(row).collect::<Result<_>>()?;
        Ok(Self { path, rows })
    }

    /// Returns the values of a measurement, if it was made.
    pub fn get(&self, key: &[String; KEY]) -> Option<&[String; VALUES]> {
        self.rows.get(key)
    }

    /// Returns all measurements.
    pub fn rows(&self) -> impl Iterator<Item = (&[String; KEY], &[String; VALUES])> {
        self.rows.iter()
    }

    /// Keeps a measurement, prints it for people, and returns its values.
    pub fn add(
        &mut self,
        key: [String; KEY],
        values: [String; VALUES],
    ) -> Result<&[String; VALUES]> {
        let clean = |text: String| text.replace(['\t', '\n'], " ");
        let (key, values) = (key.map(clean), values.map(clean));
        let line = [&key[..], &values[..]].concat().join("\t");
        let mut file = File::options().append(true).open(&self.path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()?;
        eprintln!("{line}");
        Ok(self.rows.entry(key).or_insert(values))
    }
}

/// How a process with a limit ended.
pub struct Spent {
    /// The CPU seconds of the process and of its children.
    pub cpu_seconds: f64,
    /// The limit ended it.
    pub is_limited: bool,
    /// The exit code, or `None` for a signal.
    pub code: Option<i32>,
    /// Its standard output.
    pub output: String,
    /// Its standard error.
    pub log: String,
}

/// Runs a command for at most `limit` CPU seconds with all its children, and keeps its output in a folder. At the
/// limit, the process is interrupted, so that it can print a summary. The command ends with this program.
pub fn run_limited(run: &Command, folder: &Path, limit: f64) -> Result<Spent> {
    let (output, log) = (folder.join("output"), folder.join("log"));
    // The leader of a session of its own, whose processes are counted and killed together.
    let mut session = command("setpriv");
    session.args(["--pdeathsig", "KILL", "setsid"]).arg(run.get_program()).args(run.get_args());
    session.envs(run.get_envs().filter_map(|(name, value)| Some((name, value?))));
    session.current_dir(run.get_current_dir().unwrap_or(crate::process::root()));
    session.stdout(File::create(&output)?).stderr(File::create(&log)?);
    let mut child = session.spawn().with_context(|| text_of(run))?;
    let (leader, mut limited_at) = (child.id(), None::<Instant>);
    while !has_ended(leader)? {
        sleep(Duration::from_millis(100));
        match limited_at {
            // The unit of /proc is 1/100 s on every Linux.
            None if session_of(leader)?.iter().map(|it| it.1).sum::<u64>() as f64
                >= limit * 100.0 =>
            {
                limited_at = Some(Instant::now());
                signal("-INT", &leader.to_string())?;
            }
            Some(at) if at.elapsed() > Duration::from_secs(20) => child.kill()?,
            _ => {}
        }
    }
    // The other processes of the session. The leader is not reaped yet, so its number is not taken.
    for (process, _) in session_of(leader)?.iter().filter(|(it, _)| *it != leader.to_string()) {
        signal("-KILL", process)?;
    }
    let used = child.wait4()?;
    let cpu_seconds = (used.rusage.utime + used.rusage.stime).as_secs_f64();
    let read = |path| fs::read(path).map(|it| String::from_utf8_lossy(&it).into_owned());
    let (output, log) = (read(output)?, read(log)?);
    Ok(Spent {
        cpu_seconds,
        is_limited: limited_at.is_some(),
        code: used.status.code(),
        output,
        log,
    })
}

/// Sends a signal to a process. One that has ended gets none.
fn signal(name: &str, to: &str) -> Result<()> {
    let mut kill = command("kill");
    kill.args([name, "--", to]).stderr(std::process::Stdio::null()).status()?;
    Ok(())
}

/// Returns the fields of `/proc/PID/stat` behind the name: state, parent, group, session and so on.
fn stat(process: &str) -> Option<Vec<String>> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    Some(text.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect())
}

fn has_ended(child: u32) -> Result<bool> {
    let fields = stat(&child.to_string()).context("/proc does not know a child, expected Linux")?;
    Ok(fields[0] == "Z")
}

/// Returns the processes of a session, with the ticks of CPU time that each took, children included that it waited for.
fn session_of(leader: u32) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let process = entry?.file_name().to_string_lossy().into_owned();
        // A process may end at any time.
        let Some(fields) = stat(&process) else { continue };
        if fields.get(3) == Some(&leader.to_string()) {
            let times = fields.iter().skip(11).take(4);
            found.push((process, times.filter_map(|it| it.parse::<u64>().ok()).sum()));
        }
    }
    Ok(found)
}

/// Returns the CPU seconds of a command that must succeed.
pub fn cpu_seconds(run: &mut Command) -> Result<f64> {
    let done = run.spawn().with_context(|| text_of(run))?.wait4()?;
    if !done.status.success() {
        bail!("{}: {}, expected success", text_of(run), done.status);
    }
    Ok((done.rusage.utime + done.rusage.stime).as_secs_f64())
}

/// Prints a table and, with the name of a page, writes `docs/results/NAME.md`: a title, the command, the circumstances,
/// the table.
pub fn publish(page: Option<&str>, title: &str, table: &str) -> Result<()> {
    let table = table.trim();
    println!("{table}");
    let Some(page) = page else { return Ok(()) };
    let words = std::env::args().skip(1).collect::<Vec<_>>().join(" ");
    let path = root().join("docs/results").join(format!("{page}.md"));
    let circumstances = circumstances();
    replace(&path, &format!("# {title}\n\n`cargo xtask {words}`, {circumstances}\n\n{table}\n"))?;
    eprintln!("written to {}", path.display());
    Ok(())
}

/// Fails if there are faults, which it names below a heading.
pub fn verdict(heading: &str, faults: &[String]) -> Result<()> {
    let text = || format!("{heading}:\n{}", faults.join("\n"));
    if faults.is_empty() { Ok(()) } else { Err(failed(text())) }
}

/// Returns the median, of an even number the higher one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Returns the row of a table.
pub fn row<T: AsRef<str>>(cells: &[T]) -> String {
    let cells: Vec<_> = cells.iter().map(AsRef::as_ref).collect();
    format!("| {} |\n", cells.join(" | "))
}

/// Returns the head of a table.
pub fn head(titles: &[&str]) -> String {
    row(titles) + &"|---".repeat(titles.len()) + "|\n"
}

/// Writes a file beside its place and renames it, so that no file is ever incomplete.
pub fn replace(path: &Path, text: &str) -> Result<()> {
    let folder = path.parent().context("a file without a folder")?;
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// Returns one line about the circumstances of a measurement: date, commit, machine and compilers.
fn circumstances() -> String {
    let said = |program: &str, arguments: &[&str]| {
        let text = output(command(program).args(arguments));
        text.map_or("unknown".to_owned(), |text| text.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!(
        "{}. Commit {}; {}, {cores} cores; {}; {}.",
        said("date", &["-I"]),
        said("git", &["describe", "--always", "--dirty"]),
        said("uname", &["-m"]),
        said("rustc", &["-V"]),
        said("rustc", &["+nightly", "-V"]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_killed_measurement_resumes_without_its_half_row() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Measurements::open(folder.path(), ["bug", "seed"], ["runs"]);
        let key = |seed: &str| ["one".to_owned(), seed.to_owned()];
        open().unwrap().add(key("1"), ["7".to_owned()]).unwrap();
        let path = folder.path().join("measured.tsv");
        let whole = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{whole}one\t2")).unwrap();
        let mut kept = open().unwrap();
        assert_eq!((kept.get(&key("1")), kept.get(&key("2"))), (Some(&["7".to_owned()]), None));
        kept.add(key("2"), ["8".to_owned()]).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{whole}one\t2\t8\n"));
        fs::write(&path, format!("{whole}one\t2\n")).unwrap();
        assert!(open().is_err(), "a row without its values");
        assert!(Measurements::open(folder.path(), ["bug", "other"], ["runs"]).is_err());
    }

    #[test]
    fn a_limit_ends_a_process_with_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let mut busy = command("sh");
        busy.args([
            "-c",
            "trap 'echo ended; exit 3' INT; while :; do sh -c ':'; done & \n while :; do :; done",
        ]);
        let spent = run_limited(&busy, folder.path(), 0.3).unwrap();
        assert!(spent.is_limited && spent.output == "ended\n", "{}", spent.log);
        assert_eq!(spent.code, Some(3));
        let mut quick = command("sh");
        let spent =
            run_limited(quick.args(["-c", "echo one; echo two >&2; exit 1"]), folder.path(), 9.0);
        let spent = spent.unwrap();
        assert_eq!((spent.code, spent.is_limited), (Some(1), false));
        assert_eq!((spent.output.as_str(), spent.log.as_str()), ("one\n", "two\n"));
    }

    #[test]
    fn the_median_of_an_even_number_is_the_higher_one() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[2.0, 1.0])), (2.0, 2.0));
    }
}
