"""The embedded loop: `qcowfuzz fuzz` of a crate, or behind the line protocol."""

import json
import tempfile

from .common import Slice, cpu_seconds, fail, run_cpu_seconds


class Embedded:
    """A campaign of the embedded loop in a folder."""

    def __init__(self, engine, target, seed, folder):
        self.command = [*engine.command(), "fuzz", "--json", "--jobs", "1", "--target", target, "--rng-seed", str(seed),
                        "--dir", str(folder)]

    def set_aside(self, _fingerprints):
        """A finding does not end the loop."""

    def run_slice(self, seconds, _number):
        """Runs the loop for some CPU seconds. Seconds of the clock would not do: on a loaded machine, a slice could end
        before each run that hangs, and the next slice would begin with the same run. They only end a loop whose script
        was killed."""
        before = cpu_seconds()
        command = [*self.command, "--seconds", str(10 * seconds)]
        with tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            done, _ = run_cpu_seconds(command, seconds, stdout=stdout, stderr=stderr)
            stdout.seek(0)
            stderr.seek(0)
            if done.returncode not in (0, 1):
                fail(f"the loop ended with {done.returncode}, expected 0 or 1: {stderr.read().strip()[-500:]}")
            summary = json.load(stdout)
        found = [(bug["fingerprint"], bug["shortest"]) for bug in summary["found"]]
        known = [seen["fingerprint"] for bug in summary["known"] for seen in bug["seen"]]
        return Slice(summary["runs"], cpu_seconds() - before, found, known)
