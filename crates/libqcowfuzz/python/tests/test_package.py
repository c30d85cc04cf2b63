"""Uses and misuses of the package."""

import pytest
import qcowfuzz

CLAIMS = ["no compressed clusters", "no extended L2 entries", "no a qcow2 backing file", "no a raw backing file",
          "no an external data file"]
ZEROS_OVER_DATA = qcowfuzz.assemble(
    "image version=3 cluster_bits=16 refcount_order=4 features=none size=64<<20+0 rng_seed=0 blocks=append table=append "
    "tolerance=0\nwrite at=start+9 clusters=3\nwrite at=start+4 clusters=2\nzero at=start+4 clusters=1 keep=yes\n")


class Zeros:
    """An engine whose disks have the right size, and zeros: that is wrong as soon as there are data."""

    claims = CLAIMS

    def __init__(self, **methods):
        self.methods = methods

    def open(self, files):
        self.files = files
        self.size = int.from_bytes(files[0].read(24, 8), "big") // 512 * 512
        self.__dict__.update(self.methods)
        return self

    def read(self, offset, length):
        return bytes(length)


def fingerprint(engine, data=ZEROS_OVER_DATA):
    finding = qcowfuzz.Harness("map_extents", engine).run(data)
    return finding and finding.fingerprint


def test_a_wrong_answer_is_a_finding():
    assert fingerprint(Zeros()).startswith("data: ")
    assert fingerprint(Zeros(), qcowfuzz.assemble(str(qcowfuzz.Case(b"")))) is None
    with pytest.raises(qcowfuzz.Finding, match="guest offset"):
        qcowfuzz.Case(ZEROS_OVER_DATA).check(Zeros())


def test_a_minimized_input_has_the_same_finding():
    harness = qcowfuzz.Harness("map_extents", Zeros())
    small = harness.minimize(ZEROS_OVER_DATA)
    assert len(small) < len(ZEROS_OVER_DATA)
    assert harness.run(small).fingerprint == harness.run(ZEROS_OVER_DATA).fingerprint
    writes = harness.minimize(ZEROS_OVER_DATA, lambda it: "\nwrite " in qcowfuzz.disassemble(it))
    assert len(qcowfuzz.disassemble(writes).splitlines()) == 2
    with pytest.raises(ZeroDivisionError):
        harness.minimize(ZEROS_OVER_DATA, lambda it: 1 // 0)
    with pytest.raises(qcowfuzz.Error, match="with a finding"):
        harness.minimize(b"")


def test_an_exception_leaves_the_run_and_the_next_one_begins():
    def read(offset, length):
        raise KeyError("as planned")

    harness = qcowfuzz.Harness("map_extents", Zeros(read=read))
    for _ in range(2):
        with pytest.raises(KeyError):
            harness.run(ZEROS_OVER_DATA)


def test_refusals_are_answers():
    def unsupported(offset, length):
        raise qcowfuzz.Unsupported("zstd")

    def lost(offset, length):
        raise OSError("the file has gone")

    assert "unsupported" in fingerprint(Zeros(read=unsupported)) or "zstd" in fingerprint(Zeros(read=unsupported))
    assert "gone" in fingerprint(Zeros(read=lost))


def test_a_short_read_is_a_finding():
    assert fingerprint(Zeros(read=lambda offset, length: b"")) is not None


def test_extents_are_judged():
    hole = [qcowfuzz.Extent(0, 64 << 20, "hole", None, 0)]
    assert fingerprint(Zeros(map=lambda start, length: hole)).startswith(("model: ", "window: "))
    assert fingerprint(Zeros(map=lambda start, length: hole * 2)).startswith("partition: ")


def test_mistakes_have_one_clear_line():
    with pytest.raises(qcowfuzz.Error, match="wings"):
        engine = Zeros()
        engine.claims = ["no wings"]
        qcowfuzz.Harness("map_extents", engine)
    with pytest.raises(qcowfuzz.Error, match="map_extents"):
        qcowfuzz.Harness("nothing", Zeros())
    with pytest.raises(qcowfuzz.Error):
        qcowfuzz.assemble("image nothing")


def test_inputs_are_made_and_the_same_seed_makes_the_same():
    harness = qcowfuzz.Harness("map_extents", Zeros())
    data = harness.generate(1)
    assert data == harness.generate(1) != harness.generate(2)
    assert harness.mutate(data, 3) == harness.mutate(data, 3)
    assert len(harness.mutate(data, 3, max_size=len(data))) <= len(data)
    assert len(harness.cross_over(data, harness.generate(2), 5, max_size=100)) <= 100


def test_files_have_the_expected_bytes():
    case = qcowfuzz.Case(ZEROS_OVER_DATA)
    with case.files() as paths, open(paths[0], "rb") as image:
        assert image.read(4) == b"QFI\xfb"
    assert case.size == 64 << 20
    assert case.expected(4 << 16, 1 << 16) == bytes(1 << 16)
    assert case.expected(5 << 16, 1 << 16) != bytes(1 << 16)
    assert case.expected(64 << 20, 8) == bytes(8)


def test_a_writer_is_judged():
    """The requests of `writes` reach the disk. A writer that keeps nothing is wrong."""
    class Forgetful(Zeros):
        claims = [*CLAIMS, "no power cuts", "no failing file operations"]

        def open_to_write(self, files):
            return self.open(files)

        def write(self, offset, data):
            pass

        def flush(self):
            pass

    harness = qcowfuzz.Harness("writes", Forgetful())
    assert any(harness.run(harness.generate(seed)) for seed in range(50))
