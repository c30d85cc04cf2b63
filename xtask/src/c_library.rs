//! The C library: makes its header, installs it, and checks both as a user in C would.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};

use crate::checks::page::{Page, Step, shell};
use crate::process::{command, expect, quiet, read, replace, root, run, target_folder};

/// The folder of the crate.
const CRATE: &str = "crates/libqcowfuzz";
const HEADER: &str = "crates/libqcowfuzz/include/qcowfuzz.h";
/// The file that the linker finds, beside the one that programs load.
const LINKED: &str = "libqcowfuzz.so";
const LOADED: &str = "libqcowfuzz.so.1";
const PAGE: &str = "docs/c.md";
/// The code that the page shows.
const EXAMPLE: &str = "examples/c";
/// The most commands that lead from an empty folder to a first minimized bug, with each of two fuzzers.
const MOST_COMMANDS: usize = 8;
/// The exit codes of a command of the page: success, a finding of ours, and one of libFuzzer.
const CODES: [i32; 3] = [0, 1, 77];
/// Undefined behaviour ends the process, as errors of memory do.
const SANITIZERS: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

/// Writes the header, or checks that it is the one that cbindgen makes from the sources.
pub fn header(write: bool) -> Result<()> {
    let made = made_header()?;
    if write {
        return replace(&root().join(HEADER), &made);
    }
    ensure!(
        read(HEADER)? == made,
        "{HEADER}: expected the header of the sources, found another one: run 'cargo xtask c-header --write'"
    );
    Ok(())
}

fn made_header() -> Result<String> {
    let folder = root().join(CRATE);
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml"));
    let config = config.map_err(|error| anyhow!("{CRATE}/cbindgen.toml: {error}"))?;
    let mut header = Vec::new();
    cbindgen::generate_with_config(&folder, config).context(CRATE)?.write(&mut header);
    Ok(without_safety(&String::from_utf8(header)?))
}

/// Leaves out the sections about safety, which are for readers of Rust: in C, every pointer is the caller's promise.
fn without_safety(header: &str) -> String {
    let (mut made, mut skips) = (String::new(), false);
    let mut lines = header.lines().peekable();
    while let Some(line) = lines.next() {
        let begins = line.trim() == "//" && lines.peek() == Some(&"// # Safety");
        skips = (skips && line.starts_with("//")) || begins;
        if !skips {
            made.push_str(line);
            made.push('\n');
        }
    }
    made
}

/// Builds the library, and installs it below `prefix`: the header, both libraries, and the file of pkg-config.
pub fn install(prefix: &Path) -> Result<()> {
    let mut build = command("cargo");
    build.args(["rustc", "-q", "--locked", "--release", "-p", "libqcowfuzz", "--lib", "--"]);
    run(build.args(["-C", &format!("link-arg=-Wl,-soname,{LOADED}")]))?;
    let built = target_folder("").join("release");
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    fs::create_dir_all(&include)?;
    fs::create_dir_all(lib.join("pkgconfig"))?;
    fs::copy(root().join(HEADER), include.join("qcowfuzz.h")).context(HEADER)?;
    fs::copy(built.join("libqcowfuzz.a"), lib.join("libqcowfuzz.a")).context("libqcowfuzz.a")?;
    // Programs that run keep the file that they have loaded.
    let loaded = lib.join(LOADED);
    fs::copy(built.join(LINKED), lib.join("libqcowfuzz.so.new")).context(LINKED)?;
    fs::rename(lib.join("libqcowfuzz.so.new"), &loaded)?;
    let linked = lib.join(LINKED);
    if linked.symlink_metadata().is_ok() {
        fs::remove_file(&linked)?;
    }
    symlink(LOADED, &linked)?;
    let prefix = fs::canonicalize(prefix)?;
    replace(&lib.join("pkgconfig/qcowfuzz.pc"), &pkg_config(&prefix))?;
    println!("{}: the header, the libraries, and qcowfuzz.pc", prefix.display());
    Ok(())
}

fn pkg_config(prefix: &Path) -> String {
    format!(
        "prefix={}\n\nName: qcowfuzz\nDescription: Fuzz code that reads or writes disk images\nVersion: {}\n\
         Cflags: -I${{prefix}}/include\nLibs: -L${{prefix}}/lib -lqcowfuzz\n\
         Libs.private: -lpthread -ldl -lm\n",
        prefix.display(),
        env!("CARGO_PKG_VERSION"),
    )
}

/// Checks the library as a user in C would: the header is that of the sources, a program that misuses every function
/// gets clear errors, and the page leads to its bugs.
pub fn check() -> Result<()> {
    header(false)?;
    let folder = tempfile::tempdir()?;
    let prefix = folder.path().join("prefix");
    install(&prefix)?;
    misuse(&prefix, folder.path())?;
    follow_page(&prefix, folder.path())?;
    println!("check-c: the library does as its header says, and {PAGE} is true");
    Ok(())
}

/// Builds the tests of the library with sanitizers, with both libraries, and runs them.
fn misuse(prefix: &Path, folder: &Path) -> Result<()> {
    let tests = root().join(CRATE).join("tests");
    let reader = root().join(EXAMPLE).join("reader.c");
    let (include, lib) = (prefix.join("include"), prefix.join("lib"));
    let shared = ["-L".into(), lib.display().to_string(), "-lqcowfuzz".into()];
    let loaded_from = format!("-Wl,-rpath,{}", lib.display());
    let alone = [lib.join("libqcowfuzz.a").display().to_string(), "-ldl".into(), "-lm".into()];
    for (compiler, test, sources, library) in [
        ("clang", "library.c", vec![&reader], shared.clone()),
        ("clang", "library.c", vec![&reader], alone),
        ("clang++", "exceptions.cc", Vec::new(), shared),
    ] {
        let program = folder.join("test");
        let mut build = command(compiler);
        build.args(["-g", "-O1", "-Wall", "-Wextra", "-Werror"]).args(SANITIZERS);
        build.arg("-I").arg(&include).arg(tests.join(test)).args(sources).args(library);
        quiet(build.args(["-lpthread", &loaded_from, "-o"]).arg(&program))?;
        expect(&mut command(&program), 0, "all as expected")?;
    }
    Ok(())
}

/// Follows the page in an empty folder.
fn follow_page(prefix: &Path, folder: &Path) -> Result<()> {
    let text = read(PAGE)?;
    let page = Page::parse(PAGE, &text);
    let mut build = command("cargo");
    quiet(build.args(["build", "-q", "--locked", "--bin", "qcowfuzz"]))?;
    let folder: PathBuf = folder.join("page");
    fs::create_dir(&folder)?;
    let variables = [
        ("QCOWFUZZ", root().display().to_string()),
        ("PREFIX", prefix.display().to_string()),
        (
            "PATH",
            format!("{}:{}", target_folder("").join("debug").display(), std::env::var("PATH")?),
        ),
    ];
    let commands = page.commands();
    ensure!(commands <= MOST_COMMANDS, "{PAGE}: {commands} commands, expected {MOST_COMMANDS}");
    for step in &page.steps {
        match step {
            Step::Command(line, expected) => {
                page.compare(&shell(line, &folder, &variables, &CODES)?, expected)?;
            }
            Step::Code(file, code) => {
                let example = format!("{EXAMPLE}/{file}");
                ensure!(read(&example)? == *code, "{PAGE}: expected the code of {example}");
                fs::write(folder.join(file), code)?;
            }
        }
    }
    // The self-test finds the bug of the reader, and no mistake of the adapter.
    let tested =
        shell("qcowfuzz --engine-command 'sh engine' selftest", &folder, &variables, &[1])?;
    ensure!(tested.contains("probably a bug of the implementation"), "{tested}");
    Ok(())
}
