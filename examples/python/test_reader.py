"""The tests of the reader: a hundred programs. `pytest test_reader.py` fails, because the reader has a bug."""

import pytest
import qcowfuzz
from engine import Engine
from reader import Reader


@pytest.mark.parametrize("case", qcowfuzz.cases(100, claims=Engine.claims), ids=lambda case: hex(hash(case)))
def test_all_answers(case):
    case.check(Engine())


@pytest.mark.parametrize("case", qcowfuzz.cases(20, claims=Engine.claims), ids=lambda case: hex(hash(case)))
def test_first_sector(case):
    with case.files() as paths, open(paths[0], "rb") as image:
        length = min(case.size, 512)
        assert Reader(image).read(0, length) == case.expected(0, length)
