#!/usr/bin/env bash
# test_block_limits.sh - kernels on GPUs whose blocks may have less shared memory than those of sm_90. Attention with
# wide heads takes smaller tiles there, a row of logits is kept in part, and gradients of norms take fewer rows at a
# time. SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-build/gcc-release/tests/sim}
out=$(mktemp); trap 'rm -f "$out"' EXIT
n=0
check() { # check ARCH CASES AT_LEAST WHAT
    local rc=0
    n=$((n + 1))
    CUSIM_ARCH=$1 timeout 120 "$sim/checkkern" --device cuda --fn "$2" >"$out" 2>&1 </dev/null || rc=$?
    if [ $rc -eq 0 ] && [ "$(grep -c '^ok ' "$out")" -ge "$3" ]; then echo "ok $n - $4 on sm_$1"
    else echo "not ok $n - $4 on sm_$1"; echo "# exit $rc"; grep -v '^ok ' "$out" | head -n 5 | sed 's/^/# /'; fi
}
for arch in 80 86 89 120; do
    check $arch 'attention_* bf16 B=1 T=[67]? H=2/2 D=128 *' 6 "attention with heads of 128"
done
for arch in 80 89; do
    check $arch 'cross_entropy kept bf16 rows=3*' 2 "a row of logits that is kept in part"
    check $arch 'rmsnorm_bwd bf16 6?x*aligned' 4 "gradients of norms"
done
echo "1..$n"
