"""Stands in for the builder's image: a clean tree in $SRC, the environment of its `compile` script, its `cargo`.

Differences from the image: Debian's clang and its libFuzzer, libstdc++ in place of libc++, the machine's nightly
toolchain unless RUSTUP_TOOLCHAIN says otherwise, Rust code that is not optimized, which takes half of the time to
build, and in a coverage build no instrumentation of C code: an older clang and rustc do not write the same profiles,
and reports leave dependencies out.
"""

import os
import shutil
from pathlib import Path

from .common import CLANG, ROOT, Failed, Unable, run

C_FLAGS = "-O1 -fno-omit-frame-pointer -gline-tables-only -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION"
C_FLAGS_ADDRESS = "-fsanitize=address -fsanitize-address-use-after-scope -fsanitize=fuzzer-no-link"
RUST_FLAGS = "--cfg fuzzing -Cdebuginfo=1 -Cforce-frame-pointers"
# The LLVM tools of common.py have no zlib.
RUST_FLAGS_COVERAGE = "-Cinstrument-coverage -Cllvm-args=-enable-name-compression=false"
# The image's `cargo` makes a plain build of `cargo fuzz build` if coverage is wanted, without cargo-fuzz's flags.
CARGO = """#!/usr/bin/env bash
set -euo pipefail
if [ "$SANITIZER" = coverage ] && [ "${1-} ${2-}" = "fuzz build" ]; then
    cd fuzz
    RUSTFLAGS="$RUSTFLAGS -Cdebug-assertions=no" "$REAL_CARGO" build --bins
    mkdir -p target/x86_64-unknown-linux-gnu/release
    find target/debug -maxdepth 1 -type f -executable -exec cp -t target/x86_64-unknown-linux-gnu/release {} +
    exit
fi
exec "$REAL_CARGO" "$@"
"""
# Variables of the machine that would change what is built, or where.
OWN_SETTINGS = ("CARGO_BUILD_", "CARGO_ENCODED_", "CARGO_PROFILE_", "CARGO_TARGET_", "CARGO_INCREMENTAL", "RUSTC")
# Plants the canary without RUSTFLAGS, which would build all dependencies once more.
PLANTING = 'fn main() { println!("cargo::rustc-cfg=qcowfuzz_canary"); }\n'


class Builder:
    """A clean copy of a tree, and builds of it."""

    def __init__(self, scratch, crate=None):
        """Copies the tracked files into `scratch`, which is empty. Of a crate that `qcowfuzz new-engine` wrote, copies
        all files but those of builds and campaigns."""
        self.scratch = scratch
        self.source = scratch / "src"
        if crate is None:
            self.tree = self.source / "qcowfuzz"
            names = run(["git", "-C", ROOT, "ls-files", "-z"]).split("\0")
            for name in filter(None, names):
                copy = self.tree / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy, follow_symlinks=False)
        else:
            self.tree = self.source / crate.name
            own = shutil.ignore_patterns("target", "artifacts", "state", ".git")
            shutil.copytree(crate, self.tree, symlinks=True, ignore=own)
        # As the Dockerfile does.
        folder = "oss-fuzz" if crate is None else ".clusterfuzzlite"
        shutil.copy2(self.tree / folder / "build.sh", self.source)
        self.cargo = shutil.which("cargo")
        if self.cargo is None:
            raise Unable("no cargo")
        shims = scratch / "bin"
        shims.mkdir()
        (shims / "cargo").write_text(CARGO)
        (shims / "cargo").chmod(0o755)

    def environment(self, sanitizer, out):
        """Returns the variables that the image sets for a build."""
        work = self.scratch / "work"
        work.mkdir(exist_ok=True)
        resources = Path(run([CLANG, "-print-resource-dir"]).strip())
        c_flags, rust_flags = [C_FLAGS], [RUST_FLAGS]
        if sanitizer == "address":
            c_flags.append(C_FLAGS_ADDRESS)
            rust_flags.append("-Zsanitizer=address")
        else:
            rust_flags.append(RUST_FLAGS_COVERAGE)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(OWN_SETTINGS)},
            "RUSTUP_TOOLCHAIN": os.environ.get("RUSTUP_TOOLCHAIN", "nightly"),
            "PATH": f"{self.scratch / 'bin'}:{os.environ['PATH']}",
            "REAL_CARGO": self.cargo,
            "SRC": str(self.source),
            "OUT": str(out),
            "WORK": str(work),
            "SANITIZER": sanitizer,
            "FUZZING_ENGINE": "libfuzzer",
            "FUZZING_LANGUAGE": "rust",
            "ARCHITECTURE": "x86_64",
            "CC": CLANG,
            "CXX": CLANG.replace("clang", "clang++"),
            "CARGO_PROFILE_RELEASE_OPT_LEVEL": "0",
            "CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER": CLANG,
            "CFLAGS": " ".join(c_flags),
            "CXXFLAGS": " ".join(c_flags),
            "RUSTFLAGS": " ".join(rust_flags),
            "CUSTOM_LIBFUZZER_PATH": str(resources / "lib/linux/libclang_rt.fuzzer-x86_64.a"),
            "CUSTOM_LIBFUZZER_STD_CXX": "stdc++",
        }

    def targets(self, sanitizer, *names, folder=None):
        """Runs build.sh; returns the folder with the targets."""
        out = self.scratch / (folder or f"out-{sanitizer}")
        out.mkdir()
        environment = self.environment(sanitizer, out)
        script = self.source / "build.sh"
        run(["bash", "-eu", script, *names], Failed, env=environment, cwd=self.tree)
        return out

    def planted(self, target):
        """Builds a target with the canary planted; returns its folder."""
        script = self.tree / "crates/walker/build.rs"
        if script.exists():
            raise Unable("the walker has a build.rs, expected none: the canary is planted by one")
        script.write_text(PLANTING)
        out = self.targets("address", target, folder="out-canary")
        script.unlink()
        return out

    def listed(self):
        """Returns the names of all targets, sorted."""
        environment = self.environment("address", self.scratch)
        return sorted(run(["cargo", "fuzz", "list"], env=environment, cwd=self.tree).split())
