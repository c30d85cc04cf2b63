//! Compares the command `check` with `qemu-img check` on a qcow2 image: the output and the exit code.

use test_support::prelude::*;

use serde_json::{Map, Value};

/// The intended differences: faults that qemu-img check does not notice. The name, and the end of the message.
pub const NAMED: [(&str, &str); 2] = [
    (
        "check: a cluster that holds two structures, with the right count",
        " and another structure too",
    ),
    ("check: a zero flag in version 2", ": the zero flag is set in a version 2 image"),
];

/// The result of a comparison without a disagreement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compared {
    /// The exit code of qemu-img.
    pub code: i32,
    /// Both programs printed counts. Otherwise, the check ended with an error.
    pub has_counts: bool,
    /// The faults that only our check counts, by kind as in [`NAMED`].
    pub named: [u64; NAMED.len()],
}

/// Compares the JSON form: every field, and the exit code. Our corruptions are those of qemu-img and the named ones.
pub fn compare_json(path: &Path) -> Checked<Compared> {
    let [ours, theirs] = both(path, "--output=json")?;
    let compared = compare_codes(path, &ours, &theirs)?;
    let extra: u64 = compared.named.iter().sum();
    let mut expected = object(&theirs)?;
    if extra > 0 {
        let corruptions = expected.get("corruptions").and_then(Value::as_u64).unwrap_or(0);
        expected.insert("corruptions".to_string(), (corruptions + extra).into());
    }
    match object(&ours)? == expected && (extra > 0 || ours.stdout == theirs.stdout) {
        true => Ok(compared),
        false => Err(disagreement(path, &ours, &theirs)),
    }
}

/// Compares the human form byte for byte, and the exit code, unless our check counts faults of its own.
pub fn compare_human(path: &Path) -> Checked<Compared> {
    let [ours, theirs] = both(path, "--output=human")?;
    let compared = compare_codes(path, &ours, &theirs)?;
    let extra: u64 = compared.named.iter().sum();
    match extra > 0 || ours.stdout == theirs.stdout {
        true => Ok(compared),
        false => Err(disagreement(path, &ours, &theirs)),
    }
}

fn both(path: &Path, form: &str) -> Checked<[Output; 2]> {
    let [ours, theirs] = [env!("CARGO_BIN_EXE_qcowfuzz"), "qemu-img"].map(|tool| {
        let mut command = Command::new(tool);
        // qemu looks for data files in the current directory. Ours lie beside their images.
        command.current_dir(path.parent().unwrap_or(path));
        command.args(["check", form, "-f", "qcow2"]).arg(path);
        command.output().map_err(|error| format!("{tool}: {error}"))
    });
    Ok([ours?, theirs?])
}

/// Compares the exit codes. A named fault makes an image corrupt.
fn compare_codes(path: &Path, ours: &Output, theirs: &Output) -> Checked<Compared> {
    let said = String::from_utf8_lossy(&ours.stderr);
    let count = |end: &str| said.lines().filter(|line| line.ends_with(end)).count() as u64;
    let code = theirs.status.code();
    // A check that ends with an error prints no counts.
    let has_counts = !ours.stdout.is_empty();
    let named = NAMED.map(|(_, end)| if has_counts { count(end) } else { 0 });
    let expected = match code {
        Some(0 | 3) if named.iter().any(|count| *count > 0) => Some(2),
        code => code,
    };
    match code {
        Some(code) if ours.status.code() == expected => Ok(Compared { code, has_counts, named }),
        _ => Err(disagreement(path, ours, theirs)),
    }
}

/// Returns the fields of the output. A check that ends with an error prints none.
fn object(output: &Output) -> Checked<Map<String, Value>> {
    if output.stdout.is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_slice(&output.stdout).described()
}

fn disagreement(path: &Path, ours: &Output, theirs: &Output) -> String {
    let [ours, theirs] = [("qcowfuzz", ours), ("qemu-img", theirs)]
        .map(|(tool, output)| qemu::failure(tool, &[path.as_os_str()], output));
    format!("check: {ours}\n{theirs}")
}
