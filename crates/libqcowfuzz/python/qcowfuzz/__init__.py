"""Fuzz code that reads or writes disk images.

A *program* (any bytes) builds an image. A :class:`Harness` asks your code about it, and compares the answers with the
right ones. Your code is an *engine*: an object with a method ``open``, which returns a *disk*. Both may be of any class;
the harness looks for these methods and attributes by their names:

engine
    ``open(files)``, and if it can, ``open_to_write(files)`` and ``open_snapshot(files, index)``. The attribute
    ``claims`` lists features that the code lacks, such as ``["no extended L2 entries"]``; ``name`` is for reports.
disk
    ``size`` (bytes), and at least one of ``read(offset, length)``, ``status(offset)`` and ``map(start, length)``. If it
    can: ``write(offset, data)``, ``write_zeroes(offset, length)``, ``discard(offset, length)``, ``resize(size)``,
    ``flush()``, ``take_snapshot()``, ``apply_snapshot(index)``, ``delete_snapshot(index)``, ``check()``, ``close()``.

A method that is missing has no answer to its question. :class:`Unsupported` and :class:`Malformed` are errors of a
known kind. Any other exception of a class in ``refusals`` (of the engine) is an error, too; the rest leaves the run, as
bugs of your code do: the fuzzer or the test sees them.
"""

import contextlib
import ctypes
import os
import tempfile
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, Type

from . import _abi
from ._abi import library as _library

__all__ = [
    "Case",
    "Error",
    "Extent",
    "File",
    "Files",
    "Finding",
    "Harness",
    "Malformed",
    "Unsupported",
    "assemble",
    "cases",
    "disassemble",
]

__version__: str = _library.qcowfuzz_version().decode()

_C = _abi.CONSTANTS
_KINDS = {value: name for name, value in _C.items() if name in (
    "OPEN", "OPEN_SNAPSHOT", "OPEN_TO_WRITE", "SIZE", "READ", "STATUS", "MAP", "CHECK", "WRITE", "WRITE_ZEROES",
    "DISCARD", "RESIZE", "FLUSH", "TAKE_SNAPSHOT", "APPLY_SNAPSHOT", "DELETE_SNAPSHOT", "CLOSE",
)}
_STATUSES = ["hole", "zeros", "data", "compressed", "stored", "below"]
#: The most bytes of a program.
MAX_PROGRAM_BYTES = 1 << 16


class Error(Exception):
    """The library could not do what was asked: one line that says why. No input is to blame."""


class Unsupported(Exception):
    """Raised by an engine or a disk: the code does not support a feature of the image."""


class Malformed(Exception):
    """Raised by an engine or a disk: the image is malformed, or a range lies past the end of the disk."""


class Finding(AssertionError):
    """An oracle has found a wrong answer. The message has the offsets and values."""

    def __init__(self, fingerprint: str, report: str) -> None:
        super().__init__(report)
        #: A short description of the bug, which is the same for the same bug.
        self.fingerprint = fingerprint


@dataclass(frozen=True)
class Extent:
    """Bytes of the disk with one status, as an answer to ``status`` or ``map``."""

    #: The first byte. In an answer to ``status``, it does not count.
    start: int
    #: The number of bytes, at least 1.
    length: int
    #: ``hole``, ``zeros``, ``data`` or ``compressed``. Without a depth also ``stored`` or ``below``.
    status: str
    #: The offset of the first byte in the file that stores it, or ``None``.
    host_offset: Optional[int] = None
    #: The layer that allocates the bytes, 0 for the image to open; ``None`` in a coarse answer to ``status``.
    depth: Optional[int] = None


class File:
    """A file of an image, while the image is open or being opened."""

    def __init__(self, files: int, index: int) -> None:
        info = _abi.FileInfo()
        if _library.qcowfuzz_file_info(files, index, ctypes.byref(info)) != 0:
            raise Error(_last_error())
        self._files, self._index = files, index
        #: The layer: 0 for the image to open, 1 for the image below it.
        self.layer: int = info.layer
        #: ``image``, ``data`` (the external data file of an image) or ``extent`` (of a VMDK image).
        self.kind: str = ["image", "data", "extent"][info.kind]
        #: The name by which another file names this one.
        self.name: str = info.name.decode()
        #: The format of an image, as QEMU calls it.
        self.format: str = info.format.decode()
        #: The number of bytes.
        self.length: int = info.length

    def read(self, offset: int, length: int) -> bytes:
        """Returns bytes of the file, and zeros behind its end. Some reads fail on purpose, with ``OSError``."""
        buffer = ctypes.create_string_buffer(length)
        if _library.qcowfuzz_file_read(self._files, self._index, offset, buffer, length) != 0:
            raise OSError(_last_error())
        return buffer.raw

    def write(self, offset: int, data: bytes) -> None:
        """Writes bytes. The file grows to their end. Only the image to open and its data file can be written."""
        if _library.qcowfuzz_file_write(self._files, self._index, offset, data, len(data)) != 0:
            raise OSError(_last_error())

    def set_length(self, length: int) -> None:
        """Cuts the file, or appends a hole."""
        if _library.qcowfuzz_file_set_length(self._files, self._index, length) != 0:
            raise OSError(_last_error())

    def flush(self) -> None:
        """Has the file keep all that was written to it in a power cut."""
        if _library.qcowfuzz_file_flush(self._files, self._index) != 0:
            raise OSError(_last_error())

    @property
    def path(self) -> str:
        """The path of the file in a temporary folder. The harness does not see what is read there."""
        path = _library.qcowfuzz_file_path(self._files, self._index)
        if path is None:
            raise OSError(_last_error())
        return str(path.decode())

    def stream(self) -> "_Stream":
        """Returns a binary file object for code that takes one: it reads, seeks and tells."""
        return _Stream(self)


class _Stream:
    """A file object over a :class:`File`."""

    def __init__(self, file: File) -> None:
        self._file, self._at = file, 0

    def read(self, length: int = -1) -> bytes:
        left = max(self._file.length - self._at, 0)
        length = left if length is None or length < 0 else min(length, left)
        data = self._file.read(self._at, length)
        self._at += length
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.length}[whence]
        if base + offset < 0:
            raise ValueError(f"expected an offset in the file, found {base + offset}")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def get_size(self) -> int:
        return self._file.length

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def close(self) -> None:
        pass


class Files(Sequence[File]):
    """The files of an image: the image to open, its data file or extents, then the same of each image below."""

    def __init__(self, files: int) -> None:
        self._all = [File(files, index) for index in range(_library.qcowfuzz_file_count(files))]

    @classmethod
    def of(cls, files: List[File]) -> "Files":
        """Returns the files of a list."""
        made = cls.__new__(cls)
        made._all = list(files)
        return made

    def __getitem__(self, index: Any) -> Any:
        return self._all[index]

    def __len__(self) -> int:
        return len(self._all)

    @property
    def path(self) -> str:
        """The path of the image to open, beside all other files."""
        return self._all[0].path

    def images(self) -> List[File]:
        """Returns the images, the one to open first."""
        return [file for file in self._all if file.kind == "image"]


class Harness:
    """A fuzz target with an engine under test: runs, makes and minimizes inputs. One thread uses it at a time."""

    def __init__(self, target: str = "map_extents", engine: Any = None) -> None:
        """Creates a harness for the fuzz target ``target``: ``map_extents``, ``hostile``, ``raw_image``, ``writes`` or
        ``hostile_writes``."""
        self._engine = engine
        claims = "\n".join(getattr(engine, "claims", ()))
        table = _abi.Engine()
        table.struct_size = ctypes.sizeof(table)
        table.name = getattr(engine, "name", type(engine).__name__).encode()
        table.claims = claims.encode()
        table.known = getattr(engine, "known", "").encode()
        self._handle = _library.qcowfuzz_new(target.encode(), ctypes.byref(table))
        if not self._handle:
            raise Error(_last_error())
        self._disk: Any = None
        self._kept: List[Any] = []

    def close(self) -> None:
        """Frees the harness. It cannot be used any more."""
        handle, self._handle = getattr(self, "_handle", None), None
        _library.qcowfuzz_free(handle)

    def __del__(self) -> None:
        self.close()

    def run(self, data: bytes) -> Optional[Finding]:
        """Runs an input: any bytes. Returns the finding, or ``None``. An exception of the code under test that is no
        refusal leaves the run."""
        question, reply = _abi.Question(), _abi.Reply()
        end = _library.qcowfuzz_begin(self._handle, bytes(data), len(data), ctypes.byref(question))
        while end == _C["ASKS"]:
            self._reply(question, reply)
            end = _library.qcowfuzz_answer(self._handle, ctypes.byref(reply), ctypes.byref(question))
        if end == _C["ERROR"]:
            raise Error(_last_error())
        if end == _C["NOTHING"]:
            return None
        text = [it(self._handle).decode() for it in (_library.qcowfuzz_fingerprint, _library.qcowfuzz_report)]
        return Finding(*text)

    def check(self, data: bytes) -> None:
        """Runs an input, and raises the finding if there is one."""
        finding = self.run(data)
        if finding is not None:
            raise finding

    def generate(self, seed: int) -> bytes:
        """Returns the program of a seed."""
        return self._made(MAX_PROGRAM_BYTES, lambda into: _library.qcowfuzz_generate(self._handle, seed, into, len(into)))

    def mutate(self, data: bytes, seed: int, max_size: int = 4096) -> bytes:
        """Returns a mutated input. The same seed gives the same one."""
        def made(into: Any) -> int:
            into[: len(data)] = data
            return int(_library.qcowfuzz_mutate(self._handle, into, len(data), max_size, seed))
        return self._made(max(max_size, len(data)), made)

    def cross_over(self, data: bytes, other: bytes, seed: int, max_size: int = 4096) -> bytes:
        """Returns a mutated input that may have parts of another one."""
        return self._made(max_size, lambda into: _library.qcowfuzz_cross_over(
            self._handle, data, len(data), other, len(other), into, max_size, seed))

    def minimize(self, data: bytes, is_interesting: Optional[Callable[[bytes], bool]] = None) -> bytes:
        """Returns the smallest and plainest input that is still interesting: by default, one with the same finding."""
        if is_interesting is None:
            finding = self.run(data)
            if finding is None:
                raise Error("expected an input with a finding, found none")
            fingerprint = finding.fingerprint

            def is_interesting(candidate: bytes) -> bool:
                found = self.run(candidate)
                return found is not None and found.fingerprint == fingerprint

        raised: List[BaseException] = []

        def callback(_context: Any, candidate: int, size: int) -> int:
            try:
                return int(not raised and is_interesting(ctypes.string_at(candidate, size)))
            except BaseException as error:  # It continues below, where Python can see it.
                raised.append(error)
                return 0

        called = _abi.IsInteresting(callback)

        def made(into: Any) -> int:
            into[: len(data)] = data
            return int(_library.qcowfuzz_minimize(self._handle, into, len(data), len(into), called, None))

        minimized = self._made(MAX_PROGRAM_BYTES + len(data), made)
        if raised:
            raise raised[0]
        return minimized

    @staticmethod
    def _made(room: int, make: Callable[[Any], int]) -> bytes:
        into = (ctypes.c_char * room)()
        length = make(into)
        if length == 0:
            raise Error(_last_error())
        return into.raw[:length]

    def _reply(self, question: Any, reply: Any) -> None:
        """Has the engine answer a question."""
        ctypes.memset(ctypes.byref(reply), 0, ctypes.sizeof(reply))
        refusals: Tuple[Type[Exception], ...] = tuple(getattr(self._engine, "refusals", ()))
        try:
            reply.code = self._answer(_KINDS[question.kind], question, reply)
        except Unsupported as error:
            self._refuse(reply, "UNSUPPORTED", error)
        except Malformed as error:
            self._refuse(reply, "MALFORMED", error)
        except OSError as error:
            self._refuse(reply, "IO", error)
        except refusals as error:
            reply.code, reply.error = -1, _text(error)

    @staticmethod
    def _refuse(reply: Any, code: str, error: Exception) -> None:
        reply.code, reply.error = _C[code], _text(error)

    def _answer(self, kind: str, question: Any, reply: Any) -> int:
        if kind.startswith("OPEN"):
            return self._open(kind, question)
        if kind == "CLOSE":
            disk, self._disk = self._disk, None
            getattr(disk, "close", lambda: None)()
            return _C["OK"]
        if kind == "SIZE":
            reply.size_bytes = self._disk.size
            return _C["OK"]
        method = getattr(self._disk, kind.lower(), None)
        if method is None:
            return _C["NO_ANSWER"]
        if kind == "READ":
            data = bytes(method(question.offset, question.length))
            # A short read leaves the bytes that the harness has filled in.
            ctypes.memmove(question.buffer, data, min(len(data), question.length))
        elif kind == "STATUS":
            self._emit(reply, [method(question.offset)])
        elif kind == "MAP":
            self._emit(reply, method(question.offset, question.length))
        elif kind == "CHECK":
            reply.errors, reply.leaks = method()
        elif kind == "WRITE":
            method(question.offset, ctypes.string_at(question.bytes, question.length))
        elif kind in ("WRITE_ZEROES", "DISCARD"):
            method(question.offset, question.length)
        elif kind == "RESIZE":
            method(question.length)
        elif kind in ("APPLY_SNAPSHOT", "DELETE_SNAPSHOT"):
            method(question.index)
        else:
            method()
        return _C["OK"]

    def _open(self, kind: str, question: Any) -> int:
        method = getattr(self._engine, kind.lower(), None)
        if method is None:
            return _C["NO_ANSWER"]
        files = Files(question.files)
        self._disk = method(files, question.index) if kind == "OPEN_SNAPSHOT" else method(files)
        return _C["OK"]

    def _emit(self, reply: Any, extents: Iterable[Extent]) -> None:
        made = [
            _abi.Extent(
                start=it.start,
                length=it.length,
                host_offset=_C["NO_OFFSET"] if it.host_offset is None else it.host_offset,
                depth=_C["NO_DEPTH"] if it.depth is None else it.depth,
                status=_STATUSES.index(it.status),
            )
            for it in extents
        ]
        array = (_abi.Extent * len(made))(*made)
        # The library copies them in the next call.
        self._kept = [array]
        reply.extents, reply.extent_count = ctypes.cast(array, ctypes.c_void_p), len(made)


@dataclass(frozen=True)
class Case:
    """A program, for a test."""

    #: The input.
    data: bytes
    #: The fuzz target.
    target: str = "map_extents"
    #: The features that its image lacks, as an engine claims them.
    claims: Tuple[str, ...] = ()

    def check(self, engine: Any) -> None:
        """Has the engine answer all questions about the images, and raises the first finding."""
        Harness(self.target, engine).check(self.data)

    @contextlib.contextmanager
    def files(self) -> Iterator[List[str]]:
        """Writes the image and the files that it names to a temporary folder. The first path is that of the image."""
        with tempfile.TemporaryDirectory(prefix="qcowfuzz-") as folder:
            self._exported(os.path.join(folder, "image"))
            others = sorted(name for name in os.listdir(folder) if name != "image")
            yield [os.path.join(folder, name) for name in ["image", *others]]

    def _exported(self, path: str) -> Harness:
        harness = Harness(self.target, self)
        if _library.qcowfuzz_export(harness._handle, self.data, len(self.data), path.encode()) != 0:
            raise Error(_last_error())
        return harness

    @property
    def size(self) -> int:
        """The size of the disk in bytes."""
        with tempfile.TemporaryDirectory(prefix="qcowfuzz-") as folder:
            harness = self._exported(os.path.join(folder, "image"))
            return int(_library.qcowfuzz_expected_size(harness._handle))

    def expected(self, offset: int, length: int) -> bytes:
        """Returns the bytes that a guest must read from ``offset`` on. Zeros lie behind the end of the disk."""
        with tempfile.TemporaryDirectory(prefix="qcowfuzz-") as folder:
            harness = self._exported(os.path.join(folder, "image"))
            buffer = ctypes.create_string_buffer(length)
            if _library.qcowfuzz_expected(harness._handle, offset, buffer, length) != 0:
                raise Error(_last_error())
            return buffer.raw

    def __str__(self) -> str:
        """Returns the program as text."""
        return disassemble(self.data)


def cases(count: int, target: str = "map_extents", claims: Sequence[str] = (), first_seed: int = 0) -> Iterator[Case]:
    """Yields the cases of ``count`` seeds: ``@pytest.mark.parametrize("case", cases(100))``."""
    harness = Harness(target, Case(b"", target, tuple(claims)))
    for seed in range(first_seed, first_seed + count):
        yield Case(harness.generate(seed), target, tuple(claims))


def disassemble(data: bytes) -> str:
    """Returns the program of an input as text."""
    text = _library.qcowfuzz_disassemble(bytes(data), len(data))
    try:
        return ctypes.string_at(text).decode()
    finally:
        _library.qcowfuzz_free_text(text)


def assemble(text: str) -> bytes:
    """Returns the input of a program as text."""
    into = (ctypes.c_char * MAX_PROGRAM_BYTES)()
    length = _library.qcowfuzz_assemble(text.encode(), into, len(into))
    if length == 0:
        raise Error(_last_error())
    return into.raw[:length]


def _last_error() -> str:
    return str(_library.qcowfuzz_last_error().decode())


def _text(error: BaseException) -> bytes:
    return (str(error) or type(error).__name__).encode("utf-8", "replace").replace(b"\0", b" ")
