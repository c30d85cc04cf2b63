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


# It opens backing files and data files itself, by the names in the image. It turns each L1 entry into a Python object, so
# a table of 16 MiB takes seconds: on a busy machine, that is too near to the time after which no answer is a hang.
lines.serve("dissect.hypervisor", [
    "no a backing file of an odd size", "no an L1 table of more than 1 MiB",
    "size near",
], open_image)
