"""What all loops share: how the script fails, the known findings of an engine, and a slice's CPU seconds."""

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
# The bounds of an input, those of the embedded loop.
MAX_RUN_SECONDS = 25
MAX_ADDRESS_BYTES = 4096 << 20
# The fingerprint of an input that ended its process, if no other run shows that. It is no finding.
UNCONFIRMED = "unconfirmed: end"


class Slice(NamedTuple):
    """What a slice did: its runs, its CPU seconds, new findings with the files that show them, and the fingerprints of
    known findings."""

    runs: int
    cpu_seconds: float
    found: list[tuple[str, str]]
    known: list[str]


def fail(message):
    """Prints one line and ends with exit code 2."""
    print(f"campaign: {message}", file=sys.stderr)
    sys.exit(2)


def built(command, name):
    """Runs a build that must succeed."""
    if subprocess.run(command, cwd=ROOT).returncode != 0:
        fail(f"{name} does not build, expected '{' '.join(map(str, command))}' to succeed")


def target_folder(manifest_folder):
    """Returns cargo's target folder of a workspace."""
    return ROOT / os.environ.get("CARGO_TARGET_DIR", f"{manifest_folder}/target")


def existing(path):
    """Returns the path of a built binary."""
    if not path.is_file():
        fail(f"{path}: no such file, expected a built binary")
    return path


def replace(path, text):
    """Writes a file elsewhere and renames it, so that no file is ever incomplete."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


def cpu_seconds():
    """Returns the CPU seconds of all processes that the script has waited for."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def cpu_seconds_of(root):
    """Returns the CPU seconds of a process and its descendants, those that have ended and were waited for included."""
    parents, ticks = {}, {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since.
            continue
        # User and system time: its own, and those of the children it has waited for.
        parents[int(name)], ticks[int(name)] = int(fields[1]), sum(map(int, fields[11:15]))
    total, family = 0, [root]
    for process in family:
        total += ticks.get(process, 0)
        family += [child for child, parent in parents.items() if parent == process]
    return total / os.sysconf("SC_CLK_TCK")


def run_cpu_seconds(command, seconds, **options):
    """Runs a command until it and its descendants have spent so many CPU seconds, and then interrupts it as Ctrl-C does.
    Returns the process, which has ended, and the CPU seconds: less than `seconds` if the command ended by itself.
    `options` are those of `subprocess.Popen`."""
    process = subprocess.Popen(command, **options)
    spent = 0
    try:
        while process.poll() is None and spent < seconds:
            time.sleep(0.1)
            # The sum can fall: a process can end before the processes that it started.
            spent = max(spent, cpu_seconds_of(process.pid))
    finally:
        # A script that ends by an exception leaves no command behind.
        process.send_signal(signal.SIGINT)
        process.wait()
    return process, spent


class KnownFindings:
    """A file of known findings. `*` in a fingerprint stands for any text."""

    def __init__(self, path):
        findings = tomllib.loads(path.read_text()).get("finding", [])
        self.fingerprints = [finding["fingerprint"] for finding in findings]

    def find(self, fingerprint):
        """Returns the first known finding to which a fingerprint belongs, or None."""
        def matches(known):
            return re.fullmatch(".*".join(map(re.escape, known.split("*"))), fingerprint)
        return next(filter(matches, self.fingerprints), None)

    def divide(self, findings):
        """Divides pairs of fingerprint and file into new ones, and the fingerprints of known ones."""
        new = [(fingerprint, file) for fingerprint, file in findings if self.find(fingerprint) is None]
        return new, [fingerprint for fingerprint, _ in findings if self.find(fingerprint) is not None]
