#!/usr/bin/env bash
# test_adam8.sh - AdamW with 8-bit states beside bitsandbytes. DSC_TEST_PYTHON names a Python that has it and torch.
# SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-python3}
root=$(cd "$(dirname "$0")/../.." && pwd)
"$python" -c 'import bitsandbytes.backends.cpu.ops, torch; assert bitsandbytes.__version__ >= "0.49"' 2>/dev/null ||
    { echo "bitsandbytes 0.49 is not installed for $python (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
san=${DSC_SAN:+-fsanitize=$DSC_SAN}
# shellcheck disable=SC2086 # no option or one
if ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 $san -I"$root" -I"$root/include" -fopenmp \
    -o "$tmp/adam8_steps" "$root/tests/cli/adam8_steps.c" "${DSC_LIB:?}/libdsc.a" \
    -ldnnl -lxxhash -lutf8proc -lcjson -lpthread -ldl -lm 2>"$tmp/why"; then
    echo "not ok 1 - adam8_steps.c compiles"
    sed 's/^/# /' "$tmp/why" | tail -n 15
    echo "1..1"
    exit 1
fi
"$python" -B "$(dirname "$0")/adam8_test.py" "$tmp/adam8_steps" 2>"$tmp/why" || { tail -n 5 "$tmp/why"; exit 1; }
