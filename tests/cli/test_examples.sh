#!/usr/bin/env bash
# test_examples.sh - the example programs build, run and learn. SPDX-License-Identifier: Apache-2.0
set -u
bin=${DSC_BIN:?}; dir=$(mktemp -d); trap 'rm -rf "$dir"' EXIT
n=0
check() { # NAME CONDITION...
    local name=$1; shift; n=$((n + 1))
    if "$@"; then echo "ok $n - $name"; else echo "not ok $n - $name"; sed 's/^/# /' "$dir/out"; fi
}
falls() { # first and last number after WORD in the output
    awk -v w="$1" '{for (i = 1; i < NF; i++) if ($i == w) {if (first == "") first = $(i + 1); last = $(i + 1)}} END {exit !(last + 0 < 0.9 * first)}' "$dir/out"
}
for i in $(seq 200); do echo "the quick brown fox jumps over the lazy dog, line $i of a short text."; done > "$dir/text.txt"

"$bin/examples/own_model" > "$dir/out" 2>&1; rc=$?
check "own_model ends with 0" test $rc -eq 0
check "own_model learns" falls error
cp "$dir/out" "$dir/alone"
"$bin/dsc-launch" --num_gpus=2 "$bin/examples/own_model" 2>/dev/null > "$dir/out"; rc=$?
check "own_model runs on two ranks" test $rc -eq 0
check "own_model on two ranks learns" falls error
"$bin/examples/train_gpt" "$dir/text.txt" 2 8 > "$dir/out" 2>&1; rc=$?
check "train_gpt ends with 0" test $rc -eq 0
check "train_gpt learns" falls loss
"$bin/examples/train_gpt" "$dir/missing.txt" 2 3 > "$dir/out" 2>&1; rc=$?
check "train_gpt without its text is bad input" test $rc -eq 2
check "train_gpt names the missing file" grep -q missing.txt "$dir/out"
echo "1..$n"
