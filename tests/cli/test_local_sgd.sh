#!/usr/bin/env bash
# test_local_sgd.sh - local SGD and DiLoCo beside a script of PyTorch (DSC_TEST_PYTHON names a python with torch and
# transformers). SPDX-License-Identifier: Apache-2.0
[ -z "${DSC_SAN:-}" ] || { echo "the comparison is of numbers, which a build without a sanitizer has too"; exit 77; }
python=${DSC_TEST_PYTHON:-python3}
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "torch and transformers are not installed for $python"; exit 77; }
OMP_NUM_THREADS=1 exec "$python" -B "$(dirname "$0")/local_sgd_test.py" "${DSC_BIN:?}"
