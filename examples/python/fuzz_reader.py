import sys

import atheris

with atheris.instrument_imports():
    import reader

import qcowfuzz
from engine import Engine

harness = qcowfuzz.Harness("map_extents", Engine())
atheris.Setup(sys.argv, harness.check, custom_mutator=lambda data, size, seed: harness.mutate(data, seed, size),
              custom_crossover=lambda a, b, size, seed: harness.cross_over(a, b, seed, size))
atheris.Fuzz()
