#!/usr/bin/env bash
# test_routing.sh - experts that routers choose in bf16, against Hugging Face's transformers (PyPI). DSC_TEST_PYTHON names a python that has
# it. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "transformers is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
exec "$python" "$(dirname "$0")/routing_test.py" "${DSC_BIN:?}"
