"""Random images of qemu-img and qemu-io, for comparison: the crate must read what `qemu-img convert` writes."""

import random
import re
import resource
import subprocess
import tempfile
import time
from pathlib import Path

from .common import MAX_ADDRESS_BYTES, MAX_RUN_SECONDS, Slice, cpu_seconds, fail

KIB = 1 << 10
MIB = 1 << 20
# The features of options, by the names of src/base/features.rs. The first choice is QEMU's default, and as frequent as
# all others together.
CLUSTER_SIZES = [64 * KIB, *(512 << shift for shift in range(13) if 512 << shift != 64 * KIB)]
REFCOUNT_BITS = [16, 1, 2, 4, 8, 32, 64]
# Whole sectors: QEMU makes no other sizes.
DISK_BYTES = [MIB, 0, 512, 4 * KIB, 64 * KIB, MIB - 512, MIB + 512, 4 * MIB, 16 * MIB]
# One image of so many keeps the features that the crate may refuse, as one program of so many does.
REFUSED_SHARE = 8


def named_size(size):
    """Returns a size as the names of features have it."""
    unit = next((unit for unit in ["MiB", "KiB"] if size >= {"MiB": MIB, "KiB": KIB}[unit]), "bytes")
    return f"{size // {'MiB': MIB, 'KiB': KIB, 'bytes': 1}[unit]} {unit}"


class Recipe:
    """The commands that make one chain of images, in the folder in which they run. The top image is `image.qcow2`."""

    def __init__(self, rng, lacking):
        """`lacking` are the names of features that the images must not have."""
        self.rng, self.lacking, self.commands, self.files = rng, lacking, [], []
        size = self.choice(DISK_BYTES)
        below = self.add_base(size) if rng.random() < 0.4 and not self.lacks("a qcow2 backing file") else None
        self.add_image("image.qcow2", size if rng.random() < 0.7 else self.choice(DISK_BYTES), below)
        self.files.reverse()

    def lacks(self, feature):
        return feature in self.lacking

    def choice(self, choices, feature=lambda _: None):
        """Returns the first choice, or as often another, without those that have a feature that is not wanted."""
        choices = [choice for choice in choices if feature(choice) not in self.lacking]
        return choices[0] if self.rng.random() < 0.5 else self.rng.choice(choices)

    def add_base(self, size):
        """Adds a file below the top: a raw one, or one or two images."""
        if self.rng.random() < 0.3 and not self.lacks("a raw backing file"):
            size = max(size, 512)
            self.commands += [["truncate", "-s", str(size), "base.raw"],
                              ["qemu-io", "-f", "raw", *self.writes(size, 2, ["write -P"], 512), "base.raw"]]
            self.files.append("base.raw")
            return "base.raw"
        lower = self.add_base(size) if self.rng.random() < 0.3 and not self.files else None
        name = f"base{len(self.files)}.qcow2"
        self.add_image(name, size, lower)
        return name

    def add_image(self, name, size, below):
        """Adds an image with random options and content."""
        options, cluster, compat = self.options()
        backing = ["-b", below, "-F", "raw" if below.endswith(".raw") else "qcow2"] if below else []
        create = ["qemu-img", "create", "-q", "-f", "qcow2", "-o", ",".join(options)]
        self.commands.append([*create, *backing, name, str(size)])
        self.files.append(name)
        kinds = ["write -P", "write -P", "write -z", "write -z -u", "discard"]
        kinds += ["write -c -P"] if not self.lacks("compressed clusters") else []
        for _ in range(self.rng.randrange(1, 4)):
            writes = self.writes(size, self.rng.randrange(1, 6), kinds, cluster)
            if writes:
                self.commands.append(["qemu-io", "-f", "qcow2", "-d", "unmap", *writes, name])
            self.add_other(name, compat)

    def options(self):
        """Returns options for `qemu-img create`, with the size of clusters and the version."""
        cluster = self.choice(CLUSTER_SIZES, lambda size: f"clusters of {named_size(size)}")
        compat = self.choice(["1.1", "0.10"], lambda compat: "version 2" if compat == "0.10" else "version 3")
        options = [f"cluster_size={cluster}", f"compat={compat}"]
        if compat == "1.1":
            bits = self.choice(REFCOUNT_BITS, lambda bits: f"refcounts of {bits} bit{'s' * (bits > 1)}")
            options.append(f"refcount_bits={bits}")
            extras = [("compression type zstd", "compression_type=zstd"), ("lazy refcounts", "lazy_refcounts=on")]
            extras += [("extended L2 entries", "extended_l2=on")] if cluster >= 16 * KIB else []
            options += [option for feature, option in extras if self.rng.random() < 0.25 and not self.lacks(feature)]
        return options, cluster, compat

    def writes(self, size, count, kinds, unit):
        """Returns commands for qemu-io, inside a disk of `size` bytes."""
        commands = []
        for _ in range(count if size else 0):
            kind = self.rng.choice(kinds)
            step = unit if kind == "write -c -P" else 512
            start = self.rng.randrange(size) // step * step
            longest = min(size - start, self.rng.choice([4 * unit, unit, 512]))
            length = longest if kind != "write -c -P" else min(unit, size - start)
            pattern = [str(self.rng.randrange(1, 256))] if kind.endswith("-P") else []
            commands += ["-c", " ".join([kind, *pattern, str(start), str(max(length // 512 * 512, 512))])]
        return commands

    def add_other(self, name, compat):
        """Adds what qemu-io cannot do: a snapshot, a bitmap, another size."""
        kind = self.rng.randrange(8)
        if kind == 0 and not self.lacks("snapshots"):
            self.commands.append(["qemu-img", "snapshot", "-c", f"s{len(self.commands)}", name])
        elif kind == 1 and compat == "1.1" and not self.lacks("bitmaps"):
            self.commands.append(["qemu-img", "bitmap", "--add", name, f"b{len(self.commands)}"])
        elif kind == 2:
            self.commands.append(["qemu-img", "resize", "-q", "--shrink", "-f", "qcow2", name,
                                  str(self.choice(DISK_BYTES))])

    def make(self, folder):
        """Runs the commands. One that qemu refuses changes nothing, except that there must be an image.

        QEMU marks an image as corrupt if a compressed write of its own would overwrite a table. The corrupt bit is a
        feature that no recipe asks for, so such an image does not count.
        """
        for command in [*self.commands, ["qemu-img", "convert", "-O", "raw", "image.qcow2", "raw"]]:
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        images = [folder / name for name in self.files if name.endswith(".qcow2")]
        return done.returncode == 0 and not any(map(is_marked_corrupt, images))

    def text(self):
        """Returns the commands as a shell script."""
        quoted = [" ".join(f"'{word}'" if " " in word else word for word in command) for command in self.commands]
        return "".join(f"{line}\n" for line in quoted)


def is_marked_corrupt(image):
    """Reports whether an image of version 3 has the corrupt bit."""
    header = image.read_bytes()[:80]
    version, features = int.from_bytes(header[4:8]), int.from_bytes(header[72:80])
    return version >= 3 and features & 2 != 0


class QemuImages:
    """Random images. The same seed and the same numbers of slice and run make the same image."""

    def __init__(self, engine, _target, seed, folder):
        self.engine, self.seed, self.command = engine, seed, engine.reader()
        self.artifacts = folder / "artifacts"
        self.artifacts.mkdir(exist_ok=True)
        claims = subprocess.run([*self.command, "claims"], check=True, capture_output=True, text=True).stdout
        claims = [line.split(" ", 1) for line in claims.splitlines()]
        self.no = {feature for claim, feature in claims if claim == "no"}
        self.refuses = {feature for claim, feature in claims if claim == "refuse"}
        if "qcow2 images" in self.no:
            fail(f"{engine.name} reads no qcow2 images, and this loop makes no others")

    def set_aside(self, _fingerprints):
        """A finding does not end the loop."""

    def run_slice(self, seconds, number):
        """Makes and reads images for some seconds."""
        before, end, runs, found = cpu_seconds(), time.monotonic() + seconds, 0, {}
        while time.monotonic() < end:
            keeps_refused = runs % REFUSED_SHARE == REFUSED_SHARE - 1
            lacking = self.no if keeps_refused else self.no | self.refuses
            recipe = Recipe(random.Random(f"{self.seed}-{number}-{runs}"), lacking)
            runs += 1
            fingerprint = self.judge(recipe, keeps_refused)
            if fingerprint and fingerprint not in found:
                path = self.artifacts / f"{number}-{runs}.sh"
                path.write_text(recipe.text())
                found[fingerprint] = str(path)
        new, known = self.engine.known().divide(list(found.items()))
        return Slice(runs, cpu_seconds() - before, new, known)

    def judge(self, recipe, may_refuse):
        """Makes the images of a recipe, and reads them. Returns the fingerprint of a difference, or None."""
        with tempfile.TemporaryDirectory() as folder:
            if not recipe.make(folder):
                return None
            # Runs in the folder: names in images are relative to it.
            done = subprocess.run([*self.command, "raw", *recipe.files], cwd=folder, capture_output=True, text=True,
                                  errors="replace", preexec_fn=limit)
        last = (done.stderr.strip().splitlines() or [""])[-1]
        if done.returncode == 2:
            fail(last)
        if done.returncode == 0 or done.returncode == 3 and may_refuse:
            return None
        if done.returncode < 0:
            return f"process: end, an answer → signal: {-done.returncode}"
        return without_values(last)


def without_values(fingerprint):
    """Returns a fingerprint with `_` in place of numbers and paths, as the oracles write it."""
    line = re.sub(r"\S*/\S+", "_", fingerprint)
    return re.sub(r"\b(0x[0-9a-f]+|\d[0-9a-f]*)\b", "_", line)


def limit():
    """Limits CPU time and address space, as the loops do."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_RUN_SECONDS, MAX_RUN_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_BYTES, MAX_ADDRESS_BYTES))
