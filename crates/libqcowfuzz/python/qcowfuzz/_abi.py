"""The C library through ctypes. Its constants and structures are read from the header, which alone describes them."""

import ctypes
import re
from pathlib import Path
from typing import Any, Dict, List, Tuple

_FOLDER = Path(__file__).parent
_HEADER = re.sub(r"//[^\n]*|/\*.*?\*/", "", (_FOLDER / "qcowfuzz.h").read_text(encoding="utf-8"), flags=re.S)
_MOST = {"UINT64_MAX": 2**64 - 1, "UINT32_MAX": 2**32 - 1}
_TYPES: Dict[str, Any] = {
    "int": ctypes.c_int,
    "size_t": ctypes.c_size_t,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
}


def _constants() -> Dict[str, int]:
    found = re.findall(r"^#define QCOWFUZZ_(\w+) (-?\d+|UINT\d+_MAX)$", _HEADER, re.M)
    return {name: _MOST[value] if value in _MOST else int(value) for name, value in found}


def _type_of(declaration: str) -> Tuple[str, Any]:
    """Returns the name and the type of a field."""
    callback = re.match(r".*\(\*(\w+)\)\(", declaration, re.S)
    if callback:
        return callback[1], ctypes.c_void_p
    words = declaration.replace("*", " * ").split()
    name, rest = words[-1], words[:-1]
    if "*" in rest:
        return name, ctypes.c_char_p if "char" in rest else ctypes.c_void_p
    # The type of a callback with a name of its own is no number.
    return name, _TYPES.get(rest[-1], ctypes.c_void_p)


def _structure(name: str) -> Any:
    body = re.search(r"typedef struct %s \{(.*?)\} %s;" % (name, name), _HEADER, re.S)
    if body is None:
        raise ImportError(f"qcowfuzz.h: expected the structure {name}")
    fields: List[Tuple[str, Any]] = [_type_of(it) for it in body[1].split(";") if it.strip()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


CONSTANTS = _constants()
Engine = _structure("qcowfuzz_engine")
Question = _structure("qcowfuzz_question")
Reply = _structure("qcowfuzz_reply")
Extent = _structure("qcowfuzz_extent")
FileInfo = _structure("qcowfuzz_file")

library = ctypes.CDLL(str(_FOLDER / "libqcowfuzz.so"))

_P, _S, _N = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_SIGNATURES: Dict[str, Tuple[Any, List[Any]]] = {
    "abi": (ctypes.c_int, []),
    "version": (_S, []),
    "last_error": (_S, []),
    "new": (_P, [_S, _P]),
    "free": (None, [_P]),
    "begin": (ctypes.c_int, [_P, _S, _N, _P]),
    "answer": (ctypes.c_int, [_P, _P, _P]),
    "fingerprint": (_S, [_P]),
    "report": (_S, [_P]),
    "generate": (_N, [_P, ctypes.c_uint64, _P, _N]),
    "mutate": (_N, [_P, _P, _N, _N, ctypes.c_uint64]),
    "cross_over": (_N, [_P, _S, _N, _S, _N, _P, _N, ctypes.c_uint64]),
    "minimize": (_N, [_P, _P, _N, _N, _P, _P]),
    "disassemble": (_P, [_S, _N]),
    "free_text": (None, [_P]),
    "assemble": (_N, [_S, _P, _N]),
    "file_count": (_N, [_P]),
    "file_info": (ctypes.c_int, [_P, _N, _P]),
    "file_read": (ctypes.c_int, [_P, _N, ctypes.c_uint64, _P, _N]),
    "file_write": (ctypes.c_int, [_P, _N, ctypes.c_uint64, _S, _N]),
    "file_set_length": (ctypes.c_int, [_P, _N, ctypes.c_uint64]),
    "file_flush": (ctypes.c_int, [_P, _N]),
    "file_path": (_S, [_P, _N]),
    "export": (ctypes.c_int, [_P, _S, _N, _S]),
    "expected_size": (ctypes.c_uint64, [_P]),
    "expected": (ctypes.c_int, [_P, ctypes.c_uint64, _P, _N]),
}
IsInteresting = ctypes.CFUNCTYPE(ctypes.c_int, _P, _P, _N)

for _name, (_result, _arguments) in _SIGNATURES.items():
    _function = getattr(library, "qcowfuzz_" + _name)
    _function.restype, _function.argtypes = _result, _arguments

if library.qcowfuzz_abi() != CONSTANTS["ABI"]:
    raise ImportError("libqcowfuzz.so: expected the version of qcowfuzz.h, found another one")
