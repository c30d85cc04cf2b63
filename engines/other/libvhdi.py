"""libvhdi (PyPI: libvhdi-python) behind the line protocol: VHD and VHDX images, none with a parent."""
import libyal
import lines
import pyvhdi


def open_file(path):
    image = pyvhdi.file()
    image.open(path)
    return image


# VHD images have no bitmaps for blocks of less than 4 KiB, because QEMU rounds their length down. The library refuses
# such blocks, and the format has a sector for each bitmap. The claims also exclude VHDX blocks of 1 to 4 MiB.
lines.serve("libvhdi", [
    "no qcow2 images", "yes vpc images", "yes vhdx images",
    "no clusters of 512 bytes", "no clusters of 1 KiB", "no clusters of 2 KiB",
    "size near",
], libyal.opener(open_file))
