#!/usr/bin/env bash
# test_qlora_trained.sh - QLoRA beside LoRA in bf16 and beside peft, on a model that is trained first (PyPI).
# DSC_TEST_PYTHON names a python that has peft, bitsandbytes and transformers. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers, peft, bitsandbytes, accelerate' 2>/dev/null ||
    { echo "bitsandbytes, peft and transformers are not installed (DSC_TEST_PYTHON names a python that has them)"; exit 77; }
"$python" "$(dirname "$0")/qlora_trained_test.py" "${DSC_BIN:?}" 2>&1 | grep -v '^Failed to load CPU gemm_4bit'
exit "${PIPESTATUS[0]}"
