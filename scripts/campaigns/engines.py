"""The engines of a campaign: the crates of engines/, and the implementations behind the line protocol."""

import os
import shlex
import shutil
from pathlib import Path

from .common import ROOT, KnownFindings, built, existing, fail, target_folder

CRATES = sorted(path.stem for path in (ROOT / "engines" / "src" / "bin").glob("*.rs"))
OTHERS = sorted(path.stem for path in (ROOT / "engines" / "other" / "known").glob("*.toml"))
TRIPLE = "x86_64-unknown-linux-gnu"


class Engine:
    """An engine with its name, its commands and its known findings."""

    def __init__(self, name, claims):
        """Creates the engine. `claims` are further claims, in the words of the line protocol: 'no snapshots'."""
        self.name, self.claims = name, claims
        if name in CRATES and any(not claim.startswith("no ") for claim in claims):
            fail(f"found the claims {claims}, expected 'no FEATURE': the adapter of {name} states what it reads")

    def known_file(self):
        """Returns the file of its known findings."""
        folder = "known" if self.name in CRATES else "other/known"
        return ROOT / "engines" / folder / f"{self.name}.toml"

    def known(self):
        """Returns its known findings."""
        return KnownFindings(self.known_file())

    def command(self):
        """Returns the command of qcowfuzz with this engine, built if need be."""
        if self.name in CRATES:
            options = [f"--without={claim.removeprefix('no ')}" for claim in self.claims]
            return [str(self.built_file(self.name, ["--bin", self.name])), *options]
        if not (path := os.environ.get("QCOWFUZZ")):
            built(["cargo", "build", "-q", "--locked", "--release", "--bin", "qcowfuzz"], "qcowfuzz")
            path = target_folder(".") / "release" / "qcowfuzz"
        engine = shlex.join([str(ROOT / "engines" / "other" / "engine"), self.name, *self.claims])
        return [str(existing(Path(path).resolve())), "--engine-command", engine, "--known", str(self.known_file())]

    def reader(self):
        """Returns the command that compares an image with its bytes in the crate."""
        return [str(self.built_file("read_image", ["--example", "read_image"], "examples/")), self.name]

    def built_file(self, name, options, below=""):
        """Returns a binary of engines/, built unless QCOWFUZZ_ENGINES names a folder of binaries."""
        if folder := os.environ.get("QCOWFUZZ_ENGINES"):
            return existing(Path(folder).resolve() / name)
        cargo = ["cargo", "build", "-q", "--locked", "--release", "--manifest-path", "engines/Cargo.toml"]
        built([*cargo, *options], name)
        return existing(target_folder("engines") / "release" / (below + name))

    def libfuzzer_target(self, target):
        """Returns a libFuzzer target with this crate, built unless QCOWFUZZ_ENGINES names a folder of binaries."""
        if self.claims:
            fail(f"found the claims {self.claims}, expected none: only the embedded loop changes claims")
        name = f"{self.name}-{target}"
        if folder := os.environ.get("QCOWFUZZ_ENGINES"):
            return existing(Path(folder).resolve() / name)
        # Optimized, without overflow checks, as the embedded loop: both loops test the same code.
        cargo = ["cargo", "+nightly", "fuzz", "build", "--fuzz-dir", "engines/fuzz", "-O", "-s", "none"]
        built([*cargo, "--features", self.name, target], name)
        release = target_folder("engines/fuzz") / TRIPLE / "release"
        # The next crate's build replaces the binary. A campaign that runs keeps its own.
        own = release / name
        shutil.copy2(existing(release / target), own.with_suffix(".new"))
        own.with_suffix(".new").replace(own)
        return own
