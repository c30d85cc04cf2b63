//! Finds and runs qemu-img and qemu-io, and parses their answers.

pub mod compare;

use crate::prelude::*;
use std::fmt::Display;
use std::ops::AddAssign;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::skipped::skipped;
use serde::Deserialize;

/// The result of a judgement: an answer, or a description of the disagreement.
pub type Checked<T> = Result<T, String>;

/// Errors as text.
pub trait Described<T> {
    /// Returns the text of the error.
    fn described(self) -> Checked<T>;
}

impl<T, E: Display> Described<T> for Result<T, E> {
    fn described(self) -> Checked<T> {
        self.map_err(|error| error.to_string())
    }
}

/// The size up to which disks are compared byte for byte. Larger ones are compared in windows.
pub const WHOLE_DISK_BYTES: u64 = 64 << 20;

/// Returns `None` if the tools are not installed: prints one line, or panics if they are required.
pub fn tools() -> Option<()> {
    let runs = |tool: &str| {
        let version = Command::new(tool).arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    if runs("qemu-img") && runs("qemu-io") {
        return Some(());
    }
    let required = std::env::var_os("QCOWFUZZ_REQUIRE_QEMU").is_some_and(|value| value == "1");
    assert!(!required, "qemu-img and qemu-io are required, and one of them does not run");
    // A test runs on a thread of its name.
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    skipped(format_args!("{test}: qemu-img and qemu-io are not installed (qemu-utils)"));
    None
}

/// Runs a tool and returns its output, for any exit status.
pub fn run(tool: &str, arguments: &[&OsStr]) -> Checked<Output> {
    let mut command = Command::new(tool);
    // qemu looks for data files in the current directory. Ours lie beside their images.
    let directory = arguments.last().and_then(|path| Path::new(path).parent());
    if let Some(directory) = directory.filter(|path| path.is_dir()) {
        command.current_dir(directory);
    }
    command.args(arguments).output().map_err(|error| format!("{tool} {arguments:?}: {error}"))
}

/// Describes a tool's command line and its output.
pub fn failure(tool: &str, arguments: &[&OsStr], output: &Output) -> String {
    let head: String = String::from_utf8_lossy(&output.stdout).chars().take(500).collect();
    let stderr = String::from_utf8_lossy(&output.stderr);
    format!("{tool} {arguments:?}: {}\n{stderr}{head}", output.status)
}

/// Runs qemu-img, which must succeed, and returns its output.
pub fn img(arguments: &[&OsStr]) -> Checked<Vec<u8>> {
    let output = run("qemu-img", arguments)?;
    if !output.status.success() {
        return Err(failure("qemu-img", arguments, &output));
    }
    Ok(output.stdout)
}

/// Runs qemu-img with words before and after the path of an image.
pub fn img_at(before: &[&str], path: &Path, after: &[&str]) -> Checked<Vec<u8>> {
    let words = before.iter().map(OsStr::new).chain([path.as_os_str()]);
    img(&words.chain(after.iter().map(OsStr::new)).collect::<Vec<_>>())
}

/// Returns the record of `qemu-img info` for a qcow2 image.
pub fn info(path: &Path) -> Checked<serde_json::Value> {
    let printed = img_at(&["info", "--output=json", "-f", "qcow2"], path, &[])?;
    serde_json::from_slice(&printed).map_err(|error| format!("qemu-img info: {error}"))
}

/// Runs qemu-io's `commands` on the image at `path` in one process, with these options, which name the format. Returns
/// its output. All commands must succeed.
pub fn io_with(path: &Path, options: &[&str], commands: &[String]) -> Checked<String> {
    let mut arguments: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
    for command in commands {
        arguments.extend([OsStr::new("-c"), OsStr::new(command)]);
    }
    arguments.push(path.as_os_str());
    let output = run("qemu-io", &arguments)?;
    if !output.status.success() {
        return Err(failure("qemu-io", &arguments, &output));
    }
    String::from_utf8(output.stdout).map_err(|error| format!("qemu-io: {error}"))
}

/// One record of `qemu-img map --output=json`. A field that is missing or unknown is an error.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapRecord {
    start: u64,
    length: u64,
    depth: u32,
    present: bool,
    zero: bool,
    data: bool,
    compressed: bool,
    offset: Option<u64>,
}

/// Returns the extents that `qemu-img map` prints for `window`, without the record of length 0 that it prints for an
/// empty window.
pub fn map(path: &Path, window: Window) -> Checked<Vec<Extent>> {
    let mut arguments = ["map", "--output=json", "-f", "qcow2"].map(OsStr::new).to_vec();
    let start = format!("--start-offset={}", window.start);
    let length = format!("--max-length={}", window.length_bytes);
    if window != Window::ALL {
        arguments.extend([OsStr::new(&start), OsStr::new(&length)]);
    }
    arguments.push(path.as_os_str());
    let output = run("qemu-img", &arguments)?;
    match beginning(&output)? {
        mut extents if output.status.success() && output.stdout.ends_with(b"]\n") => {
            extents.retain(|extent| extent.length_bytes > 0);
            Ok(extents)
        }
        _ => Err(failure("qemu-img", &arguments, &output)),
    }
}

/// Returns the extents that `qemu-img map --output=json` printed, one in each line, even if it failed in the middle.
pub fn beginning(output: &Output) -> Checked<Vec<Extent>> {
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines =
        printed.lines().map(|line| line.trim_start_matches('[').trim_end_matches([']', ',']));
    let record = |line| serde_json::from_str(line).map(extent);
    let records = lines.filter(|line| !line.is_empty()).map(record);
    records.collect::<Result<_, _>>().map_err(|error| format!("qemu-img map: {error}"))
}

fn extent(record: MapRecord) -> Extent {
    let MapRecord { start, length, depth, present, zero, data, compressed, offset } = record;
    let offset = offset.map(HostOffset::new);
    let mapping = Mapping { depth, present, zero, data, compressed, offset };
    Extent { start: GuestOffset::new(start), length_bytes: length, mapping }
}

/// The result of `qemu-img check`.
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub struct Findings {
    /// The number of clusters whose count is too low, plus the number of wrong entries.
    #[serde(default)]
    pub corruptions: u64,
    /// The number of clusters whose count is too high.
    #[serde(default)]
    pub leaks: u64,
    /// The number of checks that failed.
    pub check_errors: u64,
    /// The end of the last cluster with a count.
    #[serde(default)]
    pub image_end_offset: u64,
}

/// The warning that qemu prints for every image with a bitmaps extension whose autoclear bit is clear. It is not a
/// finding, because qemu reports each leaked cluster by itself.
const BITMAPS_WARNING: &str = "qemu-img: warning: a program lacking bitmap support modified this file, \
                               so all bitmaps are now considered inconsistent\nSome clusters may be \
                               leaked, run 'qemu-img check -r' on the image file to fix.";

/// Runs `qemu-img check`, and returns its result and its messages.
pub fn check(path: &Path) -> Checked<(Findings, String)> {
    let mut arguments = ["check", "--output=json", "-f", "qcow2"].map(OsStr::new).to_vec();
    arguments.push(path.as_os_str());
    let output = run("qemu-img", &arguments)?;
    let findings: Findings = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", failure("qemu-img", &arguments, &output)))?;
    let Findings { corruptions, leaks, check_errors, .. } = findings;
    let code = match (check_errors, corruptions, leaks) {
        (0, 0, 0) => 0,
        (0, 0, _) => 3,
        (0, ..) => 2,
        _ => 1,
    };
    if output.status.code() != Some(code) {
        return Err(format!("{findings:?}, but {}", failure("qemu-img", &arguments, &output)));
    }
    let said = String::from_utf8_lossy(&output.stderr);
    // Each image of a chain has its own warning.
    Ok((findings, said.replace(BITMAPS_WARNING, "").trim_start().to_string()))
}

/// Returns the content of the whole guest disk by `qemu-img convert`. `raw` is the path of a temporary file.
pub fn convert(path: &Path, raw: &Path) -> Checked<Vec<u8>> {
    convert_with(&["-f", "qcow2"], path, raw)
}

/// Returns the content of a guest disk by `qemu-img convert` with these options, which name the format. `raw` is the
/// path of a temporary file.
pub fn convert_with(options: &[&str], path: &Path, raw: &Path) -> Checked<Vec<u8>> {
    let mut arguments = ["convert", "-t", "unsafe", "-O", "raw"].map(OsStr::new).to_vec();
    arguments.extend(options.iter().map(OsStr::new));
    arguments.extend([path.as_os_str(), raw.as_os_str()]);
    img(&arguments)?;
    let bytes = fs::read(raw).map_err(|error| format!("{}: {error}", raw.display()))?;
    fs::remove_file(raw).map_err(|error| format!("{}: {error}", raw.display()))?;
    Ok(bytes)
}

/// Returns the bytes that a guest of a qcow2 image reads in `windows`; see [`read_with`].
pub fn read(path: &Path, windows: &[Window]) -> Checked<Vec<Vec<u8>>> {
    read_with(path, "qcow2", windows)
}

/// Returns the bytes that a guest of an image in this format reads in `windows`, by one qemu-io. No window may be empty
/// or reach past the end of the disk.
pub fn read_with(path: &Path, format: &str, windows: &[Window]) -> Checked<Vec<Vec<u8>>> {
    let command = |window: &Window| format!("read -v {} {}", window.start, window.length_bytes);
    let commands: Vec<String> = windows.iter().map(command).collect();
    let printed = io_with(path, &["-f", format, "-r"], &commands)?;
    let mut contents: Vec<Vec<u8>> = Vec::new();
    // Lines of a dump: "offset:  hex bytes  text"; a line about the whole read follows each dump.
    let mut open = false;
    for line in printed.lines() {
        let Some((_, row)) = line.split_once(":  ").filter(|(at, _)| at.len() >= 8) else {
            open = false;
            continue;
        };
        if !std::mem::replace(&mut open, true) {
            contents.push(Vec::new());
        }
        let content = contents.last_mut().ok_or("no dump")?;
        let hex = row.split(' ').take(16).take_while(|byte| byte.len() == 2);
        for byte in hex {
            content.push(u8::from_str_radix(byte, 16).map_err(|_| format!("a dump: {line}"))?);
        }
    }
    let lengths = contents.iter().map(|content| content.len() as u64);
    if !lengths.eq(windows.iter().map(|window| window.length_bytes)) {
        return Err(format!("qemu-io dumped other lengths than {windows:?}\n{printed}"));
    }
    Ok(contents)
}

/// The variable that has [`judge_share`] judge all cases. A nightly workflow sets it to 1.
const ALL_CASES: &str = "QCOWFUZZ_ALL_CASES";
/// Without it, one case in this many is judged.
const SHARE: u64 = 4;

/// Judges a share of the cases, the same in each run, as [`judge_all`] does. Requires that the counts are at least
/// `bounds`, which are those of all cases; for the share, half of their share is enough.
#[track_caller]
pub fn judge_share<C: Display + Sync, S>(
    mut cases: Vec<C>,
    bounds: &[(&str, u64)],
    state: impl Fn() -> S + Sync,
    judge: impl Fn(&mut S, &C) -> Checked<Tally> + Sync,
) {
    let is_all = std::env::var_os(ALL_CASES).is_some_and(|value| value == "1");
    let mut bounds = bounds.to_vec();
    if !is_all {
        let mut entropy = Entropy::new(SHARE);
        cases.retain(|_| entropy.one_in(SHARE));
        bounds.iter_mut().for_each(|(_, least)| *least /= 2 * SHARE);
    }
    let tally: Tally = judge_all(&cases, state, judge);
    tally.assert_at_least(&bounds);
}

/// Calls `judge` for every case on two threads, each with its own state from `state`, and returns the sum of the
/// results. Panics with the list of disagreements, if there are any.
pub fn judge_all<C: Display + Sync, S, T: AddAssign + Default + Send>(
    cases: &[C],
    state: impl Fn() -> S + Sync,
    judge: impl Fn(&mut S, &C) -> Checked<T> + Sync,
) -> T {
    let next = AtomicUsize::new(0);
    let total = Mutex::new((T::default(), Vec::new()));
    let work = || {
        let mut with = state();
        while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
            let judged = catch_unwind(AssertUnwindSafe(|| judge(&mut with, case)));
            let judged = judged.unwrap_or_else(|_| {
                with = state();
                Err("it panicked, see above".to_string())
            });
            let mut total = total.lock().unwrap();
            match judged {
                Ok(tally) => total.0 += tally,
                Err(what) => total.1.push(format!("{what}\n{case}")),
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let (total, failures) = total.into_inner().unwrap();
    let (count, of) = (failures.len(), cases.len());
    let shown: Vec<String> = failures.into_iter().take(5).collect();
    assert_eq!(count, 0, "{count} of {of} cases disagree; the first:\n\n{}", shown.join("\n\n"));
    total
}
