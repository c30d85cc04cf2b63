"""The adapter of the reader for qcowfuzz."""

from reader import NotSupported, Reader


class Engine:
    name = "reader"
    claims = ["no compressed clusters", "no extended L2 entries", "no a qcow2 backing file", "no a raw backing file",
              "no an external data file"]
    refusals = [NotSupported]

    def open(self, files):
        return Reader(files[0].stream())
