"""libvmdk (PyPI: libvmdk-python) behind the line protocol."""
import libyal
import lines
import pyvmdk


def open_file(path):
    image = pyvmdk.handle()
    image.open(path)
    # It finds the files of the extents itself, by the names in the image.
    image.open_extent_data_files()
    return image


# The specification wants grains of more than 4 KiB, and the library refuses others.
lines.serve("libvmdk", [
    "no qcow2 images", "yes vmdk images", "yes parents of vmdk images", "yes vmdk images in several files",
    "no clusters of 512 bytes", "no clusters of 1 KiB", "no clusters of 2 KiB", "no clusters of 4 KiB",
], libyal.opener(open_file))
