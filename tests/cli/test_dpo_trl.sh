#!/usr/bin/env bash
# test_dpo_trl.sh - direct preference optimization beside TRL: losses, rewards and weights. SPDX-License-Identifier: Apache-2.0
python=${DSC_TEST_PYTHON:-/usr/bin/python3}
"$python" -c 'import datasets, peft, torch, transformers, trl' 2>/dev/null || { echo "python3 with torch, transformers, peft and trl is not there"; exit 77; }
exec "$python" "$(dirname "$0")/dpo_test.py" "${DSC_BIN:?}"
