"""libFuzzer on the targets of engines/fuzz. A finding ends its process: the loop keeps the input, asks the engine's
command for the fingerprint, and sets the finding aside in the next slices."""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from .common import MAX_ADDRESS_BYTES, MAX_RUN_SECONDS, ROOT, UNCONFIRMED, Slice, cpu_seconds, fail, replace

# What the standard library prints if there is no memory: under the classic harness, no oracle names the finding.
NO_MEMORY = re.compile(r"^memory allocation of \d+ bytes failed", re.MULTILINE)


class LibFuzzer:
    """A campaign of libFuzzer in a folder. The seeds of `raw_image` are those of this repository; programs begin with
    none, as in the embedded loop."""

    def __init__(self, engine, target, seed, folder):
        self.engine, self.target, self.seed, self.folder = engine, target, seed, folder
        self.binary = engine.libfuzzer_target(target)
        self.known_file = folder / "known.toml"
        self.artifacts = folder / "artifacts"
        corpora = [folder / "corpus"]
        for path in [*corpora, self.artifacts]:
            path.mkdir(exist_ok=True)
        if target == "raw_image":
            corpora.append(ROOT / "corpus" / target)
        self.command = [self.binary, *corpora, *self.options(), "-print_final_stats=1", f"-timeout={MAX_RUN_SECONDS}",
                        f"-rss_limit_mb={MAX_ADDRESS_BYTES >> 20}"]

    def options(self):
        """Returns libFuzzer's options for the target, which the nightly campaigns of our walker use, too."""
        name = ROOT / "fuzz" / "options" / f"{self.target}.options"
        file = name if name.exists() else ROOT / "fuzz" / "options" / "programs.options"
        return [f"-{key}={value}" for key, value in re.findall(r"^(\w+) = (\S+)", file.read_text(), re.MULTILINE)]

    def run_slice(self, seconds, number):
        """Runs libFuzzer until some seconds are over, or it finds something."""
        before = cpu_seconds()
        with tempfile.TemporaryDirectory(dir=self.folder) as scratch:
            # Each slice continues from the corpus, with random numbers of its own.
            words = [f"-seed={self.seed * 1_000_000 + number}", f"-max_total_time={seconds}",
                     f"-artifact_prefix={scratch}/"]
            done = subprocess.run([*map(str, self.command), *words], env=self.environment(), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True, errors="replace", preexec_fn=limit_memory)
            spent = cpu_seconds() - before
            found = self.fingerprints(Path(scratch), done.stderr)
            new, known = self.engine.known().divide(found)
            kept = [(fingerprint, self.keep(fingerprint, input)) for fingerprint, input in new]
        runs = re.findall(r"^stat::number_of_executed_units:\s*(\d+)", done.stderr, re.MULTILINE)
        if not runs and not found:
            fail(f"libFuzzer ended with {done.returncode} and no finding: {done.stderr.strip()[-500:]}")
        met = re.findall(r"^known finding: (.+)$", done.stderr, re.MULTILINE)
        # The findings of earlier slices are known to the target alone.
        known += filter(self.engine.known().find, met)
        return Slice(int(runs[-1]) if runs else 0, spent, kept, known)

    def environment(self):
        """Returns the environment of the target: the findings of earlier slices are set aside."""
        known = {"QCOWFUZZ_KNOWN": str(self.known_file)} if self.known_file.exists() else {}
        return {**os.environ, **known}

    def fingerprints(self, folder, stderr):
        """Returns the fingerprints of the inputs that libFuzzer wrote to a folder, each with an input."""
        if not any(folder.iterdir()):
            return []
        options = ["--known", str(self.known_file)] if self.known_file.exists() else []
        command = [*self.engine.command(), "triage", "--json", "--target", self.target, *options, str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode not in (0, 1):
            fail(f"triage ended with {done.returncode}, expected 0 or 1: {done.stderr.strip()[-500:]}")
        triaged = json.loads(done.stdout)
        bugs = [bug for bug in triaged["bugs"] + triaged["known"] if bug["inputs"]]
        found = [(bug["fingerprint"], Path(bug["inputs"][0]["path"])) for bug in bugs]
        # Another build of the crate may panic elsewhere. libFuzzer's limit is wall-clock time, so that a loaded machine
        # makes hangs.
        printed = re.findall(r"^panic: .+$", stderr, re.MULTILINE)[-1:] or [UNCONFIRMED]
        return found or [(printed[0], path) for path in folder.iterdir()]

    def keep(self, fingerprint, input):
        """Copies an input to the artifacts if it is the shortest of its finding. Returns the path of the shortest."""
        kept = self.artifacts / hashlib.sha1(fingerprint.encode()).hexdigest()
        if not kept.exists() or input.stat().st_size < kept.stat().st_size:
            shutil.copyfile(input, kept)
        return str(kept)

    def set_aside(self, fingerprints):
        """Writes the findings that the next slices set aside, as TOML. The end of a process cannot be set aside."""
        # A known finding with all of its fingerprints: the next slices may meet another one.
        known = self.engine.known()
        findings = dict.fromkeys(known.find(one) or one for one in fingerprints)
        can_be = [one for one in findings if not one.startswith(("process: ", "memory: allocation", UNCONFIRMED))]
        quoted = [one.replace("\\", "\\\\").replace('"', '\\"') for one in can_be]
        finding = '[[finding]]\nfingerprint = "{}"\nreason = "This campaign found it."\n'
        replace(self.known_file, "".join(map(finding.format, quoted)))


class ClassicHarness(LibFuzzer):
    """libFuzzer on the bytes of a file that the crate opens and reads. Only the end of a run shows a bug."""

    def __init__(self, engine, target, seed, folder):
        super().__init__(engine, "raw_bytes", seed, folder)
        if target == "raw_bytes_seeded":
            self.write_seed()

    def options(self):
        return ["-max_len=131072"]

    def write_seed(self):
        """Writes an image of qemu-img to an empty corpus: two clusters of data, one of them compressed."""
        if any((self.folder / "corpus").iterdir()):
            return
        seed = self.folder / "corpus" / "seed"
        commands = [["qemu-img", "create", "-q", "-f", "qcow2", "-o", "cluster_size=4k", seed, "1M"],
                    ["qemu-io", "-f", "qcow2", "-c", "write -P 1 0 4k", "-c", "write -c -P 2 8k 4k", seed]]
        for command in commands:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def fingerprints(self, folder, stderr):
        """Returns the panics that the target printed, and the end of the process."""
        panics = [(panic, None) for panic in re.findall(r"^finding: (.+)$", stderr, re.MULTILINE)]
        ends = [(self.end_of_process(path, stderr), path) for path in folder.iterdir()]
        return panics + ends

    def end_of_process(self, artifact, stderr):
        """Returns the fingerprint of an input that ended the process, by the name that libFuzzer gave it."""
        if artifact.name.startswith("timeout"):
            return "process: end, an answer → none"
        if artifact.name.startswith("oom") or NO_MEMORY.search(stderr):
            return "memory: allocation, within the limit → beyond"
        # libFuzzer does not name the signal that it handled, so the process runs again without the handlers.
        handlers = [f"-handle_{name}=0" for name in ("segv", "bus", "abrt", "ill", "fpe")]
        again = subprocess.run([self.binary, *handlers, artifact], capture_output=True, preexec_fn=limit_memory)
        if again.returncode >= 0:
            return UNCONFIRMED
        number = -again.returncode
        return f"process: end, an answer → signal: {number} ({signal.Signals(number).name})"

    def keep(self, fingerprint, input):
        return super().keep(fingerprint, input) if input else "-"

    def set_aside(self, fingerprints):
        """The target prints a panic once, and goes on."""


def limit_memory():
    """Limits the address space, as the embedded loop does."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
