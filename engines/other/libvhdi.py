"""libvhdi (PyPI: libvhdi-python) behind the line protocol: VHD and VHDX images, none with a parent."""
import libyal
import lines
import pyvhdi


def open_file(path):
    image = pyvhdi.file()
    image.open(path)
    return image


lines.serve("libvhdi", [
    "no qcow2 images", "yes vpc images", "yes vhdx images",
    "size near",
], libyal.opener(open_file))
