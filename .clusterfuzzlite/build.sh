#!/bin/bash -eu
# The builder's image runs this. Licence: http://www.apache.org/licenses/LICENSE-2.0
exec "$SRC/qcowfuzz/oss-fuzz/build.sh" "$@"
