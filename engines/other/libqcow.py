"""libqcow (PyPI: libqcow-python) behind the line protocol."""
import libyal
import lines
import pyqcow


def open_file(path):
    image = pyqcow.file()
    image.open(path)
    return image


# It knows no bit of the incompatible features.
lines.serve("libqcow", [
    "no an external data file", "no a raw backing file",
    "no a backing file of an odd size",
    "refuse extended L2 entries", "refuse compression type zstd",
    "refuse the dirty bit", "refuse refcounts out of date", "refuse the corrupt bit",
    "size near",
], libyal.opener(open_file))
