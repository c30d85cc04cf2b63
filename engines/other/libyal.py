"""What the adapters of libyal's libraries have in common."""
import functools


def with_cause_first(function):
    """Removes the binding's own sentence from errors: the next sentence names the cause, which fingerprints keep."""

    @functools.wraps(function)
    def called(*arguments):
        try:
            return function(*arguments)
        except OSError as error:
            raise OSError(str(error).partition(". ")[2] or error) from error

    return called


def opener(open_file):
    """Returns the function `open_image` of an adapter. `open_file(path)` opens one image, without those below."""

    @with_cause_first
    def open_image(paths):
        images = [open_file(path) for path in paths]
        for image, below in reversed(list(zip(images, images[1:]))):
            image.set_parent(below)
        return images[0].get_media_size(), with_cause_first(
            lambda start, length: images[0].read_buffer_at_offset(length, start)
        )

    return open_image
