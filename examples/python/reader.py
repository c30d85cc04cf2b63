"""A small reader of qcow2 images, in 40 lines. It knows nothing of qcowfuzz. It has a bug: it takes a cluster that reads
as zeros for one with data, if the cluster is still allocated."""

import struct

OFFSET, COMPRESSED = 0x00FF_FFFF_FFFF_FE00, 1 << 62


class NotSupported(Exception):
    pass


class Reader:
    def __init__(self, stream):
        self.stream = stream
        header = self._at(0, 48)
        if header[:4] != b"QFI\xfb":
            raise NotSupported("no qcow2 image")
        self.bits, size = struct.unpack(">IQ", header[20:32])
        self.l1_entries, self.l1 = struct.unpack(">4xIQ", header[32:48])
        self.size = size // 512 * 512

    def _at(self, offset, length):
        self.stream.seek(offset)
        return self.stream.read(length).ljust(length, b"\0")

    def _entry(self, table, index):
        return struct.unpack(">Q", self._at(table + index * 8, 8))[0]

    def _cluster(self, number):
        l1_index, l2_index = divmod(number, 1 << (self.bits - 3))
        l2 = self._entry(self.l1, l1_index) & OFFSET if l1_index < self.l1_entries else 0
        return self._entry(l2, l2_index) if l2 else 0

    def read(self, offset, length):
        if offset + length > self.size:
            raise NotSupported("past the end")
        data, cluster = b"", 1 << self.bits
        while len(data) < length:
            inside = (offset + len(data)) % cluster
            part = min(length - len(data), cluster - inside)
            entry = self._cluster((offset + len(data)) >> self.bits)
            if entry & COMPRESSED:
                raise NotSupported("compressed clusters")
            data += self._at((entry & OFFSET) + inside, part) if entry & OFFSET else bytes(part)
        return data
