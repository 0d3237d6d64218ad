#!/usr/bin/env bash
# test_optimizers.sh - the distributed optimizer for 100 steps beside torch.optim (python3-torch, or the python that DSC_TEST_PYTHON names) and,
# where torch has none, the paper's formula. SPDX-License-Identifier: Apache-2.0
[ -z "${DSC_SAN:-}" ] || { echo "python3 is not built with -fsanitize=$DSC_SAN"; exit 77; }
python=/usr/bin/python3
"$python" -c 'import torch' 2>/dev/null || python=${DSC_TEST_PYTHON:-$python}
"$python" -c 'import torch' 2>/dev/null || { echo "python3-torch is not installed"; exit 77; }
exec "$python" "$(dirname "$0")/optimizers_test.py" "${DSC_LIB:?}/libdsc.so"
