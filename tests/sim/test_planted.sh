#!/usr/bin/env bash
# test_planted.sh - faults planted into real kernels (tests/sim/planted): checkkern on simulated GPUs, with a copy of
# one source that sed has changed in its place, must see each. SPDX-License-Identifier: Apache-2.0
set -u
sim=${DSC_SIM:-build/gcc-release/tests/sim}
out=$(mktemp); trap 'rm -f "$out"' EXIT
n=0
check() { # check NAME PROGRAM WANTED_EXIT_IS_ZERO TEXT [CASES]
    local name=$1 program=$2 well=$3 text=$4 cases=${5:-colsum*} rc=0 ok=ok
    n=$((n + 1))
    timeout 60 "$program" --device cuda --fn "$cases" >"$out" 2>&1 </dev/null || rc=$?
    [ $rc -ne 124 ] && [ "$([ $rc -eq 0 ] && echo yes || echo no)" = "$well" ] && grep -qE -- "$text" "$out" || ok="not ok"
    echo "$ok $n - $name"
    [ "$ok" = ok ] || { echo "# exit $rc"; tail -n 5 "$out" | sed 's/^/# /'; }
}
check "column sums as they are" "$sim/checkkern" yes '^ok 1 - colsum '
check "a missing barrier gives other numbers" "$sim/planted/colsum-barrier" no '^not ok [0-9]+ - colsum '
check "a write behind the last column is found behind the output" "$sim/planted/colsum-bounds" no '^#  +cuda, .*: out: written [0-9]+ bytes after its end'
frequent='embedding_bwd bf16 rows=1100*' # several tiles of rows of one token
check "a frequent token as it is" "$sim/checkkern" yes '^ok 1 - embedding_bwd ' "$frequent"
check "a tile that is overwritten too early is found" "$sim/planted/embedding-tile" no '^not ok 1 - embedding_bwd ' "$frequent"
turned='cast_fp8 e4m3 144x272 normal rows columns'
check "a cast to fp8 as it is" "$sim/checkkern" yes '^ok 1 - cast_fp8 ' "$turned"
check "a square that is read before it is written is found" "$sim/planted/fp8-barrier" no '^not ok 1 - cast_fp8 ' "$turned"
groups='attention* warpgroups*T=420*' # more tiles than stages
check "attention by warpgroups as it is" "$sim/checkkern" yes '^ok 2 - attention_bwd warpgroups ' "$groups"
# Without the wait a kernel reads keys too early and releases their buffer too early, which may also end the copies.
check "keys that are not waited for are found" "$sim/planted/attention_fwd_sm90-wait" no \
    '^not ok 1 - attention_fwd |^cusim: deadlock inside .?sm90_kernel' "$groups"
check "values that are given back too early are found" "$sim/planted/attention_fwd_sm90-early" no '^not ok 1 - attention_fwd ' "$groups"
check "queries that are given back too early are found" "$sim/planted/attention_bwd_sm90-early" no '^not ok 2 - attention_bwd ' "$groups"
check "keys that are given back too early are found" "$sim/planted/attention_dq_sm90-early" no '^not ok 2 - attention_bwd ' "$groups"
check "score gradients in the place of another head are found" "$sim/planted/attention_bwd_sm90-head" no '^not ok 2 - attention_bwd ' "$groups"
wide='grouped_gemm wide*more steps than stages' # two experts
check "grouped products by warpgroups as they are" "$sim/checkkern" yes '^ok 3 - grouped_gemm wide weight ' "$wide"
check "operands that are not waited for are found" "$sim/planted/grouped_gemm_sm90-wait" no \
    '^not ok 1 - grouped_gemm |^cusim: deadlock inside .?grouped_sm90_kernel' "$wide"
check "operands that are given back too early are found" "$sim/planted/grouped_gemm_sm90-early" no '^not ok 1 - grouped_gemm ' "$wide"
check "rows of the next expert are found" "$sim/planted/grouped_gemm_sm90-rows" no '^not ok 3 - grouped_gemm wide weight ' "$wide"
running='batch_stats f32 63x33 with statistics' tiles='batch_stats f32 130x64' # one tile of rows, and several
check "statistics of a batch norm as they are" "$sim/checkkern" yes '^ok 1 - batch_stats ' "$running"
check "a running variance over too many rows is found" "$sim/planted/batch_norm-biased" no '^#  +cuda, .*: variance\[' "$running"
check "parts of statistics that are added too early are found" "$sim/planted/batch_norm-barrier" no '^not ok 1 - batch_stats ' "$tiles"
echo "1..$n"
