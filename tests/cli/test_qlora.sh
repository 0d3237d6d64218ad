#!/usr/bin/env bash
# test_qlora.sh - weights in 4 bits beside bitsandbytes, transformers and peft (PyPI). DSC_TEST_PYTHON names a python
# that has them. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers, peft, bitsandbytes, accelerate' 2>/dev/null ||
    { echo "bitsandbytes, peft and transformers are not installed (DSC_TEST_PYTHON names a python that has them)"; exit 77; }
"$python" "$(dirname "$0")/qlora_test.py" "${DSC_BIN:?}" 2>&1 | grep -v '^Failed to load CPU gemm_4bit'
exit "${PIPESTATUS[0]}"
