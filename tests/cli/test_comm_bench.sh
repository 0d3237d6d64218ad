#!/usr/bin/env bash
# test_comm_bench.sh - `dsc comm bench`: with ranks of its own, and as ranks that a launcher (here: this script, with
# torchrun's variables and no job token) started. SPDX-License-Identifier: Apache-2.0
set -u
dsc=${DSC_BIN:-bin}/dsc
n=0
check() { # NAME CONDITION...
    n=$((n + 1))
    if "${@:2}"; then echo "ok $n - $1"; else echo "not ok $n - $1"; fi
}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DSC_JOB_TOKEN

"$dsc" comm bench --ranks 3 --mib 1 --rounds 2 --json >"$tmp/own" 2>"$tmp/err"
check "three ranks of its own" [ $? -eq 0 ]
check "one line per operation" [ "$(grep -c '"ranks":3' "$tmp/own")" -eq 4 ]
check "nothing on stderr" [ ! -s "$tmp/err" ]
"$dsc" comm bench --ranks 2 --mib 1,2 --rounds 1 --plain --bf16 >"$tmp/text"
check "a table for people" grep -q 'shm, 2 ranks, plain memory, bf16' "$tmp/text"
"$dsc" comm bench --ranks 1 --mib 1 --rounds 1 --json >"$tmp/self"
check "one rank is self" grep -q '"transport":"self"' "$tmp/self"

port=$((20000 + $$ % 20000))
for r in 0 1; do
    RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        "$dsc" comm bench --mib 1 --rounds 1 --json >"$tmp/rank$r" 2>"$tmp/err$r" &
    pids[r]=$!
done
wait "${pids[0]}"; check "rank 0 of two started ones" [ $? -eq 0 ]
wait "${pids[1]}"; check "rank 1 of two started ones" [ $? -eq 0 ]
check "only rank 0 prints" [ "$(grep -c shm "$tmp/rank0")" -eq 4 -a ! -s "$tmp/rank1" ]

"$dsc" comm bench --comm tcp --ranks 3 --kib 64,256 --rounds 1 --json >"$tmp/tcp" 2>"$tmp/err"
check "three ranks over tcp" [ $? -eq 0 -a "$(grep -c '"transport":"tcp","ranks":3' "$tmp/tcp")" -eq 7 ]
for r in 0 1; do # two hosts of one rank each, as far as the ranks know
    RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 20000)) \
        DSC_JOB_TOKEN=t$$ \
        "$dsc" comm bench --mib 1 --rounds 1 --json >"$tmp/rank$r" 2>"$tmp/err$r" &
    pids[r]=$!
done
wait "${pids[0]}"; check "rank 0 on two hosts" [ $? -eq 0 ]
wait "${pids[1]}"; check "rank 1 on two hosts" [ $? -eq 0 ]
check "several hosts choose tcp" grep -q '"transport":"tcp"' "$tmp/rank0"
RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_SIZE=2 MASTER_ADDR=worker-0 "$dsc" comm bench >"$tmp/out" 2>"$tmp/err"
check "several hosts without a token are refused" [ $? -eq 2 ]
check "with the way out" grep -q 'DSC_JOB_TOKEN: not set.*export' "$tmp/err"
DSC_PLUGIN_DIR=$tmp "$dsc" comm bench --comm gloo >"$tmp/out" 2>"$tmp/err"
check "gloo without its library is refused" [ $? -eq 2 ]
check "in one line with the way out" [ "$(grep -c 'dsc.comm: "gloo": .*libgloo-dev.*"tcp"' "$tmp/err")" -eq 1 ]
"$dsc" comm bench --comm gloo --ranks 3 --kib 64,256 --rounds 1 --json >"$tmp/gloo" 2>"$tmp/err"
if grep -q 'has no libdsc_gloo.so' "$tmp/err"; then
    n=$((n + 1)); echo "ok $n - three ranks over gloo # SKIP $(cat "$tmp/err")"
else
    check "three ranks over gloo" [ "$(grep -c '"transport":"gloo","ranks":3' "$tmp/gloo")" -eq 7 ]
fi
"$dsc" comm bench --comm pigeons >"$tmp/out" 2>"$tmp/err"
check "an unknown transport is refused" [ $? -eq 2 ]
check "with those there are" grep -q '"pigeons" is no transport.*"tcp"' "$tmp/err"
"$dsc" comm bench --mib 4,1 >"$tmp/out" 2>"$tmp/err"
check "a bad list of sizes is refused" [ $? -eq 2 ]
check "with its flag" grep -q '^dsc: error: --mib: ' "$tmp/err"
"$dsc" comm nonsense >"$tmp/out" 2>"$tmp/err"
check "an unknown subcommand is refused" [ $? -eq 2 ]
RANK=1 "$dsc" comm bench >"$tmp/out" 2>"$tmp/err"
check "half an environment is refused" [ $? -eq 2 ]
check "by the name of the variable" grep -q 'WORLD_SIZE' "$tmp/err"
echo "1..$n"
