#!/usr/bin/env bash
# test_masked_targets.sh - masked targets beside PyTorch: loss and gradient over the counted targets of a whole step, for ranks, stages,
# accumulation, dtypes and both ways of giving micro-batches. SPDX-License-Identifier: Apache-2.0
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || python=${DSC_TEST_PYTHON:-$python}
"$python" -c 'import torch' 2>/dev/null || { echo "python3-torch is not installed"; exit 77; }
# A sanitizer's runtime must come first in a program that loads an instrumented library.
[ -z "${DSC_SAN:-}" ] || { echo "python3 is not built with -fsanitize=$DSC_SAN"; exit 77; }
exec "$python" "$(dirname "$0")/masked_targets_test.py" "${DSC_LIB:?}/libdsc.so"
