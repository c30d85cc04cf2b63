"""Runs programs with an engine of this folder, and prints each finding once: `first_findings.py libqcow_engine 500`."""

import importlib
import sys

import qcowfuzz

module, count = sys.argv[1], int(sys.argv[2])
harness = qcowfuzz.Harness("map_extents", importlib.import_module(module).Engine())
found = {}
for seed in range(count):
    finding = harness.run(harness.generate(seed))
    if finding is not None:
        found.setdefault(finding.fingerprint, seed)
for fingerprint, seed in found.items():
    print(f"{fingerprint}: seed {seed}")
print(f"{count} programs, {len(found)} findings")
