#!/usr/bin/env bash
# test_sft_equal.sh - losses of 20 fp32 steps on instruction data, equal to those of transformers and TRL on the same tokens and mask.
# Ranks, stages and accumulation vary. The expected losses are a golden file; with torch, transformers and trl of
# DSC_TEST_PYTHON they are made again. SPDX-License-Identifier: Apache-2.0
exec python3 "$(dirname "$0")/sft_equal_test.py" "${DSC_BIN:?}"
