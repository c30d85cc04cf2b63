//! Implementations behind the line protocol of `docs/protocol.md`, and the rows of `docs/findings.md`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use clap::builder::PossibleValuesParser;

use crate::engines::{Qcowfuzz, finds};
use crate::process::{captured, command, failed, output, root, run};

/// The implementations: libqcow (C), dissect.hypervisor (Python), 7-Zip (C++), and the crate qcow, whose dependencies
/// cannot be resolved beside ours. Then the numbers of runs: generated programs, and the loop. The same runs find the
/// same everywhere, and seconds would not.
const ALL: [(&str, [&str; 2]); 4] = [
    ("libqcow", ["200", "3000"]),
    ("dissect_hypervisor", ["8", "200"]),
    ("seven_zip", ["60", "200"]),
    ("qcow", ["5", "20"]),
];
/// A hang costs ten seconds of CPU time, and half of the extended L2 images hang. A row of docs/findings.md shows one.
const NO_HANGS: (&str, &[&str]) = ("dissect_hypervisor", &["no extended L2 entries"]);
/// The packages of PyPI.
const REQUIREMENTS: &str = "engines/other/requirements.txt";
const QCOW: &str = "engines/qcow/Cargo.toml";

/// Fuzz implementations behind the line protocol, and fail if one shows a new finding
///
/// Installs them for engines/other/engine: packages of PyPI go to target/other-languages, 7-Zip and cmake come from
/// Debian. Then each runs generated programs and the loop. A finding is new if engines/other/known/NAME.toml lacks it.
#[derive(clap::Args)]
pub struct Arguments {
    /// Some of them [default: all]
    #[arg(value_parser = PossibleValuesParser::new(ALL.map(|it| it.0)))]
    names: Vec<String>,
    /// Only install
    #[arg(long)]
    install: bool,
    /// Run their rows of docs/findings.md instead, in about three minutes, and fail if one shows nothing
    #[arg(long, conflicts_with_all = ["install", "names"])]
    rows: bool,
}

/// Installs and fuzzes implementations.
pub fn fuzz(arguments: &Arguments) -> Result<()> {
    let wanted =
        |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|it| it == name);
    let names: Vec<_> = ALL.into_iter().filter(|it| wanted(it.0)).collect();
    names.iter().try_for_each(|(name, _)| install(name))?;
    if arguments.rows {
        // The test is part of the crates' workspace, whose commands it uses.
        let test = [
            "test",
            "--locked",
            "--release",
            "--manifest-path",
            "engines/Cargo.toml",
            "--test",
            "findings",
        ];
        let passed = command("cargo").args(test).args(["--", "--ignored"]).status()?.success();
        return if passed {
            Ok(())
        } else {
            Err(failed("a row of docs/findings.md shows something else"))
        };
    }
    if arguments.install {
        return Ok(());
    }
    let campaigns = tempfile::tempdir_in(root().join("target/other-languages"))?;
    let mut found = Vec::new();
    for (name, [generated, mutated]) in names {
        let claims = if name == NO_HANGS.0 { NO_HANGS.1 } else { &[] };
        // The implementations take most of the time, so an optimised command would save less than its build costs.
        let qcowfuzz = Qcowfuzz::own("dev")?.behind_protocol(name, claims);
        for options in [&["--generated", "--runs", generated][..], &["--runs", mutated]] {
            println!("\n-- {name} {}", options.join(" "));
            let folder = campaigns.path().join(format!("{name}-{}", options.len()));
            let mut fuzz = qcowfuzz.verb("fuzz");
            if finds(fuzz.args(["--jobs", "1"]).args(options).arg("--dir").arg(folder))? {
                found.push(name);
            }
        }
    }
    if found.is_empty() {
        Ok(())
    } else {
        Err(failed(format!("new findings in {}", found.join(", "))))
    }
}

/// Installs an implementation, unless it is installed.
fn install(name: &str) -> Result<()> {
    if name == "qcow" {
        run(command(".ci/install-tools").arg("cmake"))?;
        let build =
            ["build", "--locked", "--release", "--quiet", "--target-dir", "engines/qcow/target"];
        return run(command("cargo").args(build).args(["--manifest-path", QCOW]));
    }
    if name == "seven_zip" {
        run(command(".ci/install-tools").arg("7zip"))?;
    }
    let venv = root().join("target/other-languages/venv");
    let (wanted, installed) = (fs::read(root().join(REQUIREMENTS))?, venv.join("installed.txt"));
    if fs::read(&installed).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    run(command("python3").args(["-m", "venv"]).arg(&venv))?;
    let install =
        ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", REQUIREMENTS];
    run(command(venv.join("bin/python")).args(install))?;
    Ok(fs::write(installed, wanted)?)
}

/// Shows a row of docs/findings.md: prints the program, its replay with the implementation, and the answers of
/// qemu-img about the image.
pub fn show_finding(row: &str) -> Result<()> {
    let path = root().join("engines/findings").join(row).with_extension("txt");
    ensure!(path.is_file(), "no row '{row}', expected IMPLEMENTATION/NAME of docs/findings.md");
    let text = fs::read_to_string(&path)?;
    let name = row.split('/').next().unwrap_or(row);
    let target =
        text.lines().find_map(|line| line.strip_prefix("; target: ")).unwrap_or("map_extents");
    let (qcowfuzz, work) = (Qcowfuzz::of(name)?, tempfile::tempdir()?);
    let (input, image) = (work.path().join("input"), work.path().join("image"));
    println!("{text}");
    run(qcowfuzz.verb("asm").arg(&path).arg("-o").arg(&input))?;
    println!("\n== {name}");
    // `replay` writes the damage of hostile programs, too. `export` writes the image of a run that panics, too.
    let replay = |qcowfuzz: &Qcowfuzz| {
        let mut replay = qcowfuzz.verb("replay");
        replay.args(["--target", target]);
        if target != "map_extents" {
            replay.arg("--dump-image").arg(&image);
        }
        captured(replay.arg(&input))
    };
    let (_, report) = replay(&qcowfuzz)?;
    let report = report.replace(&format!("{}/", work.path().display()), "");
    let lines = report.lines().take_while(|line| !line.starts_with("image version"));
    lines.filter(|line| !line.is_empty()).for_each(|line| println!("{line}"));
    if target == "map_extents" {
        output(qcowfuzz.verb("export").arg(&input).arg("-o").arg(&image))?;
    } else if !image.exists() {
        // The implementation ended the process, which writes no image then. Our walker builds the same one.
        replay(&Qcowfuzz::own("release")?)?;
    }
    let format = format_of(&text);
    let qemu_img =
        |arguments: &[&str]| printed(Command::new("qemu-img").args(arguments), work.path());
    println!("\n== qemu-img check\n{}", qemu_img(&["check", "-f", format, "image"])?);
    let map = qemu_img(&["map", "-f", format, "--output=json", "image"])?;
    println!("\n== qemu-img map\n{}", first_lines(&map, 10));
    // Not every file system has room for a long disk.
    let read =
        qemu_img(&["dd", "-f", format, "-O", "raw", "bs=4096", "count=1", "if=image", "of=raw"])?;
    println!("\n== qemu-img dd: the first 4 KiB\n{read}");
    if work.path().join("raw").exists() {
        let bytes = printed(Command::new("od").args(["-A", "x", "-c", "raw"]), work.path())?;
        println!("{}", first_lines(&bytes, 8));
    }
    Ok(())
}

/// Returns the first lines of a text.
fn first_lines(text: &str, count: usize) -> String {
    text.lines().take(count).collect::<Vec<_>>().join("\n")
}

/// Returns the format of the image to open. A fixed VHD disk looks like a raw one to qemu-img.
fn format_of(text: &str) -> &str {
    let is_overlay = text.lines().any(|line| line.starts_with("overlay"));
    let base = text
        .lines()
        .find(|line| line.starts_with("image "))
        .and_then(|line| line.split_once(" base="));
    match base.and_then(|(_, base)| base.split([' ', '=']).next()) {
        Some("large_vmdk") => "vmdk",
        Some(base) if base.starts_with('v') && !is_overlay => base,
        _ => "qcow2",
    }
}

/// Returns what a command prints in a folder, also if it fails. QEMU looks for data files in the current folder.
fn printed(command: &mut Command, folder: &Path) -> Result<String> {
    Ok(captured(command.current_dir(folder))?.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_names_the_format_of_its_image() {
        let format = |name: &str| {
            let path = root().join("engines/findings").join(name).with_extension("txt");
            format_of(&fs::read_to_string(path).unwrap()).to_owned()
        };
        assert_eq!(format("fstool/zstd_frames"), "qcow2");
        assert_eq!(format_of("; a\nimage version=2 base=vhdx size=1\n"), "vhdx");
        assert_eq!(format_of("image base=large_vmdk\n"), "vmdk");
        assert_eq!(format_of("image base=vhdx\noverlay\n"), "qcow2");
    }
}
