//! Stands in for the builder's image: a clean tree in $SRC, the environment of its `compile` script, its `cargo`.
//!
//! Differences from the image: Debian's clang and its libFuzzer, libstdc++ in place of libc++, the machine's nightly
//! toolchain, Rust code that is not optimized, which takes half of the time to build, and in a coverage build no
//! instrumentation of C code: an older clang and rustc do not write the same profiles, and reports leave dependencies
//! out.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::CLANG;
use crate::process::{command, output, quiet};
use crate::tree::{CANARY_SCRIPT, Changes, copy};

const C_FLAGS: &str =
    "-O1 -fno-omit-frame-pointer -gline-tables-only -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION";
const C_FLAGS_ADDRESS: &str =
    " -fsanitize=address -fsanitize-address-use-after-scope -fsanitize=fuzzer-no-link";
const RUST_FLAGS: &str = "--cfg fuzzing -Cdebuginfo=1 -Cforce-frame-pointers";
/// LLVM's tools from PyPI have no zlib.
const RUST_FLAGS_COVERAGE: &str =
    " -Cinstrument-coverage -Cllvm-args=-enable-name-compression=false";
/// The image's `cargo` makes a plain build of `cargo fuzz build` if coverage is wanted, without cargo-fuzz's flags.
const CARGO: &str = r#"#!/usr/bin/env bash
set -euo pipefail
if [ "$SANITIZER" = coverage ] && [ "${1-} ${2-}" = "fuzz build" ]; then
    cd fuzz
    RUSTFLAGS="$RUSTFLAGS -Cdebug-assertions=no" "$REAL_CARGO" build --bins
    mkdir -p target/x86_64-unknown-linux-gnu/release
    find target/debug -maxdepth 1 -type f -executable -exec cp -t target/x86_64-unknown-linux-gnu/release {} +
    exit
fi
exec "$REAL_CARGO" "$@"
"#;
/// Variables of the machine that would change what is built, or where.
const OWN_SETTINGS: &str =
    "CARGO_BUILD_ CARGO_ENCODED_ CARGO_PROFILE_ CARGO_TARGET_ CARGO_INCREMENTAL RUSTC";
/// Copies a crate of 'qcowfuzz new-engine', but not the files of builds and campaigns.
const COPY_CRATE: &str = r#"tar --exclude={target,artifacts,state,.git} -c . | tar -x -C "$0""#;

/// A clean copy of a tree, and builds of it.
pub struct Builder {
    scratch: PathBuf,
    /// The copy.
    pub tree: PathBuf,
    cargo: String,
}

impl Builder {
    /// Copies the repository, or a crate of 'qcowfuzz new-engine', into a folder, which is empty.
    pub fn new(scratch: &Path, of_crate: Option<&Path>) -> Result<Self> {
        let name = of_crate.map_or(Some("qcowfuzz".as_ref()), Path::file_name);
        let tree = scratch.join("src").join(name.context("a crate without a name")?);
        let shims = scratch.join("bin");
        for folder in [&tree, &shims, &scratch.join("work")] {
            fs::create_dir_all(folder)?;
        }
        let script = match of_crate {
            None => {
                copy(&tree, &Changes::new())?;
                "oss-fuzz/build.sh"
            }
            Some(from) => {
                let mut copy = command("bash");
                copy.args(["-eo", "pipefail", "-c", COPY_CRATE]).arg(&tree).current_dir(from);
                quiet(&mut copy)?;
                ".clusterfuzzlite/build.sh"
            }
        };
        // As the Dockerfile does.
        fs::copy(tree.join(script), scratch.join("src/build.sh"))
            .with_context(|| script.to_owned())?;
        fs::write(shims.join("cargo"), CARGO)?;
        fs::set_permissions(shims.join("cargo"), fs::Permissions::from_mode(0o755))?;
        let cargo = output(command("sh").args(["-c", "command -v cargo"]))?.trim().to_owned();
        Ok(Self { scratch: scratch.to_owned(), tree, cargo })
    }

    /// Returns a command that runs in the tree with the variables that the image sets for a build.
    fn command(&self, program: &str, sanitizer: &str, out: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if OWN_SETTINGS.split(' ').any(|own| name.to_string_lossy().starts_with(own)) {
                command.env_remove(name);
            }
        }
        let (c_flags, rust_flags) = match sanitizer {
            "address" => (C_FLAGS.to_owned() + C_FLAGS_ADDRESS, " -Zsanitizer=address"),
            _ => (C_FLAGS.to_owned(), RUST_FLAGS_COVERAGE),
        };
        let path = format!("{}:{}", self.scratch.join("bin").display(), std::env::var("PATH")?);
        command.current_dir(&self.tree).env("PATH", path).env("REAL_CARGO", &self.cargo);
        command.env("SRC", self.scratch.join("src")).env("WORK", self.scratch.join("work"));
        command.env("OUT", out).env("CUSTOM_LIBFUZZER_PATH", libfuzzer()?);
        command.envs([
            ("RUSTUP_TOOLCHAIN", "nightly"),
            ("SANITIZER", sanitizer),
            ("FUZZING_ENGINE", "libfuzzer"),
            ("FUZZING_LANGUAGE", "rust"),
            ("ARCHITECTURE", "x86_64"),
            ("CC", CLANG),
            ("CXX", &CLANG.replace("clang", "clang++")),
            ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0"),
            ("CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER", CLANG),
            ("CFLAGS", &c_flags),
            ("CXXFLAGS", &c_flags),
            ("RUSTFLAGS", &(RUST_FLAGS.to_owned() + rust_flags)),
            ("CUSTOM_LIBFUZZER_STD_CXX", "stdc++"),
        ]);
        Ok(command)
    }

    /// Runs build.sh. Returns the folder `out-NAME` with the targets.
    pub fn targets(&self, sanitizer: &str, name: &str, targets: &[&str]) -> Result<PathBuf> {
        let out = self.scratch.join(format!("out-{name}"));
        fs::create_dir(&out)?;
        let mut build = self.command("bash", sanitizer, &out)?;
        quiet(build.arg("-eu").arg(self.scratch.join("src/build.sh")).args(targets))?;
        Ok(out)
    }

    /// Builds a target with the canary planted. Returns its folder.
    pub fn planted(&self, target: &str) -> Result<PathBuf> {
        let script = self.tree.join(CANARY_SCRIPT.0);
        ensure!(
            !script.exists(),
            "the walker has a build.rs, expected none: the canary is planted by one"
        );
        fs::write(&script, CANARY_SCRIPT.1)?;
        let out = self.targets("address", "canary", &[target])?;
        fs::remove_file(script)?;
        Ok(out)
    }

    /// Returns the names of all targets, sorted.
    pub fn listed(&self) -> Result<Vec<String>> {
        let list = output(self.command("cargo", "address", &self.scratch)?.args(["fuzz", "list"]))?;
        let mut names: Vec<_> = list.split_whitespace().map(str::to_owned).collect();
        names.sort();
        Ok(names)
    }
}

/// Returns the path of clang's libFuzzer.
pub fn libfuzzer() -> Result<PathBuf> {
    let resources = output(command(CLANG).arg("-print-resource-dir"))?;
    Ok(Path::new(resources.trim()).join("lib/linux/libclang_rt.fuzzer-x86_64.a"))
}
