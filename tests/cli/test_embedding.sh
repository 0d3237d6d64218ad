#!/usr/bin/env bash
# test_embedding.sh - training of vectors of texts (dsc.embedding) and `dsc embed`, beside transformers and, where it is
# installed, sentence-transformers (PyPI). DSC_TEST_PYTHON names a python that has them; DSC_TEST_NIGHT=1 adds families,
# losses, stages and placements. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch, transformers' 2>/dev/null || { echo "transformers is not installed (DSC_TEST_PYTHON names a python that has it)"; exit 77; }
exec "$python" "$(dirname "$0")/embedding_test.py" "${DSC_BIN:?}"
