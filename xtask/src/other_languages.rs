//! Implementations behind the line protocol of `docs/engines.md`, and their programs in `engines/findings/`.

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;

use crate::process::{attached, command, finds, python, quiet, root, run, target_folder};

/// The implementations: libqcow, libvhdi and libvmdk (C), dissect.hypervisor (Python), 7-Zip (C++), and the crate qcow,
/// whose dependencies cannot be resolved beside ours. Then the numbers of runs: generated programs, and the loop. The
/// same runs find the same everywhere, and seconds would not.
const ALL: [(&str, [&str; 2]); 6] = [
    ("libqcow", ["200", "3000"]),
    ("libvhdi", ["100", "300"]),
    ("libvmdk", ["200", "1000"]),
    ("dissect_hypervisor", ["8", "200"]),
    ("seven_zip", ["60", "200"]),
    ("qcow", ["5", "20"]),
];
/// A hang costs ten seconds of CPU time, and half of the extended L2 images hang. One of the programs shows it.
const NO_HANGS: (&str, &str) = ("dissect_hypervisor", " 'no extended L2 entries'");

/// Fuzz implementations behind the line protocol, and fail if one shows a new finding
///
/// Installs them for engines/other/engine: packages of PyPI go to target/other-languages, 7-Zip and cmake come from
/// Debian. Then each runs generated programs and the loop. A finding is new if engines/findings/NAME.toml lacks it.
#[derive(clap::Args)]
pub struct Arguments {
    /// Some of them [default: all]
    #[arg(value_parser = PossibleValuesParser::new(names()))]
    names: Vec<String>,
    /// Only install
    #[arg(long)]
    install: bool,
    /// Run their programs of engines/findings/ instead, in about three minutes, and fail if one shows nothing
    #[arg(long, conflicts_with_all = ["install", "names"])]
    rows: bool,
}

/// Returns the names of all implementations.
fn names() -> impl Iterator<Item = &'static str> {
    ALL.into_iter().map(|it| it.0)
}

/// Installs and fuzzes implementations.
pub fn fuzz(arguments: &Arguments) -> Result<()> {
    let is_wanted =
        |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|it| it == name);
    names().filter(|name| is_wanted(name)).try_for_each(install)?;
    if arguments.install {
        return Ok(());
    }
    if arguments.rows {
        // The test is part of the crates' workspace, whose commands it uses.
        let line = "test --locked --release --manifest-path engines/Cargo.toml --test findings";
        return run(command("cargo").args(line.split(' ')).args(["--", "--ignored"]));
    }
    // The implementations take most of the time, so an optimised command would save less than its build costs.
    quiet(command("cargo").args(["build", "-q", "--locked", "--bin", "qcowfuzz"]))?;
    let campaigns = tempfile::tempdir_in(root().join("target/other-languages"))?;
    let mut found = Vec::new();
    for (name, runs) in ALL.into_iter().filter(|it| is_wanted(it.0)) {
        let claims = if name == NO_HANGS.0 { NO_HANGS.1 } else { "" };
        let engine = format!("'{}' {name}{claims}", root().join("engines/other/engine").display());
        for (option, runs) in [Some("--generated"), None].into_iter().zip(runs) {
            println!("\n-- {name} {} --runs {runs}", option.unwrap_or_default());
            let mut fuzz = attached(target_folder("").join("debug/qcowfuzz"));
            fuzz.args(["--engine-command", &engine, "--known"]);
            fuzz.arg(root().join(format!("engines/findings/{name}.toml")));
            fuzz.args(["fuzz", "--jobs", "1", "--runs", runs]).args(option).arg("--dir");
            fuzz.arg(campaigns.path().join(format!("{name}{}", option.unwrap_or_default())));
            found.extend(finds(&mut fuzz)?.then_some(name));
        }
    }
    ensure!(found.is_empty(), "new findings in {}", found.join(", "));
    Ok(())
}

/// Installs an implementation, unless it is installed.
pub fn install(name: &str) -> Result<()> {
    match name {
        "qcow" => {
            run(command(".ci/install-tools").arg("cmake"))?;
            let line = "build --locked --release --quiet --target-dir engines/qcow/target \
                --manifest-path engines/qcow/Cargo.toml";
            return run(command("cargo").args(line.split_whitespace()));
        }
        "seven_zip" => run(command(".ci/install-tools").arg("7zip"))?,
        _ => {}
    }
    python("other-languages/venv", &["-r", "engines/other/requirements.txt"]).map(drop)
}
