#!/usr/bin/env bash
# test_transformers.sh - comparison with Hugging Face's transformers (PyPI): 20 AdamW steps of every family from folders
# that it saved, in fp32, bf16 and fp16, whole and in shards. It also reads the folders of `dsc ckpt export`.
# DSC_TEST_PYTHON names a python that has transformers.
# SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "transformers is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
exec "$python" "$(dirname "$0")/transformers_test.py" "${DSC_BIN:?}"
