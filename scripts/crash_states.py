"""Judges the output of fuzz targets with the stack parser of ClusterFuzz. scripts/crash-states runs this.

    crash_states.py LOGS

LOGS is a folder. A log is called BUG-NUMBER.BUILD: what one input shows of a planted bug. The fingerprint of BUG is
the first line of bugs/BUG.txt. "found" stands for whatever libFuzzer finds.
"""

import collections
import pathlib
import re
import sys

from clusterfuzz import stacktraces
# The function with which ClusterFuzz compares states when it groups and minimizes testcases.
from clusterfuzz._internal.crash_analysis.crash_comparer import CrashComparer

EXPECTED = {
    "canary": "model: kind, zero-allocated → zero-plain",
    "alike": "model: kind, normal → unallocated subcluster",
}


def expected(bug):
    """The fingerprint that a planted bug must have."""
    if bug in EXPECTED:
        return EXPECTED[bug]
    return pathlib.Path("bugs", bug + ".txt").read_text().splitlines()[0].removeprefix("; ")


def shown():
    """Returns the crash type and the crash state that docs/campaigns.md shows for the canary."""
    found = re.search(r"((?: {4}.*\n)*) {4}FuzzerHash=.*\n", pathlib.Path("docs/campaigns.md").read_text())
    if found is None:
        sys.exit("crash-states: docs/campaigns.md shows no crash state, expected a block that ends with FuzzerHash=")
    kind, *state = found[0].replace("    ", "").splitlines()
    return kind, "".join(line + "\n" for line in state)


def fingerprint(log):
    """The first line that people see: of a violation the message of the panic, of a panic the line before it."""
    lines = log.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("panic: "):
            return line
        if re.search(r"^thread .* panicked at ", line):
            return lines[at + 1]
    return None


def parsed(log, symbolized):
    """Type and state of a crash."""
    parser = stacktraces.StackParser(
        symbolized=symbolized, detect_ooms_and_hangs=True, detect_v8_runtime_errors=False)
    info = parser.parse(log)
    return info.crash_type, info.crash_state


def faults_of(name, log):
    """Returns the faults of one log, and its fingerprint, crash type and crash state."""
    faults = []
    bug, build = name.rsplit("-", 2)[0], name.split(".")[1]
    found = fingerprint(log)
    if found is None or bug != "found" and found != expected(bug):
        faults.append(f"{name}: the fingerprint is {found!r}")
    if ("in rust_fuzzer_test_input" in log.split("ERROR: ")[-1]) != build.endswith("symbols"):
        faults.append(f"{name}: functions of the stack are named, or not, against what the build is to show")
    kind, state = parsed(log, True)
    if parsed(log, False) != (kind, state):
        faults.append(f"{name}: the state is another one where the parser expects no symbols")
    if kind != "ASSERT":
        faults.append(f"{name}: the crash type is {kind!r}, expected 'ASSERT'")
    # The hook and the signal handler, a line of the source, a folder of this machine.
    for forbidden in [r"raise", r"abort", r"name_panics", r"report", r":\d", r"(^|\s)/", r"0x", r"\+"]:
        if re.search(forbidden, state):
            faults.append(f"{name}: {forbidden} matches the crash state:\n{state}")
    panic = re.match(r"panic: .*, (\w+)$", found or "")
    if panic and not re.search(rf"^crate::\S*::{panic[1]}$", state, re.MULTILINE):
        faults.append(f"{name}: no frame is the function that panicked:\n{state}")
    return faults, found, (kind, state)


def main():
    """Judges all logs, prints the states, and ends with 1 if anything is wrong."""
    faults, states, bugs = [], collections.defaultdict(collections.Counter), set()
    logs = sorted(pathlib.Path(sys.argv[1]).iterdir())
    for path in logs:
        wrong, found, state = faults_of(path.name, path.read_text(errors="replace"))
        faults += wrong
        states[found][state] += 1
        bugs.add(path.name.rsplit("-", 2)[0])
    for found, its in states.items():
        if len(its) > 1:
            faults.append(f"{found}: one bug, {len(its)} states: {list(its)}")
    firsts = {found: next(iter(its)) for found, its in states.items()}
    for one in firsts:
        for other in firsts:
            if one != other and firsts[one] == firsts[other]:
                faults.append(f"two bugs, one state: {one} / {other}: {firsts[one]}")
            elif one != other and CrashComparer(firsts[one][1], firsts[other][1]).is_similar():
                faults.append(f"ClusterFuzz groups two bugs as similar: {one} / {other}")
    if firsts.get(EXPECTED["canary"]) != shown():
        faults.append(f"docs/campaigns.md shows {shown()}, expected {firsts.get(EXPECTED['canary'])}")
    for found, its in states.items():
        kind, state = firsts[found]
        print(f"{sum(its.values()):3} × {kind}: {' / '.join(state.split(chr(10))).strip(' /')}")
    oracles = {found.split(":")[0] for found in states if found}
    if len(bugs) < 3 or len(oracles) < 3 or "panic" not in oracles:
        faults.append(f"not enough was planted: {sorted(bugs)} by {sorted(oracles)}")
    print("\n".join(f"crash-states: {fault}" for fault in faults), file=sys.stderr, end="\n" if faults else "")
    print(f"crash-states: {len(logs)} crashes, {len(states)} fingerprints, {len(set(firsts.values()))} states")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
