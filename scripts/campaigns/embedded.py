"""The embedded loop: `qcowfuzz fuzz` of a crate, or behind the line protocol."""

import json
import subprocess

from .common import Slice, cpu_seconds, fail


class Embedded:
    """A campaign of the embedded loop in a folder."""

    def __init__(self, engine, target, seed, folder):
        self.command = [*engine.command(), "fuzz", "--json", "--jobs", "1", "--target", target, "--rng-seed", str(seed),
                        "--dir", str(folder)]

    def set_aside(self, _fingerprints):
        """A finding does not end the loop."""

    def run_slice(self, seconds, _number):
        """Runs the loop for some seconds."""
        before = cpu_seconds()
        done = subprocess.run([*self.command, "--seconds", str(seconds)], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            fail(f"the loop ended with {done.returncode}, expected 0 or 1: {done.stderr.strip()[-500:]}")
        summary = json.loads(done.stdout)
        found = [(bug["fingerprint"], bug["shortest"]) for bug in summary["found"]]
        known = [seen["fingerprint"] for bug in summary["known"] for seen in bug["seen"]]
        return Slice(summary["runs"], cpu_seconds() - before, found, known)
