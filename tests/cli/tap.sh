# tap.sh - the common start of shell tests: . "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
#
# Gives root, bin, dsc, the folder tmp that goes with the test, and TAP lines. A condition tells why it failed by leaving
# files in tmp: why, out, err. SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash disable=SC2034 # its variables are for those who read it in
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bin=${DSC_BIN:-$root/bin}
dsc=$bin/dsc
tmp=$(mktemp -d -p "${tap_folder:-${TMPDIR:-/tmp}}")
trap 'rm -rf "$tmp"' EXIT # a test with more to tidy sets its own
number=0 failed=0 code=0

report() { # NAME CONDITION...: one TAP line
    local name=$1 file
    shift
    number=$((number + 1))
    if "$@"; then echo "ok $number - $name"; else
        echo "not ok $number - $name"
        [ "$code" -eq 0 ] || echo "# exit $code"
        for file in why out err; do [ ! -s "$tmp/$file" ] || tail -n 15 "$tmp/$file" | sed "s/^/# $file: /"; done
        failed=1
    fi
    rm -f "$tmp/why"
}
skip() { number=$((number + 1)); echo "ok $number - $1 # SKIP $2"; } # NAME REASON
fail() { echo "$@" >>"$tmp/why"; return 1; }                        # WORDS: for the condition that is being looked at
end_of_tests() { echo "1..$number"; exit $failed; }
