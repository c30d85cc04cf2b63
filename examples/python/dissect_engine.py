"""dissect.hypervisor, a reader in Python (PyPI: dissect.hypervisor)."""

from dissect.hypervisor.disk.qcow2 import Error, QCow2


class Engine:
    name = "dissect.hypervisor"
    claims = ["no extended L2 entries", "no compression type zstd", "no a qcow2 backing file", "no a raw backing file",
              "no an external data file", "size near"]
    refusals = [Error, ValueError, EOFError]

    def open(self, files):
        return Disk(files[0].stream())


class Disk:
    def __init__(self, stream):
        self.image = QCow2(stream)
        self.size = self.image.size

    def read(self, offset, length):
        stream = self.image.open()
        stream.seek(offset)
        return stream.read(length)
