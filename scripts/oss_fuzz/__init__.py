"""The parts of scripts/oss-fuzz-check: the builder, the runner, and the reports of crashes and coverage."""
