#!/usr/bin/env bash
# test_torch.sh - training against PyTorch: losses and gradient norms of 20 AdamW steps. SPDX-License-Identifier: Apache-2.0
/usr/bin/python3 -c 'import torch' 2>/dev/null || { echo "python3-torch is not installed"; exit 77; }
exec /usr/bin/python3 "$(dirname "$0")/torch_test.py" "${DSC_BIN:?}" ${DSC_SAN:+--short}
