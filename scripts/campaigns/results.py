"""The results of a campaign so far, in its folder."""

import json

from .common import UNCONFIRMED, fail, replace

COLUMNS = ["fingerprint", "status", "cpu_seconds", "shortest"]


class Results:
    """The rows of findings.tsv, and the totals of spent.json."""

    def __init__(self, folder):
        """Reads the results of a campaign that was stopped, if there are any."""
        self.table, self.totals = folder / "findings.tsv", folder / "spent.json"
        self.rows, self.spent = {}, {"cpu_seconds": 0.0, "runs": 0, "slices": 0}
        if self.totals.exists():
            self.spent |= json.loads(self.totals.read_text())
        if self.table.exists():
            header, *lines = self.table.read_text().splitlines()
            if header.split("\t") != COLUMNS:
                fail(f"{self.table}: found the columns '{header}', expected {COLUMNS}")
            self.rows = {line.split("\t")[0]: line.split("\t") for line in lines}

    def add(self, slice):
        """Adds a slice, and writes all results."""
        self.spent["cpu_seconds"] += slice.cpu_seconds
        self.spent["runs"] += slice.runs
        self.spent["slices"] += 1
        for fingerprint, shortest in slice.found:
            status = "unconfirmed" if fingerprint == UNCONFIRMED else "new"
            self.row(fingerprint, status)[3] = shortest
        for fingerprint in slice.known:
            self.row(fingerprint, "known")
        # The table first: a kill between the two repeats the slice's seconds, and loses no finding.
        replace(self.table, "".join("\t".join(row) + "\n" for row in [COLUMNS, *self.rows.values()]))
        replace(self.totals, json.dumps(self.spent) + "\n")

    def row(self, fingerprint, status):
        """Returns the row of a fingerprint, which is created with the seconds so far."""
        return self.rows.setdefault(fingerprint, [fingerprint, status, f"{self.spent['cpu_seconds']:.1f}", "-"])

    def of_status(self, status):
        """Returns the rows that have this status."""
        return [row for row in self.rows.values() if row[1] == status]
