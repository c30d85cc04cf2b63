"""``python -m qcowfuzz MODULE:ENGINE`` answers the questions of ``qcowfuzz --engine-command`` with an engine: so that
the command tests the adapter (``selftest``), replays and minimizes what another fuzzer has found, and fuzzes."""

import importlib
import os
import sys
from typing import Any, BinaryIO, Callable, Dict, List, Tuple, Type

from . import Extent, File, Files, Malformed, Unsupported


class _PathFile(File):
    """A file of the process that asks."""

    def __init__(self, layer: int, kind: str, format: str, path: str) -> None:
        self.layer, self.kind, self.format = layer, kind, format
        self.name, self.length = os.path.basename(path), os.path.getsize(path)
        self._path = path
        self._file = open(path, "rb", buffering=0)

    def read(self, offset: int, length: int) -> bytes:
        data = b""
        while len(data) < length:
            part = os.pread(self._file.fileno(), length - len(data), offset + len(data))
            if not part:
                break
            data += part
        return data.ljust(length, b"\0")

    def write(self, offset: int, data: bytes) -> None:
        raise OSError("the file is open for reading only")

    def set_length(self, length: int) -> None:
        raise OSError("the file is open for reading only")

    def flush(self) -> None:
        pass

    @property
    def path(self) -> str:
        return self._path


class _Server:
    def __init__(self, engine: Any, out: BinaryIO) -> None:
        self.engine, self.out = engine, out
        self.refusals: Tuple[Type[Exception], ...] = tuple(getattr(engine, "refusals", ()))
        self.named: List[File] = []
        self.files = Files.of([])
        self.disk: Any = None

    def line(self, text: str) -> None:
        self.out.write(text.encode() + b"\n")

    def first_lines(self) -> None:
        self.line("qcowfuzz-engine 1")
        self.line("name " + getattr(self.engine, "name", type(self.engine).__name__))
        for claim in getattr(self.engine, "claims", ()):
            self.line(claim)
        verbs = list(getattr(self.engine, "answers", ["read"]))
        if hasattr(self.engine, "open_snapshot"):
            verbs.append("snapshot")
        self.line("answers " + " ".join(verbs))
        self.line("ready")
        self.out.flush()

    def serve(self, lines: BinaryIO) -> None:
        self.first_lines()
        for raw in lines:
            verb, _, rest = raw.decode().rstrip("\n").partition(" ")
            if verb == "image":
                format, _, path = rest.partition(" ")
                layer = sum(file.kind == "image" for file in self.named)
                self.named.append(_PathFile(layer, "image", format, path))
            elif verb in ("data", "extent"):
                self.named.append(_PathFile(self.named[-1].layer, verb, "raw", rest))
            elif verb == "end":
                self.close()
                self.named = []
                self.out.flush()
            else:
                self.answer(verb, [int(word) for word in rest.split()])

    def close(self) -> None:
        disk, self.disk = self.disk, None
        getattr(disk, "close", lambda: None)()

    def answer(self, verb: str, numbers: List[int]) -> None:
        answers: Dict[str, Callable[..., None]] = {
            "open": self.open, "snapshot": self.snapshot, "read": self.read, "status": self.status, "map": self.map,
        }
        try:
            answers[verb](*numbers)
        except Unsupported as error:
            self.refuse("unsupported", error)
        except Malformed as error:
            self.refuse("failed", error)
        except OSError as error:
            self.refuse("io", error)
        except self.refusals as error:
            self.refuse("error", error)

    def refuse(self, word: str, error: Exception) -> None:
        self.line(f"{word} {str(error) or type(error).__name__}".replace("\n", " "))

    def open(self) -> None:
        self.close()
        self.files = Files.of(self.named)
        self.disk = self.engine.open(self.files)
        self.line(f"ok {self.disk.size}")

    def snapshot(self, index: int) -> None:
        self.close()
        self.disk = self.engine.open_snapshot(self.files, index)
        self.line(f"ok {self.disk.size}")

    def opened(self) -> Any:
        if self.disk is None:
            raise Malformed("no disk is open")
        return self.disk

    def read(self, offset: int, length: int) -> None:
        # A short read leaves other bytes, as in a harness.
        data = bytes(self.opened().read(offset, length))[:length].ljust(length, b"\xa5")
        self.line(f"ok {length}")
        self.out.write(data)

    def status(self, offset: int) -> None:
        run = self.opened().status(offset)
        self.line(f"ok {run.length} {_words(run)}")

    def map(self, start: int, length: int) -> None:
        extents = list(self.opened().map(start, length))
        self.line(f"ok {len(extents)}")
        for extent in extents:
            self.line(f"{extent.start} {extent.length} {_words(extent)}")


def _words(extent: Extent) -> str:
    host, depth = ("-" if it is None else str(it) for it in (extent.host_offset, extent.depth))
    return f"{extent.status} {host} {depth}"


def main() -> None:
    module, _, name = sys.argv[1].partition(":") if len(sys.argv) == 2 else ("", "", "")
    if not module or not name:
        sys.exit("usage: python -m qcowfuzz MODULE:ENGINE, such as my_adapter:Engine")
    sys.path.insert(0, os.getcwd())
    engine = getattr(importlib.import_module(module), name)()
    # The code under test may print: standard output is for answers only.
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)
        _Server(engine, out).serve(sys.stdin.buffer)


if __name__ == "__main__":
    main()
