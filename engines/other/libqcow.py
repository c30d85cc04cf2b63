"""libqcow (PyPI: libqcow-python) behind the line protocol."""
import functools

import lines
import pyqcow


def with_cause_first(function):
    """Removes the binding's own sentence from errors: the next sentence names the cause, which fingerprints keep."""

    @functools.wraps(function)
    def called(*arguments):
        try:
            return function(*arguments)
        except OSError as error:
            raise OSError(str(error).partition(". ")[2] or error) from error

    return called


@with_cause_first
def open_image(paths):
    images = [pyqcow.file() for _ in paths]
    for image, path, below in reversed(list(zip(images, paths, images[1:] + [None]))):
        image.open(path)
        if below:
            image.set_parent(below)
    return images[0].get_media_size(), with_cause_first(
        lambda start, length: images[0].read_buffer_at_offset(length, start)
    )


# It knows no bit of the incompatible features.
lines.serve("libqcow", [
    "no an external data file", "no a raw backing file",
    "no a backing file of an odd size",
    "refuse extended L2 entries", "refuse compression type zstd",
    "refuse the dirty bit", "refuse refcounts out of date", "refuse the corrupt bit",
    "size near",
], open_image)
