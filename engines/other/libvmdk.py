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


lines.serve("libvmdk", [
    "no qcow2 images", "yes vmdk images", "yes parents of vmdk images",
    "yes parents of vmdk images of another size", "yes vmdk images in several files", "refuse seSparse vmdk extents",
], libyal.opener(open_file))
