"""7-Zip (Debian: 7zip) behind the line protocol: processes for each image, which list it and write its whole disk."""
import re
import subprocess

import lines

# 7-Zip writes a disk from its first byte on. Programs have disks of terabytes.
MAX_BYTES = 16 << 20


def seven_zip(*arguments):
    done = subprocess.run(["7zz", *arguments], stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode:
        text = (done.stdout + b"\n" + done.stderr).decode(errors="replace")
        reasons = re.findall(r"^(?:ERROR: )?((?:Is not|Unsupported|Unexpected|Data|CRC)[\w ]*\w)", text, re.M)
        raise OSError(" ".join(reasons[-1:]) or f"exit status {done.returncode}")
    return done.stdout


def open_image(paths):
    listed = seven_zip("l", "-slt", "-tqcow", paths[0]).decode(errors="replace")
    # The first part of the list is about the file, the last about the disk.
    size = int(re.search(r"^Size = (\d+)$", listed.rpartition("----------")[2], re.M)[1])
    disk = []

    def read(start, length):
        if start + length > size:
            raise EOFError("a read past the end")
        if size > MAX_BYTES:
            raise OverflowError("the adapter reads no disks of this size")
        if not disk:
            disk.append(seven_zip("x", "-so", "-tqcow", paths[0]))
        return disk[0][start : start + length]

    return size, read


lines.serve("7-Zip", [
    "refuse extended L2 entries", "refuse compression type zstd", "refuse a qcow2 backing file",
    "refuse a raw backing file", "refuse an external data file",
    "size near",
], open_image)
