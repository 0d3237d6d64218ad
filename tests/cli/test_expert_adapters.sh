#!/usr/bin/env bash
# test_expert_adapters.sh - adapters of experts beside peft (PyPI). DSC_TEST_PYTHON names a python that has it.
# SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers, peft' 2>/dev/null || { echo "peft is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
"$python" "$(dirname "$0")/expert_adapters_test.py" "${DSC_BIN:?}" 2>&1 | grep -v '^Failed to load CPU gemm_4bit'
exit "${PIPESTATUS[0]}"
