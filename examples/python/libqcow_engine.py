"""libqcow, by its Python binding (PyPI: libqcow-python)."""

import pyqcow


class Engine:
    name = "libqcow"
    version = pyqcow.get_version()
    claims = ["no extended L2 entries", "no compression type zstd", "no a qcow2 backing file", "no a raw backing file",
              "no an external data file", "size near"]
    refusals = [IOError]

    def open(self, files):
        return Disk(files[0].stream())


class Disk:
    def __init__(self, stream):
        self.file = pyqcow.file()
        self.file.open_file_object(stream)
        self.size = self.file.get_media_size()

    def read(self, offset, length):
        return self.file.read_buffer_at_offset(length, offset)

    def close(self):
        self.file.close()
