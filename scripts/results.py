#!/usr/bin/env python3
"""Writes measurements of scripts to docs/results/, so that prose can refer to them.

From a shell script, a table on standard input is printed and written to docs/results/NAME.md:
    scripts/results.py fuzz-rate "Rate under libFuzzer" "scripts/fuzz-rate 100000" <table
There is one page for each measurement, the current one: it states its date, and git has the pages before it.

From Python, `Measurements` keeps one row for each measurement in a .tsv file, from which a killed script resumes.
"""

import csv
import datetime
import os
import pathlib
import platform
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "results"


def place(name):
    """Returns docs/results/NAME, without an extension."""
    return FOLDER / name


def output_of(*command):
    """Returns what a command prints, or "unknown" if it fails."""
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def circumstances():
    """Returns one line that says on what was measured: commit, machine and compilers."""
    commit = output_of("git", "describe", "--always", "--dirty")
    stable, nightly = output_of("rustc", "-V"), output_of("rustc", "+nightly", "-V")
    cores = len(os.sched_getaffinity(0))
    return f"Commit {commit}; {platform.machine()}, {cores} cores; {stable}; {nightly}."


def page(title, command, text):
    """Returns a page with a title, what was run, on what, and the text."""
    return f"# {title}\n\n`{command}`, {datetime.date.today().isoformat()}. {circumstances()}\n\n{text.strip()}\n"


class Measurements:
    """A .tsv file with one row for each measurement. Each row is on disk before the next measurement begins."""

    def __init__(self, path, columns, key):
        """Opens or creates the file. `key` lists the columns that name a measurement, among all `columns`."""
        self.path, self.columns, self.key, self.rows = pathlib.Path(path), list(columns), list(key), {}
        if self.path.exists():
            self._read()
        else:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text("\t".join(self.columns) + "\n")

    def _read(self):
        text = self.path.read_text()
        if not text.endswith("\n"):
            # A kill in the middle of a write leaves half a row behind.
            text = text[: text.rfind("\n") + 1]
            self.path.write_text(text)
        reader = csv.DictReader(text.splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE)
        if reader.fieldnames != self.columns:
            sys.exit(f"{self.path}: expected the columns {self.columns}, found {reader.fieldnames}")
        for number, row in enumerate(reader, 2):
            if None in row or None in row.values():
                sys.exit(f"{self.path}, line {number}: expected {len(self.columns)} columns")
            self.rows[self._name(row)] = row

    def _name(self, row):
        return tuple(str(row[column]) for column in self.key)

    def get(self, **row):
        """Returns the measurement with these values of the key, or None."""
        return self.rows.get(self._name(row))

    def add(self, **row):
        """Appends a measurement to the file and returns it."""
        row = {column: str(row[column]) for column in self.columns}
        if any("\t" in value or "\n" in value for value in row.values()):
            raise ValueError(f"a tab or a newline in {row}")
        with open(self.path, "a") as file:
            file.write("\t".join(row.values()) + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[self._name(row)] = row
        return row


def write(name, title, command, text):
    """Writes the page docs/results/NAME.md. Returns its path."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    path = place(name).with_suffix(".md")
    path.write_text(page(title, command, text))
    return path.relative_to(ROOT)


def report(name, title, command, text):
    """Prints a table, writes its page, and prints where that is."""
    print(text.strip())
    print(f"written to {write(name, title, command, text)}", file=sys.stderr)


def main():
    """Prints the table on standard input, and writes it to its page."""
    if len(sys.argv) != 4 or sys.argv[1].startswith("-"):
        sys.exit("usage: scripts/results.py NAME TITLE COMMAND <TABLE")
    name, title, command = sys.argv[1:]
    text = sys.stdin.read()
    if not text.strip():
        sys.exit("scripts/results.py: expected a table on standard input, found nothing")
    report(name, title, command.strip(), text)


if __name__ == "__main__":
    main()
