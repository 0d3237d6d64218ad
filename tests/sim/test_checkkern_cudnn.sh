#!/usr/bin/env bash
# test_checkkern_cudnn.sh - checkkern where cuDNN refuses some shapes: these are skipped by name, whether or not dsc has
# a second kernel of its own for them. Convolutions of all shapes are compared where cuDNN has them. SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-build/gcc-release/tests/sim}
out=$(mktemp); trap 'rm -f "$out"' EXIT
n=0 rc=0
run() { # QUIRK PATTERN: a cusim_cudnn
    CK_CUDNN=1 CUSIM_CUDNN=$1 timeout 100 "$sim/checkkern" --device cuda --fn "$2" >"$out" 2>&1 </dev/null || rc=$?
}
run 8 'attention_* cudnn*'
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
run 1 'conv2d cudnn*'
check "no convolution fails" '^not ok' 0
check "windows of one pixel at stride 1, and of a whole picture, are products" '^ok [0-9]+ - conv2d cudnn .* # SKIP cuDNN has no plan for the shape' 24
check "all others are compared, in fp32 and bf16" '^ok [0-9]+ - conv2d cudnn [^#]*$' 96
run 8 'conv2d cudnn*'
check "no convolution fails beside refused ones" '^not ok' 0
check "channels that cuDNN refuses are skipped by name" '^ok [0-9]+ - conv2d cudnn .* # SKIP cuDNN has no plan' 108
echo "1..$n"
[ $rc -eq 0 ]
