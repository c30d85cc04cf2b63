#!/usr/bin/env python3
"""Prints the table of scripts/coverage, and checks that each unreached line is explained. scripts/coverage runs this.

    coverage_report.py [--results] RUNS <LCOV     the table of a measurement
    coverage_report.py --check                    whether what scripts/coverage.explained names exists
    coverage_report.py --self-test                whether each error can come out
"""

import collections
import pathlib
import re
import sys
from typing import NamedTuple

sys.dont_write_bytecode = True
import results  # noqa: E402

ROOT = results.ROOT
EXPLAINED = ROOT / "scripts" / "coverage.explained"
# The folders of each group.
GROUPS = {
    "walkers": ["crates/walker/src/walkers/"],
    "decoders": ["crates/walker/src/formats/", "crates/walker/src/disk/"],
    "builder": ["src/images/"],
    "recount": ["src/harness/oracles/qcow2/"],
}
LEAST_PERCENT = 99
# The kinds of explanations, and whether their lines count as unreached.
KINDS = {"elsewhere": False, "bug": False, "large": True, "never": True}


class Explanation(NamedTuple):
    """Why lines are not reached, and the names of these lines."""

    kind: str
    text: str
    names: list


class Range(NamedTuple):
    """Unreached lines of a file, without a reached one between them."""

    first: int
    last: int
    lines: list


def explanations(text):
    """Parses the text of scripts/coverage.explained."""
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        heading = re.fullmatch(rf"({'|'.join(KINDS)}): (.+)", line)
        if heading:
            found.append(Explanation(heading[1], heading[2], []))
        elif line.startswith("    ") and found:
            found[-1].names.append(line.strip())
        elif line and not line.startswith("#"):
            expected = f"expected a heading ({', '.join(KINDS)}) or a name after four blanks"
            sys.exit(f"{EXPLAINED}:{number}: {expected}, found '{line}'")
    return found


def group_of(file):
    """Returns the group of a file, or None."""
    return next((group for group, folders in GROUPS.items() if file.startswith(tuple(folders))), None)


def functions(source, name):
    """Returns first and last line of each function with this name."""
    lines, found = source.splitlines(), []
    for number, line in enumerate(lines, 1):
        head = re.match(rf"( *)(?:pub(?:\([^)]*\))? |const |unsafe )*fn {re.escape(name)}\b", line)
        if not head:
            continue
        last = number
        while not (lines[last - 1].rstrip().endswith("}") and re.match(rf"{head[1]}\S", lines[last - 1])):
            last += 1
        found.append((number, last))
    return found


def named(source, name):
    """Returns the numbers of the lines that a name without its file means: of a whole file, of functions, or each line
    with a text."""
    scope = range(1, len(source.splitlines()) + 1)
    function = re.match(r"fn (\w+)(?:: |$)", name)
    if function:
        name = name[function.end():]
        scope = [line for first, last in functions(source, function[1]) for line in range(first, last + 1)]
    lines = source.splitlines()
    return [line for line in scope if not name or lines[line - 1].strip() == name]


def whole_pieces(source, name):
    """Returns the lines of the whole file, or of each function, that a name without its file means; None for a text."""
    if not name:
        return [range(1, len(source.splitlines()) + 1)]
    function = re.fullmatch(r"fn (\w+)", name)
    return function and [range(first, last + 1) for first, last in functions(source, function[1])]


def check(found, read):
    """Returns the names that mean no line, and those that occur twice."""
    wrong, seen = [], set()
    for name in (name for one in found for name in one.names):
        file, _, inside = name.partition(": ")
        try:
            source = read(file)
        except OSError:
            wrong.append(f"{name}: there is no such file")
            continue
        if not group_of(file):
            wrong.append(f"{name}: the file is in no group")
        elif not named(source, inside):
            wrong.append(f"{name}: there is no such line")
        elif name in seen:
            wrong.append(f"{name}: explained twice")
        seen.add(name)
    return wrong


class Measured:
    """The lines and branches of a file, and how often each was reached."""

    def __init__(self):
        self.lines, self.branches = {}, {}

    def ranges(self):
        """Returns the unreached lines."""
        found, open_range = [], []
        for line, count in sorted(self.lines.items()):
            if count:
                found, open_range = found + [open_range] * bool(open_range), []
            else:
                open_range.append(line)
        found += [open_range] * bool(open_range)
        return [Range(lines[0], lines[-1], lines) for lines in found]


def measured(lcov):
    """Reads a measurement: the files of all groups."""
    files, file = {}, None
    for line in lcov.splitlines():
        kind, _, value = line.partition(":")
        if kind == "SF":
            path = value.removeprefix(f"{ROOT}/")
            file = files.setdefault(path, Measured()) if group_of(path) else None
        elif kind == "DA" and file:
            number, count = map(int, value.split(",")[:2])
            file.lines[number] = file.lines.get(number, 0) + count
        elif kind == "BRDA" and file:
            line_number, block, branch, count = value.split(",")
            key = int(line_number), block, branch
            file.branches[key] = file.branches.get(key, 0) + (0 if count == "-" else int(count))
    return files


def explained(files, found, read):
    """Returns which explanation each unreached line has, and the names that explain nothing."""
    reasons, stale = collections.defaultdict(dict), []
    for one in found:
        for name in one.names:
            file, _, inside = name.partition(": ")
            source = read(file)
            ranges = files[file].ranges() if file in files else []
            missed = {line for it in ranges for line in it.lines}
            whole = whole_pieces(source, inside)
            if whole is None:
                means = set(named(source, inside))
                lines = {line for it in ranges if means & set(it.lines) for line in it.lines}
            else:
                # A reached line in a file or a function shows that the explanation is wrong.
                counted = files[file].lines if file in files else {}
                pieces = [{line for line in piece if line in counted} for piece in whole]
                lines = {line for piece in pieces if piece <= missed for line in piece}
            if not lines:
                stale.append(f"{name}: explained, but reached, in part or as a whole")
            for line in lines:
                reasons[file].setdefault(line, one)
    return reasons, stale


class Row:
    """The numbers of a file or of a group."""

    def __init__(self):
        self.all = self.elsewhere = self.lines = self.reached = self.branches = self.taken = 0

    def add(self, other):
        """Adds the numbers of a file."""
        for name, number in vars(other).items():
            setattr(self, name, getattr(self, name) + number)

    @property
    def percent(self):
        """The reached lines in percent of those that the targets can run without finding a bug."""
        return 100 * self.reached / self.lines if self.lines else 100

    def cells(self, name):
        """Returns the row of a table."""
        numbers = [self.all, self.elsewhere, self.lines, self.reached]
        return f"| {name} | {' | '.join(map(str, numbers))} | {self.percent:.2f}% | {self.taken} of {self.branches} |"


def row_of(file, reasons):
    """Returns the numbers of a file."""
    outside = {line for line, one in reasons.items() if not KINDS[one.kind]}
    row = Row()
    row.all, row.elsewhere = len(file.lines), len(outside)
    row.lines = row.all - row.elsewhere
    row.reached = sum(1 for count in file.lines.values() if count)
    branches = {key: count for key, count in file.branches.items() if key[0] not in outside}
    row.branches, row.taken = len(branches), sum(1 for count in branches.values() if count)
    return row


HEAD = "| {} | lines | elsewhere, bug | counted | reached | % | branches |\n|---|---|---|---|---|---|---|"


def totals(rows):
    """Returns the numbers of each group."""
    groups = {group: Row() for group in GROUPS}
    for file, row in rows.items():
        groups[group_of(file)].add(row)
    return groups


def kinds(reasons):
    """Returns the table of the unreached lines of each kind."""
    counts = collections.Counter(one.kind for lines in reasons.values() for one in lines.values())
    rows = [f"| {kind} | {counts[kind]} | {'no' if not counted else 'as unreached'} |" for kind, counted in KINDS.items()]
    return "\n".join(["| explanation of unreached lines | lines | counted |", "|---|---|---|", *rows])


def unreached(files, found, reasons, read):
    """Returns the text of all unreached lines below their explanations, and those without one."""
    text, left = [], []
    by_reason = collections.defaultdict(list)
    for file, numbers in sorted(files.items()):
        source = read(file).splitlines()
        for one in numbers.ranges():
            for line in one.lines:
                reason = reasons[file].get(line)
                place = f"{file}:{line}: {source[line - 1].strip()}"
                by_reason[id(reason)].append(place)
                left += [] if reason else [place]
    for one in found:
        text += [f"{one.kind}: {one.text}", *(f"    {place}" for place in by_reason[id(one)]), ""]
    return "\n".join(text), [f"{place}: neither reached nor explained" for place in left]


def report(lcov, explanation_text, read):
    """Returns the table of all files, that of the groups, the unreached lines, and what is wrong."""
    found = explanations(explanation_text)
    wrong = check(found, read)
    if wrong:
        return "", "", "", wrong
    files = measured(lcov)
    reasons, stale = explained(files, found, read)
    rows = {file: row_of(numbers, reasons[file]) for file, numbers in sorted(files.items())}
    table = "\n".join([HEAD.format("file"), *(row.cells(file) for file, row in rows.items())])
    groups = totals(rows)
    sums = "\n".join([HEAD.format("group"), *(row.cells(group) for group, row in groups.items())])
    sums = f"{sums}\n\n{kinds(reasons)}"
    text, left = unreached(files, found, reasons, read)
    low = [f"{group}: {row.percent:.2f}% of the lines reached, expected {LEAST_PERCENT}%"
           for group, row in groups.items() if row.lines and row.percent < LEAST_PERCENT]
    return table, sums, text, stale + left + low


def self_test():
    """Proves that each error can come out."""
    path = "crates/walker/src/walkers/planted.rs"
    source = "fn one() {\n    first();\n}\nfn two() {\n    second();\n    third();\n}\n"
    body = "\n".join(f"    line{number}();" for number in range(8, 400))
    source = f"{source}fn three() {{\n{body}\n}}\nfn two() {{\n    second();\n}}\n"

    def read(file):
        if file != path:
            raise FileNotFoundError(file)
        return source

    def wrong(explanation, counts):
        lines = {**{number: 1 for number in range(1, 405)}, **counts}
        lcov = "\n".join([f"SF:{ROOT}/{path}", *(f"DA:{number},{count}" for number, count in lines.items())])
        return report(lcov, explanation, read)[3]

    two = {4: 0, 5: 0, 6: 0, 7: 0}
    cases = [
        ("all reached", "", {}, None),
        ("not explained", "", {5: 0}, "second();: neither reached nor explained"),
        ("a line", f"never: w\n    {path}: second();\n", {5: 0}, None),
        ("a line names its range", f"never: w\n    {path}: third();\n", {5: 0, 6: 0}, None),
        ("another range", f"never: w\n    {path}: first();\n", {2: 0, 5: 0}, "second();: neither reached nor explained"),
        ("a line of a function", f"never: w\n    {path}: fn two: second();\n", {5: 0}, None),
        ("not in that function", f"never: w\n    {path}: fn one: second();\n", {5: 0}, "there is no such line"),
        ("a function", f"elsewhere: w\n    {path}: fn two\n", two, None),
        ("a function reached in part", f"elsewhere: w\n    {path}: fn two\n", {5: 0}, "explained, but reached"),
        ("one of two functions", f"elsewhere: w\n    {path}: fn two\n", {**two, 402: 0, 403: 0, 404: 0}, None),
        ("reached", f"never: w\n    {path}: second();\n", {}, "explained, but reached"),
        ("no such line", f"never: w\n    {path}: fourth();\n", {}, "there is no such line"),
        ("no such file", "never: w\n    crates/walker/src/walkers/none.rs\n", {}, "there is no such file"),
        ("twice", f"never: w\n    {path}: second();\n    {path}: second();\n", {5: 0}, "explained twice"),
        ("too few lines", f"never: w\n    {path}: fn two\n    {path}: first();\n", {2: 0, **two}, "expected 99%"),
        ("lines outside do not count", f"elsewhere: w\n    {path}: fn two\n    {path}: first();\n", {2: 0, **two}, None),
    ]
    for name, explanation, counts, expected in cases:
        found = wrong(explanation, counts)
        if not (any(expected in one for one in found) if expected else not found):
            sys.exit(f"self-test, {name}: expected {expected}, found {found}")
    print(f"coverage: {len(cases)} measurements were judged as planted")


def main():
    """Prints the table of the measurement on standard input."""
    arguments = sys.argv[1:]
    read = lambda file: (ROOT / file).read_text()  # noqa: E731
    if arguments == ["--check"]:
        sys.exit("\n".join(check(explanations(EXPLAINED.read_text()), read)) or 0)
    if arguments == ["--self-test"]:
        return self_test()
    writes = "--results" in arguments
    runs = int(arguments[-1])
    table, sums, text, wrong = report(sys.stdin.read(), EXPLAINED.read_text(), read)
    print(table, sums, text, sep="\n\n")
    if writes:
        with_runs = f", and {runs} runs of the embedded loop for each target of programs" if runs else ""
        about = f"Reached by the committed seeds of all targets{with_runs}."
        path = results.write("coverage", "Lines that the seeds reach", "scripts/coverage", f"{about}\n\n{sums}")
        print(f"written to {path}", file=sys.stderr)
    sys.exit("\n".join(wrong) or 0)


if __name__ == "__main__":
    main()
