#!/usr/bin/env bash
# test_moe_transformers.sh - losses of routers and loads of experts beside Hugging Face's transformers (PyPI), in 20 AdamW
# steps of each family with experts. DSC_TEST_PYTHON names a python that has transformers.
# SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "transformers is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
exec "$python" "$(dirname "$0")/moe_test.py" "${DSC_BIN:?}"
