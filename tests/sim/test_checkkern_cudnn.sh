#!/usr/bin/env bash
# test_checkkern_cudnn.sh - checkkern where cuDNN refuses some shapes: these are skipped by name, whether or not dsc has
# a second kernel of its own for them. SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-build/gcc-release/tests/sim}
out=$(mktemp); trap 'rm -f "$out"' EXIT
n=0 rc=0
CK_CUDNN=1 CUSIM_CUDNN=8 timeout 60 "$sim/checkkern" --device cuda --fn 'attention_* cudnn*' >"$out" 2>&1 </dev/null || rc=$?
check() { # NAME PATTERN COUNT: so many lines have the pattern
    n=$((n + 1))
    if [ "$(grep -cE -- "$2" "$out")" -eq "$3" ]; then echo "ok $n - $1"; else
        echo "not ok $n - $1"; echo "# exit $rc"; grep -A 3 '^not ok' "$out" | head -n 12 | sed 's/^/# /'
    fi
}
check "no case fails" '^not ok' 0
for pass in fwd bwd; do
    check "shapes that cuDNN refuses are skipped by name: attention_$pass" \
        "^ok [0-9]+ - attention_$pass cudnn .* # SKIP cuDNN has no plan for the shape" 2
    check "heads of 200, which have one own kernel, are such a shape: attention_$pass" \
        "^ok [0-9]+ - attention_$pass cudnn .* D=200 .* # SKIP" 1
    check "narrower heads are compared: attention_$pass" "^ok [0-9]+ - attention_$pass cudnn [^#]* D=(64|80|96|128) [^#]*$" 13
done
echo "1..$n"
[ $rc -eq 0 ]
