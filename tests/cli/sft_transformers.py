"""sft_transformers.py - prints the losses of tests/golden/make_sft.py, made now. SPDX-License-Identifier: Apache-2.0"""
import json
import os
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden"))
import make_sft  # noqa: E402

print(json.dumps(make_sft.all_losses()))
