#!/usr/bin/env bash
# test_comm_bench.sh - `dsc comm bench`: with ranks of its own, and as ranks that a launcher (here: this script, with
# torchrun's variables and no job token) started. SPDX-License-Identifier: Apache-2.0
. "$(dirname "${BASH_SOURCE[0]}")/tap.sh"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_SIZE LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DSC_JOB_TOKEN

"$dsc" comm bench --ranks 3 --mib 1 --rounds 2 --json >"$tmp/own" 2>"$tmp/err"
report "three ranks of its own" [ $? -eq 0 ]
report "one line per operation" [ "$(grep -c '"ranks":3' "$tmp/own")" -eq 4 ]
report "nothing on stderr" [ ! -s "$tmp/err" ]
"$dsc" comm bench --ranks 2 --mib 1,2 --rounds 1 --plain --bf16 >"$tmp/text"
report "a table for people" grep -q 'shm, 2 ranks, plain memory, bf16' "$tmp/text"
"$dsc" comm bench --ranks 1 --mib 1 --rounds 1 --json >"$tmp/self"
report "one rank is self" grep -q '"transport":"self"' "$tmp/self"

port=$((20000 + $$ % 20000))
for r in 0 1; do
    RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
        "$dsc" comm bench --mib 1 --rounds 1 --json >"$tmp/rank$r" 2>"$tmp/err$r" &
    pids[r]=$!
done
wait "${pids[0]}"; report "rank 0 of two started ones" [ $? -eq 0 ]
wait "${pids[1]}"; report "rank 1 of two started ones" [ $? -eq 0 ]
report "only rank 0 prints" [ "$(grep -c shm "$tmp/rank0")" -eq 4 -a ! -s "$tmp/rank1" ]

"$dsc" comm bench --comm tcp --ranks 3 --kib 64,256 --rounds 1 --json >"$tmp/tcp" 2>"$tmp/err"
report "three ranks over tcp" [ $? -eq 0 -a "$(grep -c '"transport":"tcp","ranks":3' "$tmp/tcp")" -eq 7 ]
for r in 0 1; do # two hosts of one rank each, as far as the ranks know
    RANK=$r WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 20000)) \
        DSC_JOB_TOKEN=t$$ \
        "$dsc" comm bench --mib 1 --rounds 1 --json >"$tmp/rank$r" 2>"$tmp/err$r" &
    pids[r]=$!
done
wait "${pids[0]}"; report "rank 0 on two hosts" [ $? -eq 0 ]
wait "${pids[1]}"; report "rank 1 on two hosts" [ $? -eq 0 ]
report "several hosts choose tcp" grep -q '"transport":"tcp"' "$tmp/rank0"
for r in 0 1 2; do # two and one, as torchrun says it
    RANK=$r WORLD_SIZE=3 LOCAL_RANK=$((r % 2)) LOCAL_WORLD_SIZE=$((2 - r / 2)) GROUP_RANK=$((r / 2)) GROUP_WORLD_SIZE=2 \
        MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 20000)) DSC_JOB_TOKEN=h$$ \
        "$dsc" comm bench --kib 64,256 --rounds 1 --json >"$tmp/rank$r" 2>"$tmp/err$r" &
    pids[r]=$!
done
wait "${pids[0]}" "${pids[1]}"; wait "${pids[2]}"
report "two ranks on a host and one on another choose hier" [ "$(grep -c '"transport":"hier","ranks":3' "$tmp/rank0")" -eq 7 ]
if unshare -pf true 2>/dev/null; then # containers on one host: ranks that cannot see each other cannot share memory
    for r in 0 1 2; do
        RANK=$r WORLD_SIZE=3 LOCAL_RANK=$((r % 2)) LOCAL_SIZE=$((2 - r / 2)) CROSS_RANK=$((r / 2)) CROSS_SIZE=2 \
            MASTER_ADDR=127.0.0.1 MASTER_PORT=$((10000 + $$ % 20000)) DSC_JOB_TOKEN=u$$ \
            unshare -pf "$dsc" comm bench --kib 64 --rounds 1 --json >"$tmp/rank$r" 2>"$tmp/err$r" &
        pids[r]=$!
    done
    wait "${pids[0]}" "${pids[1]}"; wait "${pids[2]}"
    report "ranks that cannot share memory do without" [ "$(grep -c '"ranks":3' "$tmp/rank0")" -eq 4 ]
else
    skip "ranks that cannot share memory do without" "no process namespaces here"
fi
RANK=0 WORLD_SIZE=4 LOCAL_RANK=0 LOCAL_SIZE=2 MASTER_ADDR=worker-0 "$dsc" comm bench >"$tmp/out" 2>"$tmp/err"
report "several hosts without a token are refused" [ $? -eq 2 ]
report "with the way out" grep -q 'DSC_JOB_TOKEN: not set.*export' "$tmp/err"
DSC_PLUGIN_DIR=$tmp "$dsc" comm bench --comm gloo >"$tmp/out" 2>"$tmp/err"
report "gloo without its library is refused" [ $? -eq 2 ]
report "in one line with the way out" [ "$(grep -c 'dsc.comm: "gloo": .*libgloo-dev.*"tcp"' "$tmp/err")" -eq 1 ]
"$dsc" comm bench --comm gloo --ranks 3 --kib 64,256 --rounds 1 --json >"$tmp/gloo" 2>"$tmp/err"
if grep -q 'has no libdsc_gloo.so' "$tmp/err"; then
    skip "three ranks over gloo" "$(cat "$tmp/err")"
else
    report "three ranks over gloo" [ "$(grep -c '"transport":"gloo","ranks":3' "$tmp/gloo")" -eq 7 ]
fi
"$dsc" comm bench --comm pigeons >"$tmp/out" 2>"$tmp/err"
report "an unknown transport is refused" [ $? -eq 2 ]
report "with those there are" grep -q '"pigeons" is not a transport.*"tcp"' "$tmp/err"
"$dsc" comm bench --mib 4,1 >"$tmp/out" 2>"$tmp/err"
report "a bad list of sizes is refused" [ $? -eq 2 ]
report "with its flag" grep -q '^dsc: error: --mib: ' "$tmp/err"
"$dsc" comm nonsense >"$tmp/out" 2>"$tmp/err"
report "an unknown subcommand is refused" [ $? -eq 2 ]
RANK=1 "$dsc" comm bench >"$tmp/out" 2>"$tmp/err"
report "half an environment is refused" [ $? -eq 2 ]
report "by the name of the variable" grep -q 'WORLD_SIZE' "$tmp/err"
end_of_tests
