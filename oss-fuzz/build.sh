#!/bin/bash -eu
# Builds the fuzz targets for OSS-Fuzz and ClusterFuzzLite: fills the folder $OUT with the targets and, for each, its
# seed corpus, its options and its dictionary. The builder's image runs this, and so does 'cargo xtask oss-fuzz'. See
# docs/campaigns.md. Licence: http://www.apache.org/licenses/LICENSE-2.0
#   oss-fuzz/build.sh [TARGET]    without an argument: all targets
set -euo pipefail
# The Dockerfile copies this file to $SRC.
cd "$SRC/qcowfuzz"

# All flags of the build; flags of rustc are to be added to the image's RUSTFLAGS here, too. `-O` by itself would turn
# debug assertions and overflow checks off.
flags=(-O --debug-assertions)

# Plain `cargo fuzz build`, without a toolchain: for coverage, the image's own `cargo` replaces these very words.
cargo fuzz build "${flags[@]}" "$@"

targets=${1:-$(cargo fuzz list)}
for target in $targets; do
    cp "${CARGO_TARGET_DIR:-fuzz/target}/x86_64-unknown-linux-gnu/release/$target" "$OUT/"
    # Each seed has a text (tests/corpus.rs). Beside the seeds lie finds of past runs, which have none.
    seeds=()
    for text in corpus/text/"$target"/*; do
        name=$(basename "$text")
        seeds+=("corpus/$target/${name%.*}")
    done
    # Python is in the image, and on machines without `zip`.
    python3 -m zipfile -c "$OUT/${target}_seed_corpus.zip" "${seeds[@]}"
    options=fuzz/options/$target.options
    [ -e "$options" ] || options=fuzz/options/programs.options
    cp "$options" "$OUT/$target.options"
    if [ -e "fuzz/dictionaries/$target.dict" ]; then
        cp "fuzz/dictionaries/$target.dict" "$OUT/"
    fi
done
