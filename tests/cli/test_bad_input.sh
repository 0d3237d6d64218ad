#!/usr/bin/env bash
# test_bad_input.sh - whatever a user gives to train, dsc and dsc-launch: one clear line, the right exit code, soon, in
# little memory, and nothing left behind. TAP.
#
# test_bad_input.sh [PATTERN] [-v]   only the tests whose name contains it; -v: how long each took.
# SPDX-License-Identifier: Apache-2.0
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null || { echo "python3 is needed for these tests"; exit 77; }
export DSC_BIN=${DSC_BIN:-$here/../../bin}
[ -x "$DSC_BIN/train" ] || { echo "not ok 1 - $DSC_BIN/train is not there"; exit 1; }
exec python3 -B "$here/bad/main.py" "$@"
