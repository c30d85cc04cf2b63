"""dissect.hypervisor (PyPI) behind the line protocol."""
import pathlib

import lines
from dissect.hypervisor.disk.qcow2 import QCow2


def open_image(paths):
    image = QCow2(pathlib.Path(paths[0]))
    stream = image.open()

    def read(start, length):
        stream.seek(start)
        return stream.read(length)

    return image.size, read


# It opens backing files and data files itself, by the names in the image.
lines.serve("dissect.hypervisor", ["size near", "no a backing file of an odd size"], open_image)
