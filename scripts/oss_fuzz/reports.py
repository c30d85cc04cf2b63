"""The reports for people: of a crash, and of coverage."""

import json
import re
from pathlib import Path

from .common import Failed, Unable, print_end, run
from .runner import Sandbox

TARGET = "map_extents"
# cargo xtask canary looks for the same.
FINGERPRINT = r"(model|snapshots): kind, zero-allocated → zero-plain"
# A function of the library or of the walker with its place, as llvm-symbolizer prints it.
FRAME = r"^ *#\d+ 0x[0-9a-f]+ in .*\bqcowfuzz(_walker)?::.* \S*/src/\S+\.rs:\d+"
# libFuzzer's words before a run, and the line in which Rust says where it panicked.
BEFORE = r"INFO: .*|Running: .*|\S+: Running \d+ inputs .*|thread '.*' .*panicked at .*|"


def check_crash(out, llvm):
    """A planted bug is found in the seeds; its input reproduces it, fingerprint first, with a symbolised stack."""
    sandbox = Sandbox(out, llvm)
    sandbox.unpack_seeds(TARGET)
    code, output = sandbox.fuzz(TARGET, "-runs=0", "/tmp/seeds")
    crashes = sorted(Path(sandbox.tmp.name).glob("crash-*"))
    if code == 0 or not crashes:
        print_end(output)
        raise Failed(f"{TARGET}: exit code {code} and {len(crashes)} crashes, expected the planted bug to be found")
    code, output = sandbox.fuzz(TARGET, f"/tmp/{crashes[0].name}")
    report = [line for line in output.splitlines() if not re.fullmatch(BEFORE, line)]
    if code == 0 or not report or not re.fullmatch(FINGERPRINT, report[0]):
        print_end(output)
        raise Failed(f"{TARGET}: the report of a crash begins with '{''.join(report[:1])}', expected {FINGERPRINT}")
    if not re.search(FRAME, output, re.MULTILINE):
        print_end(output)
        raise Failed(f"{TARGET}: the stack of a crash names no function of qcowfuzz with its line")


def check_coverage(out, llvm, tree):
    """The seeds cover every file of the walker, and the report is about this crate alone."""
    sandbox = Sandbox(out, llvm)
    sandbox.unpack_seeds(TARGET)
    sandbox.folder("empty")
    # The runner merges too: a crash does not end a merge.
    profile = {"LLVM_PROFILE_FILE": "/tmp/%1m.profraw"}
    code, output = sandbox.fuzz(TARGET, "-merge=1", "/tmp/empty", "/tmp/seeds", variables=profile)
    profiles = sorted(Path(sandbox.tmp.name).glob("*.profraw"))
    if code != 0 or not profiles:
        print_end(output)
        raise Failed(f"{TARGET}: exit code {code} and {len(profiles)} profiles, expected 0 and one or more")
    data = Path(sandbox.tmp.name, "profile")
    run([llvm / "bin" / "llvm-profdata", "merge", "-sparse", *profiles, "-o", data])
    exported = [llvm / "bin" / "llvm-cov", "export", "-summary-only", f"-instr-profile={data}", out / TARGET]
    summary = json.loads(run([*exported, *extra_arguments(tree)], Failed))
    covered = {one["filename"]: one["summary"]["lines"]["covered"] for one in summary["data"][0]["files"]}
    foreign = [name for name in covered if not name.startswith(f"{tree}/")]
    if foreign:
        raise Failed(f"the coverage report contains {foreign[0]}, expected files of this crate only")
    # The files that walk, look up and read. Files that only decode have lines that the seeds of one target miss.
    folder = tree / "crates/walker/src/formats/qcow2"
    walker = [folder / f"{name}.rs" for name in ("inflate", "latest", "layer", "lookup", "walk")]
    missing = [path for path in walker if not path.is_file()]
    if missing:
        raise Unable(f"no source of the walker: {missing[0].relative_to(tree)}")
    for path in walker:
        if not covered.get(str(path)):
            raise Failed(f"the coverage report has no covered lines of {path.relative_to(tree)}")


def extra_arguments(tree):
    """Returns the arguments of llvm-cov in project.yaml."""
    lines = (tree / "oss-fuzz" / "project.yaml").read_text().splitlines()
    name = "coverage_extra_args: "
    found = [line.removeprefix(name).split() for line in lines if line.startswith(name)]
    if not found:
        raise Failed(f"oss-fuzz/project.yaml has no line {name}")
    return found[0]
