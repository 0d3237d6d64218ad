#!/usr/bin/env bash
# test_settings.sh - any settings of how a run is done give the bits of any others: random runs, each done three ways
# (settings_sweep.py). By day the same few, DSC_TEST_NIGHT=1 300 new ones; DSC_TEST_SEED chooses where they begin.
# SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
export OMP_WAIT_POLICY=passive
count=10 seed=${DSC_TEST_SEED:-21}
[ "${DSC_TEST_NIGHT:-0}" != 1 ] || count=300 seed=${DSC_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
python3 "$root/tests/cli/settings_sweep.py" "$bin" "$tmp" "$count" "$seed"
