#!/usr/bin/env bash
# test_rope.sh - frequencies of rotary positions, by kinds of scaling and of layers, beside transformers'.
# DSC_TEST_PYTHON names a Python that has transformers. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
"$python" -c 'import transformers; assert transformers.__version__ >= "5."' 2>/dev/null ||
    { echo "transformers 5 is not installed for $python"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
san=${DSC_SAN:+-fsanitize=$DSC_SAN}
# shellcheck disable=SC2086 # no option or one
if ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 $san -I"$root" -I"$root/include" -fopenmp \
    -o "$tmp/rope_frequencies" "$root/tests/cli/rope_frequencies.c" "${DSC_LIB:?}/libdsc.a" \
    -ldnnl -lxxhash -lutf8proc -lcjson -lpthread -ldl -lm 2>"$tmp/why"; then
    echo "not ok 1 - rope_frequencies.c compiles"
    sed 's/^/# /' "$tmp/why" | tail -n 15
    echo "1..1"
    exit 1
fi
"$python" -B "$(dirname "$0")/rope_test.py" "$tmp/rope_frequencies"
