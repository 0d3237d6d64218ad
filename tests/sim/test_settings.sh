#!/usr/bin/env bash
# test_settings.sh - as tests/cli/test_settings.sh, on simulated GPUs. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/../cli/tap.sh"
sim=${DSC_SIM:-$root/build/gcc-release/tests/sim}
count=6 seed=${DSC_TEST_SEED:-21}
[ "${DSC_TEST_NIGHT:-0}" != 1 ] || count=300 seed=${DSC_TEST_SEED:-$((RANDOM * 32768 + RANDOM))}
python3 "$root/tests/cli/settings_sweep.py" "$sim/bin" "$tmp" "$count" "$seed" cuda
