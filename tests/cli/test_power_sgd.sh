#!/usr/bin/env bash
# test_power_sgd.sh - PowerSGD of two ranks beside PyTorch's powerSGD_hook on gloo (python3-torch, or the python that
# DSC_TEST_PYTHON names). SPDX-License-Identifier: Apache-2.0
[ -z "${DSC_SAN:-}" ] || { echo "python3 is not built with -fsanitize=$DSC_SAN"; exit 77; }
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || python=${DSC_TEST_PYTHON:-$python}
"$python" -c 'import torch' 2>/dev/null || { echo "python3-torch is not installed"; exit 77; }
root=$(cd "$(dirname "$0")/../.." && pwd)
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
if ! ${CC:-cc} -std=c17 -D_GNU_SOURCE -Wall -Wextra -Werror -O1 -I"$root" -I"$root/include" -fopenmp \
    -o "$tmp/power_factors" "$root/tests/cli/power_factors.c" "${DSC_LIB:?}/libdsc.a" \
    -ldnnl -lxxhash -lutf8proc -lcjson -lpthread -ldl -lm 2>"$tmp/why"; then
    echo "not ok 1 - power_factors.c compiles"
    sed 's/^/# /' "$tmp/why" | tail -n 15
    echo "1..1"
    exit 1
fi
OMP_NUM_THREADS=1 "$python" -B "$(dirname "$0")/power_sgd_test.py" "$DSC_LIB/libdsc.so" "$tmp/power_factors"
