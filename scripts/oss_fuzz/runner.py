"""Stands in for the runner's image: the demands of test_all.py and bad_build_check on a folder of targets."""

import configparser
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

from .common import Failed, Unable, print_end, run, step

# Fewer calls are no ASan build to bad_build_check.
MIN_ASAN_CALLS = 1000
MIN_SEEDS = 10
RUNS = 1000
# A hang must not stop CI for hours. The longest run takes a few seconds.
TIMEOUT_SECONDS = 300
# The image's bounds for a run, and its sanitizer options as far as they decide what is found and printed.
ARGUMENTS = ["-rss_limit_mb=2560", "-timeout=25", "-artifact_prefix=/tmp/"]
ASAN_OPTIONS = (
    "alloc_dealloc_mismatch=0:allocator_may_return_null=1:check_malloc_usable_size=0:detect_leaks=1:"
    "detect_odr_violation=0:detect_stack_use_after_return=1:handle_abort=1:handle_sigill=1:"
    "quarantine_size_mb=10:strict_memcmp=1:symbolize=1:use_sigaltstack=1"
)


class Sandbox:
    """A container with a folder of targets: only /tmp is writable, and there is no /dev."""

    def __init__(self, out, llvm):
        self.out, self.llvm = Path(out).resolve(), llvm
        self.tmp = tempfile.TemporaryDirectory(prefix="oss-fuzz-check-")
        probe = "! touch /out/probe && ! touch /probe && touch /tmp/probe && [ ! -e /dev/null ] && echo restricted"
        code, output = self.run(["/usr/bin/env", "sh", "-c", probe])
        if code != 0 or not output.endswith("restricted\n"):
            raise Unable(f"bwrap does not make all but /tmp read-only here: {output.strip() or 'a write succeeded'}")

    def run(self, command, variables=(), cwd="/out"):
        """Returns the exit code and the output of a command."""
        box = ["bwrap", "--die-with-parent", "--unshare-all", "--new-session", "--proc", "/proc"]
        for folder in ["/usr", "/bin", "/lib", "/lib64"]:
            box += ["--ro-bind-try", folder, folder]
        box += ["--ro-bind", self.out, "/out", "--ro-bind", self.llvm, "/llvm"]
        box += ["--bind", self.tmp.name, "/tmp", "--remount-ro", "/", "--chdir", cwd, "--clearenv"]
        environment = {"PATH": "/out:/llvm/bin:/usr/bin", "ASAN_OPTIONS": ASAN_OPTIONS, **dict(variables)}
        for name, value in environment.items():
            box += ["--setenv", name, value]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        try:
            result = subprocess.run(box + command, timeout=TIMEOUT_SECONDS, check=False, **streams)
        except subprocess.TimeoutExpired:
            raise Failed(f"{' '.join(command)}: no end after {TIMEOUT_SECONDS} s") from None
        return result.returncode, result.stdout.decode(errors="replace")

    def fuzz(self, target, *arguments, **options):
        """Runs a target with its own options and dictionary; returns the exit code and the output."""
        command = [f"/out/{target}", *ARGUMENTS, *self.options(target)]
        if (self.out / f"{target}.dict").exists():
            command.append(f"-dict=/out/{target}.dict")
        return self.run([*command, *arguments], **options)

    def options(self, target):
        """Returns the [libfuzzer] section of a target's options as arguments."""
        path = self.out / f"{target}.options"
        parser = configparser.ConfigParser()
        try:
            parser.read(path)
        except configparser.Error as error:
            raise Failed(f"{target}: {path.name}: {error.message.splitlines()[0]}") from None
        if not parser.has_section("libfuzzer"):
            raise Failed(f"{target}: no section [libfuzzer] in {path.name}")
        return [f"-{name}={value}" for name, value in parser.items("libfuzzer")]

    def folder(self, name):
        """Returns an empty folder, inside /tmp/NAME."""
        path = Path(self.tmp.name, name)
        shutil.rmtree(path, ignore_errors=True)
        path.mkdir()
        return path

    def unpack_seeds(self, target):
        """Puts the seeds of a target into /tmp/seeds; returns how many there are."""
        folder = self.folder("seeds")
        archive = self.out / f"{target}_seed_corpus.zip"
        if archive.exists():
            try:
                with zipfile.ZipFile(archive) as files:
                    files.extractall(folder)
            except zipfile.BadZipFile as error:
                raise Failed(f"{target}: {archive.name}: {error}") from None
        return len(list(folder.iterdir()))


def targets_in(out):
    """Returns the names of the fuzz targets in a folder, sorted; finds them as the runner does."""
    files = [path for path in Path(out).iterdir() if path.is_file() and os.access(path, os.X_OK)]
    targets = sorted(path.name for path in files if b"LLVMFuzzerTestOneInput" in path.read_bytes())
    if not targets:
        raise Failed(f"{out}: no fuzz target")
    return targets


def check(out, llvm):
    """Checks every target of a folder."""
    targets, sandbox = targets_in(out), Sandbox(out, llvm)
    for target in targets:
        with step(f"{target}: ASan, seeds, {RUNS} runs where only /tmp is writable"):
            check_asan(sandbox, target)
            check_seeds(sandbox, target)
            check_read_only(sandbox, target)


def check_asan(sandbox, target):
    """A target without ASan runs well, and misses bugs of memory."""
    code = run(["objdump", "-d", "--no-show-raw-insn", sandbox.out / target])
    calls = len(re.findall(r"\bcallq? +[0-9a-f]+ <__asan", code))
    if calls < MIN_ASAN_CALLS:
        raise Failed(f"{target}: {calls} calls of ASan, expected at least {MIN_ASAN_CALLS}: it is built without")


def check_seeds(sandbox, target):
    """All seeds run without a finding. A seed that crashes would be reported for ever."""
    seeds = sandbox.unpack_seeds(target)
    if seeds < MIN_SEEDS:
        raise Failed(f"{target}: {seeds} seeds in its seed corpus, expected at least {MIN_SEEDS}")
    working = sandbox.folder("working")
    answer = sandbox.fuzz(target, "-runs=0", "/tmp/seeds", cwd="/tmp/working")
    expect_done(target, "a seed of its corpus fails", *answer, seeds)
    # A target that ignores a failing write survives a read-only folder.
    written = sorted(path.name for path in working.iterdir())
    if written:
        raise Failed(f"{target}: it writes into its working directory: {', '.join(written)}")


def check_read_only(sandbox, target):
    """The target needs no folder but /tmp. It begins with its seeds."""
    sandbox.unpack_seeds(target)
    answer = sandbox.fuzz(target, f"-runs={RUNS}", "-seed=1", "/tmp/seeds")
    expect_done(target, f"{RUNS} runs where only /tmp is writable", *answer, RUNS)


def expect_done(target, what, code, output, runs):
    """Fails unless libFuzzer knew all options and made all runs."""
    unknown = re.search(r"unrecognized flag '([^']*)'", output)
    if unknown:
        raise Failed(f"{target}: libFuzzer knows no option {unknown[1]}")
    done = re.search(r"^Done (\d+) runs", output, re.MULTILINE)
    if code != 0 or not done or int(done[1]) < runs:
        print_end(output)
        raise Failed(f"{target}: {what}: exit code {code}, expected 0 and at least {runs} runs")
