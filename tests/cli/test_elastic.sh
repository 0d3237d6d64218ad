#!/usr/bin/env bash
# test_elastic.sh - jobs whose ranks leave and join (dsc-launch --min_np), with real processes and signals. TAP.
#
# test_elastic.sh [PATTERN]   only the tests whose name contains it. SPDX-License-Identifier: Apache-2.0
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
command -v python3 >/dev/null || { echo "python3 is needed for these tests"; exit 77; }
export DSC_BIN=${DSC_BIN:-$here/../../bin}
[ -x "$DSC_BIN/dsc-launch" ] || { echo "not ok 1 - $DSC_BIN/dsc-launch is not there"; exit 1; }
exec python3 -B "$here/launch/elastic.py" "$@"
