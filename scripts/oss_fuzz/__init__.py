"""The parts of scripts/oss-fuzz-check: the builder, the runner, and what people read of a crash or of coverage."""
