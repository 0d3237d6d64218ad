#!/usr/bin/env bash
# test_convnets.sh - convolutional networks against torchvision. DSC_TEST_PYTHON names a python that has it; DSC_TEST_NIGHT=1 runs all
# architectures. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torchvision, safetensors' 2>/dev/null || { echo "torchvision is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
exec "$python" "$(dirname "$0")/convnets.py" "${DSC_BIN:?}"
