//! The Python package: makes its wheel, and checks it with the examples as a user in Python would.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::c_library;
use crate::process::{captured, command, expect, files_below, python, quiet, root, target_folder};

const PACKAGE: &str = "crates/libqcowfuzz/python";
const EXAMPLES: &str = "examples/python";
/// The packages that the examples and the tests need beside the wheel.
const NEEDED: [&str; 4] = ["pytest", "atheris", "libqcow-python", "dissect.hypervisor"];
/// The bug that is planted in the reader of the examples.
const PLANTED: &str = "data: zero-allocated, what was written → another stamp";

/// Writes the wheel to `folder`, and returns its path.
pub fn wheel(folder: &Path) -> Result<PathBuf> {
    let staging = tempfile::tempdir()?;
    let (prefix, package) = (staging.path().join("prefix"), staging.path().join("package"));
    c_library::install(&prefix)?;
    let source = root().join(PACKAGE);
    let is_tool = |path: &PathBuf| path.components().any(|it| it.as_os_str() == "__pycache__");
    for file in files_below(&source)?.into_iter().filter(|path| !is_tool(path)) {
        let copy = package.join(file.strip_prefix(&source)?);
        fs::create_dir_all(copy.parent().context("a file without a folder")?)?;
        fs::copy(&file, copy)?;
    }
    for (from, to) in
        [("lib/libqcowfuzz.so.1", "libqcowfuzz.so"), ("include/qcowfuzz.h", "qcowfuzz.h")]
    {
        fs::copy(prefix.join(from), package.join("qcowfuzz").join(to)).context(from)?;
    }
    let made = staging.path().join("made");
    let mut pip = command("python3");
    pip.args(["-m", "pip", "wheel", "-q", "--no-deps", "--disable-pip-version-check", "-w"]);
    quiet(pip.arg(&made).arg(&package))?;
    let wheel = files_below(&made)?.pop().context("pip has made no wheel")?;
    fs::create_dir_all(folder)?;
    let kept = folder.join(wheel.file_name().context("a wheel without a name")?);
    fs::copy(wheel, &kept)?;
    println!("{}", kept.display());
    Ok(kept)
}

/// Installs the wheel, and runs the examples in an empty folder: each finds its bug.
pub fn check() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let wheel = wheel(folder.path())?;
    let programs = python("python-package", &NEEDED)?;
    let mut pip = command(programs.join("pip"));
    pip.args(["install", "-q", "--disable-pip-version-check", "--force-reinstall", "--no-deps"]);
    quiet(pip.arg(&wheel))?;
    let examples = folder.path().join("examples");
    fs::create_dir(&examples)?;
    for file in files_below(&root().join(EXAMPLES))?
        .into_iter()
        .filter(|it| it.extension() == Some("py".as_ref()))
    {
        fs::copy(&file, examples.join(file.file_name().context("a file without a name")?))?;
    }
    let run = |program: &str, arguments: &[&str]| {
        let mut run = command(programs.join(program));
        run.args(arguments).current_dir(&examples);
        run
    };
    let mut tests = command(programs.join("pytest"));
    expect(tests.arg("-q").arg(root().join(PACKAGE).join("tests")), 0, " passed")?;
    let tested = expect(&mut run("pytest", &["-q", "test_reader.py"]), 1, PLANTED)?;
    ensure!(tested.contains(" passed"), "{tested}\nexpected tests that pass, too");
    let fuzz = ["fuzz_reader.py", "-seed=1", "-max_total_time=100"];
    expect(&mut run("python", &fuzz), 77, PLANTED)?;
    for engine in ["libqcow_engine", "dissect_engine"] {
        let mut first = run("python", &["first_findings.py", engine, "300"]);
        print!("{engine}: {}", expect(&mut first, 0, "300 programs, ")?);
    }
    self_test(&programs, &examples)?;
    types(&programs)?;
    println!("check-python: the examples find their bugs");
    Ok(())
}

/// An adapter with a mistake: it reads the file in place of the disk.
const MISTAKEN: &str = "import engine\n\n\nclass Engine(engine.Engine):\n    def open(self, files):\n        \
    disk = super().open(files)\n        disk.read = files[0].read\n        return disk\n";

/// Has the command test the adapter of the reader and one with a mistake: it distinguishes a bug from the mistake.
fn self_test(programs: &Path, examples: &Path) -> Result<()> {
    quiet(command("cargo").args(["build", "-q", "--locked", "--bin", "qcowfuzz"]))?;
    fs::write(examples.join("mistaken.py"), MISTAKEN)?;
    for (module, reason) in [
        ("engine", "probably a bug of the implementation"),
        ("mistaken", "reads return the file's bytes, not the guest's"),
    ] {
        let engine = format!("{}/python -m qcowfuzz {module}:Engine", programs.display());
        let mut test = command(target_folder("").join("debug/qcowfuzz"));
        test.current_dir(examples).args(["--engine-command", &engine, "selftest"]);
        expect(&mut test, 1, reason)?;
    }
    Ok(())
}

/// Checks the types that the package declares.
fn types(programs: &Path) -> Result<()> {
    let bin = python("python-package", &["mypy"])?;
    ensure!(bin == programs, "expected one folder of programs");
    let (status, output) = captured(
        command(bin.join("mypy")).arg("--strict").arg(root().join(PACKAGE).join("qcowfuzz")),
    )?;
    ensure!(status.success(), "{output}");
    Ok(())
}
