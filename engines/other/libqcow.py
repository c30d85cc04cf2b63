"""libqcow (PyPI: libqcow-python) behind the line protocol."""
import lines
import pyqcow


def open_image(paths):
    images = [pyqcow.file() for _ in paths]
    for image, path, below in reversed(list(zip(images, paths, images[1:] + [None]))):
        image.open(path)
        if below:
            image.set_parent(below)
    return images[0].get_media_size(), lambda start, length: images[0].read_buffer_at_offset(length, start)


lines.serve("libqcow", ["no an external data file", "no a raw backing file", "refuse version 3", "size near"], open_image)
